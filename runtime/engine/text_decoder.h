// What the output thread needs to turn token ids into text. Implemented over a tokenizer elsewhere; the
// engine knows none.
#pragma once

#include "runtime/engine/generation.h"

#include <cstdint>
#include <memory>
#include <string>

namespace rt {

// The text side of one sequence: incremental detokenizer and stop-string matcher. Used by one thread.
class TextDecoder {
 public:
  virtual ~TextDecoder() = default;
  // Takes the next token and appends the text that may be shown: whole characters, and nothing that could
  // still become part of a stop string. `may_stop` false: stop strings are not looked for in the text of this
  // token. Returns the index in stop_strings of the one that this token completed, else -1. Text before the
  // stop string has then been appended (and the stop string itself iff include_stop_string); no further call
  // follows.
  virtual int32_t Push(int32_t token_id, bool may_stop, std::string* text) = 0;
  // The sequence ended otherwise: appends everything held back.
  virtual void Finish(std::string* text) = 0;
};

// Thread-safe.
class TextDecoderFactory {
 public:
  virtual ~TextDecoderFactory() = default;
  // Uses stop_strings, include_stop_string and skip_special_tokens of the request.
  virtual Result<std::unique_ptr<TextDecoder>> New(const GenerationRequest& request) = 0;
};

}  // namespace rt
