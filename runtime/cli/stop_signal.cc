#include "runtime/cli/stop_signal.h"

#include <cstdio>
#include <cstdlib>

namespace rt {

StopSignal::~StopSignal() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (!stopping_) pthread_kill(thread_.native_handle(), SIGTERM);  // it is in sigwait
  }
  changed_.notify_all();
  thread_.join();
}

void StopSignal::Watch() {
  signals_.Wait();
  {
    const std::lock_guard lock(mutex_);
    if (cancelled_) return;
    stopping_ = true;
    if (!started_) {
      std::fputs("runtime: stopped while starting\n", stderr);
      std::_Exit(0);
    }
  }
  changed_.notify_all();
  signals_.Default();
  // Stays, because a further signal needs a thread that does not block it.
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return cancelled_; });
}

void StopSignal::Started() {
  const std::lock_guard lock(mutex_);
  started_ = true;
}

void StopSignal::Wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stopping_; });
}

}  // namespace rt
