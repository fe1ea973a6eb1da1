#include "plugin_sdk/loader/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

extern char** environ;

namespace rt {
namespace {

constexpr int kReportFd = 3;
constexpr size_t kMaxReportBytes = 16 << 20;
constexpr size_t kMaxOutputBytes = 16 << 10;

using Clock = std::chrono::steady_clock;

class Pipe {
 public:
  ~Pipe() {
    CloseRead();
    CloseWrite();
  }
  Status Open() {
    if (pipe2(ends_, O_CLOEXEC) == 0) return Status::Ok();
    return {Code::kResourceExhausted, std::string("cannot make a pipe: ") + std::strerror(errno)};
  }
  int read_end() const { return ends_[0]; }
  int write_end() const { return ends_[1]; }
  void CloseRead() { Close(&ends_[0]); }
  void CloseWrite() { Close(&ends_[1]); }

 private:
  static void Close(int* fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
  }
  int ends_[2] = {-1, -1};
};

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (const std::string& text : texts) out.push_back(const_cast<char*>(text.c_str()));
  return out;
}

Result<pid_t> Spawn(const std::vector<std::string>& argv, const std::vector<std::string>& extra_environment,
                    const Pipe& report, const Pipe& output) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  if (posix_spawn_file_actions_init(&actions) != 0 || posix_spawnattr_init(&attributes) != 0) {
    return {Code::kResourceExhausted, "cannot prepare a child process"};
  }
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, output.write_end(), STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, output.write_end(), STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, report.write_end(), kReportFd);

  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);  // its own group, so that a time-out also ends what it started
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);

  std::vector<char*> arguments = Pointers(argv), environment = Pointers(extra_environment);
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, arguments[0], &actions, &attributes, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) return {Code::kUnavailable, "cannot start " + argv[0] + ": " + std::strerror(error)};
  return pid;
}

// Appends what is there; false at the end of the stream. Bytes beyond `limit` are read and dropped, so that
// the child never blocks.
bool Drain(int fd, std::string* text, size_t limit) {
  char buffer[4096];
  const ssize_t count = read(fd, buffer, sizeof buffer);
  if (count < 0) return errno == EINTR || errno == EAGAIN;
  if (count == 0) return false;
  text->append(buffer, std::min(static_cast<size_t>(count), limit - std::min(limit, text->size())));
  return true;
}

// Reads both pipes until the child has closed them or the time is up; true if it closed the report. The
// output pipe may be held open by a grandchild, hence the report decides.
bool Collect(const Pipe& report, const Pipe& output, Clock::time_point deadline, ChildOutcome* outcome) {
  pollfd polled[2] = {{report.read_end(), POLLIN, 0}, {output.read_end(), POLLIN, 0}};
  while (polled[0].fd >= 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    const int ready = poll(polled, 2, static_cast<int>(std::min<long long>(left, 1000)));
    if (ready < 0 && errno != EINTR) return false;
    if (ready <= 0) continue;
    if (polled[0].revents != 0 && !Drain(polled[0].fd, &outcome->report, kMaxReportBytes)) polled[0].fd = -1;
    if (polled[1].revents != 0 && !Drain(polled[1].fd, &outcome->output, kMaxOutputBytes)) polled[1].fd = -1;
  }
  while (polled[1].fd >= 0 && poll(&polled[1], 1, 0) > 0 &&
         Drain(polled[1].fd, &outcome->output, kMaxOutputBytes)) {
  }
  return true;
}

// False if the child still runs at the deadline.
bool Wait(pid_t pid, Clock::time_point deadline, int* status) {
  for (;;) {
    const pid_t ended = waitpid(pid, status, WNOHANG);
    if (ended == pid) return true;
    if (ended < 0 && errno != EINTR) {  // somebody else reaped it (SIGCHLD ignored): its exit code is lost
      *status = 0;
      return true;
    }
    if (Clock::now() >= deadline) return false;
    poll(nullptr, 0, 1);
  }
}

}  // namespace

Result<ChildOutcome> RunChild(const std::vector<std::string>& argv, std::chrono::milliseconds timeout,
                              const std::vector<std::string>& extra_environment) {
  Pipe report, output;
  RT_RETURN_IF_ERROR(report.Open());
  RT_RETURN_IF_ERROR(output.Open());
  RT_ASSIGN_OR_RETURN(const pid_t pid, Spawn(argv, extra_environment, report, output));
  report.CloseWrite();
  output.CloseWrite();

  ChildOutcome outcome;
  const Clock::time_point deadline = Clock::now() + timeout;
  int status = 0;
  if (!Collect(report, output, deadline, &outcome) || !Wait(pid, deadline, &status)) {
    outcome.timed_out = true;
    kill(-pid, SIGKILL);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return outcome;
  }
  if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

}  // namespace rt
