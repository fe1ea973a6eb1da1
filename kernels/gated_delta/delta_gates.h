// g and beta of one value head over a run of tokens, in fp32, log domain.
#pragma once

#include "kernels/common/simd.h"
#include "kernels/gated_delta/delta_scratch.h"

namespace rt::kernels::inline RT_ISA_NS {

// e^-128 is far below the smallest fp32 subnormal, so the bound changes no result; it keeps differences of running sums finite.
constexpr float kMinStepGate = -128.0f;

RT_SIMD float ExpScalar(float x) {
  alignas(64) float lanes[kLanes];
  Store(Exp(Set1(x)), lanes);
  return lanes[0];
}

// g[i] and beta[i] of tokens [0, n), a and b pointing at this head's column of the first token. Entries up to the next multiple of 16
// become g = 0, beta = 0: a token that changes nothing.
template <class Act>
void ComputeHeadGates(const Act* a, int64_t a_stride, const Act* b, int64_t b_stride, float a_log, float dt_bias, float beta_scale,
                      int64_t n, float* g, float* beta) {
  const F32x16 rate = Set1(-ExpScalar(a_log));
  for (int64_t i0 = 0; i0 < n; i0 += kLanes) {
    const int count = static_cast<int>(Min<int64_t>(kLanes, n - i0));
    alignas(64) float raw_a[kLanes] = {};
    alignas(64) float raw_b[kLanes] = {};
    for (int i = 0; i < count; ++i) {
      raw_a[i] = ToFloat(a[(i0 + i) * a_stride]);
      raw_b[i] = ToFloat(b[(i0 + i) * b_stride]);
    }
    const F32x16 step = Max(Set1(kMinStepGate), rate * Softplus(Load(raw_a) + Set1(dt_bias)));  // NaN passes
    const Mask16 valid = FirstN(count);
    Store(Select(valid, step, Zero()), g + i0);
    Store(Select(valid, Set1(beta_scale) * Sigmoid(Load(raw_b)), Zero()), beta + i0);
  }
}

}  // namespace rt::kernels::inline RT_ISA_NS
