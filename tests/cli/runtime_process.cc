#include "tests/cli/runtime_process.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>

extern char** environ;

namespace rt::testing {
namespace {

std::string TemporaryFile() {
  std::string name = "/tmp/rt_cli_XXXXXX";
  const int file = mkstemp(name.data());
  if (file < 0) throw std::runtime_error("cannot make a temporary file");
  close(file);
  return name;
}

std::string ReadAndRemove(const std::string& name) {
  std::ifstream in(name, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  unlink(name.c_str());
  return text;
}

// Standard input, output and error are the given descriptors.
pid_t Spawn(const std::vector<std::string>& arguments, const std::array<int, 3>& streams) {
  std::vector<char*> argv = {const_cast<char*>(RT_RUNTIME_BINARY)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (int i = 0; i < 3; ++i) posix_spawn_file_actions_adddup2(&actions, streams[static_cast<size_t>(i)], i);
  pid_t pid = -1;
  if (posix_spawn(&pid, RT_RUNTIME_BINARY, &actions, nullptr, argv.data(), environ) != 0) pid = -1;
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

int ExitCodeOf(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status); }

// Polls, because waitpid has no time-out.
int WaitFor(pid_t pid, int timeout_s) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_s);
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      kill(pid, SIGKILL);
      waitpid(pid, &status, 0);
      break;
    }
    usleep(5000);
  }
  return ExitCodeOf(status);
}

}  // namespace

RunResult RunRuntime(const std::vector<std::string>& arguments, const std::string& input, int timeout_s) {
  const std::string in_name = TemporaryFile(), out_name = TemporaryFile(), err_name = TemporaryFile();
  std::ofstream(in_name, std::ios::binary) << input;
  const std::array<int, 3> streams = {open(in_name.c_str(), O_RDONLY | O_CLOEXEC),
                                      open(out_name.c_str(), O_WRONLY | O_CLOEXEC),
                                      open(err_name.c_str(), O_WRONLY | O_CLOEXEC)};
  const pid_t pid = Spawn(arguments, streams);
  for (const int stream : streams) close(stream);
  RunResult result;
  result.exit_code = pid > 0 ? WaitFor(pid, timeout_s) : -1;
  result.out = ReadAndRemove(out_name);
  result.err = ReadAndRemove(err_name);
  unlink(in_name.c_str());
  return result;
}

std::vector<std::string> TinyArguments(const std::string& command, const std::vector<std::string>& more,
                                       const std::string& model) {
  std::vector<std::string> arguments = {command,
                                        "--config",
                                        RT_SOURCE_DIR "/configs/" + model + ".yaml",
                                        "--set",
                                        "model.compute_dtype=float32",
                                        "--set",
                                        "device.threads=1"};
  // Its configuration names the release build's folder; any build tests its own.
  if (model == "tiny-kda")
    arguments.insert(arguments.end(), {"--set", "model.path=" RT_TESTDATA_DIR "/models/tiny-kda"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

nlohmann::json GoldenPrompt(const std::string& name, const std::string& model) {
  std::ifstream in(RT_TESTDATA_DIR "/golden/" + model + "/prompts.json");
  const nlohmann::json golden = nlohmann::json::parse(in);
  for (const nlohmann::json& prompt : golden.at("prompts")) {
    if (prompt.at("name") == name) return prompt;
  }
  throw std::runtime_error("no golden prompt " + name);
}

ServeProcess::ServeProcess(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = TinyArguments("serve", {"--set", "server.port=0"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  error_file_ = TemporaryFile();
  int out[2];
  if (pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("cannot make a pipe");
  const int in = open("/dev/null", O_RDONLY | O_CLOEXEC),
            err = open(error_file_.c_str(), O_WRONLY | O_CLOEXEC);
  pid_ = Spawn(arguments, {in, out[1], err});
  for (const int stream : {in, out[1], err}) close(stream);
  out_ = out[0];
  const std::string line = ReadLine();
  if (line.rfind("listening on http://127.0.0.1:", 0) == 0)
    port_ = static_cast<uint16_t>(std::atoi(line.c_str() + line.rfind(':') + 1));
}

ServeProcess::~ServeProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(out_);
  unlink(error_file_.c_str());
}

std::string ServeProcess::ReadLine() {
  for (size_t end = buffer_.find('\n'); end == std::string::npos; end = buffer_.find('\n')) {
    pollfd wait = {out_, POLLIN, 0};
    char bytes[512];
    const ssize_t count = poll(&wait, 1, 60000) > 0 ? read(out_, bytes, sizeof bytes) : 0;
    if (count <= 0) return std::exchange(buffer_, "");
    buffer_.append(bytes, static_cast<size_t>(count));
  }
  const size_t end = buffer_.find('\n');
  std::string line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  return line;
}

void ServeProcess::Signal(int signal) const { kill(pid_, signal); }

int ServeProcess::Wait() {
  const int code = WaitFor(pid_, 60);
  pid_ = -1;
  return code;
}

std::string ServeProcess::Errors() const {
  std::ifstream in(error_file_, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace rt::testing
