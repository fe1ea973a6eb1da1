// RMSNorm, alone or fused with the addition to the residual stream before it.
//
//   y = x * rsqrt(mean(x^2) + eps) * (weight_offset + weight)          Zhang & Sennrich 2019, eq. 4; eps
//   inside the root
//
// weight_offset is 1 for checkpoints that store the weight minus one (Qwen3-Next, Qwen3.5), else 0.
// Arithmetic is fp32, y is rounded once. A row's result depends on that row alone.
#pragma once

#include <cstdint>

#include "kernels/common/parallel.h"
#include "kernels/common/types.h"

namespace rt::kernels {

struct RmsNormArgs {
  int64_t num_rows;
  int64_t size;
  const void* x;  // [num_rows, size], x dtype; may be y if the dtypes are equal
  int64_t x_stride;
  const float* weight;  // [size]
  float weight_offset;
  float eps;
  void* y;  // [num_rows, size], y dtype
  int64_t y_stride;
};

// residual += delta, then y = norm(residual).
struct AddRmsNormArgs {
  int64_t num_rows;
  int64_t size;
  float* residual;  // [num_rows, size], updated in place
  int64_t residual_stride;
  const void* delta;  // [num_rows, size], delta dtype
  int64_t delta_stride;
  const float* weight;  // [size]
  float weight_offset;
  float eps;
  void* y;  // [num_rows, size], y dtype
  int64_t y_stride;
};

// Return 0.
using RmsNormFn = int (*)(const RmsNormArgs& args, const Parallel& parallel);
using AddRmsNormFn = int (*)(const AddRmsNormArgs& args, const Parallel& parallel);

struct RmsNormKernels {
  RmsNormFn f32_f32;  // x, y
  RmsNormFn f32_bf16;
  RmsNormFn bf16_bf16;
  AddRmsNormFn add_f32_f32;  // delta, y
  AddRmsNormFn add_f32_bf16;
  AddRmsNormFn add_bf16_bf16;
};

const RmsNormKernels& RmsNormAvx512Bf16();
const RmsNormKernels& RmsNormAvx2();

// The entry for these dtypes, or null.
RmsNormFn FindRmsNorm(const RmsNormKernels& kernels, DType x, DType y);
AddRmsNormFn FindAddRmsNorm(const RmsNormKernels& kernels, DType delta, DType y);

}  // namespace rt::kernels
