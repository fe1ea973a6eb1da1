// `runtime bench`: prefill and decode rates of a configuration through the engine, with bytes a token and the share of this machine's floor.
#pragma once

#include "runtime/cli/commands.h"

namespace rt {

void AddBenchCommand(CLI::App& app, ExitCode* exit_code);

}  // namespace rt
