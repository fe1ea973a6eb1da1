#include "runtime/server/tokenizer_text_service.h"

#include <utility>

namespace rt::server {

TokenizerTextService::TokenizerTextService(const Tokenizer* tokenizer, const ChatEncoder* chat, Status no_chat)
    : tokenizer_(tokenizer), chat_(chat), no_chat_(std::move(no_chat)) {}

Result<std::vector<int32_t>> TokenizerTextService::EncodeText(std::string_view text) {
  RT_ASSIGN_OR_RETURN(std::vector<int32_t> words, tokenizer_->Encode(text, /*allow_special=*/false));
  std::vector<int32_t> ids = tokenizer_->prefix_ids();
  ids.insert(ids.end(), words.begin(), words.end());
  ids.insert(ids.end(), tokenizer_->suffix_ids().begin(), tokenizer_->suffix_ids().end());
  return ids;
}

Result<std::vector<int32_t>> TokenizerTextService::EncodeChat(const Json& messages, const Json& tools,
                                                              const Json& options) {
  if (chat_ == nullptr) return no_chat_;
  Json variables = options;
  if (!variables.contains("add_generation_prompt")) variables["add_generation_prompt"] = true;
  RT_ASSIGN_OR_RETURN(ChatPrompt prompt, chat_->EncodeChat(messages, tools, variables));
  return std::move(prompt.ids);
}

std::string TokenizerTextService::TokenBytes(int32_t token_id) const {
  return std::string(tokenizer_->TokenBytes(token_id));
}

SamplingParams DefaultSampling(const TextConfig::SamplingDefaults& defaults) {
  SamplingParams params;
  const auto set = [](const auto& from, auto* to) {
    if (from) *to = static_cast<std::remove_pointer_t<decltype(to)>>(*from);
  };
  set(defaults.temperature, &params.temperature);
  set(defaults.top_p, &params.top_p);
  set(defaults.min_p, &params.min_p);
  set(defaults.top_k, &params.top_k);
  set(defaults.repetition_penalty, &params.repetition_penalty);
  set(defaults.presence_penalty, &params.presence_penalty);
  set(defaults.frequency_penalty, &params.frequency_penalty);
  if (defaults.do_sample == false) params.temperature = 0.0f;
  return params;
}

}  // namespace rt::server
