#include "kernels/causal_conv1d/causal_conv1d_impl.h"

namespace rt::kernels {
const CausalConv1dKernels& CausalConv1dAvx512Bf16() { return CausalConv1dTable(); }
}  // namespace rt::kernels
