#include "kernels/common/thread_pool.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <numeric>
#include <set>
#include <vector>

namespace rt::kernels {
namespace {

std::unique_ptr<ThreadPool> MakePool(int num_threads, int spin_us = 50) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = num_threads, .pin = false, .spin_us = spin_us}, &error);
  EXPECT_NE(pool, nullptr) << error;
  return pool;
}

TEST(StaticRange, CoversEveryIndexOnceInOrder) {
  for (int threads : {1, 2, 3, 7}) {
    for (int64_t n : {0, 1, 2, 6, 7, 8, 100}) {
      int64_t next = 0;
      for (int t = 0; t < threads; ++t) {
        const Range range = StaticRange(n, t, threads);
        EXPECT_EQ(range.begin, next);
        EXPECT_LE(range.end - range.begin, n / threads + 1);
        next = range.end;
      }
      EXPECT_EQ(next, n) << "threads " << threads;
    }
  }
}

TEST(ParallelForShared, CoversEveryIndexOnceAndASlowThreadTakesLess) {
  for (int threads : {1, 2, 5}) {
    auto pool = MakePool(threads);
    for (int64_t n : {0, 1, 2, 7, 100}) {
      std::vector<std::atomic<int>> taken(static_cast<size_t>(n));
      ParallelForShared(pool->parallel(), n, [&](int64_t begin, int64_t end, int thread) {
        ASSERT_LT(begin, end);
        ASSERT_LT(thread, threads);
        for (int64_t i = begin; i < end; ++i) taken[static_cast<size_t>(i)].fetch_add(1);
      });
      for (auto& count : taken) EXPECT_EQ(count.load(), 1) << "threads " << threads << " n " << n;
    }
  }
  auto pool = MakePool(2);
  std::atomic<int64_t> items[2] = {0, 0};
  std::atomic<bool> blocked{false}, rest_done{false};
  ParallelForShared(pool->parallel(), 100, [&](int64_t begin, int64_t end, int) {
    // The first range waits until the other thread has done all that is left.
    if (!blocked.exchange(true)) {
      while (!rest_done) usleep(10);
      items[0] += end - begin;
      return;
    }
    if ((items[1] += end - begin) == 75) rest_done = true;
  });
  EXPECT_EQ(items[0].load(), 25);
}

TEST(ThreadPool, RunsTheBodyOncePerThreadWithTheCallerAsThreadZero) {
  for (int threads : {1, 2, 5}) {
    auto pool = MakePool(threads);
    std::vector<std::atomic<int>> calls(static_cast<size_t>(threads));
    const pid_t caller = gettid();
    std::atomic<bool> caller_is_zero{false};
    for (int round = 0; round < 200; ++round) {
      ParallelRun(pool->parallel(), [&](int thread, int num_threads) {
        ASSERT_EQ(num_threads, threads);
        calls[static_cast<size_t>(thread)].fetch_add(1);
        if (thread == 0) caller_is_zero = gettid() == caller;
      });
    }
    for (auto& count : calls) EXPECT_EQ(count.load(), 200);
    EXPECT_TRUE(caller_is_zero.load());
  }
}

TEST(ThreadPool, WritesOfWorkersAreVisibleAfterRunWithoutAtomics) {
  auto pool = MakePool(3);
  std::vector<int64_t> data(1000);
  for (int round = 1; round <= 300; ++round) {
    ParallelFor(pool->parallel(), static_cast<int64_t>(data.size()), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) data[static_cast<size_t>(i)] += i;
    });
    ASSERT_EQ(std::accumulate(data.begin(), data.end(), int64_t{0}), round * (999 * 1000 / 2));
  }
}

TEST(ThreadPool, WakesWorkersThatWentToSleep) {
  auto pool = MakePool(2, /*spin_us=*/0);
  int sum[2] = {0, 0};
  for (int round = 0; round < 20; ++round) {
    usleep(500);  // longer than the spin, so the worker sleeps on its futex
    ParallelRun(pool->parallel(), [&](int thread, int) { ++sum[thread]; });
  }
  EXPECT_EQ(sum[0], 20);
  EXPECT_EQ(sum[1], 20);
}

TEST(ThreadPool, WaitsForWorkersSlowerThanTheCaller) {
  auto pool = MakePool(2, /*spin_us=*/0);
  bool done = false;
  ParallelRun(pool->parallel(), [&](int thread, int) {
    if (thread == 1) {
      usleep(3000);
      done = true;
    }
  });
  EXPECT_TRUE(done);
}

TEST(ThreadPool, ARoundWhoseWorkersDoNotStartIsDoneByTheCaller) {
  // Workers that sleep need a wake-up, the caller needs nothing: short parts are done before some worker runs.
  auto pool = MakePool(4, /*spin_us=*/0);
  int by_caller = 0;
  const pid_t caller = gettid();
  for (int round = 0; round < 2000; ++round) {
    std::vector<int> calls(4, 0);
    std::atomic<int> mine{0};
    ParallelRun(pool->parallel(), [&](int thread, int num_threads) {
      ASSERT_EQ(num_threads, 4);
      ++calls[static_cast<size_t>(thread)];
      if (gettid() == caller) ++mine;
    });
    ASSERT_EQ(calls, std::vector<int>(4, 1)) << "round " << round;
    by_caller += mine - 1;
  }
  EXPECT_GT(by_caller, 0) << "no part of 6000 was taken over from a sleeping worker";
}

TEST(ThreadPool, ZeroThreadsMeansOnePerAllowedCpu) {
  EXPECT_EQ(MakePool(0)->num_threads(), static_cast<int>(AllowedCpus().size()));
}

TEST(Parallel, SerialRunsEverythingOnTheCaller) {
  int calls = 0;
  ParallelRun(SerialParallel(), [&](int thread, int num_threads) {
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(num_threads, 1);
    ++calls;
  });
  EXPECT_EQ(calls, 1);
  int64_t seen = 0;
  ParallelFor(SerialParallel(), 5, [&](int64_t begin, int64_t end, int) { seen += end - begin; });
  ParallelFor(SerialParallel(), 0, [&](int64_t, int64_t, int) { ADD_FAILURE() << "no work, no call"; });
  EXPECT_EQ(seen, 5);
}

}  // namespace
}  // namespace rt::kernels
