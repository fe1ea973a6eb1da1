// Kimi-Linear's heads (N = 32, L = 512, De = 64, Dn = Dv = 128), bf16, blocks of 16.
//
// Decode, per token: the latent rows are read once and the expansion weight once a step; every row takes part in N (2 L + De)
// multiply-adds, 60 FLOP a byte. "bytes/s" is rows plus weight over time, "of_read" its share of the read bandwidth measured in
// the same run, "FLOP/s" counts absorbing, attention and W_uv, "of_fma" their share of the fp32 multiply-add rate measured in
// the same run: the larger share names the limit. All of these take the best call, since cores may be shared. The cache rotates through 64 MB, so rows come from memory.
// Prefill: FLOP/s of expanding each row once a head and of attention, by the causal count (an item that expands again for later
// queries gets no credit).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"
#include "kernels/gemm/gemm.h"
#include "kernels/latent_attention/latent_attention.h"

namespace rt::kernels {
namespace {

constexpr LatentAttentionShape kKimi{32, 512, 128, 64, 128, 0.0722f, 1e-6f};
constexpr int64_t kRow = 576, kBlock = 16, kQueryWidth = 32 * 192, kOutWidth = 32 * 128, kExpandRows = 32 * 256;

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class F>
double SecondsOf(F&& call) {
  const double start = Seconds();
  call();
  return Seconds() - start;
}

// Best of three: bytes per second of summing 256 MB.
double ReadBandwidth(const Parallel& parallel) {
  static std::vector<int64_t> memory(32 << 20, 1);
  double best = 1e9;
  for (int i = 0; i < 3; ++i) {
    const double start = Seconds();
    ParallelFor(parallel, static_cast<int64_t>(memory.size()), [&](int64_t begin, int64_t end, int) {
      int64_t sum[8] = {};
      for (int64_t j = begin; j + 8 <= end; j += 8) {
        for (int64_t l = 0; l < 8; ++l) sum[l] += memory[static_cast<size_t>(j + l)];
      }
      benchmark::DoNotOptimize(sum);
    });
    best = std::min(best, Seconds() - start);
  }
  return static_cast<double>(memory.size() * 8) / best;
}

// Best of ten: FLOP/s of a GEMM of 64 rows in fp32, which is what the multiply-add units give in practice.
double GemmRate(bool avx512, const Parallel& parallel) {
  const int64_t n = 2048, k = 512, m = 64;
  static std::vector<float> x(m * k, 0.5f), w(n * k, 0.5f), y(m * n);
  std::unique_ptr<void, void (*)(void*)> space(std::aligned_alloc(64, GemmWorkspaceBytes(parallel.num_threads)), std::free);
  const GemmFn gemm = (avx512 ? GemmAvx512Bf16() : GemmAvx2()).f32_f32_f32;
  double best = 1e9;
  for (int i = 0; i < 10; ++i) {
    const double start = Seconds();
    gemm({m, n, k, x.data(), k, w.data(), y.data(), n, false, space.get()}, parallel);
    best = std::min(best, Seconds() - start);
  }
  return 2.0 * m * n * k / best;
}

struct Layer {
  Layer(int32_t batch, int32_t context, int32_t num_new, int copies, int threads)
      : batch(batch), context(context), num_new(num_new), max_blocks((context + num_new + kBlock - 1) / kBlock), q(rows() * kQueryWidth), kv_a(rows() * kRow), kv_b(kExpandRows * 512), out(rows() * kOutWidth),
        cache(copies * batch * max_blocks * kBlock * kRow), norm(512, 1.0f), contexts(static_cast<size_t>(batch), context),
        workspace(std::aligned_alloc(64, RoundUp64(std::max(AbsorbedLatentWorkspaceBytes(kKimi, rows(), threads), ExpandedLatentWorkspaceBytes(kKimi, rows(), threads)))), std::free) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal(0.0f, 0.05f);
    for (auto* data : {&q, &kv_a, &kv_b, &cache}) {
      for (bf16& x : *data) x = FromFloat<bf16>(normal(rng));
    }
    for (int32_t s = 0; s <= batch; ++s) cu.push_back(s * num_new);
    for (int64_t i = 0; i < copies * batch * max_blocks; ++i) table.push_back(static_cast<int32_t>(i));
  }
  static size_t RoundUp64(size_t n) { return (n + 63) / 64 * 64; }
  int64_t rows() const { return int64_t{batch} * num_new; }
  LatentAttentionArgs args(int64_t copy) {
    return {.shape = kKimi, .num_sequences = batch, .cu_seqlens = cu.data(), .context_lens = contexts.data(), .block_table = table.data() + copy * batch * max_blocks, .max_blocks = max_blocks,
            .q = q.data(), .q_stride = kQueryWidth, .kv_a = kv_a.data(), .kv_a_stride = kRow, .kv_norm = norm.data(), .kv_b = kv_b.data(), .out = out.data(), .out_stride = kOutWidth,
            .cache_base = cache.data(), .block_stride_bytes = kBlock * kRow * 2, .block_size = kBlock, .workspace = workspace.get()};
  }
  int32_t batch, context, num_new;
  int64_t max_blocks;
  std::vector<bf16> q, kv_a, kv_b, out, cache;
  std::vector<float> norm;
  std::vector<int32_t> contexts, cu, table;
  std::unique_ptr<void, void (*)(void*)> workspace;
};

void BM_Decode(benchmark::State& state) {
  const bool avx512 = state.range(0) != 0;
  if (avx512 && !CpuSupports(Isa::kAvx512Bf16)) return state.SkipWithError("needs AVX512-BF16");
  const int threads = static_cast<int>(state.range(1));
  const auto batch = static_cast<int32_t>(state.range(2)), context = static_cast<int32_t>(state.range(3));
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = threads}, &error);
  const double keys = context + 1.0, row_bytes = batch * keys * kRow * 2, bytes = row_bytes + kExpandRows * 512 * 2;
  const int64_t copies = std::max<int64_t>(1, static_cast<int64_t>(64e6 / row_bytes));
  Layer layer(batch, context, 1, static_cast<int>(copies), threads);
  const auto fn = (avx512 ? LatentAttentionAvx512Bf16() : LatentAttentionAvx2()).absorbed_bf16;
  int64_t copy = 0;
  double seconds = 1e9;
  for (auto _ : state) seconds = std::min(seconds, SecondsOf([&] { fn(layer.args(copy++ % copies), pool->parallel()); }));
  const double flops = 2.0 * batch * (keys * 32 * (512 + kRow) + 32.0 * 512 * 256);
  state.counters["bytes/s"] = bytes / seconds;
  state.counters["of_read"] = bytes / seconds / ReadBandwidth(pool->parallel());
  state.counters["FLOP/s"] = flops / seconds;
  state.counters["of_fma"] = flops / seconds / GemmRate(avx512, pool->parallel());
}
BENCHMARK(BM_Decode)->ArgNames({"avx512", "threads", "batch", "context"})->ArgsProduct({{0, 1}, {1, 2}, {1, 8}, {1024, 8192}})->UseRealTime()->Unit(benchmark::kMicrosecond);

