#include "kernels/gated_rms_norm/gated_rms_norm_impl.h"

namespace rt::kernels {
const GatedRmsNormKernels& GatedRmsNormAvx512Bf16() { return GatedRmsNormTable(); }
}  // namespace rt::kernels
