// SIGTERM and SIGINT as an event that the main thread waits for.
#pragma once

#include <csignal>

#include <pthread.h>

namespace rt::server {

// Construct in main before any thread starts: threads inherit the mask, so the signals reach only Wait().
class TerminationSignals {
 public:
  TerminationSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGTERM);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, &previous_);
  }
  ~TerminationSignals() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }
  TerminationSignals(const TerminationSignals&) = delete;

  // The signal that came. A second one while the caller drains: call Wait() again, or leave it to Default().
  int Wait() const {
    int signal = 0;
    sigwait(&signals_, &signal);
    return signal;
  }

  // From now on a further signal ends the process at once, as users expect of a second Ctrl-C.
  void Default() const { pthread_sigmask(SIG_UNBLOCK, &signals_, nullptr); }

 private:
  sigset_t signals_;
  sigset_t previous_;
};

}  // namespace rt::server
