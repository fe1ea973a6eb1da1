// The gated norm of one (token, head): shared by the stand-alone op and by the fused linear mixer.
#pragma once

#include "kernels/common/simd.h"
#include "kernels/gated_rms_norm/gated_rms_norm.h"

namespace rt::kernels::inline RT_ISA_NS {

template <class In, class Act>
RT_SIMD void GatedNormRow(const In* o, const Act* z, const float* weight, int64_t n, float eps, GateActivation activation, Act* out) {
  F32x16 squares = Zero();
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32x16 x = LoadUpTo(o + i, n - i);
    squares = Fma(x, x, squares);
  }
  const F32x16 scale = Set1(Rsqrt(ReduceAdd(squares) / static_cast<float>(n) + eps));
  for (int64_t i = 0; i < n; i += kLanes) {
    const F32x16 gate = LoadUpTo(z + i, n - i);
    const F32x16 gated = activation == GateActivation::kSilu ? Silu(gate) : Sigmoid(gate);
    StoreUpTo(LoadUpTo(o + i, n - i) * scale * LoadUpTo(weight + i, n - i) * gated, out + i, n - i);
  }
}

}  // namespace rt::kernels::inline RT_ISA_NS
