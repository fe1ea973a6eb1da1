#include "runtime/cli/generate_prompts.h"

#include <nlohmann/json.hpp>

#include <charconv>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string_view>
#include <utility>

namespace rt {
namespace {

using nlohmann::ordered_json;

CLI::Option* AddRepeatable(CLI::App* command, const char* name, std::vector<std::string>* values,
                           const char* help, const char* type) {
  return command->add_option(name, *values, help)->type_name(type)->type_size(1)->allow_extra_args(false);
}

Result<std::string> ReadInput(const std::string& file) {
  if (file.empty() || file == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  std::ifstream in(file, std::ios::binary);
  if (!in) return {Code::kInvalidArgument, file + ": cannot be read"};
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// The newline that ends the last line is the editor's or the shell's, not the prompt's.
std::string WithoutFinalNewline(std::string text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return text;
}

std::vector<std::string> NonEmptyLines(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = WithoutFinalNewline(text.substr(begin, end - begin));
    if (!line.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

Result<ordered_json> ParseJson(const std::string& text, const char* option, bool object) {
  ordered_json value = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object ? value.is_object() : value.is_array()) return value;
  return {Code::kInvalidArgument,
          std::string(option) + ": expected a JSON " + (object ? "object" : "array of messages")};
}

ordered_json UserMessage(const PromptOptions& options, const std::string& text) {
  ordered_json messages = ordered_json::array();
  if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  return messages;
}

// Texts of --prompt, --chat, --file or standard input.
Result<std::vector<std::string>> Texts(const PromptOptions& options) {
  if (!options.texts.empty()) return options.texts;
  if (!options.chats.empty()) return options.chats;
  RT_ASSIGN_OR_RETURN(std::string text, ReadInput(options.file));
  if (!options.lines) {
    return std::vector<std::string>{options.raw ? std::move(text) : WithoutFinalNewline(std::move(text))};
  }
  std::vector<std::string> lines = NonEmptyLines(text);
  if (lines.empty()) return {Code::kInvalidArgument, "--lines: expected at least one line, found none"};
  return lines;
}

Status CheckCombination(const PromptOptions& options) {
  const bool from_file =
      options.texts.empty() && options.chats.empty() && options.ids.empty() && options.messages.empty();
  const bool chat = options.as_chat || !options.chats.empty();
  if (options.lines && !from_file)
    return {Code::kInvalidArgument, "--lines: only --file and standard input have lines"};
  if (options.as_chat && !(from_file || !options.texts.empty()))
    return {Code::kInvalidArgument, "--as-chat: only for --prompt, --file and standard input"};
  if (options.raw && (chat || !options.messages.empty() || !options.ids.empty()))
    return {Code::kInvalidArgument, "--raw: only for texts that no chat template renders"};
  if (!options.system.empty() && !chat)
    return {Code::kInvalidArgument, "--system: only with --chat or --as-chat"};
  if (!options.template_options.empty() && !chat && options.messages.empty())
    return {Code::kInvalidArgument, "--template-options: only with --chat, --as-chat or --messages"};
  return Status::Ok();
}

}  // namespace

void AddPromptOptions(CLI::App* command, PromptOptions* options) {
  CLI::Option_group* source =
      command->add_option_group("prompt", "where the prompt comes from; standard input if none is given");
  AddRepeatable(source, "--prompt", &options->texts, "text to continue; may be repeated", "TEXT");
  AddRepeatable(source, "--chat", &options->chats,
                "a user's message, through the chat template; may be repeated", "MESSAGE");
  AddRepeatable(source, "--ids", &options->ids, "token ids such as 1,2,3; may be repeated", "IDS");
  source->add_option("--file", options->file, "file with the text to continue; - is standard input")
      ->type_name("FILE");
  source->add_option("--messages", options->messages, "JSON array of chat messages, or @FILE")
      ->type_name("JSON");
  source->require_option(0, 1);
  command->add_flag("--lines", options->lines,
                    "every line of the file or of standard input is a prompt of its own");
  command->add_flag("--as-chat", options->as_chat, "take each text as a user's message");
  command->add_flag(
      "--raw", options->raw,
      "the text is rendered already: special tokens in it count, nothing is added, the output shows them");
  command->add_option("--system", options->system, "system message before the user's")->type_name("TEXT");
  command
      ->add_option("--template-options", options->template_options,
                   "variables of the chat template, such as {\"enable_thinking\": false}")
      ->type_name("JSON");
}

Result<std::vector<int32_t>> ParseTokenIds(const std::string& text) {
  constexpr std::string_view kBetween = ", \t\r\n[]";
  std::vector<int32_t> ids;
  for (size_t begin = text.find_first_not_of(kBetween); begin != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, begin), text.size());
    int32_t id = 0;
    const auto [rest, error] = std::from_chars(text.data() + begin, text.data() + end, id);
    if (error != std::errc() || rest != text.data() + end) {
      return {Code::kInvalidArgument,
              "--ids: expected token ids such as 1,2,3, found \"" + text.substr(begin, end - begin) + "\""};
    }
    ids.push_back(id);
    begin = text.find_first_not_of(kBetween, end);
  }
  if (ids.empty()) return {Code::kInvalidArgument, "--ids: expected at least one token id, found none"};
  return ids;
}

Result<std::vector<std::vector<int32_t>>> MakePrompts(const PromptOptions& options, TextStack* text) {
  RT_RETURN_IF_ERROR(CheckCombination(options));
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& ids : options.ids) {
    RT_ASSIGN_OR_RETURN(prompts.emplace_back(), ParseTokenIds(ids));
  }
  if (!prompts.empty()) return prompts;
  ordered_json variables;
  if (!options.template_options.empty()) {
    RT_ASSIGN_OR_RETURN(variables,
                        ParseJson(options.template_options, "--template-options", /*object=*/true));
  }
  if (!options.messages.empty()) {
    std::string source = options.messages;
    if (source.starts_with('@')) {
      RT_ASSIGN_OR_RETURN(source, ReadInput(source.substr(1)));
    }
    RT_ASSIGN_OR_RETURN(const ordered_json messages, ParseJson(source, "--messages", /*object=*/false));
    RT_ASSIGN_OR_RETURN(prompts.emplace_back(), text->EncodeChat(messages, variables));
    return prompts;
  }
  RT_ASSIGN_OR_RETURN(const std::vector<std::string> texts, Texts(options));
  const bool chat = options.as_chat || !options.chats.empty();
  for (const std::string& prompt : texts) {
    auto ids = chat          ? text->EncodeChat(UserMessage(options, prompt), variables)
               : options.raw ? text->EncodeRendered(prompt)
                             : text->EncodeText(prompt);
    if (!ids.ok()) return ids.status();
    prompts.push_back(std::move(ids).value());
  }
  return prompts;
}

}  // namespace rt
