// Turns sampled tokens into text as they come.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/text/tokenizer.h"
#include "runtime/text/utf8.h"

namespace rt {

// The concatenation of all Push results and Finish equals Tokenizer::Decode of all ids, yet no Push result ever splits
// a character or shows U+FFFD for one that a later token completes. One per sequence; the tokenizer must outlive it.
class StreamDecoder {
 public:
  StreamDecoder(const Tokenizer* tokenizer, bool skip_special) : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // Text that became certain with this token: possibly empty, possibly more than the token's own.
  std::string Push(int32_t id);

  // The rest: U+FFFD if the output was cut inside a character, else nothing.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  LossyUtf8Decoder decoder_;
};

}  // namespace rt
