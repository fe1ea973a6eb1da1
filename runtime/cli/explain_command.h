// `runtime explain`: which kernel runs each op, which others were considered, and why.
#pragma once

#include "runtime/cli/commands.h"

namespace rt {

void AddExplainCommand(CLI::App& app, ExitCode* exit_code);

}  // namespace rt