void BM_Prefill(benchmark::State& state) {
  const bool avx512 = state.range(0) != 0;
  if (avx512 && !CpuSupports(Isa::kAvx512Bf16)) return state.SkipWithError("needs AVX512-BF16");
  const int threads = static_cast<int>(state.range(1));
  const auto context = static_cast<int32_t>(state.range(2)), num_new = static_cast<int32_t>(state.range(3));
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = threads}, &error);
  Layer layer(1, context, num_new, 1, threads);
  const auto fn = (avx512 ? LatentAttentionAvx512Bf16() : LatentAttentionAvx2()).expanded_bf16;
  double seconds = 1e9;
  for (auto _ : state) seconds = std::min(seconds, SecondsOf([&] { fn(layer.args(0), pool->parallel()); }));
  const double pairs = static_cast<double>(context) * num_new + num_new * (num_new + 1.0) / 2;
  const double flops = 2.0 * 32 * ((context + num_new) * 256.0 * 512 + pairs * (192 + 128));
  state.counters["FLOP/s"] = flops / seconds;
  state.counters["of_fma"] = flops / seconds / GemmRate(avx512, pool->parallel());
}
BENCHMARK(BM_Prefill)->ArgNames({"avx512", "threads", "context", "new"})->ArgsProduct({{0, 1}, {1, 2}, {0, 2048}, {512}})->ArgsProduct({{1}, {2}, {0}, {2048}})->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace rt::kernels
