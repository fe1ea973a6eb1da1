#pragma once

#include "kernels/common/simd.h"
#include "kernels/sampling/sampling_primitives.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

constexpr float kMinusInfinity = -__builtin_inff();

// Largest of l [n]; lanes past the end count as -inf. NaN is skipped.
RT_SIMD float MaxOf(const float* l, int64_t n) {
  F32x16 largest = Set1(kMinusInfinity);
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = Max(Load(l + i), largest);
  if (i < n) {
    const int left = static_cast<int>(n - i);
    largest = Max(Select(FirstN(left), LoadN(l + i, left), Set1(kMinusInfinity)), largest);
  }
  return ReduceMax(largest);
}

inline void BlockMaxima(const float* l, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kSampleBlock) *out++ = MaxOf(l + i, Min(kSampleBlock, n - i));
}

inline void FindBest(const float* logits, int64_t limited, const float* block_max, ChunkStats* stats) {
  stats->best = kMinusInfinity;
  stats->best_id = -1;
  int64_t best_block = 0;
  for (int64_t b = 0; b < CeilDiv(limited, kSampleBlock); ++b) {
    if (block_max[b] > stats->best) {
      stats->best = block_max[b];
      best_block = b;
    }
  }
  if (stats->best == kMinusInfinity) return;
  int64_t i = best_block * kSampleBlock;
  while (logits[i] != stats->best) ++i;
  stats->best_id = static_cast<int32_t>(i);
}

inline void ComputeChunkStats(const float* logits, int64_t n, int64_t limited, float* block_max,
                              ChunkStats* stats) {
  BlockMaxima(logits, limited, block_max);
  FindBest(logits, limited, block_max, stats);
  const float largest = Max(MaxOf(logits + limited, n - limited), stats->best);
  stats->reference = largest == kMinusInfinity ? 0.0f : largest;
  const F32x16 reference = Set1(stats->reference);
  F32x16 even = Zero(), odd = Zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= n; i += 2 * kLanes) {
    even = even + Exp(Load(logits + i) - reference);
    odd = odd + Exp(Load(logits + i + kLanes) - reference);
  }
  for (; i < n; i += kLanes) {
    const int left = static_cast<int>(Min<int64_t>(kLanes, n - i));
    even = even + Exp(Select(FirstN(left), LoadN(logits + i, left), Set1(kMinusInfinity)) - reference);
  }
  stats->sum = ReduceAdd(even + odd);
}

inline float Mass(const float* l, int64_t n, float largest, float inverse_temperature, float threshold,
                  float min_p, float* e) {
  F32x16 sum = Zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const int left = static_cast<int>(Min<int64_t>(kLanes, n - i));
    const F32x16 x = Select(FirstN(left), LoadN(l + i, left), Set1(kMinusInfinity));
    F32x16 p = Exp((x - Set1(largest)) * Set1(inverse_temperature));
    p = Select(Greater(Set1(threshold), x), Zero(), p);
    p = Select(Greater(Set1(min_p), p), Zero(), p);
    StoreN(p, e + i, left);
    sum = sum + p;
  }
  return ReduceAdd(sum);
}

inline int64_t Collect(const float* l, int64_t n, float threshold, int32_t base, int32_t* ids,
                       float* values) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    // Without a branch: the next candidate overwrites what did not qualify.
    ids[count] = base + static_cast<int32_t>(i);
    values[count] = l[i];
    count += l[i] >= threshold ? 1 : 0;
  }
  return count;
}

constexpr SamplingPrimitives kSamplingPrimitives{ComputeChunkStats, BlockMaxima, Mass, Collect};

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
