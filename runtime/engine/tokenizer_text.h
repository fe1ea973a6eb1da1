// Text for the engine from a tokenizer: a StreamDecoder followed by a StopMatcher. The one file here that
// knows runtime/text.
#pragma once

#include "runtime/engine/text_decoder.h"
#include "runtime/text/tokenizer.h"

namespace rt {

class TokenizerTextFactory : public TextDecoderFactory {
 public:
  // The tokenizer outlives the factory and all its decoders.
  explicit TokenizerTextFactory(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}
  Result<std::unique_ptr<TextDecoder>> New(const GenerationRequest& request) override;

 private:
  const Tokenizer* tokenizer_;
};

}  // namespace rt
