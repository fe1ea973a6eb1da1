// g and beta of one value head over a run of tokens, in fp32, log domain.
#pragma once

#include "kernels/common/simd.h"
#include "kernels/gated_delta/delta_scratch.h"

namespace rt::kernels::inline RT_ISA_NS {

// e^-128 is far below the smallest fp32 subnormal, so the bound changes no result; it keeps sums of g finite.
constexpr float kMinStepGate = -128.0f;

RT_SIMD float ExpScalar(float x) {
  alignas(64) float lanes[kLanes];
  Store(Exp(Set1(x)), lanes);
  return lanes[0];
}

// One head's map from a + dt_bias to g. NaN in, NaN out.
struct GateMap {
  F32x16 rate;   // exp(A_log); kept finite, so that it times zero stays zero
  F32x16 bound;  // bounded form only
  bool bounded;

  RT_ALWAYS_INLINE GateMap(const DeltaGates& gates, int64_t v_head) : bound(Set1(gates.bound)), bounded(gates.form == GateForm::kBoundedSigmoid) {
    const float exact = ExpScalar(gates.a_log[v_head]);
    rate = Set1(exact > 0x1p127f ? 0x1p127f : exact);
  }
  RT_ALWAYS_INLINE F32x16 operator()(F32x16 u) const {
    const F32x16 g = bounded ? bound * Sigmoid(rate * u) : Neg(rate * Softplus(u));
    return Max(Set1(kMinStepGate), g);
  }
};

// beta[i] and, with one decay a head, g[i] of tokens [0, n) from `first_token` on. Entries up to the next multiple of 16 become g = 0,
// beta = 0: a token that changes nothing.
template <class Act, bool kScalarGate>
void ComputeHeadGates(const DeltaGates& gates, int64_t first_token, int64_t v_head, int64_t n, float* g, float* beta) {
  const Act* a = static_cast<const Act*>(gates.a) + first_token * gates.a_stride + v_head;
  const Act* b = static_cast<const Act*>(gates.b) + first_token * gates.b_stride + v_head;
  const GateMap map(gates, v_head);
  for (int64_t i0 = 0; i0 < n; i0 += kLanes) {
    const int count = static_cast<int>(Min<int64_t>(kLanes, n - i0));
    alignas(64) float raw_a[kLanes] = {};
    alignas(64) float raw_b[kLanes] = {};
    for (int i = 0; i < count; ++i) {
      if constexpr (kScalarGate) raw_a[i] = ToFloat(a[(i0 + i) * gates.a_stride]);
      raw_b[i] = ToFloat(b[(i0 + i) * gates.b_stride]);
    }
    const Mask16 valid = FirstN(count);
    if constexpr (kScalarGate) Store(Select(valid, map(Load(raw_a) + Set1(gates.dt_bias[v_head])), Zero()), g + i0);
    Store(Select(valid, Set1(gates.beta_scale) * Sigmoid(Load(raw_b)), Zero()), beta + i0);
  }
}

// g of every key channel of tokens [0, n) into rows of s.channel.decay; rows up to `rows` become 0. Channels past the head's width hold
// some finite decay of keys that are zero.
template <class Act>
void ComputeChannelGates(const DeltaGates& gates, int64_t first_token, int64_t v_head, int64_t width, int64_t n, int64_t rows,
                         const DeltaScratch& s) {
  const GateMap map(gates, v_head);
  const Act* a = static_cast<const Act*>(gates.a) + first_token * gates.a_stride + v_head * width;
  const float* dt_bias = gates.dt_bias + v_head * width;
  for (int64_t i = 0; i < n; ++i, a += gates.a_stride) {
    for (int64_t d = 0; d < width; d += kLanes) {
      Store(map(LoadUpTo(a + d, width - d) + LoadUpTo(dt_bias + d, width - d)), s.channel.decay + i * s.key_stride + d);
    }
  }
  std::memset(s.channel.decay + n * s.key_stride, 0, static_cast<size_t>((rows - n) * s.key_stride) * sizeof(float));
}

}  // namespace rt::kernels::inline RT_ISA_NS
