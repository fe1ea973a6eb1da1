// Exit codes of `runtime`, the same for every subcommand. docs/cli.md shows this table; a test compares the
// two.
#pragma once

#include <rt/plugin/status.hpp>

namespace rt {

// X(NAME, value, "meaning")
#define RT_EXIT_CODES(X)                                                                             \
  X(kOk, 0, "done")                                                                                  \
  X(kFailed, 1, "failed at run time")                                                                \
  X(kUsage, 2, "wrong command line or configuration")                                                \
  X(kPlugin, 3, "a required plugin did not load, or no kernel fits the model and the configuration") \
  X(kCheckpoint, 4, "the checkpoint, tokenizer or architecture cannot be used")                      \
  X(kUnavailable, 5, "an optional part is not installed, or not built into this binary")

enum class ExitCode : int {
#define RT_EXIT_CODE_ENUM_(name, value, meaning) name = value,
  RT_EXIT_CODES(RT_EXIT_CODE_ENUM_)
#undef RT_EXIT_CODE_ENUM_
};

// Prints "runtime: message" (each line of the message) on standard error and gives `code` back, so that a
// command can say `return Fail(ExitCode::kCheckpoint, status);`. A status of code UNAVAILABLE gives
// kUnavailable whatever `code` says.
ExitCode Fail(ExitCode code, const Status& status);

}  // namespace rt
