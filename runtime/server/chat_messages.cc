#include "runtime/server/chat_messages.h"

#include "runtime/server/field_readers.h"

#include <algorithm>
#include <string>
#include <vector>

namespace rt::server {
namespace {

using Names = std::vector<std::string_view>;

const Names kPlainFields = {"role", "content", "name"};
const Names kToolFields = {"role", "content", "name", "tool_call_id"};
// The last four are echoed by clients that send a received message back; they may only be null (or empty).
const Names kAssistantFields = {"role",    "content",     "name",  "reasoning_content", "tool_calls",
                                "refusal", "annotations", "audio", "function_call"};
constexpr size_t kMaxFunctionNameBytes = 64;  // OpenAI's own limit

bool Contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool IsAbsent(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || found->is_null();
}

MaybeError CheckKeys(const std::string& where, const Json& object, const Names& known) {
  for (const auto& [key, value] : object.items()) {
    if (!Contains(known, key)) return UnknownField(where + ".", key, known);
  }
  return {};
}

MaybeError JoinTextParts(const std::string& field, const Json& parts, std::string* out) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string name = IndexedName(field, i);
    const Json& part = parts[i];
    if (!part.is_object()) return TypeError(name, "an object {\"type\": \"text\", \"text\": …}", part);
    const auto type = part.find("type");
    if (type == part.end()) return ApiError{400, name + ".type: required", name + ".type", "missing_field"};
    if (*type != "text") return UnsupportedValue(name + ".type", *type, "only \"text\" parts are served");
    RT_SERVER_RETURN_IF_ERROR(CheckKeys(name, part, {"type", "text"}));
    const auto text = part.find("text");
    if (text == part.end()) return ApiError{400, name + ".text: required", name + ".text", "missing_field"};
    std::string piece;
    RT_SERVER_RETURN_IF_ERROR(ReadString(name + ".text", *text, &piece));
    *out += piece;
  }
  return {};
}

MaybeError ReadContent(const std::string& where, const Json& message, bool may_be_absent, std::string* out) {
  const std::string field = where + ".content";
  if (IsAbsent(message, "content")) {
    if (may_be_absent) return {};
    return ApiError{400, field + ": required for this role, as a string or an array of text parts", field,
                    "missing_field"};
  }
  const Json& content = message["content"];
  if (content.is_string()) {
    *out = content.get<std::string>();
    return {};
  }
  if (content.is_array()) return JoinTextParts(field, content, out);
  return TypeError(field, "a string or an array of text parts", content);
}

MaybeError CheckFunctionName(const std::string& field, const Json& value) {
  std::string name;
  RT_SERVER_RETURN_IF_ERROR(ReadString(field, value, &name));
  const bool valid = !name.empty() && name.size() <= kMaxFunctionNameBytes &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return (c < 0x80 && std::isalnum(c) != 0) || c == '_' || c == '-' || c == '.';
                     });
  if (valid) return {};
  return TypeError(field, "1 to 64 letters, digits, '_', '-' or '.'", value);
}

// A client may send arguments as the JSON text that OpenAI defines or as the object itself.
MaybeError NormalizeArguments(const std::string& field, int max_depth, Json* arguments) {
  if (arguments->is_string()) {
    const std::string text = arguments->get<std::string>();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
      *arguments = Json::object();
      return {};
    }
    Result<Json> parsed = ParseStrictJson(text, max_depth);
    if (!parsed.ok()) return ApiError{400, field + ": " + parsed.status().message(), field, "invalid_value"};
    if (!parsed->is_object()) return TypeError(field, "the JSON text of an object", *parsed);
    *arguments = std::move(*parsed);
    return {};
  }
  if (arguments->is_null()) *arguments = Json::object();
  if (!arguments->is_object()) return TypeError(field, "an object or its JSON text", *arguments);
  return {};
}

MaybeError NormalizeToolCall(const std::string& where, int max_depth, Json* call) {
  if (!call->is_object()) return TypeError(where, "an object", *call);
  RT_SERVER_RETURN_IF_ERROR(CheckKeys(where, *call, {"id", "type", "function", "index"}));
  if (!IsAbsent(*call, "type") && (*call)["type"] != "function") {
    return UnsupportedValue(where + ".type", (*call)["type"], "only \"function\" calls exist");
  }
  if (!IsAbsent(*call, "id") && !(*call)["id"].is_string()) return TypeError(where + ".id", "a string", (*call)["id"]);
  const std::string field = where + ".function";
  if (IsAbsent(*call, "function")) return ApiError{400, field + ": required", field, "missing_field"};
  Json& function = (*call)["function"];
  if (!function.is_object()) return TypeError(field, "an object", function);
  RT_SERVER_RETURN_IF_ERROR(CheckKeys(field, function, {"name", "arguments"}));
  if (IsAbsent(function, "name")) return ApiError{400, field + ".name: required", field + ".name", "missing_field"};
  RT_SERVER_RETURN_IF_ERROR(CheckFunctionName(field + ".name", function["name"]));
  return NormalizeArguments(field + ".arguments", max_depth, &function["arguments"]);
}

