#include "kernels/gemm/gemm_impl.h"

namespace rt::kernels {

const GemmKernels& GemmAvx512Bf16Wide() {
  static constexpr GemmKernels kKernels{kGemmWide<float>, kGemmWide<bf16>, kGemmF32};
  return kKernels;
}

const GemmKernels& GemmAvx512Bf16Dot() {
  static constexpr GemmKernels kKernels{Gemm<Bf16DotOp, Copied<Bf16DotOp>, float>,
                                        Gemm<Bf16DotOp, Copied<Bf16DotOp>, bf16>, kGemmF32};
  return kKernels;
}

}  // namespace rt::kernels
