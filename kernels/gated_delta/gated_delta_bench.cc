// Prefill µs per token and GFLOP/s; decode µs per step and GB/s of state traffic, on 1 and 2 threads.
#include <benchmark/benchmark.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"
#include "kernels/gated_delta/gated_delta.h"

namespace rt::kernels {
namespace {

// Qwen3.5 4B, 9B, 35B-A3B: one decay a head; Kimi Linear: one a key channel.
constexpr DeltaDims kShapes[] = {{16, 32, 128, 128}, {32, 32, 128, 128, 128}};

struct Inputs {
  Inputs(const DeltaDims& dims, int64_t tokens, int64_t sequences, int threads)
      : dims(dims), activations(5), dt_bias(dims.num_v_heads * dims.gate_width, -1.0f), states(sequences * DeltaStateBytes(dims, DType::kF32)) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    const int64_t widths[] = {dims.num_k_heads * dims.head_k_dim, dims.num_k_heads * dims.head_k_dim,
                              dims.num_v_heads * dims.head_v_dim, dims.num_v_heads * dims.gate_width, dims.num_v_heads};
    for (int i = 0; i < 5; ++i) {
      activations[i].resize(tokens * widths[i]);
      for (bf16& x : activations[i]) x = FromFloat<bf16>(normal(rng));
    }
    out.resize(tokens * widths[2]);
    a_log.assign(dims.num_v_heads, -1.0f);
    workspace.resize(GatedDeltaWorkspaceBytes(dims, threads) + 64);
    for (int64_t s = 0; s <= sequences; ++s) cu_seqlens.push_back(static_cast<int32_t>(tokens / sequences * s));
    for (int64_t s = 0; s < sequences; ++s) slots.push_back(static_cast<int32_t>(s));
    initial.assign(sequences, 1);
    params = {activations[0].data(), widths[0], activations[1].data(), widths[1], activations[2].data(), widths[2],
              {activations[3].data(), widths[3], activations[4].data(), widths[4], a_log.data(), dt_bias.data(), 1.0f},
              out.data(), widths[2], {states.data(), DeltaStateBytes(dims, DType::kF32), DType::kF32},
              {static_cast<int32_t>(sequences), cu_seqlens.data(), slots.data(), initial.data()}, dims, 1e-6f,
              reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64)};
  }
  DeltaDims dims;
  std::vector<std::vector<bf16>> activations;
  std::vector<bf16> out;
  std::vector<float> a_log, dt_bias;
  std::vector<char> states, workspace;
  std::vector<int32_t> cu_seqlens, slots;
  std::vector<uint8_t> initial;
  GatedDeltaParams params;
};

const GatedDeltaKernels& Kernels(int64_t isa) { return isa == 0 ? GatedDeltaAvx2() : GatedDeltaAvx512Bf16(); }

void Prefill(benchmark::State& state) {
  if (state.range(0) == 1 && !CpuSupports(Isa::kAvx512Bf16)) return state.SkipWithError("no AVX512-BF16");
  const int threads = static_cast<int>(state.range(2));
  const int64_t tokens = state.range(1);
  const DeltaDims& dims = kShapes[state.range(3)];
  Inputs inputs(dims, tokens, 1, threads);
  std::string error;
  const std::unique_ptr<ThreadPool> pool = ThreadPool::Create({.num_threads = threads}, &error);
  if (pool == nullptr) return state.SkipWithError(error.c_str());
  const auto kernel = Kernels(state.range(0)).chunked_bf16;
  for (auto _ : state) kernel(inputs.params, pool->parallel());
  const double per_token = dims.num_v_heads * (6.0 * 128 * 128 + 4.0 * 64 * 128) + dims.num_k_heads * 4.0 * 64 * 128;  // dense-tile count
  state.counters["us/token"] = benchmark::Counter(tokens * 1e-6, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["FLOP/s"] = benchmark::Counter(tokens * per_token, benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Prefill)->ArgNames({"isa", "tokens", "threads", "channels"})->ArgsProduct({{0, 1}, {16, 64, 1024}, {1, 2}, {0, 1}})->UseRealTime();

void Recurrent(benchmark::State& state) {
  if (state.range(0) == 1 && !CpuSupports(Isa::kAvx512Bf16)) return state.SkipWithError("no AVX512-BF16");
  const int threads = static_cast<int>(state.range(3));
  const int64_t sequences = state.range(1), tokens = state.range(2);
  Inputs inputs(kShapes[state.range(4)], tokens * sequences, sequences, threads);
  std::string error;
  const std::unique_ptr<ThreadPool> pool = ThreadPool::Create({.num_threads = threads}, &error);
  if (pool == nullptr) return state.SkipWithError(error.c_str());
  const auto kernel = Kernels(state.range(0)).recurrent_bf16;
  for (auto _ : state) kernel(inputs.params, pool->parallel());
  state.counters["us/token"] =
      benchmark::Counter(sequences * tokens * 1e-6, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["state B/s"] = benchmark::Counter(2.0 * sequences * DeltaStateBytes(kShapes[0], DType::kF32), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(Recurrent)->ArgNames({"isa", "sequences", "tokens", "threads", "channels"})->ArgsProduct({{0, 1}, {64}, {1}, {1, 2}, {0, 1}})->UseRealTime();
BENCHMARK(Recurrent)->ArgNames({"isa", "sequences", "tokens", "threads", "channels"})
    ->ArgsProduct({{0, 1}, {1}, {1, 4, 8, 16, 64}, {1, 2}, {0, 1}})->UseRealTime();

}  // namespace
}  // namespace rt::kernels
