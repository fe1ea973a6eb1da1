// The experts of one layer of the Kimi-Linear shape (H 2304, I 1024, K 8; 32 of its 256 experts, to fit memory), beside one dense gated
// MLP that reads the same bytes and does the same multiply-adds, and the router.
//
// weights_GB/s counts each chosen expert's gate, up and down once; FLOP/s the multiply-adds of all pairs.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"
#include "kernels/gemm/gemm.h"
#include "kernels/moe/moe.h"

namespace rt::kernels {
namespace {

constexpr MoeExpertsShape kShape = {32, 8, 2304, 1024};
constexpr int64_t kMatrix = kShape.hidden_size * kShape.intermediate_size;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Bytes = std::unique_ptr<void, Free>;

Bytes Allocate(int64_t bytes) {
  Bytes p(std::aligned_alloc(size_t{2} << 20, (static_cast<size_t>(bytes) + ((2u << 20) - 1)) / (2u << 20) * (2u << 20)));
  for (int64_t i = 0; i + 2 <= bytes; i += 2) std::memcpy(static_cast<char*>(p.get()) + i, "\x00\x3c", 2);  // 2^-7 as bf16
  return p;
}

struct Weights {
  Bytes gate = Allocate(kShape.num_experts * kMatrix * 2), up = Allocate(kShape.num_experts * kMatrix * 2), down = Allocate(kShape.num_experts * kMatrix * 2);
};
const Weights& Shared() {
  static const Weights weights;
  return weights;
}

std::vector<int32_t> DrawIds(int64_t tokens, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t) {
    std::set<int32_t> chosen;
    while (static_cast<int64_t>(chosen.size()) < kShape.experts_per_token) chosen.insert(static_cast<int32_t>(rng() % kShape.num_experts));
    ids.insert(ids.end(), chosen.begin(), chosen.end());
  }
  return ids;
}

struct Setup {
  Setup(benchmark::State& state) : avx512(state.range(0) != 0), tokens(state.range(1)), pool(ThreadPool::Create({.num_threads = 2}, &error)) {
    if (avx512 && !CpuSupports(Isa::kAvx512Bf16)) state.SkipWithError("needs AVX512-BF16");
  }
  void Report(benchmark::State& state, double bytes, double pairs) const {
    state.counters["weights_GB/s"] = benchmark::Counter(bytes * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
    state.counters["FLOP/s"] = benchmark::Counter(6 * pairs * static_cast<double>(kMatrix), benchmark::Counter::kIsIterationInvariantRate);
  }
  std::string error;
  bool avx512;
  int64_t tokens;
  std::unique_ptr<ThreadPool> pool;
};

// The floor of few tokens: the weights read and nothing else.
void BM_ReadWeights(benchmark::State& state) {
  Setup setup(state);
  const auto* words = static_cast<const int64_t*>(Shared().gate.get());
  constexpr int64_t kLines = kShape.num_experts * kMatrix * 2 / 64;
  for (auto _ : state) {
    ParallelFor(setup.pool->parallel(), kLines, [&](int64_t begin, int64_t end, int) {
      int64_t sum = 0;
      for (int64_t line = begin; line < end; ++line) {
        __builtin_prefetch(words + line * 8 + 64);
        sum += words[line * 8];
      }
      benchmark::DoNotOptimize(sum);
    });
  }
  setup.Report(state, kLines * 64.0, 0);
}

void BM_Experts(benchmark::State& state) {
  Setup setup(state);
  const Weights& experts = Shared();  // made before the clock runs
  const int64_t tokens = setup.tokens;
  const Parallel parallel = setup.pool->parallel();
  std::vector<std::vector<int32_t>> ids;  // several choices, so that one token's experts come from memory
  double chosen = 0;
  for (uint32_t seed = 0; seed < 8; ++seed) {
    ids.push_back(DrawIds(tokens, seed));
    chosen += static_cast<double>(std::set<int32_t>(ids.back().begin(), ids.back().end()).size()) / 8;
  }
  const std::vector<float> weights(ids[0].size(), 0.125f);
  const Bytes x = Allocate(tokens * kShape.hidden_size * 2), y = Allocate(tokens * kShape.hidden_size * 2);
  const Bytes workspace = Allocate(static_cast<int64_t>(MoeExpertsWorkspaceBytes(kShape, tokens, DType::kBf16, parallel.num_threads)));
  const MoeExpertsFn fn = setup.avx512 ? MoeAvx512Bf16().experts_bf16 : MoeAvx2().experts_bf16;
  size_t i = 0;
  for (auto _ : state) {
    fn({kShape, tokens, x.get(), kShape.hidden_size, ids[i++ % ids.size()].data(), kShape.experts_per_token, weights.data(), kShape.experts_per_token, nullptr, 0,
        experts.gate.get(), experts.up.get(), experts.down.get(), y.get(), kShape.hidden_size, workspace.get()},
       parallel);
  }
  setup.Report(state, chosen * 3 * kMatrix * 2, static_cast<double>(tokens * kShape.experts_per_token));
}

// Gate, up and down of one dense MLP as wide as the chosen experts together (few tokens), or of one expert for all pairs (many tokens):
// the same multiply-adds.
void BM_DenseOfTheSameWork(benchmark::State& state) {
  Setup setup(state);
  const int64_t pairs = setup.tokens * kShape.experts_per_token;
  const bool wide = setup.tokens == 1;
  const int64_t rows = wide ? 1 : pairs / kShape.num_experts, inner = kShape.intermediate_size * (wide ? pairs : kShape.num_experts);
  const Parallel parallel = setup.pool->parallel();
  const Bytes x = Allocate(rows * kShape.hidden_size * 2), hidden = Allocate(rows * inner * 2), y = Allocate(rows * kShape.hidden_size * 4);
  const Bytes workspace = Allocate(static_cast<int64_t>(GemmWorkspaceBytes(parallel.num_threads)));
  const GemmKernels& gemm = setup.avx512 ? GemmAvx512Bf16() : GemmAvx2();
  const int64_t span = inner * kShape.hidden_size * 2, copies = kShape.num_experts * kMatrix * 2 / span;
  int64_t copy = 0;
  for (auto _ : state) {
    const auto part = [&](const Bytes& w) { return static_cast<const char*>(w.get()) + copy * span; };
    gemm.bf16_bf16_bf16({rows, inner, kShape.hidden_size, x.get(), kShape.hidden_size, part(Shared().gate), hidden.get(), inner, false, workspace.get()}, parallel);
    gemm.bf16_bf16_bf16({rows, inner, kShape.hidden_size, x.get(), kShape.hidden_size, part(Shared().up), hidden.get(), inner, false, workspace.get()}, parallel);
    gemm.bf16_bf16_f32({rows, kShape.hidden_size, inner, hidden.get(), inner, part(Shared().down), y.get(), kShape.hidden_size, false, workspace.get()}, parallel);
    copy = (copy + 1) % copies;
  }
  setup.Report(state, 3.0 * static_cast<double>(span), static_cast<double>(rows * inner / kShape.intermediate_size));
}

void BM_Router(benchmark::State& state) {
  Setup setup(state);
  constexpr int64_t kExperts = 256;
  const Parallel parallel = setup.pool->parallel();
  const Bytes x = Allocate(setup.tokens * kShape.hidden_size * 2);
  std::vector<float> router(kExperts * kShape.hidden_size), bias(kExperts), weights(static_cast<size_t>(setup.tokens * 8));
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 0.02f);
  for (float& w : router) w = normal(rng);
  std::vector<int32_t> ids(weights.size());
  const Bytes workspace = Allocate(static_cast<int64_t>(MoeRouterWorkspaceBytes(kShape.hidden_size, kExperts, 1, parallel.num_threads)));
  const MoeRouterFn fn = setup.avx512 ? MoeAvx512Bf16().router_bf16 : MoeAvx2().router_bf16;
  for (auto _ : state) {
    fn({setup.tokens, kShape.hidden_size, kExperts, 8, 1, 1, RouterScore::kSigmoid, true, 2.446f, x.get(), kShape.hidden_size, router.data(), bias.data(), ids.data(), 8, weights.data(), 8, workspace.get()},
       parallel);
  }
  state.SetItemsProcessed(state.iterations() * setup.tokens);
}

void Shapes(benchmark::internal::Benchmark* b) { b->ArgNames({"avx512", "tokens"})->ArgsProduct({{0, 1}, {1, 16, 512}})->UseRealTime()->Unit(benchmark::kMillisecond); }
BENCHMARK(BM_ReadWeights)->ArgNames({"avx512", "tokens"})->Args({0, 1})->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Experts)->Apply(Shapes);
BENCHMARK(BM_DenseOfTheSameWork)->Apply(Shapes);
BENCHMARK(BM_Router)->Apply(Shapes);

}  // namespace
}  // namespace rt::kernels
