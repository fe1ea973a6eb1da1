#include "kernels/elementwise/elementwise_impl.h"

namespace rt::kernels {
const ElementwiseKernels& ElementwiseAvx512Bf16() { return kElementwiseKernels; }
}  // namespace rt::kernels
