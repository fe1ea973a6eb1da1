// Runs a helper to its end and collects what it writes. Internal to plugin_sdk/loader.
#pragma once

#include <rt/plugin/status.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace rt {

struct ChildOutcome {
  bool timed_out = false;  // killed with its process group
  int exit_code = -1;      // -1: ended by a signal
  int signal = 0;
  std::string report;  // written to file descriptor 3
  std::string output;  // standard output and error, the first 16 KiB
};

// argv[0] is the program's path; `extra_environment` ("NAME=value") is added to ours. Signal mask and
// handlers are reset; standard input is /dev/null. Errors: the program cannot be started, no file descriptors
// left.
Result<ChildOutcome> RunChild(const std::vector<std::string>& argv, std::chrono::milliseconds timeout,
                              const std::vector<std::string>& extra_environment = {});

}  // namespace rt
