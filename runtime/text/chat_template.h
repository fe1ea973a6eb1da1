// Messages to prompt text by the checkpoint's own chat template.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <rt/plugin/status.hpp>
#include <string>
#include <string_view>

#include "runtime/text/jinja_process.h"
#include "runtime/text/text_config.h"

namespace rt {

class ChatTemplate {
 public:
  // kNotFound: the checkpoint has no chat template. Else as JinjaProcess::Start.
  static Result<std::unique_ptr<ChatTemplate>> Create(const TextConfig& config, JinjaLimits limits = {});

  // `messages`: an array of objects; `tools`: an array or null; `options`: an object of template variables
  // (add_generation_prompt, enable_thinking, ...) or null. Ordered JSON, because a template may print an object and the
  // order of its keys is then part of the prompt. The variables are those of Hugging Face: messages, tools, documents,
  // add_generation_prompt (false unless given), the special tokens, then the options. With tools, the template named
  // "tool_use" is taken if there is one. Errors as JinjaProcess::Render. Safe to call from any thread.
  // `marks`: see ChatEncoder; empty for plain rendering.
  Result<std::string> Render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                             const nlohmann::ordered_json& options, std::string_view marks = {}) const;

  // All template sources and special tokens joined; for those who choose code points that none of them holds.
  const std::string& sources() const { return sources_; }
  JinjaProcess& process() const { return *process_; }

 private:
  ChatTemplate() = default;

  std::map<std::string, std::string> special_tokens_;
  bool has_default_ = false;
  bool has_tool_use_ = false;
  std::string sources_;
  std::unique_ptr<JinjaProcess> process_;
};

}  // namespace rt
