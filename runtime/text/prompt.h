// Prompts as every front end makes them from text and from messages.
#pragma once

#include "runtime/text/chat_encoder.h"
#include "runtime/text/tokenizer.h"

#include <nlohmann/json_fwd.hpp>
#include <rt/plugin/status.hpp>

#include <cstdint>
#include <string_view>
#include <vector>

namespace rt {

// A text to continue. The tokens that the tokenizer puts around a text (often a begin token) are added, as for
// training texts. Strings that look like special tokens stay text.
Result<std::vector<int32_t>> EncodePrompt(const Tokenizer& tokenizer, std::string_view text);

// Messages, rendered ready for the answer: add_generation_prompt is true unless `options` (an object or null) says
// otherwise. Errors as ChatEncoder::EncodeChat.
Result<std::vector<int32_t>> EncodeChatPrompt(const ChatEncoder& chat, const nlohmann::ordered_json& messages,
                                              const nlohmann::ordered_json& tools,
                                              const nlohmann::ordered_json& options);

}  // namespace rt
