// The seam between main.cc and the subcommands.
//
// A subcommand `x` lives in x_command.{h,cc} with
//     void AddXCommand(CLI::App& app, ExitCode* exit_code);
// which adds the subcommand, its options and a callback that stores the exit code. Option values live in a
// struct held by a shared_ptr that the callback captures:
//     auto options = std::make_shared<XOptions>();
//     CLI::App* command = app.add_subcommand("x", "what it does, in one line");
//     AddConfigOptions(command, &options->config);
//     command->callback([options, exit_code] { *exit_code = RunX(*options); });
// main.cc lists the Add functions. Results go to standard output, everything else to standard error.
#pragma once

#include "runtime/cli/exit_codes.h"
#include "runtime/config/config.h"

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace rt {

// --config FILE and --set key=value …, which every command that needs a configuration takes.
struct ConfigOptions {
  std::string file;
  std::vector<std::string> overrides;
};
void AddConfigOptions(CLI::App* command, ConfigOptions* options);
Result<Config> LoadConfig(const ConfigOptions& options);

// --plugin PATH …, files or folders that win over all others.
void AddPluginOption(CLI::App* command, std::vector<std::string>* paths);

}  // namespace rt
