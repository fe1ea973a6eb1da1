#include "kernels/attention/attention_impl.h"

namespace rt::kernels {
const AttentionKernels& AttentionAvx512Bf16() { return kAttentionKernels; }
}  // namespace rt::kernels
