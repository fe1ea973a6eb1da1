#pragma once

#include "kernels/common/simd.h"
#include "kernels/rms_norm/rms_norm.h"

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

template <class X, class Y>
int RmsNorm(const RmsNormArgs& args, const Parallel& parallel) {
  ParallelForCost(parallel, args.num_rows, args.size, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const X* x = static_cast<const X*>(args.x) + row * args.x_stride;
      SquareSum sum;
      for (int64_t i = 0; i < args.size; i += kLanes) sum.Add(LoadUpTo(x + i, args.size - i));
      ScaleRow(x, sum.InverseRms(args.size, args.eps), args.weight, args.weight_offset, args.size,
               static_cast<Y*>(args.y) + row * args.y_stride);
    }
  });
  return 0;
}

template <class X, class Y>
int AddRmsNorm(const AddRmsNormArgs& args, const Parallel& parallel) {
  ParallelForCost(parallel, args.num_rows, args.size, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* residual = args.residual + row * args.residual_stride;
      const X* delta = static_cast<const X*>(args.delta) + row * args.delta_stride;
      SquareSum sum;
      for (int64_t i = 0; i < args.size; i += kLanes) {
        const F32x16 x = LoadUpTo(residual + i, args.size - i) + LoadUpTo(delta + i, args.size - i);
        StoreUpTo(x, residual + i, args.size - i);
        sum.Add(x);
      }
      ScaleRow(residual, sum.InverseRms(args.size, args.eps), args.weight, args.weight_offset, args.size,
               static_cast<Y*>(args.y) + row * args.y_stride);
    }
  });
  return 0;
}

constexpr RmsNormKernels kRmsNormKernels{RmsNorm<float, float>,   RmsNorm<float, bf16>,
                                         RmsNorm<bf16, bf16>,     AddRmsNorm<float, float>,
                                         AddRmsNorm<float, bf16>, AddRmsNorm<bf16, bf16>};

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
