// The experts, compiled once per instruction-set level. Formula and order of operations: moe.h.
#pragma once

#include <cstring>

#include "kernels/common/simd.h"
#include "kernels/gemm/gemm.h"
#include "kernels/moe/moe.h"
#include "kernels/moe/moe_router_impl.h"
#include "kernels/moe/moe_workspace.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

// Columns are dealt to threads in runs of this many: a multiple of every tile of the products (gemm_blocking.h).
constexpr int64_t kSliceColumns = 24;
// What a run of columns costs beside its rows, in rows: reading the weights from memory takes as long as multiplying them by some eight
// rows (10 GB/s and 100 GFLOP/s a core).
constexpr int64_t kWeightsCost = 8;

// Rows of x an expert has where its weights stop being what takes the time: the products' own limit (gemm_blocking.h).
constexpr int64_t kStreamedRows = 16;
// Shares a thread takes on average where rows are many: a thread that loses its core delays the others by an eighth of its work.
constexpr int64_t kSharesPerThread = 8;

inline GemmFn ActGemm(float) { return LevelGemm().f32_f32_f32; }
inline GemmFn ActGemm(bf16) { return LevelGemm().bf16_bf16_bf16; }
inline GemmFn DownGemm(float) { return LevelGemm().f32_f32_f32; }
inline GemmFn DownGemm(bf16) { return LevelGemm().bf16_bf16_f32; }

// The pairs of a call sorted by expert.
struct SortedPairs {
  const ExpertRows* experts;
  int64_t num_chosen;
  const int32_t* tokens;  // [T K]
  const int32_t* slots;   // [T K]
  int64_t num_pairs;
  bool gathers;  // some expert's rows are not in place
};

inline bool IdsFit(const MoeExpertsArgs& args) {
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t k = 0; k < args.shape.experts_per_token; ++k) {
      const int64_t id = args.ids[t * args.ids_stride + k];
      if (id < 0 || id >= args.shape.num_experts) return false;
    }
  }
  return true;
}

// Counting sort; within an expert, pairs keep the order of tokens.
inline SortedPairs SortPairs(const MoeExpertsArgs& args, const MoeExpertsLayout& at, char* base) {
  const int64_t num_experts = args.shape.num_experts, per_token = args.shape.experts_per_token;
  int32_t* next = reinterpret_cast<int32_t*>(base + at.counts);  // counts, then the next free slot
  auto* experts = reinterpret_cast<ExpertRows*>(base + at.experts);
  int32_t* tokens = reinterpret_cast<int32_t*>(base + at.tokens);
  int32_t* slots = reinterpret_cast<int32_t*>(base + at.slots);
  std::memset(next, 0, static_cast<size_t>(num_experts) * sizeof(int32_t));
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t k = 0; k < per_token; ++k) ++next[args.ids[t * args.ids_stride + k]];
  }
  int64_t chosen = 0;
  int32_t begin = 0;
  for (int64_t e = 0; e < num_experts; ++e) {
    const int32_t count = next[e];
    next[e] = begin;
    if (count > 0) experts[chosen++] = {static_cast<int32_t>(e), begin, count, -1};
    begin += count;
  }
  for (int64_t t = 0; t < args.num_tokens; ++t) {
    for (int64_t k = 0; k < per_token; ++k) {
      const int32_t slot = next[args.ids[t * args.ids_stride + k]]++;
      tokens[slot] = static_cast<int32_t>(t);
      slots[t * per_token + k] = slot;
    }
  }
  bool gathers = false;
  for (int64_t i = 0; i < chosen; ++i) {
    ExpertRows& e = experts[i];
    bool run = true;
    for (int32_t r = 1; r < e.num_rows; ++r) run &= tokens[e.begin + r] == tokens[e.begin] + r;
    if (run) e.first_token = tokens[e.begin];
    gathers |= !run;
  }
  return {experts, chosen, tokens, slots, begin, gathers};
}

