// TextService over the tokenizer and the chat template of a checkpoint.
#pragma once

#include "runtime/engine/generation.h"
#include "runtime/server/text_service.h"
#include "runtime/text/chat_encoder.h"
#include "runtime/text/text_config.h"
#include "runtime/text/tokenizer.h"

namespace rt::server {

class TokenizerTextService final : public TextService {
 public:
  // Both outlive the service. `chat` null: chat requests fail with `no_chat`, completions work.
  TokenizerTextService(const Tokenizer* tokenizer, const ChatEncoder* chat, Status no_chat);

  // The tokens that the tokenizer puts around a text (often a begin token) are added, as for training texts.
  Result<std::vector<int32_t>> EncodeText(std::string_view text) override;
  Result<std::vector<int32_t>> EncodeChat(const Json& messages, const Json& tools, const Json& options) override;
  std::string TokenBytes(int32_t token_id) const override;

 private:
  const Tokenizer* const tokenizer_;
  const ChatEncoder* const chat_;
  const Status no_chat_;
};

// ServerConfig::default_sampling of a checkpoint. do_sample: false is temperature 0; what the file does not say keeps the
// API's own default.
SamplingParams DefaultSampling(const TextConfig::SamplingDefaults& defaults);

}  // namespace rt::server
