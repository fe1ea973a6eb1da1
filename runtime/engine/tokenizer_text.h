// Text for the engine from a tokenizer: a StreamDecoder followed by a StopMatcher. The one file here that
// knows runtime/text.
#pragma once

#include "runtime/engine/text_decoder.h"
#include "runtime/text/text_config.h"
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

// How a checkpoint wants to be sampled where a request is silent. do_sample: false is temperature 0; what the files do not
// say keeps the initial value of SamplingParams.
SamplingParams DefaultSampling(const TextConfig::SamplingDefaults& defaults);

}  // namespace rt
