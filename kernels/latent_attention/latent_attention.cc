#include "kernels/latent_attention/latent_attention.h"

#include "kernels/gemm/gemm.h"
#include "kernels/latent_attention/latent_attention_blocking.h"

namespace rt::kernels {

size_t AbsorbedLatentWorkspaceBytes(const LatentAttentionShape& shape, int64_t max_tokens, int num_threads) {
  const int64_t token = AbsorbedQueryFloats(shape) + kMaxLatentSegments * LatentPartialFloats(shape);
  const int64_t floats = LatentMin(max_tokens, kWaveTokens) * token + num_threads * AbsorbedScratchFloats(shape);
  return static_cast<size_t>(floats) * sizeof(float);
}

size_t ExpandedLatentWorkspaceBytes(const LatentAttentionShape& shape, int64_t max_tokens, int num_threads) {
  const int64_t floats = ExpandedScratchFloats(shape, LatentMin(max_tokens, kMaxQueries));
  return static_cast<size_t>(num_threads) * (static_cast<size_t>(floats) * sizeof(float) + GemmWorkspaceBytes(1));
}

}  // namespace rt::kernels
