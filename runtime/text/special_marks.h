// Marks in client text; chat_encoder.h says what for.
#pragma once

#include <bitset>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <rt/plugin/status.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace rt {

class SpecialMarks {
 public:
  // `special`: texts of special tokens, not empty. `others`: texts of added tokens that templates may look for in
  // client text and cut out. `used`: everything that takes part in rendering, in UTF-8; `seed` picks the code points.
  // kInvalidArgument if no private-use code point is free.
  static Result<SpecialMarks> Choose(const std::vector<std::string>* special, const std::vector<std::string>* others,
                                     std::string_view used, uint64_t seed);

  // Marks all strings and keys of `value`.
  void MarkAll(nlohmann::ordered_json* value) const;
  std::string Mark(std::string_view text) const;

  // Puts the characters back; *places receives the byte offsets of each of them in the result.
  std::string Restore(std::string_view text, std::vector<size_t>* places) const;

  // The mark code points in UTF-8.
  std::string Marks() const;

 private:
  const std::string* MarkOf(std::string_view character) const;
  bool MustMark(std::string_view rest) const;
  bool StartsWithOther(std::string_view text) const;

  const std::vector<std::string>* special_ = nullptr;
  const std::vector<std::string>* others_ = nullptr;
  std::map<std::string, std::string, std::less<>> mark_of_;  // first character of a special token: its mark
  std::bitset<256> first_bytes_;                             // of those characters
};

}  // namespace rt
