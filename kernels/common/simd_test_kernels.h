// simd.h seen through plain functions, one table per ISA level, so that simd_test.cc itself needs no special flags.
#pragma once

#include <cstdint>

#include "kernels/common/types.h"

namespace rt::kernels {

struct SimdTestKernels {
  using Map = void (*)(const float* x, float* y, int64_t n);  // n may be any size: full vectors, then a masked tail
  Map exp, exp2, sigmoid, silu, softplus, rsqrt;
  void (*to_bf16)(const float* x, bf16* y, int64_t n);
  void (*from_bf16)(const bf16* x, float* y, int64_t n);
  void (*to_f16)(const float* x, f16* y, int64_t n);
  void (*from_f16)(const f16* x, float* y, int64_t n);
  float (*reduce_add)(const float* x);  // 16 lanes
  float (*reduce_max)(const float* x);
  void (*transpose)(const float* x, float* y);                       // 16 x 16
  void (*difference)(double a, const double* b, float* y);           // 16 lanes
  void (*fused)(const float* a, const float* b, const float* c, float* fma, float* fnma);
};

const SimdTestKernels& SimdTestAvx2();
const SimdTestKernels& SimdTestAvx512Bf16();

}  // namespace rt::kernels
