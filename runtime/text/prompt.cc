#include "runtime/text/prompt.h"

#include <nlohmann/json.hpp>

#include <utility>

namespace rt {

Result<std::vector<int32_t>> EncodePrompt(const Tokenizer& tokenizer, std::string_view text) {
  RT_ASSIGN_OR_RETURN(const std::vector<int32_t> words, tokenizer.Encode(text, /*allow_special=*/false));
  std::vector<int32_t> ids = tokenizer.prefix_ids();
  ids.insert(ids.end(), words.begin(), words.end());
  ids.insert(ids.end(), tokenizer.suffix_ids().begin(), tokenizer.suffix_ids().end());
  return ids;
}

Result<std::vector<int32_t>> EncodeChatPrompt(const ChatEncoder& chat, const nlohmann::ordered_json& messages,
                                              const nlohmann::ordered_json& tools,
                                              const nlohmann::ordered_json& options) {
  nlohmann::ordered_json variables = options.is_null() ? nlohmann::ordered_json::object() : options;
  if (!variables.contains("add_generation_prompt")) variables["add_generation_prompt"] = true;
  RT_ASSIGN_OR_RETURN(ChatPrompt prompt, chat.EncodeChat(messages, tools, variables));
  return std::move(prompt.ids);
}

}  // namespace rt
