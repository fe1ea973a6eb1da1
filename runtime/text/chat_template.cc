#include "runtime/text/chat_template.h"

#include <nlohmann/json.hpp>

namespace rt {

using Json = nlohmann::ordered_json;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(const TextConfig& config, JinjaLimits limits) {
  std::unique_ptr<ChatTemplate> result(new ChatTemplate());
  result->special_tokens_ = config.special_tokens;
  result->has_default_ = config.chat_templates.count("default") != 0;
  result->has_tool_use_ = config.chat_templates.count("tool_use") != 0;
  if (!result->has_default_ && !result->has_tool_use_) {
    return {Code::kNotFound,
            "chat template: the checkpoint has none (looked for chat_template.jinja and tokenizer_config.json: chat_template)"};
  }
  for (const auto& [name, source] : config.chat_templates) result->sources_ += source;
  for (const auto& [name, text] : config.special_tokens) result->sources_ += text;
  RT_ASSIGN_OR_RETURN(result->process_, JinjaProcess::Start(config.chat_templates, std::move(limits)));
  return result;
}

Result<std::string> ChatTemplate::Render(const Json& messages, const Json& tools, const Json& options,
                                         std::string_view marks) const {
  if (!options.is_null() && !options.is_object()) {
    return {Code::kInvalidArgument, std::string("template options: expected an object, found ") + options.type_name()};
  }
  const bool with_tools = tools.is_array() && !tools.empty();
  Json context = {{"documents", nullptr}, {"add_generation_prompt", false}};
  for (const auto& [name, text] : special_tokens_) context[name] = text;
  if (options.is_object()) context.update(options);
  context["messages"] = messages;
  context["tools"] = tools;
  const bool use_tools_template = has_tool_use_ && (with_tools || !has_default_);
  return process_->Render(use_tools_template ? "tool_use" : "default", context, marks);
}

}  // namespace rt
