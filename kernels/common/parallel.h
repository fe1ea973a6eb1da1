// How kernels spread their work over threads.
//
// A kernel never owns threads. Its launcher takes a `Parallel`, a plain description of a fork-join executor,
// and splits its own work, so that a result never depends on timing: either the split is static, or each item's
// result does not depend on who computes it (ParallelForShared). `ThreadPool` (thread_pool.h) is the executor of
// the CPU plugin; `SerialParallel()` runs everything on the caller.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace rt::kernels {

// run(pool, fn, arg) calls fn(arg, thread, num_threads) exactly once for every thread in [0, num_threads) and
// returns when all calls have returned. Thread 0 is the calling thread. Calls must not nest, and one executor
// serves one caller at a time.
struct Parallel {
  int num_threads;
  void* pool;
  void (*run)(void* pool, void (*fn)(void* arg, int thread, int num_threads), void* arg);
};

// Calls body(thread, num_threads) on every thread. The body must not throw.
template <class F>
void ParallelRun(const Parallel& parallel, F&& body) {
  using Body = std::remove_reference_t<F>;
  parallel.run(
      parallel.pool,
      [](void* arg, int thread, int num_threads) { (*static_cast<Body*>(arg))(thread, num_threads); },
      const_cast<void*>(static_cast<const void*>(std::addressof(body))));
}

// The part of [0, n) that `thread` of `num_threads` owns: contiguous, sizes differ by at most one.
struct Range {
  int64_t begin;
  int64_t end;
};
// Forced inline: this header is included at every ISA level, and one level's weak copy must not serve
// another.
inline __attribute__((always_inline)) Range StaticRange(int64_t n, int thread, int num_threads) {
  const int64_t base = n / num_threads;
  const int64_t rest = n % num_threads;
  const int64_t begin = thread * base + (thread < rest ? thread : rest);
  return {begin, begin + base + (thread < rest ? 1 : 0)};
}

// Calls body(begin, end, thread) once per thread whose part of [0, n) is not empty. Work that fits one thread
// stays on the caller: waking the others costs more than a microsecond.
template <class F>
void ParallelFor(const Parallel& parallel, int64_t n, F&& body) {
  if (n <= 0) return;
  if (n == 1 || parallel.num_threads == 1) {
    body(int64_t{0}, n, 0);
    return;
  }
  ParallelRun(parallel, [&](int thread, int num_threads) {
    const Range range = StaticRange(n, thread, num_threads);
    if (range.begin < range.end) body(range.begin, range.end, thread);
  });
}

// ParallelFor for items of `cost` elements each: work below kMinParallelCost elements stays on the caller,
// where it is done before another thread would have woken up.
constexpr int64_t kMinParallelCost = 16384;
template <class F>
void ParallelForCost(const Parallel& parallel, int64_t n, int64_t cost, F&& body) {
  if (n <= 0) return;
  if (n * cost < kMinParallelCost) {
    body(int64_t{0}, n, 0);
    return;
  }
  ParallelFor(parallel, n, body);
}

// Calls body(begin, end, thread) on ranges that together cover [0, n) once, each thread taking the next range when it is done with one:
// long ranges first (half a thread's share of what is left), single items last. For long items whose results do not depend on the split:
// a thread that loses its core to another process then delays the others by one range, not by its whole share.
template <class F>
void ParallelForShared(const Parallel& parallel, int64_t n, F&& body) {
  if (n <= 0) return;
  if (n == 1 || parallel.num_threads == 1) {
    body(int64_t{0}, n, 0);
    return;
  }
  std::atomic<int64_t> next{0};
  ParallelRun(parallel, [&](int thread, int num_threads) {
    int64_t begin = next.load(std::memory_order_relaxed);
    while (begin < n) {
      const int64_t share = (n - begin) / (2 * num_threads);
      const int64_t end = begin + (share > 1 ? share : 1);
      if (!next.compare_exchange_weak(begin, end, std::memory_order_relaxed)) continue;
      body(begin, end, thread);
      begin = next.load(std::memory_order_relaxed);
    }
  });
}

// Runs on the calling thread alone.
inline Parallel SerialParallel() {
  return {1, nullptr, [](void*, void (*fn)(void*, int, int), void* arg) { fn(arg, 0, 1); }};
}

}  // namespace rt::kernels
