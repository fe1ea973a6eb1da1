#include "kernels/attention/attention_impl.h"

namespace rt::kernels {
const AttentionKernels& AttentionAvx2() { return kAttentionKernels; }
}  // namespace rt::kernels
