// Compiled once per ISA level.
#pragma once

#include "kernels/gated_rms_norm/gated_norm_row.h"
#include "kernels/gated_rms_norm/gated_rms_norm.h"

namespace rt::kernels::inline RT_ISA_NS {

template <class Act>
int RunGatedRmsNorm(const GatedRmsNormParams& params, const Parallel& parallel) {
  ParallelFor(parallel, params.num_tokens * params.num_heads, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t token = item / params.num_heads;
      const int64_t column = item % params.num_heads * params.head_dim;
      GatedNormRow(static_cast<const Act*>(params.o) + token * params.o_stride + column,
                   static_cast<const Act*>(params.z) + token * params.z_stride + column, params.weight, params.head_dim, params.eps,
                   params.activation, static_cast<Act*>(params.out) + token * params.out_stride + column);
    }
  });
  return 0;
}

inline const GatedRmsNormKernels& GatedRmsNormTable() {
  static constexpr GatedRmsNormKernels kTable = {RunGatedRmsNorm<float>, RunGatedRmsNorm<bf16>};
  return kTable;
}

}  // namespace rt::kernels::inline RT_ISA_NS
