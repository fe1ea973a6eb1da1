// GB/s of weights (few rows) and GFLOP/s (many rows), beside the read bandwidth and multiply-add peak of the
// same run.
#include <benchmark/benchmark.h>
#include <immintrin.h>

#include <cstring>
#include <memory>
#include <string>

#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"
#include "kernels/gemm/gemm.h"

namespace rt::kernels {
namespace {

// Larger than any cache share, so that weights come from memory, as in a model.
constexpr int64_t kPoolBytes = int64_t{512} << 20;

char* WeightBytes() {
  static char* const bytes = [] {
    char* p = static_cast<char*>(std::aligned_alloc(size_t{2} << 20, kPoolBytes));
    for (int64_t i = 0; i < kPoolBytes; i += 2) std::memcpy(p + i, "\x00\x3c", 2);  // 2^-7 as bf16 pairs
    return p;
  }();
  return bytes;
}

std::unique_ptr<ThreadPool> MakePool(int64_t threads) {
  std::string error;
  return ThreadPool::Create({.num_threads = static_cast<int>(threads)}, &error);
}

void BM_ReadBandwidth(benchmark::State& state) {
  auto pool = MakePool(state.range(0));
  const char* bytes = WeightBytes();
  for (auto _ : state) {
    ParallelFor(pool->parallel(), kPoolBytes / 4096, [&](int64_t begin, int64_t end, int) {
      int64_t sum = 0;
      for (const char* p = bytes + begin * 4096; p < bytes + end * 4096; p += 64) {
        _mm_prefetch(p + 512, _MM_HINT_T0);
        int64_t word;
        std::memcpy(&word, p, sizeof(word));
        sum += word;
      }
      benchmark::DoNotOptimize(sum);
    });
  }
  state.SetBytesProcessed(state.iterations() * kPoolBytes);
}
BENCHMARK(BM_ReadBandwidth)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

struct Variant {
  const char* name;
  const GemmKernels& (*kernels)();
  bool bf16;
};
const Variant kVariants[] = {{"avx512bf16_wide", GemmAvx512Bf16Wide, true},
                             {"avx512bf16_dot", GemmAvx512Bf16Dot, true},
                             {"avx2_bf16", GemmAvx2, true},
                             {"avx512_f32", GemmAvx512Bf16, false},
                             {"avx2_f32", GemmAvx2, false}};

void BM_Gemm(benchmark::State& state) {
  const Variant& variant = kVariants[state.range(0)];
  const int64_t threads = state.range(1), m = state.range(2), n = state.range(3), k = state.range(4);
  if (variant.kernels != GemmAvx2 && !CpuSupports(Isa::kAvx512Bf16))
    return state.SkipWithError("needs AVX512-BF16");
  auto pool = MakePool(threads);
  const int64_t weight_bytes = n * k * (variant.bf16 ? 2 : 4);
  const int64_t copies = kPoolBytes / weight_bytes;
  std::unique_ptr<float[]> x(new float[static_cast<size_t>(m * k)]());
  std::unique_ptr<float[]> y(new float[static_cast<size_t>(m * n)]());
  void* workspace = std::aligned_alloc(64, GemmWorkspaceBytes(static_cast<int>(threads)));
  int64_t copy = 0;
  for (auto _ : state) {
    const GemmArgs args{m,       n, k,     x.get(),  k, WeightBytes() + copy * weight_bytes,
                        y.get(), n, false, workspace};
    (variant.bf16 ? variant.kernels().bf16_bf16_f32 : variant.kernels().f32_f32_f32)(args, pool->parallel());
    copy = (copy + 1) % copies;
  }
  std::free(workspace);
  state.SetLabel(variant.name);
  state.SetBytesProcessed(state.iterations() * weight_bytes);
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(m * n * k), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Gemm)
    ->ArgNames({"variant", "threads", "m", "n", "k"})
    ->ArgsProduct({{0, 1, 2, 3, 4}, {1, 2}, {1, 4, 8, 16, 32, 128, 512}, {3584}, {1024}})
    ->ArgsProduct({{0, 1}, {2}, {1, 16, 512}, {1024}, {3584}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace rt::kernels
