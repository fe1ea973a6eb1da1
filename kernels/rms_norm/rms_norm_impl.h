#pragma once

#include "kernels/common/simd.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rms_norm/rms_norm_row.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

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
