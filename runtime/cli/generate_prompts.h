// The prompts of `runtime generate`: where they come from and how they become token ids.
#pragma once

#include "runtime/cli/commands.h"
#include "runtime/session/text_stack.h"

#include <cstdint>
#include <string>
#include <vector>

namespace rt {

struct PromptOptions {
  // At most one of these; none means standard input.
  std::vector<std::string> texts;  // --prompt
  std::vector<std::string> chats;  // --chat
  std::vector<std::string> ids;    // --ids
  std::string file;                // --file; "-" is standard input
  std::string messages;            // --messages; "@path" reads a file

  bool lines = false;    // each line of the file is a prompt
  bool as_chat = false;  // each prompt is a user's message
  bool raw = false;      // prompts are rendered already: special tokens count
  std::string system;
  std::string template_options;  // JSON object
};

void AddPromptOptions(CLI::App* command, PromptOptions* options);

// "1, 2,3" or "[1 2 3]" as token ids; InvalidArgument names the part that is not one.
Result<std::vector<int32_t>> ParseTokenIds(const std::string& text);

// At least one prompt. InvalidArgument: wrong options; else as TextStack.
Result<std::vector<std::vector<int32_t>>> MakePrompts(const PromptOptions& options, TextStack* text);

}  // namespace rt
