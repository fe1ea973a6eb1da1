#include "runtime/text/chat_encoder.h"

#include <nlohmann/json.hpp>
#include <random>

#include "runtime/text/special_marks.h"
#include "runtime/text/utf8.h"

namespace rt {
namespace {

using Json = nlohmann::ordered_json;

// Deeper JSON has no use in a chat and would let a client exhaust our stack or Python's.
constexpr int kMaxDepth = 64;

Status CheckDepth(const Json& value, const std::string& name, int depth = 0) {
  if (depth > kMaxDepth) {
    return {Code::kInvalidArgument, name + ": nested deeper than " + std::to_string(kMaxDepth) + " levels"};
  }
  if (!value.is_structured()) return {};
  for (const Json& item : value) RT_RETURN_IF_ERROR(CheckDepth(item, name, depth + 1));
  return {};
}

Status Expected(const std::string& what, const char* expected, const Json& found) {
  return {Code::kInvalidArgument, what + ": expected " + expected + ", found " + found.type_name()};
}

// Text arguments become the object that they spell.
Status ParseArguments(const std::string& what, Json* call) {
  Json& function = call->contains("function") ? (*call)["function"] : *call;
  if (!function.is_object()) return Expected(what + ".function", "an object", function);
  const auto it = function.find("arguments");
  if (it == function.end() || it->is_object()) return {};
  if (it->is_null()) {
    *it = Json::object();
    return {};
  }
  if (!it->is_string()) return Expected(what + ".function.arguments", "an object or text", *it);
  const std::string& text = it->get_ref<const std::string&>();
  Json parsed = text.find_first_not_of(" \t\r\n") == std::string::npos ? Json::object() : Json::parse(text, nullptr, false);
  if (!parsed.is_object()) {
    return {Code::kInvalidArgument, what + ".function.arguments: expected the text of a JSON object"};
  }
  RT_RETURN_IF_ERROR(CheckDepth(parsed, what + ".function.arguments"));
  *it = std::move(parsed);
  return {};
}

Status CheckMessage(const std::string& what, Json* message) {
  if (!message->is_object()) return Expected(what, "an object", *message);
  const auto role = message->find("role");
  if (role == message->end() || !role->is_string()) {
    return Expected(what + ".role", "text", role == message->end() ? Json() : *role);
  }
  if (const auto content = message->find("content"); content != message->end()) {
    const bool fits = content->is_null() || content->is_string() || content->is_array();
    if (!fits) return Expected(what + ".content", "text, a list of parts or null", *content);
  }
  const auto calls = message->find("tool_calls");
  if (calls == message->end() || calls->is_null()) return {};
  if (!calls->is_array()) return Expected(what + ".tool_calls", "an array", *calls);
  for (size_t i = 0; i < calls->size(); ++i) {
    const std::string call = what + ".tool_calls[" + std::to_string(i) + "]";
    if (!(*calls)[i].is_object()) return Expected(call, "an object", (*calls)[i]);
    RT_RETURN_IF_ERROR(ParseArguments(call, &(*calls)[i]));
  }
  return {};
}

Status CheckMessages(Json* messages) {
  if (!messages->is_array() || messages->empty()) return Expected("messages", "a non-empty array", *messages);
  for (size_t i = 0; i < messages->size(); ++i) {
    RT_RETURN_IF_ERROR(CheckMessage("messages[" + std::to_string(i) + "]", &(*messages)[i]));
  }
  return {};
}

// All text of a value, keys included, a line each (so that two ill-formed halves do not make a whole).
void AppendText(const Json& value, std::string* out) {
  if (value.is_string()) out->append(value.get_ref<const std::string&>()).append("\n");
  if (value.is_array()) {
    for (const Json& item : value) AppendText(item, out);
  } else if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      out->append(key).append("\n");
      AppendText(item, out);
    }
  }
}

uint64_t Seed() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

Result<std::unique_ptr<ChatEncoder>> ChatEncoder::Create(const Tokenizer* tokenizer, const TextConfig& config,
                                                         JinjaLimits limits) {
  std::unique_ptr<ChatEncoder> encoder(new ChatEncoder());
  encoder->tokenizer_ = tokenizer;
  for (const AddedToken& token : tokenizer->added_tokens()) {
    (token.special ? encoder->special_ : encoder->others_).push_back(token.content);
  }
  RT_ASSIGN_OR_RETURN(encoder->template_, ChatTemplate::Create(config, std::move(limits)));
  return encoder;
}

Result<ChatPrompt> ChatEncoder::EncodeChat(const Json& messages, const Json& tools, const Json& options) const {
  RT_RETURN_IF_ERROR(CheckDepth(messages, "messages"));
  RT_RETURN_IF_ERROR(CheckDepth(tools, "tools"));
  RT_RETURN_IF_ERROR(CheckDepth(options, "template options"));
  Json marked[] = {messages, tools, options};
  RT_RETURN_IF_ERROR(CheckMessages(&marked[0]));
  if (!tools.is_null() && !tools.is_array()) return Expected("tools", "an array", tools);
  std::string used = template_->sources();
  const size_t sources_size = used.size();
  for (const Json& value : marked) AppendText(value, &used);
  if (FindInvalidUtf8(std::string_view(used).substr(sources_size)) != std::string_view::npos) {
    return {Code::kInvalidArgument, "messages, tools or template options hold text that is not UTF-8"};
  }
  RT_ASSIGN_OR_RETURN(const SpecialMarks marks, SpecialMarks::Choose(&special_, &others_, used, Seed()));
  for (Json& value : marked) marks.MarkAll(&value);
  const auto rendered = template_->Render(marked[0], marked[1], marked[2], marks.Marks());
  ChatPrompt prompt;
  if (!rendered.ok()) {  // the message may quote client text
    return {rendered.status().code(), marks.Restore(rendered.status().message(), &prompt.protected_bytes)};
  }
  prompt.text = marks.Restore(*rendered, &prompt.protected_bytes);
  RT_ASSIGN_OR_RETURN(prompt.ids, tokenizer_->Encode(prompt.text, true, prompt.protected_bytes));
  return prompt;
}

}  // namespace rt
