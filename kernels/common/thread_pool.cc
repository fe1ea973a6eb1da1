#include "kernels/common/thread_pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <system_error>

namespace rt::kernels {

std::vector<int> AllowedCpus() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

std::unique_ptr<ThreadPool> ThreadPool::Create(const Options& options, std::string* error) {
  const std::vector<int> cpus = AllowedCpus();
  const int num_cpus = static_cast<int>(cpus.size());
  const int num_threads = options.num_threads > 0 ? options.num_threads : num_cpus;
  const bool crowded = num_threads > num_cpus;
  std::unique_ptr<ThreadPool> pool(new ThreadPool(num_threads, crowded ? 0 : options.spin_us));
  pool->workers_.reserve(static_cast<size_t>(num_threads - 1));
  for (int thread = 1; thread < num_threads; ++thread) {
    try {
      pool->workers_.emplace_back([raw = pool.get(), thread] { raw->WorkerLoop(thread); });
    } catch (const std::system_error& e) {
      *error = "thread pool: cannot start worker " + std::to_string(thread) + " of " +
               std::to_string(num_threads) + ": " + e.what();
      return nullptr;
    }
    const pthread_t handle = pool->workers_.back().native_handle();
    pthread_setname_np(handle, ("rt-cpu-" + std::to_string(thread)).substr(0, 15).c_str());
    if (options.pin && !crowded) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cpus[static_cast<size_t>(thread)], &set);
      pthread_setaffinity_np(handle, sizeof(set), &set);  // a refusal costs speed only
    }
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  fn_ = nullptr;
  round_.fetch_add(1, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(void (*fn)(void*, int, int), void* arg) {
  if (workers_.empty()) {
    fn(arg, 0, 1);
    return;
  }
  fn_ = fn;
  arg_ = arg;
  pending_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  const uint32_t round = round_.fetch_add(1, std::memory_order_release) + 1;
  round_.notify_all();  // a system call only if somebody sleeps
  fn(arg, 0, num_threads_);
  // Workers that spin have begun long before; looking at their claims costs a cache miss each.
  constexpr int kPatienceUs = 2;
  if (SpinToZero(pending_, kPatienceUs)) return;
  TakeOver(round);
  for (uint32_t left = pending_.load(std::memory_order_acquire); left != 0;)
    left = AwaitChange(pending_, left);
}

bool ThreadPool::Claim(int thread, uint32_t round) {
  std::atomic<uint32_t>& last = claimed_[static_cast<size_t>(thread)].value;
  uint32_t before = round - 1;
  return last.load(std::memory_order_relaxed) == before && last.compare_exchange_strong(before, round, std::memory_order_acq_rel);
}

void ThreadPool::TakeOver(uint32_t round) {
  for (int thread = 1; thread < num_threads_; ++thread) {
    if (!Claim(thread, round)) continue;
    fn_(arg_, thread, num_threads_);
    pending_.fetch_sub(1, std::memory_order_acq_rel);
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t round = 0;
  while (true) {
    round = AwaitChange(round_, round);
    // While a claimed part runs, Run does not return, so fn_ and arg_ are those of `round`.
    if (!Claim(thread, round)) continue;
    if (fn_ == nullptr) return;
    fn_(arg_, thread, num_threads_);
    if (pending_.fetch_sub(1, std::memory_order_acq_rel) == 1) pending_.notify_one();
  }
}

bool ThreadPool::SpinToZero(const std::atomic<uint32_t>& word, int us) {
  using Clock = std::chrono::steady_clock;
  constexpr int kPausesPerClockRead = 8;
  const Clock::time_point deadline = Clock::now() + std::chrono::microseconds(us);
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      if (word.load(std::memory_order_acquire) == 0) return true;
      _mm_pause();
    }
  } while (Clock::now() < deadline);
  return false;
}

uint32_t ThreadPool::AwaitChange(const std::atomic<uint32_t>& word, uint32_t old) const {
  // One pause is 10-50 ns; reading the clock every 32 of them keeps the reaction time near a cache miss.
  constexpr int kPausesPerClockRead = 32;
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + std::chrono::microseconds(spin_us_);
  do {
    for (int i = 0; i < kPausesPerClockRead; ++i) {
      const uint32_t value = word.load(std::memory_order_acquire);
      if (value != old) return value;
      _mm_pause();
    }
  } while (Clock::now() < deadline);
  word.wait(old, std::memory_order_acquire);
  return word.load(std::memory_order_acquire);
}

Parallel ThreadPool::parallel() {
  return {num_threads_, this, [](void* pool, void (*fn)(void*, int, int), void* arg) {
            static_cast<ThreadPool*>(pool)->Run(fn, arg);
          }};
}

}  // namespace rt::kernels
