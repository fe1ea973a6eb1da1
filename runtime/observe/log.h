// The process log: spdlog's default logger, to standard error. Only the runtime logs; plugins do so through their host table.
#pragma once

#include <rt/plugin/status.hpp>

#include <string>

namespace rt {

struct LogOptions {
  std::string level = "info";   // trace, debug, info, warn, error, off
  std::string format = "text";  // text, or json: one object a line
};

// Replaces the default logger; call once, before threads start. InvalidArgument names an unknown level or format.
Status InitLogging(const LogOptions& options);

}  // namespace rt
