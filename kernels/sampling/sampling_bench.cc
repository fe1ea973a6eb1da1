// Time a row and GB/s of logits (read once) for Qwen3.5's vocabulary.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"
#include "kernels/sampling/sampling.h"

namespace rt::kernels {
namespace {

constexpr int32_t kVocab = 248320;

void BM_Sample(benchmark::State& state) {
  const bool avx512 = state.range(0) != 0;
  if (avx512 && !CpuSupports(Isa::kAvx512Bf16)) return state.SkipWithError("needs AVX512-BF16");
  const size_t rows = static_cast<size_t>(state.range(1));
  const int64_t mode = state.range(2);  // 0 greedy, 1 temperature, 2 top-k 50, 3 top-p 0.95
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = 2}, &error);
  std::vector<float> logits(rows * kVocab);
  std::mt19937_64 rng(1);
  std::normal_distribution<float> normal(0, 3);
  for (float& x : logits) x = normal(rng);
  std::vector<float> temperature(rows, mode == 0 ? 0.0f : 1.0f), top_p(rows, mode == 3 ? 0.95f : 1.0f),
      zero(rows), one(rows, 1.0f), logprobs(rows);
  std::vector<int32_t> top_k(rows, mode == 2 ? 50 : 0), pending(rows, -1), offsets(rows + 1), ids(rows),
      status(rows);
  std::vector<uint64_t> seed(rows, 7), position(rows, 1);
  void* workspace =
      std::aligned_alloc(64, SampleWorkspaceBytes(static_cast<int64_t>(rows), kVocab, 2) / 64 * 64 + 64);
  SampleArgs args{};
  args.num_rows = static_cast<int32_t>(rows);
  args.vocab_size = args.vocab_limit = kVocab;
  args.logits = logits.data();
  args.logits_stride = kVocab;
  args.temperature = temperature.data();
  args.top_k = top_k.data();
  args.top_p = top_p.data();
  args.min_p = args.presence = args.frequency = zero.data();
  args.repetition = one.data();
  args.seed = seed.data();
  args.position = position.data();
  args.pending_ids = pending.data();
  args.history_offsets = args.bias_offsets = offsets.data();
  args.ids = ids.data();
  args.logprobs = logprobs.data();
  args.status = status.data();
  args.workspace = workspace;
  for (auto _ : state) (avx512 ? SamplingAvx512Bf16() : SamplingAvx2()).sample(args, pool->parallel());
  std::free(workspace);
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(logits.size() * sizeof(float)));
}
BENCHMARK(BM_Sample)
    ->ArgNames({"avx512", "rows", "mode"})
    ->ArgsProduct({{0, 1}, {1, 16}, {0, 1, 2, 3}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace rt::kernels
