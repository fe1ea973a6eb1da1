// Cost of one empty parallel region, with workers spinning and with workers asleep.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include "kernels/common/thread_pool.h"

namespace rt::kernels {
namespace {

void BM_EmptyRegion(benchmark::State& state) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = static_cast<int>(state.range(0))}, &error);
  const Parallel parallel = pool->parallel();
  for (auto _ : state) ParallelRun(parallel, [](int, int) {});
}
BENCHMARK(BM_EmptyRegion)->Arg(1)->Arg(2)->UseRealTime();

void BM_EmptyRegionAfterSleep(benchmark::State& state) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = 2, .spin_us = 10}, &error);
  const Parallel parallel = pool->parallel();
  for (auto _ : state) {
    state.PauseTiming();
    usleep(300);
    state.ResumeTiming();
    ParallelRun(parallel, [](int, int) {});
  }
}
BENCHMARK(BM_EmptyRegionAfterSleep)->UseRealTime()->Iterations(300);

}  // namespace
}  // namespace rt::kernels
