// Causal depthwise convolution with SiLU over the tokens of each sequence, with a carried window.
//
//   u_t[c] = silu( sum_{j=0..W-1} w[c, j] * x_{t-(W-1)+j}[c] )          tap W-1 is the current token
//
// Source: the short convolution of Gated DeltaNet (Yang et al. 2024, arXiv:2412.06464, section 3.4); no bias. Inputs before a sequence's
// first row come from its conv state, or are zero. Math is fp32; the result is rounded once, after SiLU.
#pragma once

#include <cstdint>

#include "kernels/common/parallel.h"
#include "kernels/common/sequence_batch.h"
#include "kernels/common/types.h"

namespace rt::kernels {

constexpr int32_t kMinConvWidth = 2;
constexpr int32_t kMaxConvWidth = 8;

struct CausalConv1dParams {
  const void* x;                    // [num_tokens, channels], act dtype, rows x_stride elements apart
  int64_t x_stride;
  const float* weight;              // [width, channels]: packed by PackCausalConv1dWeight
  void* out;                        // [num_tokens, channels], act dtype, rows out_stride elements apart; must not overlap x
  int64_t out_stride;
  void* state;                      // slot 0: the last width-1 raw inputs [width-1, channels], act dtype, oldest first; updated in place
  int64_t state_slot_stride_bytes;  // slot s starts at state + s * state_slot_stride_bytes
  SequenceBatch batch;
  int32_t channels;
  int32_t width;                    // kMinConvWidth..kMaxConvWidth
};

// Returns 0. Results do not depend on the number of threads or on the other sequences of the batch.
using CausalConv1dFn = int (*)(const CausalConv1dParams&, const Parallel&);

struct CausalConv1dKernels {
  CausalConv1dFn f32;
  CausalConv1dFn bf16;
};
const CausalConv1dKernels& CausalConv1dAvx512Bf16();
const CausalConv1dKernels& CausalConv1dAvx2();

// Checkpoint order [channels, width] (f32 or bf16) to the kernels' [width, channels] fp32: done once at load.
void PackCausalConv1dWeight(const void* weight, DType dtype, int32_t channels, int32_t width, float* packed);

}  // namespace rt::kernels