// Calls body(expert_rows, begin, end) for the columns [begin, end) of [0, n) in share `share` of `num_shares`, expert by expert. Each
// column of each chosen expert is in exactly one share; shares cost about the same.
template <class F>
RT_SIMD void ForColumns(const SortedPairs& pairs, int64_t n, int64_t share, int64_t num_shares, F&& body) {
  const int64_t units = CeilDiv(n, kSliceColumns);
  const int64_t total = units * (pairs.num_pairs + pairs.num_chosen * kWeightsCost);
  // A unit is in the share whose part [lo, hi) of the cost holds the unit's middle.
  const int64_t lo = total * share / num_shares, hi = total * (share + 1) / num_shares;
  int64_t start = 0;  // cost of all experts before
  for (int64_t i = 0; i < pairs.num_chosen; ++i) {
    const ExpertRows& e = pairs.experts[i];
    const int64_t cost = e.num_rows + kWeightsCost;
    const auto first = [&](int64_t bound) {  // the first unit u with 2 (start + u cost) + cost >= 2 bound
      const int64_t ahead = 2 * (bound - start) - cost;
      return ahead <= 0 ? int64_t{0} : Min(units, CeilDiv(ahead, 2 * cost));
    };
    const int64_t begin = first(lo), end = first(hi);
    if (begin < end) body(e, begin * kSliceColumns, Min(end * kSliceColumns, n));
    start += units * cost;
  }
}

// ForColumns over all shares, with the thread as the body's last argument. Many rows of x make long work, and the machine may be shared
// with others: threads take small shares as they come. Few rows stream the weights, where one share a thread keeps its reads contiguous.
template <class F>
RT_SIMD void ParallelForColumns(const Parallel& parallel, const SortedPairs& pairs, int64_t n, F&& body) {
  const int64_t per_thread = pairs.num_pairs > kStreamedRows * pairs.num_chosen ? kSharesPerThread : 1;
  const int64_t num_shares = per_thread * parallel.num_threads;
  ParallelForShared(parallel, num_shares, [&](int64_t first, int64_t last, int thread) {
    for (int64_t share = first; share < last; ++share) {
      ForColumns(pairs, n, share, num_shares, [&](const ExpertRows& e, int64_t begin, int64_t end) { body(e, begin, end, thread); });
    }
  });
}

template <class Act>
struct ExpertsRun {
  const MoeExpertsArgs& args;
  const MoeExpertsLayout& at;
  const Parallel& parallel;
  SortedPairs pairs;
  char* base;

  int64_t hidden() const { return args.shape.hidden_size; }
  int64_t inner() const { return args.shape.intermediate_size; }
  Act* gate() const { return reinterpret_cast<Act*>(base + at.gate); }
  Act* up() const { return reinterpret_cast<Act*>(base + at.up); }
  Act* gathered() const { return reinterpret_cast<Act*>(base + at.rows); }
  float* down() const { return reinterpret_cast<float*>(base + at.rows); }
  void* GemmSpace(int thread) const { return base + at.gemm + static_cast<size_t>(thread) * GemmWorkspaceBytes(1); }

  void Gather() const {
    if (!pairs.gathers) return;
    ParallelForCost(parallel, pairs.num_pairs, hidden(), [&](int64_t begin, int64_t end, int) {
      for (int64_t slot = begin; slot < end; ++slot) {
        const Act* row = static_cast<const Act*>(args.x) + pairs.tokens[slot] * args.x_stride;
        std::memcpy(gathered() + slot * hidden(), row, static_cast<size_t>(hidden()) * sizeof(Act));
      }
    });
  }

