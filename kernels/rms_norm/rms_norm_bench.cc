// GB/s of the fused residual norm: residual read and written, delta read, y written.
#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"
#include "kernels/rms_norm/rms_norm.h"

namespace rt::kernels {
namespace {

void BM_AddRmsNorm(benchmark::State& state) {
  const bool avx512 = state.range(0) != 0;
  if (avx512 && !CpuSupports(Isa::kAvx512Bf16)) return state.SkipWithError("needs AVX512-BF16");
  const int64_t rows = state.range(1), size = state.range(2);
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = 2}, &error);
  std::vector<float> residual(static_cast<size_t>(rows * size)), weight(static_cast<size_t>(size));
  std::vector<bf16> delta(residual.size()), y(residual.size());
  const RmsNormKernels& kernels = avx512 ? RmsNormAvx512Bf16() : RmsNormAvx2();
  for (auto _ : state) {
    kernels.add_bf16_bf16(
        {rows, size, residual.data(), size, delta.data(), size, weight.data(), 1, 1e-6f, y.data(), size},
        pool->parallel());
  }
  state.SetBytesProcessed(state.iterations() * rows * size * 12);
}
BENCHMARK(BM_AddRmsNorm)
    ->ArgNames({"avx512", "rows", "size"})
    ->ArgsProduct({{0, 1}, {1, 16, 512}, {1024}})
    ->UseRealTime();

}  // namespace
}  // namespace rt::kernels
