// `runtime generate`: answers prompts from the command line.
#pragma once

#include "runtime/cli/commands.h"

namespace rt {

void AddGenerateCommand(CLI::App& app, ExitCode* exit_code);

}  // namespace rt
