// TextService over the tokenizer and the chat template of a checkpoint.
#pragma once

#include "runtime/server/text_service.h"
#include "runtime/text/chat_encoder.h"
#include "runtime/text/tokenizer.h"

namespace rt::server {

class TokenizerTextService final : public TextService {
 public:
  // Both outlive the service. `chat` null: chat requests fail with `no_chat`, completions work.
  TokenizerTextService(const Tokenizer* tokenizer, const ChatEncoder* chat, Status no_chat);

  Result<std::vector<int32_t>> EncodeText(std::string_view text) override;
  Result<std::vector<int32_t>> EncodeChat(const Json& messages, const Json& tools, const Json& options) override;
  std::string TokenBytes(int32_t token_id) const override;

 private:
  const Tokenizer* const tokenizer_;
  const ChatEncoder* const chat_;
  const Status no_chat_;
};

}  // namespace rt::server
