#include "kernels/latent_attention/latent_attention_impl.h"

namespace rt::kernels {
const LatentAttentionKernels& LatentAttentionAvx512Bf16() { return kLatentAttentionKernels; }
}  // namespace rt::kernels
