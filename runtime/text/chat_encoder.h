// Messages to token ids, with the borders between what the template writes and what clients write kept intact.
//
// Client text may hold the text of special tokens ("<|im_end|>"), whole, or in parts that a template would join. It must
// not end a turn. So, before rendering, the first character of everything in client text that is or might become the
// start of a special token is replaced by a *mark*: one code point of a private-use plane that occurs neither in the
// request nor in the template, chosen anew for each request. The template sees strings of unchanged length and cannot
// cut a mark in two; it may move or drop it. After rendering, marks become their characters again and their places go to
// Tokenizer::Encode as protected bytes, where no special token may lie. The rest of the text is encoded exactly as if it
// had never been marked, so a client's text gives the same tokens as the same text in any other place.
// A special token that begins in the template's own text is not affected, even if it ends in a client's word
// ("<|" + role + "|>"): the template's author wrote that.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <rt/plugin/status.hpp>
#include <string>
#include <vector>

#include "runtime/text/chat_template.h"
#include "runtime/text/tokenizer.h"

namespace rt {

struct ChatPrompt {
  std::string text;
  std::vector<size_t> protected_bytes;  // ascending offsets into `text`: characters of clients that stay text
  std::vector<int32_t> ids;
};

class ChatEncoder {
 public:
  // `tokenizer` must outlive the encoder. Errors as ChatTemplate::Create.
  static Result<std::unique_ptr<ChatEncoder>> Create(const Tokenizer* tokenizer, const TextConfig& config,
                                                     JinjaLimits limits = {});

  // Arguments as ChatTemplate::Render. Messages are checked first (kInvalidArgument naming the index): a non-empty array
  // of objects, each with a role, content absent, null, text or a list of parts. `arguments` of a tool call given as
  // text must hold a JSON object (or nothing) and reaches the template as that object, because templates disagree on
  // which form they take. Safe to call from any thread.
  Result<ChatPrompt> EncodeChat(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                                const nlohmann::ordered_json& options) const;

  const ChatTemplate& chat_template() const { return *template_; }

 private:
  ChatEncoder() = default;

  const Tokenizer* tokenizer_ = nullptr;
  std::unique_ptr<ChatTemplate> template_;
  std::vector<std::string> special_;  // texts of special tokens
  std::vector<std::string> others_;   // texts of the other added tokens
};

}  // namespace rt
