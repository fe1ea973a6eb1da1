// The router, compiled once per instruction-set level. Formula and order of operations: moe.h.
#pragma once

#include "kernels/common/simd.h"
#include "kernels/gemm/gemm.h"
#include "kernels/moe/moe.h"
#include "kernels/moe/moe_workspace.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

inline const GemmKernels& LevelGemm() {
#if RT_ISA_AVX512BF16
  return GemmAvx512Bf16();
#else
  return GemmAvx2();
#endif
}

constexpr float kLowest = -__builtin_inff();

// The `count` largest of keys[0, n), in descending order, ties to the lower index, to chosen[0, count). Keys hold no NaN; `takes(i)`
// says whether i takes part, and at least `count` do. Insertion: a key moves past smaller ones only.
template <class Takes>
RT_SIMD void TopK(const float* keys, int64_t n, int64_t count, int32_t* chosen, Takes&& takes) {
  int64_t size = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!takes(i)) continue;
    if (size == count && !(keys[i] > keys[chosen[size - 1]])) continue;
    int64_t at = size < count ? size++ : size - 1;
    for (; at > 0 && keys[i] > keys[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = static_cast<int32_t>(i);
  }
}

// One thread's view of one token's choice.
struct RouterScratch {
  float* corrected;  // [E]
  float* groups;     // [G]
  int32_t* kept;     // [G]
};

// In place, n values in rows of whole vectors. The lanes add up over the vectors, then in a fixed tree.
RT_SIMD void SigmoidRow(float* s, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) StoreUpTo(Sigmoid(LoadUpTo(s + i, n - i)), s + i, n - i);
}
RT_SIMD void SoftmaxRow(float* s, int64_t n) {
  float most = kLowest;
  for (int64_t i = 0; i < n; ++i) most = s[i] > most ? s[i] : most;
  F32x16 sum = Zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32x16 e = Exp(LoadUpTo(s + i, n - i) - Set1(most));
    StoreUpTo(e, s + i, n - i);
    sum = sum + LoadUpTo(s + i, n - i);  // lanes past the end are zero
  }
  const F32x16 total = Set1(ReduceAdd(sum));
  for (int64_t i = 0; i < n; i += kLanes) StoreUpTo(LoadUpTo(s + i, n - i) / total, s + i, n - i);
}

// Group scores, and the best groups first in scratch.kept.
inline void RankGroups(const MoeRouterArgs& args, const RouterScratch& scratch) {
  const int64_t width = args.num_experts / args.num_groups;
  for (int64_t g = 0; g < args.num_groups; ++g) {
    const float* c = scratch.corrected + g * width;
    float first = c[0], second = kLowest;
    for (int64_t i = 1; i < width; ++i) {
      second = c[i] > first ? first : c[i] > second ? c[i] : second;
      first = c[i] > first ? c[i] : first;
    }
    const float score = width == 1 ? first : first + second;
    scratch.groups[g] = score == score ? score : kLowest;
  }
  TopK(scratch.groups, args.num_groups, args.topk_groups, scratch.kept, [](int64_t) { return true; });
}

// `s` holds the token's scores.
inline void ChooseExperts(const MoeRouterArgs& args, const float* s, const RouterScratch& scratch, int32_t* ids, float* weights) {
  for (int64_t e = 0; e < args.num_experts; ++e) {
    const float c = args.bias == nullptr ? s[e] : s[e] + args.bias[e];
    scratch.corrected[e] = c == c ? c : kLowest;
  }
  const int64_t width = args.num_experts / args.num_groups;
  const bool all = args.topk_groups == args.num_groups;
  if (!all) RankGroups(args, scratch);
  TopK(scratch.corrected, args.num_experts, args.experts_per_token, ids, [&](int64_t e) {
    if (all) return true;
    for (int64_t i = 0; i < args.topk_groups; ++i) {
      if (scratch.kept[i] == e / width) return true;
    }
    return false;
  });
  float sum = 1e-20f;
  for (int64_t k = 0; k < args.experts_per_token; ++k) sum += s[ids[k]];
  for (int64_t k = 0; k < args.experts_per_token; ++k) {
    weights[k] = (args.renormalize ? s[ids[k]] / sum : s[ids[k]]) * args.routed_scale;
  }
}

inline bool RouterShapeFits(const MoeRouterArgs& a) {
  return a.num_tokens >= 0 && a.hidden_size > 0 && a.num_experts > 0 && a.num_groups > 0 && a.num_experts % a.num_groups == 0 &&
         a.topk_groups > 0 && a.topk_groups <= a.num_groups && a.experts_per_token > 0 &&
         a.experts_per_token <= a.topk_groups * (a.num_experts / a.num_groups);
}

// Rows of x as fp32: in place, or widened.
struct WideRows {
  const float* x;
  int64_t stride;
};
inline WideRows Widen(const float* x, int64_t stride, int64_t, int64_t, float*, const Parallel&) { return {x, stride}; }
inline WideRows Widen(const bf16* x, int64_t stride, int64_t rows, int64_t size, float* out, const Parallel& parallel) {
  ParallelForCost(parallel, rows, size, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t i = 0; i < size; i += kLanes) StoreUpTo(LoadUpTo(x + r * stride + i, size - i), out + r * size + i, size - i);
    }
  });
  return {out, size};
}

template <class Act>
int Router(const MoeRouterArgs& args, const Parallel& parallel) {
  if (!RouterShapeFits(args)) return kMoeBadShape;
  const MoeRouterLayout at = LayOutMoeRouter(args.hidden_size, args.num_experts, args.num_groups, parallel.num_threads);
  char* const base = static_cast<char*>(args.workspace);
  float* const logits = reinterpret_cast<float*>(base + at.logits);
  const int64_t experts = RouterRow(args.num_experts), choice = experts + RouterRow(args.num_groups);
  for (int64_t block = 0; block < args.num_tokens; block += kRouterBlockTokens) {
    const int64_t rows = Min(kRouterBlockTokens, args.num_tokens - block);
    const Act* x = static_cast<const Act*>(args.x) + block * args.x_stride;
    const WideRows wide = Widen(x, args.x_stride, rows, args.hidden_size, reinterpret_cast<float*>(base + at.x), parallel);
    LevelGemm().f32_f32_f32(
        {rows, args.num_experts, args.hidden_size, wide.x, wide.stride, args.router, logits, experts, false, base + at.gemm}, parallel);
    // Scores and choice cost about eight operations an expert.
    ParallelForCost(parallel, rows, args.num_experts * 8, [&](int64_t begin, int64_t end, int thread) {
      float* corrected = reinterpret_cast<float*>(base + at.choice) + thread * choice;
      const RouterScratch scratch{corrected, corrected + experts, reinterpret_cast<int32_t*>(base + at.kept) + thread * args.num_groups};
      for (int64_t r = begin; r < end; ++r) {
        float* s = logits + r * experts;
        args.score == RouterScore::kSigmoid ? SigmoidRow(s, args.num_experts) : SoftmaxRow(s, args.num_experts);
        ChooseExperts(args, s, scratch, args.ids + (block + r) * args.ids_stride, args.weights + (block + r) * args.weights_stride);
      }
    });
  }
  return kMoeOk;
}

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
