#include "runtime/cli/config_command.h"

#include "runtime/config/config_schema.h"

#include <cstdio>
#include <memory>

namespace rt {
namespace {

struct ConfigCommandOptions {
  ConfigOptions config;
  bool keys = false;
  bool json = false;
};

ExitCode RunConfig(const ConfigCommandOptions& options) {
  if (options.keys) {
    std::fputs(ConfigReference().c_str(), stdout);
    return ExitCode::kOk;
  }
  const Result<Config> config = LoadConfig(options.config);
  if (!config.ok()) return Fail(ExitCode::kUsage, config.status());
  nlohmann::json all = nlohmann::json::array();
  for (const ConfigEntry& entry : config->Explain()) {
    if (options.json) {
      all.push_back({{"key", entry.key}, {"value", entry.value}, {"source", entry.source}});
    } else {
      std::printf("%s = %s (%s)\n", entry.key.c_str(), entry.value.dump().c_str(), entry.source.c_str());
    }
  }
  if (options.json) std::printf("%s\n", all.dump(2).c_str());
  return ExitCode::kOk;
}

}  // namespace

void AddConfigCommand(CLI::App& app, ExitCode* exit_code) {
  auto options = std::make_shared<ConfigCommandOptions>();
  CLI::App* command =
      app.add_subcommand("config", "check a configuration; show each key, its value and its source");
  AddConfigOptions(command, &options->config);
  command->add_flag("--keys", options->keys, "print the reference of all keys instead (Markdown)");
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, exit_code] { *exit_code = RunConfig(*options); });
}

}  // namespace rt
