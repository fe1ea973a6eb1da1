// GFLOP/s of oneDNN on plain weights, the baseline of gemm_bench's blocked path.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <vector>

#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"
#include "kernels/gemm/onednn_gemm.h"

namespace rt::kernels {
namespace {

void BM_OneDnnGemm(benchmark::State& state) {
  const DType dtype = state.range(0) != 0 ? DType::kBf16 : DType::kF32;
  const int threads = static_cast<int>(state.range(1));
  const int64_t m = state.range(2), n = state.range(3), k = state.range(4);
  const Isa isa = CpuSupports(Isa::kAvx512Bf16) ? Isa::kAvx512Bf16 : Isa::kAvx2;
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = threads}, &error);
  auto gemm = OneDnnGemm::Create({n, k, dtype, isa, {m}, threads}, &error);
  if (gemm == nullptr) return state.SkipWithError(error.c_str());
  void* workspace = std::aligned_alloc(64, gemm->workspace_bytes());
  std::vector<float> x(static_cast<size_t>(m * k)), w(static_cast<size_t>(n * k)),
      y(static_cast<size_t>(m * n));
  for (auto _ : state)
    gemm->Run({m, n, k, x.data(), k, w.data(), y.data(), n, false, workspace}, DType::kF32, pool->parallel());
  std::free(workspace);
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(m * n * k), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_OneDnnGemm)
    ->ArgNames({"bf16", "threads", "m", "n", "k"})
    ->ArgsProduct({{0, 1}, {1, 2}, {16, 32, 128, 512}, {3584}, {1024}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace rt::kernels
