// GB/s of conversion and random fill, bytes written, one thread. The baseline is the memcpy row (BF16 to
// BF16).
#include "runtime/weights/dtype.h"
#include "runtime/weights/random_fill.h"

#include <benchmark/benchmark.h>

namespace rt::weights {
namespace {

constexpr size_t kElements = 16u << 20;  // beyond the caches

void BM_Convert(benchmark::State& state, DType from, DType to) {
  std::vector<std::byte> source(kElements * static_cast<size_t>(BitsOf(from)) / 8, std::byte{0x3c});
  std::vector<std::byte> target(kElements * static_cast<size_t>(BitsOf(to)) / 8);
  for (auto _ : state) {
    Convert(from, source.data(), to, target.data(), kElements);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(target.size()));
}
BENCHMARK_CAPTURE(BM_Convert, bf16_to_bf16, DType::kBf16, DType::kBf16);
BENCHMARK_CAPTURE(BM_Convert, bf16_to_f32, DType::kBf16, DType::kF32);
BENCHMARK_CAPTURE(BM_Convert, f32_to_bf16, DType::kF32, DType::kBf16);
BENCHMARK_CAPTURE(BM_Convert, f16_to_f32, DType::kF16, DType::kF32);

void BM_FillRandom(benchmark::State& state, DType dtype) {
  std::vector<std::byte> target(kElements * static_cast<size_t>(BitsOf(dtype)) / 8);
  for (auto _ : state) {
    FillRandom(1, "w", Init::kNormal, 0.02f, 0, kElements, dtype, target.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(target.size()));
}
BENCHMARK_CAPTURE(BM_FillRandom, bf16, DType::kBf16);
BENCHMARK_CAPTURE(BM_FillRandom, f32, DType::kF32);

}  // namespace
}  // namespace rt::weights
