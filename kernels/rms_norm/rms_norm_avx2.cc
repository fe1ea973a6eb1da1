#include "kernels/rms_norm/rms_norm_impl.h"

namespace rt::kernels {
const RmsNormKernels& RmsNormAvx2() { return kRmsNormKernels; }
}  // namespace rt::kernels
