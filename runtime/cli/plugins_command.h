// `runtime plugins list|inspect`.
#pragma once

#include "runtime/cli/commands.h"

namespace rt {

void AddPluginsCommand(CLI::App& app, ExitCode* exit_code);

}  // namespace rt