MaybeError NormalizeAssistant(const std::string& where, const Json& message, int max_depth, Json* out) {
  for (const char* key : {"refusal", "annotations", "audio", "function_call"}) {
    if (IsAbsent(message, key) || message[key] == Json::array()) continue;
    return UnsupportedValue(MemberName(where, key), message[key], "it may only be null");
  }
  if (!IsAbsent(message, "reasoning_content")) {
    std::string thought;
    RT_SERVER_RETURN_IF_ERROR(ReadString(where + ".reasoning_content", message["reasoning_content"], &thought));
    (*out)["reasoning_content"] = std::move(thought);
  }
  if (IsAbsent(message, "tool_calls")) return {};
  const std::string field = where + ".tool_calls";
  Json calls = message["tool_calls"];
  if (!calls.is_array()) return TypeError(field, "an array", calls);
  for (size_t i = 0; i < calls.size(); ++i) {
    RT_SERVER_RETURN_IF_ERROR(NormalizeToolCall(IndexedName(field, i), max_depth, &calls[i]));
  }
  if (!calls.empty()) (*out)["tool_calls"] = std::move(calls);
  return {};
}

MaybeError NormalizeMessage(const std::string& where, const Json& message, int max_depth, Json* out) {
  if (!message.is_object()) return TypeError(where, "an object", message);
  const std::string role_field = where + ".role";
  if (IsAbsent(message, "role")) return ApiError{400, role_field + ": required", role_field, "missing_field"};
  std::string role;
  RT_SERVER_RETURN_IF_ERROR(ReadString(role_field, message["role"], &role));
  const bool assistant = role == "assistant", tool = role == "tool";
  if (!assistant && !tool && role != "user" && role != "system" && role != "developer") {
    return TypeError(role_field, "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"", message["role"]);
  }
  RT_SERVER_RETURN_IF_ERROR(
      CheckKeys(where, message, assistant ? kAssistantFields : (tool ? kToolFields : kPlainFields)));
  std::string content;
  RT_SERVER_RETURN_IF_ERROR(ReadContent(where, message, assistant, &content));
  *out = {{"role", role == "developer" ? "system" : role}, {"content", std::move(content)}};
  for (const char* key : {"name", "tool_call_id"}) {
    if (IsAbsent(message, key)) continue;
    std::string text;
    RT_SERVER_RETURN_IF_ERROR(ReadString(MemberName(where, key), message[key], &text));
    (*out)[key] = std::move(text);
  }
  return assistant ? NormalizeAssistant(where, message, max_depth, out) : MaybeError();
}

}  // namespace

MaybeError NormalizeMessages(const Json& messages, int max_depth, Json* out) {
  if (!messages.is_array()) return TypeError("messages", "an array of messages", messages);
  if (messages.empty()) return TypeError("messages", "at least one message", messages);
  *out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    Json normalized;
    RT_SERVER_RETURN_IF_ERROR(NormalizeMessage(IndexedName("messages", i), messages[i], max_depth, &normalized));
    out->push_back(std::move(normalized));
  }
  return {};
}

MaybeError ValidateTools(const Json& tools) {
  if (!tools.is_array()) return TypeError("tools", "an array of tools", tools);
  for (size_t i = 0; i < tools.size(); ++i) {
    const std::string where = IndexedName("tools", i);
    const Json& tool = tools[i];
    if (!tool.is_object()) return TypeError(where, "an object {\"type\": \"function\", \"function\": …}", tool);
    RT_SERVER_RETURN_IF_ERROR(CheckKeys(where, tool, {"type", "function"}));
    if (IsAbsent(tool, "type")) return ApiError{400, where + ".type: required", where + ".type", "missing_field"};
    if (tool["type"] != "function") {
      return UnsupportedValue(where + ".type", tool["type"], "only \"function\" tools are served");
    }
    const std::string field = where + ".function";
    if (IsAbsent(tool, "function")) return ApiError{400, field + ": required", field, "missing_field"};
    const Json& function = tool["function"];
    if (!function.is_object()) return TypeError(field, "an object", function);
    RT_SERVER_RETURN_IF_ERROR(CheckKeys(field, function, {"name", "description", "parameters", "strict"}));
    if (IsAbsent(function, "name")) return ApiError{400, field + ".name: required", field + ".name", "missing_field"};
    RT_SERVER_RETURN_IF_ERROR(CheckFunctionName(field + ".name", function["name"]));
    if (!IsAbsent(function, "description") && !function["description"].is_string()) {
      return TypeError(field + ".description", "a string", function["description"]);
    }
    if (!IsAbsent(function, "parameters") && !function["parameters"].is_object()) {
      return TypeError(field + ".parameters", "an object (JSON Schema)", function["parameters"]);
    }
    if (IsAbsent(function, "strict")) continue;
    bool strict = false;
    RT_SERVER_RETURN_IF_ERROR(ReadBool(field + ".strict", function["strict"], &strict));
    if (strict) {
      return UnsupportedValue(field + ".strict", function["strict"], "arguments are not constrained to the schema");
    }
  }
  return {};
}

}  // namespace rt::server
