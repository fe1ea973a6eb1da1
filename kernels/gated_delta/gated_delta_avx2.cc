#include "kernels/gated_delta/gated_delta_impl.h"

namespace rt::kernels {
const GatedDeltaKernels& GatedDeltaAvx2() { return GatedDeltaTable(); }
}  // namespace rt::kernels
