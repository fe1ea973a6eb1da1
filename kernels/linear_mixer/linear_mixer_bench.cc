// The fused mixer at Qwen3.5 (Gated DeltaNet, one decay a head) and Kimi Linear (one a key channel) shapes, bf16 activations, fp32 or bf16
// state. Decode: cold state (batches rotate through a pool larger than
// the caches), GB/s of state and window traffic, and its share of in-place read+write bandwidth measured in the same run. Prefill: us per
// token of a layer and dense-tile FLOP/s by the usual count Hv (6 D^2 + 4 C D) + Hk 4 C D (the kernel skips about a sixth of it: blocks
// above diagonals).
#include <benchmark/benchmark.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"
#include "kernels/linear_mixer/linear_mixer.h"

namespace rt::kernels {
namespace {

constexpr DeltaDims kShapes[] = {{16, 32, 128, 128}, {32, 32, 128, 128, 128}};
constexpr int64_t kValueChannels = 32 * 128;
constexpr int32_t kWidth = 4;

struct Layer {
  Layer(const DeltaDims& dims, int64_t max_tokens, int64_t slots, DType state_dtype, int threads)
      : dims(dims), key_channels(dims.num_k_heads * 128), channels(2 * key_channels + kValueChannels), window_bytes((kWidth - 1) * channels * 2),
        gates(32 * dims.gate_width), row(channels + kValueChannels + gates + 32), merged(max_tokens * row), out(max_tokens * kValueChannels), a_log(32, -1.0f),
        dt_bias(gates, -1.0f), weight(kWidth * channels, 0.3f), norm(128, 1.0f), states(slots * DeltaStateBytes(dims, state_dtype)),
        windows(slots * window_bytes), workspace(LinearMixerWorkspaceBytes(dims, threads) + 64), state_dtype(state_dtype) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (bf16& x : merged) x = FromFloat<bf16>(normal(rng));
  }
  LinearMixerParams params(const SequenceBatch& batch) {
    const int64_t a = channels + kValueChannels;
    bf16* m = merged.data();
    return {m, row, m + key_channels, row, m + 2 * key_channels, row, m + channels, row,
            {m + a, row, m + a + gates, row, a_log.data(), dt_bias.data(), 1.0f}, weight.data(), kWidth, windows.data(), window_bytes,
            {states.data(), DeltaStateBytes(dims, state_dtype), state_dtype}, norm.data(), 1e-6f, 1e-6f, GateActivation::kSilu,
            out.data(), kValueChannels, batch, dims,
            reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64)};
  }
  DeltaDims dims;
  int64_t key_channels, channels, window_bytes, gates, row;
  std::vector<bf16> merged, out;
  std::vector<float> a_log, dt_bias, weight, norm;
  std::vector<char> states, windows, workspace;
  DType state_dtype;
};

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Best of five: bytes per second of x *= c over 256 MiB, reads plus writes.
double InPlaceBandwidth(const Parallel& parallel) {
  std::vector<float> memory(64 << 20, 1.0f);
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const double start = Seconds();
    ParallelFor(parallel, static_cast<int64_t>(memory.size()), [&](int64_t begin, int64_t end, int) {
      for (int64_t j = begin; j < end; ++j) memory[j] *= 1.0001f;
    });
    best = std::min(best, Seconds() - start);
  }
  return 2.0 * memory.size() * sizeof(float) / best;
}

const LinearMixerKernels& Kernels(int64_t isa) { return isa == 0 ? LinearMixerAvx2() : LinearMixerAvx512Bf16(); }

std::unique_ptr<ThreadPool> MakePool(benchmark::State& state, int threads) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = threads}, &error);
  if (pool == nullptr) state.SkipWithError(error.c_str());
  if (state.range(0) == 1 && !CpuSupports(Isa::kAvx512Bf16)) state.SkipWithError("this CPU has no AVX512-BF16"), pool = nullptr;
  return pool;
}

void Decode(benchmark::State& state) {
  const int threads = static_cast<int>(state.range(3));
  const int64_t batch_size = state.range(1);
  const DType dtype = state.range(2) == 32 ? DType::kF32 : DType::kBf16;
  const auto pool = MakePool(state, threads);
  if (pool == nullptr) return;
  const int64_t slots = 256;
  Layer layer(kShapes[state.range(4)], batch_size, slots, dtype, threads);
  std::vector<int32_t> cu(batch_size + 1), ids(batch_size);
  std::vector<uint8_t> initial(batch_size, 1);
  for (int64_t i = 0; i <= batch_size; ++i) cu[i] = static_cast<int32_t>(i);
  const LinearMixerParams params = layer.params({static_cast<int32_t>(batch_size), cu.data(), ids.data(), initial.data()});
  const double bandwidth = InPlaceBandwidth(pool->parallel());
  int64_t next = 0;
  for (auto _ : state) {
    for (int32_t& id : ids) id = static_cast<int32_t>(next++ % slots);
    Kernels(state.range(0)).bf16(params, pool->parallel());
  }
  const double bytes = 2.0 * batch_size * (DeltaStateBytes(layer.dims, dtype) + layer.window_bytes);
  state.counters["state B/s"] = benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["of in-place rw"] = benchmark::Counter(bytes / bandwidth, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Decode)
    ->ArgNames({"isa", "batch", "state_bits", "threads", "channels"})
    ->ArgsProduct({{0, 1}, {1, 16}, {32, 16}, {1, 2}, {0, 1}})
    ->UseRealTime();

void Prefill(benchmark::State& state) {
  const int threads = static_cast<int>(state.range(2));
  const int32_t tokens = static_cast<int32_t>(state.range(1));
  const auto pool = MakePool(state, threads);
  if (pool == nullptr) return;
  Layer layer(kShapes[state.range(4)], tokens, 1, DType::kF32, threads);
  const std::vector<int32_t> cu = {0, tokens};
  const int32_t slot = 0;
  const uint8_t initial = 1;
  const LinearMixerParams params = layer.params({1, cu.data(), &slot, &initial});
  const LinearMixerFn kernel = state.range(3) ? Kernels(state.range(0)).bf16_dot : Kernels(state.range(0)).bf16_fma;
  for (auto _ : state) kernel(params, pool->parallel());
  const double flops = tokens * (32 * (6.0 * 128 * 128 + 4.0 * 64 * 128) + layer.dims.num_k_heads * 4.0 * 64 * 128);
  state.counters["us/token"] = benchmark::Counter(tokens * 1e-6, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Prefill)
    ->ArgNames({"isa", "tokens", "threads", "bf16_dot", "channels"})
    ->ArgsProduct({{0, 1}, {2, 8, 9, 16, 64, 512}, {1, 2}, {0, 1}, {0, 1}})
    ->UseRealTime();

}  // namespace
}  // namespace rt::kernels
