// The `runtime` binary: parses the command line and hands over to one subcommand.
#include "runtime/cli/bench_command.h"
#include "runtime/cli/config_command.h"
#include "runtime/cli/explain_command.h"
#include "runtime/cli/generate_command.h"
#include "runtime/cli/plugins_command.h"
#include "runtime/cli/serve_command.h"
#include "runtime/config/suggest.h"

#include <cstdio>
#include <string>
#include <vector>

namespace {

// The options and subcommands that `app` and the chosen subcommands know, for "did you mean".
std::vector<std::string> KnownWords(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands({})) words.push_back(command->get_name());
  for (const CLI::App* command : app.get_subcommands()) {
    for (std::string& word : KnownWords(*command)) words.push_back(std::move(word));
  }
  return words;
}

int UsageError(const CLI::App& app, const CLI::ParseError& error) {
  std::fprintf(stderr, "runtime: %s\n", error.what());
  for (const std::string& extra : app.remaining(true)) {
    const std::string word = extra.substr(0, extra.find('='));
    const std::string nearest = rt::NearestName(word, KnownWords(app));
    if (!nearest.empty()) std::fprintf(stderr, "runtime: \"%s\": did you mean \"%s\"?\n", word.c_str(), nearest.c_str());
  }
  std::fprintf(stderr, "runtime: see `runtime --help` or `runtime COMMAND --help`\n");
  return static_cast<int>(rt::ExitCode::kUsage);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("DeltaRT: serves hybrid linear-attention language models", "runtime");
  app.set_version_flag("--version", "runtime " RT_VERSION);
  app.require_subcommand(1);
  rt::ExitCode exit_code = rt::ExitCode::kOk;

  rt::AddServeCommand(app, &exit_code);
  rt::AddGenerateCommand(app, &exit_code);
  rt::AddExplainCommand(app, &exit_code);
  rt::AddPluginsCommand(app, &exit_code);
  rt::AddConfigCommand(app, &exit_code);
  rt::AddBenchCommand(app, &exit_code);

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {  // --help, --version: prints and ends well
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return UsageError(app, error);
  }
  return static_cast<int>(exit_code);
}
