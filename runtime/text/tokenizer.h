// Byte-level BPE tokenizer read from a Hugging Face tokenizer.json.
//
// Encode: added tokens are cut out of the raw text, the rest is normalized (NFC), cut into words by the file's regular
// expressions, and each word is byte-pair merged. Decode: the tokens' bytes are joined and read as UTF-8, each
// ill-formed part becoming one U+FFFD. All member functions are safe to call from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <rt/plugin/status.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/added_tokens.h"

namespace rt {

// What a tokenizer.json says, checked (tokenizer_json.h).
struct TokenizerSpec;

class Tokenizer {
 public:
  // `path`: a tokenizer.json, or a folder that holds one. A part that this class does not implement is kUnsupported, a
  // file that contradicts itself kDataLoss; the message names the file and the part.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::filesystem::path& path);
  static Result<std::unique_ptr<Tokenizer>> FromJson(std::string_view json);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // `text` must be UTF-8 (else kInvalidArgument with the byte offset). With `allow_special` false the text is a user's:
  // strings of special tokens become ordinary tokens. With it true, special tokens are recognised except where they
  // include a byte listed in `protected_bytes` (ascending offsets into `text`).
  // Added tokens that the file does not flag special (such as <think>) are always recognised: they are vocabulary.
  Result<std::vector<int32_t>> Encode(std::string_view text, bool allow_special,
                                      std::span<const size_t> protected_bytes = {}) const;

  // An id without a token adds nothing (a model's vocabulary is often padded beyond the tokenizer's).
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;

  // The bytes that a token adds to the output: possibly a part of a character. Empty for an id without a token.
  std::string_view TokenBytes(int32_t id) const;
  bool HasToken(int32_t id) const;
  bool IsSpecial(int32_t id) const;

  // Id of a token spelled as in tokenizer.json ("<|im_end|>", "Ġthe"), or -1.
  int32_t TokenToId(std::string_view token) const;

  // Number of tokens; and one more than the largest id, which is larger when ids have gaps.
  size_t num_tokens() const;
  int32_t id_limit() const;
  const std::vector<AddedToken>& added_tokens() const;

  // Ids that the file's post-processor puts before and after a text (TemplateProcessing); empty without one.
  // Chat templates write them themselves, so Encode does not add them.
  const std::vector<int32_t>& prefix_ids() const;
  const std::vector<int32_t>& suffix_ids() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rt
