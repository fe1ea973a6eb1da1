#include "runtime/server/tokenizer_text_service.h"

#include "runtime/text/prompt.h"

#include <utility>

namespace rt::server {

TokenizerTextService::TokenizerTextService(const Tokenizer* tokenizer, const ChatEncoder* chat, Status no_chat)
    : tokenizer_(tokenizer), chat_(chat), no_chat_(std::move(no_chat)) {}

Result<std::vector<int32_t>> TokenizerTextService::EncodeText(std::string_view text) {
  return EncodePrompt(*tokenizer_, text);
}

Result<std::vector<int32_t>> TokenizerTextService::EncodeChat(const Json& messages, const Json& tools,
                                                              const Json& options) {
  if (chat_ == nullptr) return no_chat_;
  return EncodeChatPrompt(*chat_, messages, tools, options);
}

std::string TokenizerTextService::TokenBytes(int32_t token_id) const {
  return std::string(tokenizer_->TokenBytes(token_id));
}

}  // namespace rt::server
