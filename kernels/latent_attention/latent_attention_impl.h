// The latent attention kernels, compiled once per instruction-set level. Design: latent_attention.h.
#pragma once

#include "kernels/latent_attention/latent_absorbed.h"
#include "kernels/latent_attention/latent_expanded.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

constexpr LatentAttentionKernels kLatentAttentionKernels{AbsorbedLatentAttention<float>, AbsorbedLatentAttention<bf16>,
                                                         ExpandedLatentAttention<float>, ExpandedLatentAttention<bf16>,
                                                         LatentNorm<float>,              LatentNorm<bf16>};

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
