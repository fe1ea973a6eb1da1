#include "kernels/linear_mixer/linear_mixer.h"

namespace rt::kernels {

size_t LinearMixerWorkspaceBytes(const DeltaDims& dims, int num_threads) { return GatedDeltaWorkspaceBytes(dims, num_threads); }

}  // namespace rt::kernels
