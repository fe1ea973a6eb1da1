// Decode: GB/s of the cache. Prefill: GFLOP/s of 4 d T (T + 1) / 2 a query head. bf16, Qwen3.5-0.8B's heads
// (8 on 2, d = 256).
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"

namespace rt::kernels {
namespace {

constexpr int32_t kNq = 8, kNkv = 2, kDim = 256, kRotary = 64, kBlock = 16;

void BM_Attention(benchmark::State& state) {
  const bool avx512 = state.range(0) != 0;
  if (avx512 && !CpuSupports(Isa::kAvx512Bf16)) return state.SkipWithError("needs AVX512-BF16");
  const int threads = static_cast<int>(state.range(1));
  const int32_t batch = static_cast<int32_t>(state.range(2)), context = static_cast<int32_t>(state.range(3)),
                num_new = static_cast<int32_t>(state.range(4));
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = threads}, &error);
  const int64_t rows = int64_t{batch} * num_new, max_blocks = (context + num_new + kBlock - 1) / kBlock;
  const int64_t block = int64_t{kNkv} * kBlock * kDim;
  std::vector<bf16> q(static_cast<size_t>(rows * kNq * 2 * kDim), bf16{0x3c00}),
      kv(static_cast<size_t>(rows * kNkv * kDim), bf16{0x3c00});
  std::vector<bf16> out(static_cast<size_t>(rows * kNq * kDim)),
      cache(static_cast<size_t>(batch * max_blocks * block * 2), bf16{0x3c00});
  std::vector<float> norm(kDim), rotary(static_cast<size_t>(rows * kRotary), 0.5f);
  std::vector<int32_t> cu{0}, contexts(static_cast<size_t>(batch), context), table;
  for (int32_t s = 0; s < batch; ++s) cu.push_back(cu.back() + num_new);
  for (int64_t i = 0; i < batch * max_blocks; ++i) table.push_back(static_cast<int32_t>(i));
  const AttentionShape shape{kNq, kNkv, kDim, kRotary, true, 0.0625f, norm.data(), norm.data(), 1.0f, 1e-6f};
  void* workspace = std::aligned_alloc(64, AttentionWorkspaceBytes(shape, batch, threads) / 64 * 64 + 64);
  const AttentionArgs args{.shape = shape,
                           .num_sequences = batch,
                           .cu_seqlens = cu.data(),
                           .context_lens = contexts.data(),
                           .block_table = table.data(),
                           .max_blocks = max_blocks,
                           .q = q.data(),
                           .q_stride = kNq * 2 * kDim,
                           .k = kv.data(),
                           .k_stride = kNkv * kDim,
                           .v = kv.data(),
                           .v_stride = kNkv * kDim,
                           .rotary = rotary.data(),
                           .out = out.data(),
                           .out_stride = kNq * kDim,
                           .key_base = cache.data(),
                           .key_block_stride_bytes = block * 4,
                           .value_base = cache.data() + block,
                           .value_block_stride_bytes = block * 4,
                           .block_size = kBlock,
                           .workspace = workspace};
  for (auto _ : state) (avx512 ? AttentionAvx512Bf16() : AttentionAvx2()).bf16(args, pool->parallel());
  std::free(workspace);
  const double keys =
      num_new == 1 ? context + 1.0 : context * static_cast<double>(num_new) + num_new * (num_new + 1.0) / 2;
  if (num_new == 1)
    state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * batch * keys * kNkv * kDim * 4));
  state.counters["FLOP/s"] =
      benchmark::Counter(batch * keys * kNq * kDim * 4, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(BM_Attention)
    ->ArgNames({"avx512", "threads", "batch", "context", "new"})
    ->ArgsProduct({{0, 1}, {1, 2}, {1, 16}, {512, 8192}, {1}})
    ->ArgsProduct({{0, 1}, {1, 2}, {1}, {0}, {512, 2048}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace rt::kernels
