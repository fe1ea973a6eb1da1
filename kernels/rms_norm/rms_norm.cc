#include "kernels/rms_norm/rms_norm.h"

namespace rt::kernels {

RmsNormFn FindRmsNorm(const RmsNormKernels& kernels, DType x, DType y) {
  if (x == DType::kF32 && y == DType::kF32) return kernels.f32_f32;
  if (x == DType::kF32 && y == DType::kBf16) return kernels.f32_bf16;
  if (x == DType::kBf16 && y == DType::kBf16) return kernels.bf16_bf16;
  return nullptr;
}

AddRmsNormFn FindAddRmsNorm(const RmsNormKernels& kernels, DType delta, DType y) {
  if (delta == DType::kF32 && y == DType::kF32) return kernels.add_f32_f32;
  if (delta == DType::kF32 && y == DType::kBf16) return kernels.add_f32_bf16;
  if (delta == DType::kBf16 && y == DType::kBf16) return kernels.add_bf16_bf16;
  return nullptr;
}

}  // namespace rt::kernels
