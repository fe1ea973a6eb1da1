// GB/s of SwiGLU's product (gate and up read, y written), bf16.
#include <benchmark/benchmark.h>

#include <vector>

#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"
#include "kernels/elementwise/elementwise.h"

namespace rt::kernels {
namespace {

void BM_SiluMul(benchmark::State& state) {
  const bool avx512 = state.range(0) != 0;
  if (avx512 && !CpuSupports(Isa::kAvx512Bf16)) return state.SkipWithError("needs AVX512-BF16");
  const int64_t rows = state.range(1), size = 3584;
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = 2}, &error);
  std::vector<bf16> in(static_cast<size_t>(rows * 2 * size)), y(static_cast<size_t>(rows * size));
  const ElementwiseKernels& kernels = avx512 ? ElementwiseAvx512Bf16() : ElementwiseAvx2();
  for (auto _ : state)
    kernels.silu_mul_bf16({rows, size, in.data(), 2 * size, in.data() + size, 2 * size, y.data(), size},
                          pool->parallel());
  state.SetBytesProcessed(state.iterations() * rows * size * 6);
}
BENCHMARK(BM_SiluMul)->ArgNames({"avx512", "rows"})->ArgsProduct({{0, 1}, {1, 16, 512}})->UseRealTime();

}  // namespace
}  // namespace rt::kernels
