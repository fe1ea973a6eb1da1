// The steps of RMSNorm over one row, for kernels that fuse it. Part of the per-ISA code.
#pragma once

#include "kernels/common/simd.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

// Two partial sums hide the latency of the multiply-add; their order is fixed.
struct SquareSum {
  F32x16 even = Zero();
  F32x16 odd = Zero();
  int64_t chunk = 0;
  RT_ALWAYS_INLINE void Add(F32x16 x) {
    F32x16& sum = chunk++ % 2 == 0 ? even : odd;
    sum = Fma(x, x, sum);
  }
  RT_ALWAYS_INLINE F32x16 InverseRms(int64_t size, float eps) const {
    return Rsqrt(Set1(ReduceAdd(even + odd) / static_cast<float>(size) + eps));
  }
};

// y = x * inverse_rms * (offset + weight), rounded once; y may be x.
template <class X, class Y>
RT_SIMD void ScaleRow(const X* x, F32x16 inverse_rms, const float* weight, float offset, int64_t size, Y* y) {
  const F32x16 base = Set1(offset);
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) Store(Load(x + i) * inverse_rms * (base + Load(weight + i)), y + i);
  if (i < size) {
    const int n = static_cast<int>(size - i);
    StoreN(LoadN(x + i, n) * inverse_rms * (base + LoadN(weight + i, n)), y + i, n);
  }
}

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
