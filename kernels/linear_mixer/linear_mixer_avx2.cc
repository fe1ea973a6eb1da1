#include "kernels/linear_mixer/linear_mixer_impl.h"

namespace rt::kernels {
const LinearMixerKernels& LinearMixerAvx2() { return LinearMixerTable(); }
}  // namespace rt::kernels
