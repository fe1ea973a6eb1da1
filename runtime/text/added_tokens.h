// Added tokens: strings that are tokens by themselves, found in the text before any word is cut.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rt {

struct AddedToken {
  int32_t id = -1;
  std::string content;      // UTF-8, not empty
  bool special = false;     // control token: never made from a user's text, left out by Decode(skip_special)
  bool single_word = false; // only where no letter, digit or underscore touches it
  bool lstrip = false;      // swallows white space before it
  bool rstrip = false;      // swallows white space after it
  bool normalized = false;  // looked for in normalized text, not in the raw text
};

class AddedTokenMatcher {
 public:
  struct Span {
    size_t begin;  // bytes of the searched text
    size_t end;
    int32_t id;    // -1: ordinary text
  };

  // At each position the longest token wins; earlier positions win over later ones.
  void Add(const AddedToken& token, std::string content);
  bool empty() const { return tokens_.empty(); }

  // Cuts `text` (valid UTF-8) into spans that cover it, in order; white space taken by lstrip/rstrip belongs to the token.
  // With `allow_special` false no special token is found. A special token whose bytes include an offset listed in
  // `protected_bytes` (ascending) is not found either: that text came from a user.
  std::vector<Span> Cut(std::string_view text, bool allow_special, std::span<const size_t> protected_bytes) const;

 private:
  struct Pattern {
    AddedToken token;
    std::string content;
  };
  size_t NextCandidate(std::string_view text, size_t pos) const;
  const Pattern* LongestAt(std::string_view text, size_t pos) const;

  std::vector<Pattern> tokens_;
  std::array<std::vector<uint32_t>, 256> by_first_byte_;  // indices into tokens_, longest content first
  std::array<bool, 256> is_first_byte_{};
  int num_first_bytes_ = 0;
};

}  // namespace rt
