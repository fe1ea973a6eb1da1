// A resident Python child that renders Jinja2 templates: the core links no Python, and a template that runs away is
// killed without harm to anything else.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <rt/plugin/status.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace rt {

// Source of the child (jinja_child.py), which also documents the protocol.
extern const char kJinjaChild[];

struct JinjaLimits {
  std::chrono::milliseconds timeout{5000};     // for one rendering
  size_t memory_bytes = size_t{512} << 20;     // address space of the child
  size_t max_reply_bytes = size_t{64} << 20;
  // Tried in this order; one without a slash is looked for in PATH. Debian's own python3 comes first because
  // python3-jinja2 installs for it, while the first python3 in PATH may be another.
  std::vector<std::string> interpreters = {"/usr/bin/python3", "python3"};
};

// One child with one set of templates. All functions may be called from any thread; requests are answered in turn.
class JinjaProcess {
 public:
  // Starts the child and compiles the templates (name: source). kUnavailable: no interpreter with Jinja2, naming the
  // package to install. kInvalidArgument: a template does not compile.
  static Result<std::unique_ptr<JinjaProcess>> Start(std::map<std::string, std::string> templates, JinjaLimits limits);
  ~JinjaProcess();
  JinjaProcess(const JinjaProcess&) = delete;
  JinjaProcess& operator=(const JinjaProcess&) = delete;

  // Renders template `name` with the variables of `context` (an object). Each code point of `marks` comes through
  // tojson as it is. The child is started anew if it has ended.
  //   kInvalidArgument   the template raised, or failed: its own message, no traceback
  //   kDeadlineExceeded  it ran longer than the time-out; kResourceExhausted: it needed more memory than the limit, or
  //                      wrote too much. The child was killed.
  Result<std::string> Render(const std::string& name, const nlohmann::ordered_json& context, std::string_view marks);

  // Process id of the child, or -1 while none runs. For tests.
  pid_t pid();

 private:
  using Deadline = std::chrono::steady_clock::time_point;

  JinjaProcess(std::map<std::string, std::string> templates, JinjaLimits limits);

  Status EnsureRunning();
  Status Spawn(const std::string& interpreter, std::string* failure);
  Status Configure();
  bool ChildHasEnded();
  void Kill();
  // The member "text" of the reply, if any.
  Result<std::string> Call(const nlohmann::ordered_json& request, std::chrono::milliseconds timeout);
  Status SendFrame(std::string_view body, Deadline deadline);
  Result<std::string> ReceiveFrame(Deadline deadline);
  Status ReceiveBytes(char* data, size_t size, Deadline deadline);
  Status WaitFor(short events, Deadline deadline);
  Status LostChild();

  const std::map<std::string, std::string> templates_;
  const JinjaLimits limits_;
  std::mutex mutex_;  // guards what follows and the socket
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace rt
