// `runtime config`: check a configuration and show every key with its value and source, or the reference of
// all keys.
#pragma once

#include "runtime/cli/commands.h"

namespace rt {

void AddConfigCommand(CLI::App& app, ExitCode* exit_code);

}  // namespace rt
