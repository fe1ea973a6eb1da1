// Cuts normalized text into words by the regular expressions of a tokenizer.json; byte-pair merges never cross a word.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <rt/plugin/status.hpp>
#include <string_view>
#include <vector>

namespace rt {

class PreTokenizer {
 public:
  // Match data and JIT stack of one thread; made once, used for any number of calls, one call at a time.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class PreTokenizer;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  PreTokenizer(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // `spec` is the pre_tokenizer object: Split (Regex or String; behavior Isolated or Removed), ByteLevel, Digits or a
  // Sequence of them. It must contain ByteLevel, because tokens are bytes. Anything else is kUnsupported, by name.
  static Result<PreTokenizer> Create(const nlohmann::json& spec);

  // Calls `word` for each non-empty word of `text` (valid UTF-8) in order; the views point into `text`.
  // Fails only when an expression needs more than its match limit (kResourceExhausted).
  template <typename F>
  Status ForEachWord(std::string_view text, Scratch* scratch, F&& word) const {
    return Split(0, text, scratch, Sink{&word, [](void* f, std::string_view w) { (*static_cast<std::remove_reference_t<F>*>(f))(w); }});
  }

 private:
  struct Step;
  // A function reference: no allocation on the path of every word.
  struct Sink {
    void* object;
    void (*call)(void*, std::string_view);
  };

  PreTokenizer();
  Status Add(const nlohmann::json& spec, bool* has_byte_level);
  Status AddRegex(std::string_view pattern, bool literal, bool keep_matches, bool keep_gaps);
  Status AddSplit(const nlohmann::json& spec);
  Status AddDigits(const nlohmann::json& spec);
  Status Split(size_t step, std::string_view text, Scratch* scratch, Sink sink) const;

  std::vector<Step> steps_;
};

}  // namespace rt
