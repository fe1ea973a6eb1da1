#include "runtime/text/jinja_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

namespace rt {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

// Starting Python and importing Jinja2 takes 0.1 s on an idle machine; a loaded one gets much more before we give up.
// The same holds for compiling the templates.
constexpr std::chrono::milliseconds kStartTimeout{30'000};

// Only what an interpreter needs to find itself, and the time zone for strftime_now.
std::vector<std::string> ChildEnvironment() {
  std::vector<std::string> environment = {"LC_ALL=C.UTF-8"};
  for (const char* name : {"PATH", "HOME", "TZ", "LD_LIBRARY_PATH"}) {
    if (const char* value = std::getenv(name)) environment.push_back(std::string(name) + "=" + value);
  }
  return environment;
}

std::vector<char*> Pointers(std::vector<std::string>* strings) {
  std::vector<char*> pointers;
  for (std::string& s : *strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Starts `interpreter` with `socket` as fd 0 and nothing else open but /dev/null. Returns an errno, 0 = started.
int SpawnChild(const std::string& interpreter, int socket, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, socket, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addclosefrom_np(&actions, 3);
  // Own process group: a Ctrl-C meant for the runtime must not take the renderer away while requests drain.
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> arguments = {interpreter, "-I", "-c", kJinjaChild};
  std::vector<std::string> environment = ChildEnvironment();
  const int error = posix_spawnp(pid, interpreter.c_str(), &actions, &attributes, Pointers(&arguments).data(),
                                 Pointers(&environment).data());
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  return error;
}

std::string TextMember(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

}  // namespace

JinjaProcess::JinjaProcess(std::map<std::string, std::string> templates, JinjaLimits limits)
    : templates_(std::move(templates)), limits_(std::move(limits)) {}

JinjaProcess::~JinjaProcess() { Kill(); }

Result<std::unique_ptr<JinjaProcess>> JinjaProcess::Start(std::map<std::string, std::string> templates,
                                                          JinjaLimits limits) {
  std::unique_ptr<JinjaProcess> process(new JinjaProcess(std::move(templates), std::move(limits)));
  const std::lock_guard lock(process->mutex_);
  const Status status = process->EnsureRunning();
  if (!status.ok()) return status;
  return process;
}

pid_t JinjaProcess::pid() {
  const std::lock_guard lock(mutex_);
  return pid_;
}

Result<std::string> JinjaProcess::Render(const std::string& name, const Json& context, std::string_view marks) {
  const std::lock_guard lock(mutex_);
  if (pid_ >= 0 && ChildHasEnded()) Kill();
  RT_RETURN_IF_ERROR(EnsureRunning());
  return Call({{"op", "render"}, {"name", name}, {"context", context}, {"marks", marks}}, limits_.timeout);
}

Status JinjaProcess::EnsureRunning() {
  if (pid_ >= 0) return {};
  std::string failures;
  for (const std::string& interpreter : limits_.interpreters) {
    std::string failure;
    if (Spawn(interpreter, &failure).ok()) return Configure();
    failures += (failures.empty() ? "" : "; ") + interpreter + ": " + failure;
  }
  return {Code::kUnavailable, "chat templates need Python 3 with Jinja2 (Debian package python3-jinja2); tried " + failures};
}

Status JinjaProcess::Spawn(const std::string& interpreter, std::string* failure) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    *failure = std::strerror(errno);
    return {Code::kResourceExhausted, *failure};
  }
  const int error = SpawnChild(interpreter, ends[1], &pid_);
  close(ends[1]);
  socket_ = ends[0];
  if (error != 0) {
    pid_ = -1;
    Kill();
    *failure = std::strerror(error);
    return {Code::kUnavailable, *failure};
  }
  const auto hello = ReceiveFrame(Clock::now() + kStartTimeout);
  const Json said = hello.ok() ? Json::parse(*hello, nullptr, false) : Json();
  if (said.is_object() && said.contains("ok")) return {};
  *failure = said.is_object() ? TextMember(said, "message") : hello.status().message();
  Kill();
  return {Code::kUnavailable, *failure};
}

Status JinjaProcess::Configure() {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limits_.timeout).count() + 2;
  const Json limits = {{"op", "limits"}, {"memory_bytes", limits_.memory_bytes}, {"cpu_seconds", seconds}};
  Status status = Call(limits, kStartTimeout).status();
  if (status.ok()) status = Call({{"op", "load"}, {"templates", templates_}}, kStartTimeout).status();
  if (!status.ok()) Kill();
  return status;
}

bool JinjaProcess::ChildHasEnded() {
  siginfo_t info = {};
  return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == pid_;
}

void JinjaProcess::Kill() {
  if (socket_ >= 0) close(socket_);
  socket_ = -1;
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
}

Result<std::string> JinjaProcess::Call(const Json& request, std::chrono::milliseconds timeout) {
  std::string body;
  try {
    body = request.dump();
  } catch (const nlohmann::json::exception&) {
    return {Code::kInvalidArgument, "chat template: a variable holds text that is not UTF-8"};
  }
  const auto deadline = Clock::now() + timeout;
  Status sent = SendFrame(body, deadline);
  auto received = sent.ok() ? ReceiveFrame(deadline) : Result<std::string>(sent);
  if (!received.ok()) {
    Kill();
    return received.status();
  }
  const Json reply = Json::parse(*received, nullptr, false);
  const std::string kind = reply.is_object() ? TextMember(reply, "error") : "protocol";
  if (kind.empty()) return TextMember(reply, "text");
  if (kind == "memory") {
    Kill();  // its heap is no longer in a known state
    return {Code::kResourceExhausted, "chat template: needs more memory than the limit of " +
                                          std::to_string(limits_.memory_bytes >> 20) + " MiB"};
  }
  if (kind == "protocol") {
    Kill();
    return {Code::kInternal, "chat template: the renderer sent a reply that is not JSON"};
  }
  return {Code::kInvalidArgument, "chat template: " + TextMember(reply, "message")};
}

Status JinjaProcess::SendFrame(std::string_view body, Deadline deadline) {
  const auto size = static_cast<uint32_t>(body.size());
  if (body.size() > UINT32_MAX) return {Code::kResourceExhausted, "chat template: the variables exceed 4 GiB"};
  std::string frame;
  frame.reserve(4 + body.size());
  for (int shift = 0; shift < 32; shift += 8) frame.push_back(static_cast<char>(size >> shift & 0xFF));
  frame += body;
  for (size_t done = 0; done < frame.size();) {
    RT_RETURN_IF_ERROR(WaitFor(POLLOUT, deadline));
    const ssize_t n = send(socket_, frame.data() + done, frame.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      done += static_cast<size_t>(n);
    } else if (errno != EINTR && errno != EAGAIN) {
      return LostChild();
    }
  }
  return {};
}

Result<std::string> JinjaProcess::ReceiveFrame(Deadline deadline) {
  uint8_t header[4];
  RT_RETURN_IF_ERROR(ReceiveBytes(reinterpret_cast<char*>(header), 4, deadline));
  size_t size = 0;
  for (int i = 3; i >= 0; --i) size = size << 8 | header[i];
  if (size > limits_.max_reply_bytes) {
    return {Code::kResourceExhausted, "chat template: wrote " + std::to_string(size) + " bytes, more than the limit of " +
                                          std::to_string(limits_.max_reply_bytes)};
  }
  std::string body(size, '\0');
  RT_RETURN_IF_ERROR(ReceiveBytes(body.data(), size, deadline));
  return body;
}

Status JinjaProcess::ReceiveBytes(char* data, size_t size, Deadline deadline) {
  while (size > 0) {
    RT_RETURN_IF_ERROR(WaitFor(POLLIN, deadline));
    const ssize_t n = recv(socket_, data, size, MSG_DONTWAIT);
    if (n > 0) {
      data += n;
      size -= static_cast<size_t>(n);
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
      return LostChild();
    }
  }
  return {};
}

Status JinjaProcess::WaitFor(short events, Deadline deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd descriptor = {socket_, events, 0};
    const int n = left > 0 ? poll(&descriptor, 1, static_cast<int>(left)) : 0;
    if (n > 0) return {};
    if (n == 0) {
      return {Code::kDeadlineExceeded, "chat template: no result within the time limit; the renderer was stopped"};
    }
    if (errno != EINTR) return {Code::kInternal, std::string("chat template: poll: ") + std::strerror(errno)};
  }
}

// The child closed its socket: says how it ended. The caller reaps it.
Status JinjaProcess::LostChild() {
  siginfo_t info = {};
  kill(pid_, SIGKILL);  // no effect on one that is already ending: its status stays what it was
  if (waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) != 0) info = {};
  if (info.si_code == CLD_EXITED) {
    return {Code::kInternal, "chat template: the renderer exited with code " + std::to_string(info.si_status)};
  }
  if (info.si_status == SIGXCPU) return {Code::kDeadlineExceeded, "chat template: used up its processor time"};
  if (info.si_status == SIGKILL) return {Code::kResourceExhausted, "chat template: the renderer was killed"};
  return {Code::kInternal, "chat template: the renderer ended by signal " + std::to_string(info.si_status)};
}

}  // namespace rt
