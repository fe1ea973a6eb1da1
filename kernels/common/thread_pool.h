// A pinned fork-join thread pool for the CPU kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/common/parallel.h"

namespace rt::kernels {

// `num_threads` threads of which the caller of Run is number 0, so num_threads - 1 workers are started.
//
// A step of a model is a few hundred short parallel regions a few microseconds apart, so workers first spin
// for `spin_us` and only then sleep on a futex: between two kernels of a step nobody sleeps, between two
// requests nobody burns a core. With `pin`, worker i is bound to the i-th CPU of the process's affinity mask
// (i counted from 1). The caller's own binding is left alone. Where there are more threads than CPUs in the
// mask, no worker is pinned and nobody spins.
//
// A worker that does not start (its core serves another process, or it is slow to wake) delays nobody: once the
// caller has done its own part and waited a moment, it runs the parts that nobody has begun. So on a crowded
// machine a region costs at most what the caller alone needs, plus a part that a worker began before it lost its
// core. fn(arg, thread, n) is then called on another thread than worker `thread`, but still exactly once.
class ThreadPool {
 public:
  struct Options {
    int num_threads = 0;  // 0: one per CPU of the affinity mask
    bool pin = true;
    int spin_us = 200;
  };

  // Null with `*error` set if the system refuses a thread.
  static std::unique_ptr<ThreadPool> Create(const Options& options, std::string* error);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // See Parallel. One caller at a time; the memory effects of every fn call are visible when Run returns.
  void Run(void (*fn)(void* arg, int thread, int num_threads), void* arg);

  // The pool as kernels see it; valid as long as the pool.
  Parallel parallel();

 private:
  ThreadPool(int num_threads, int spin_us) : num_threads_(num_threads), spin_us_(spin_us), claimed_(static_cast<size_t>(num_threads)) {}
  void WorkerLoop(int thread);
  // Takes part `thread` of round `round`, unless somebody has.
  bool Claim(int thread, uint32_t round);
  // Runs the parts that nobody has begun.
  void TakeOver(uint32_t round);
  // Blocks until `word` differs from `old` (spin, then sleep) and returns the new value.
  uint32_t AwaitChange(const std::atomic<uint32_t>& word, uint32_t old) const;
  // Spins until `word` is zero, at most for `us` microseconds; whether it is.
  static bool SpinToZero(const std::atomic<uint32_t>& word, int us);

  const int num_threads_;
  const int spin_us_;
  void (*fn_)(void*, int, int) = nullptr;  // null in the last round: workers leave
  void* arg_ = nullptr;
  // Each on its own cache line: workers spin on round_ while others count down pending_.
  alignas(64) std::atomic<uint32_t> round_{0};    // bumped when fn_/arg_ hold new work
  alignas(64) std::atomic<uint32_t> pending_{0};  // parts of the round that are not finished, but the caller's
  // The last round in which each worker's part was taken: round_ - 1 when a round begins, since Run returns only
  // when every part is done.
  struct alignas(64) LastRound {
    std::atomic<uint32_t> value{0};
  };
  std::vector<LastRound> claimed_;
  alignas(64) std::vector<std::thread> workers_;
};

// CPUs this process may run on, ascending.
std::vector<int> AllowedCpus();

}  // namespace rt::kernels
