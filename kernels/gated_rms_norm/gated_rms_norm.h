// RMS normalisation over each value head, times a weight, times an activation of the gate z (norm before gate):
//
//   y = o * rsqrt(mean_Dv(o^2) + eps) * w * act(z),   act = silu (Gated DeltaNet) or sigmoid (Kimi Delta Attention, some GDN checkpoints)
//
// per (token, head); w is shared by all heads. Source: Gated DeltaNet, arXiv:2412.06464, output gate. Math fp32, one rounding at the end.
#pragma once

#include <cstdint>

#include "kernels/common/parallel.h"
#include "kernels/common/types.h"

namespace rt::kernels {

enum class GateActivation : uint8_t { kSilu, kSigmoid };

struct GatedRmsNormParams {
  const void* o;        // [num_tokens, num_heads, head_dim], act dtype, token rows o_stride elements apart
  int64_t o_stride;
  const void* z;        // same shape and dtype, rows z_stride apart
  int64_t z_stride;
  const float* weight;  // [head_dim]
  void* out;            // same shape and dtype, rows out_stride apart; may be o itself
  int64_t out_stride;
  int64_t num_tokens;
  int32_t num_heads;
  int32_t head_dim;
  float eps;
  GateActivation activation;
};

// Returns 0. Each (token, head) is computed alone.
using GatedRmsNormFn = int (*)(const GatedRmsNormParams&, const Parallel&);

struct GatedRmsNormKernels {
  GatedRmsNormFn f32;
  GatedRmsNormFn bf16;
};
const GatedRmsNormKernels& GatedRmsNormAvx512Bf16();
const GatedRmsNormKernels& GatedRmsNormAvx2();

}  // namespace rt::kernels
