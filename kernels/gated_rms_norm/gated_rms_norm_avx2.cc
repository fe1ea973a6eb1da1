#include "kernels/gated_rms_norm/gated_rms_norm_impl.h"

namespace rt::kernels {
const GatedRmsNormKernels& GatedRmsNormAvx2() { return GatedRmsNormTable(); }
}  // namespace rt::kernels
