// SIGTERM and SIGINT for a process that first starts up, then serves, then drains.
#pragma once

#include "runtime/server/termination.h"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

namespace rt {

// Construct before any other thread starts. The first signal during start-up ends the process at once with
// code 0: nothing has been promised to anybody yet. After Started() it ends Wait(). The second signal always
// ends the process at once.
class StopSignal {
 public:
  StopSignal() : thread_([this] { Watch(); }) {}
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;

  void Started();
  // Blocks until a signal comes.
  void Wait();

 private:
  void Watch();

  const server::TerminationSignals signals_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  bool stopping_ = false;   // a signal came
  bool cancelled_ = false;  // the destructor wants the thread back
  std::thread thread_;      // last: it uses all of the above
};

}  // namespace rt
