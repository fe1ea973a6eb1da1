// `runtime serve`: the HTTP server over a loaded model.
#pragma once

#include "runtime/cli/commands.h"

namespace rt {

void AddServeCommand(CLI::App& app, ExitCode* exit_code);

}  // namespace rt
