#include "kernels/elementwise/elementwise_impl.h"

namespace rt::kernels {
const ElementwiseKernels& ElementwiseAvx2() { return kElementwiseKernels; }
}  // namespace rt::kernels
