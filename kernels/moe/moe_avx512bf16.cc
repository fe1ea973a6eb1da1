#include "kernels/moe/moe_experts_impl.h"
#include "kernels/moe/moe_router_impl.h"

namespace rt::kernels {

const MoeKernels& MoeAvx512Bf16() {
  static constexpr MoeKernels kKernels{Router<float>, Router<bf16>, Experts<float>, Experts<bf16>};
  return kKernels;
}

}  // namespace rt::kernels
