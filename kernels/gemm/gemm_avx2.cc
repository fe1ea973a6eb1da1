#include "kernels/gemm/gemm_impl.h"

namespace rt::kernels {

const GemmKernels& GemmAvx2() {
  static constexpr GemmKernels kKernels{kGemmWide<float>, kGemmWide<bf16>, kGemmF32};
  return kKernels;
}

}  // namespace rt::kernels
