// Which exit code a failed start-up stage has.
#pragma once

#include "runtime/cli/exit_codes.h"
#include "runtime/session/session.h"

namespace rt {

inline ExitCode StageExitCode(SessionStage stage) {
  switch (stage) {
    case SessionStage::kConfig: return ExitCode::kUsage;
    case SessionStage::kPlugins:
    case SessionStage::kNegotiation: return ExitCode::kPlugin;
    case SessionStage::kModel:
    case SessionStage::kWeights: return ExitCode::kCheckpoint;
    case SessionStage::kEngine: return ExitCode::kFailed;
  }
  return ExitCode::kFailed;
}

}  // namespace rt
