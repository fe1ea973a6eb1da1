// Runs the `runtime` binary for tests.
#pragma once

#include <nlohmann/json.hpp>

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace rt::testing {

struct RunResult {
  int exit_code = -1;  // -N: ended by signal N
  std::string out, err;
};

// Ends after `timeout_s` by SIGKILL.
RunResult RunRuntime(const std::vector<std::string>& arguments, const std::string& input = "",
                     int timeout_s = 60);

// A shipped small model, one a family, in float32, on one thread because tests share the machine: `command`
// and what follows `--config`.
std::vector<std::string> TinyArguments(const std::string& command, const std::vector<std::string>& more = {},
                                       const std::string& model = "tiny-gdn");

// A golden prompt of a small model: name, input_ids, tokens, text, …
nlohmann::json GoldenPrompt(const std::string& name, const std::string& model = "tiny-gdn");

// `runtime serve` on a free port. Killed by the destructor if it still runs.
class ServeProcess {
 public:
  explicit ServeProcess(const std::vector<std::string>& more = {});
  ~ServeProcess();
  ServeProcess(const ServeProcess&) = delete;

  // Next line of standard output, or "" at its end.
  std::string ReadLine();
  // Reads "listening on …:PORT"; 0 if it does not come.
  uint16_t port() const { return port_; }
  // Reads the line that follows.
  bool WaitReady() { return ReadLine().rfind("ready: ", 0) == 0; }
  void Signal(int signal) const;
  // Waits for the end; as RunResult::exit_code.
  int Wait();
  // What it wrote to standard error until its end.
  std::string Errors() const;

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string error_file_;
  std::string buffer_;
  uint16_t port_ = 0;
};

}  // namespace rt::testing