  // Columns [begin, end) of gate and up products, then of silu(gate) up.
  void Inner(const ExpertRows& e, int64_t begin, int64_t end, int thread) const {
    const bool in_place = e.first_token >= 0;
    const Act* x = in_place ? static_cast<const Act*>(args.x) + e.first_token * args.x_stride : gathered() + e.begin * hidden();
    const int64_t w = (e.expert * inner() + begin) * hidden(), y = e.begin * inner() + begin;
    GemmArgs product{e.num_rows, end - begin, hidden(), x, in_place ? args.x_stride : hidden(), static_cast<const Act*>(args.gate) + w,
                     gate() + y, inner(), false, GemmSpace(thread)};
    ActGemm(Act{})(product, SerialParallel());
    product.w = static_cast<const Act*>(args.up) + w;
    product.y = up() + y;
    ActGemm(Act{})(product, SerialParallel());
    for (int64_t r = 0; r < e.num_rows; ++r) {
      Act* g = gate() + y + r * inner();
      const Act* u = up() + y + r * inner();
      const int64_t n = end - begin;
      for (int64_t i = 0; i < n; i += kLanes) StoreUpTo(Silu(LoadUpTo(g + i, n - i)) * LoadUpTo(u + i, n - i), g + i, n - i);
    }
  }

  void Down(const ExpertRows& e, int64_t begin, int64_t end, int thread) const {
    const GemmArgs product{e.num_rows,
                           end - begin,
                           inner(),
                           gate() + e.begin * inner(),
                           inner(),
                           static_cast<const Act*>(args.down) + (e.expert * hidden() + begin) * inner(),
                           down() + e.begin * hidden() + begin,
                           hidden(),
                           false,
                           GemmSpace(thread)};
    DownGemm(Act{})(product, SerialParallel());
  }

  void Combine() const {
    const int64_t per_token = args.shape.experts_per_token;
    ParallelForCost(parallel, args.num_tokens, per_token * hidden(), [&](int64_t begin, int64_t end, int) {
      for (int64_t t = begin; t < end; ++t) {
        const int32_t* slots = pairs.slots + t * per_token;
        const float* weights = args.weights + t * args.weights_stride;
        const Act* shared = args.shared == nullptr ? nullptr : static_cast<const Act*>(args.shared) + t * args.shared_stride;
        Act* y = static_cast<Act*>(args.y) + t * args.y_stride;
        for (int64_t i = 0; i < hidden(); i += kLanes) {
          const int64_t n = hidden() - i;
          F32x16 sum = Zero();
          for (int64_t k = 0; k < per_token; ++k) {
            sum = Fma(Set1(weights[k]), LoadUpTo(down() + slots[k] * hidden() + i, n), sum);
          }
          if (shared != nullptr) sum = sum + LoadUpTo(shared + i, n);
          StoreUpTo(sum, y + i, n);
        }
      }
    });
  }
};

template <class Act>
int Experts(const MoeExpertsArgs& args, const Parallel& parallel) {
  const MoeExpertsShape& s = args.shape;
  if (args.num_tokens < 0 || s.num_experts <= 0 || s.experts_per_token <= 0 || s.hidden_size <= 0 || s.intermediate_size <= 0) return kMoeBadShape;
  if (!IdsFit(args)) return kMoeBadExpert;
  if (args.num_tokens == 0) return kMoeOk;
  const MoeExpertsLayout at = LayOutMoeExperts(s, args.num_tokens, DTypeOf<Act>::value, parallel.num_threads);
  char* const base = static_cast<char*>(args.workspace);
  // A few thousand multiply-adds are done before another thread has woken up; eight take as long as one element of plain work.
  const int64_t work = args.num_tokens * s.experts_per_token * s.hidden_size * s.intermediate_size / 8;
  const Parallel team = work < kMinParallelCost ? SerialParallel() : parallel;
  const ExpertsRun<Act> run{args, at, team, SortPairs(args, at, base), base};
  run.Gather();
  ParallelForColumns(team, run.pairs, s.intermediate_size,
                     [&](const ExpertRows& e, int64_t begin, int64_t end, int thread) { run.Inner(e, begin, end, thread); });
  ParallelForColumns(team, run.pairs, s.hidden_size,
                     [&](const ExpertRows& e, int64_t begin, int64_t end, int thread) { run.Down(e, begin, end, thread); });
  run.Combine();
  return kMoeOk;
}

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
