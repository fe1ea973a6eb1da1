#include "kernels/gemm/gemm.h"

#include "kernels/common/isa.h"
#include "kernels/gemm/gemm_blocking.h"

namespace rt::kernels {

size_t GemmWorkspaceBytes(int num_threads) {
  return static_cast<size_t>(num_threads) * sizeof(GemmThreadWorkspace);
}

const GemmKernels& GemmAvx512Bf16() {
  static const GemmKernels& kernels = CpuPrefersBf16Dot() ? GemmAvx512Bf16Dot() : GemmAvx512Bf16Wide();
  return kernels;
}

GemmFn FindGemm(const GemmKernels& kernels, DType x, DType w, DType y) {
  if (x == DType::kBf16 && w == DType::kBf16 && y == DType::kF32) return kernels.bf16_bf16_f32;
  if (x == DType::kBf16 && w == DType::kBf16 && y == DType::kBf16) return kernels.bf16_bf16_bf16;
  if (x == DType::kF32 && w == DType::kF32 && y == DType::kF32) return kernels.f32_f32_f32;
  return nullptr;
}

}  // namespace rt::kernels
