// The whole token mixer of a Gated DeltaNet or Kimi Delta Attention layer between its input and output projections, fused:
//
//   q, k, v = silu(causal conv of the raw projections)      causal_conv1d.h
//   o       = gated delta rule(q, k, v, a, b)               gated_delta.h
//   y       = gated RMS norm(o, z)                          gated_rms_norm.h
//
// One parallel region over (sequence, key head with the value heads that read it): each item takes its channels through all three steps,
// so q, k, v and o never leave the core's caches and a decode step of a layer is one fork and join. Intermediate values stay fp32 (the
// separate ops round q, k, v and o to the act dtype in between). Sequences of a few tokens run token by token, longer ones in chunks of 64;
// the choice looks at the sequence's own length alone, so results do not depend on batch mates or on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/gated_delta/gated_delta.h"
#include "kernels/gated_rms_norm/gated_rms_norm.h"

namespace rt::kernels {

// Longest run a sequence takes token by token: the forms cost the same near 8 tokens (AVX-512; measured on Emerald Rapids). Up to here a
// verify step of several draft tokens gives the same bits as decoding them one by one, as long as the state is fp32.
constexpr int64_t kMixerRecurrentTokens = 8;

struct LinearMixerParams {
  const void* q;  // [num_tokens, num_k_heads * Dk], act dtype, raw projection; token rows q_stride elements apart
  int64_t q_stride;
  const void* k;  // the same
  int64_t k_stride;
  const void* v;  // [num_tokens, num_v_heads * Dv]
  int64_t v_stride;
  const void* z;  // [num_tokens, num_v_heads * Dv], the output gate before activation
  int64_t z_stride;
  DeltaGates gates;
  const float* conv_weight;  // [conv_width, channels], see PackCausalConv1dWeight; channels = 2 * num_k_heads * Dk + num_v_heads * Dv,
                             // in the order q, k, v
  int32_t conv_width;
  void* conv_state;          // slot 0: [conv_width-1, channels], act dtype, oldest first
  int64_t conv_state_slot_stride_bytes;
  DeltaState state;
  const float* norm_weight;  // [Dv]
  float norm_eps;
  float l2_eps;
  GateActivation gate_activation;
  void* out;  // [num_tokens, num_v_heads * Dv], act dtype, rows out_stride apart; must not overlap an input
  int64_t out_stride;
  SequenceBatch batch;  // one slot id names both states
  DeltaDims dims;
  void* workspace;      // LinearMixerWorkspaceBytes(dims, num_threads), 64-byte aligned, contents irrelevant
};

size_t LinearMixerWorkspaceBytes(const DeltaDims& dims, int num_threads);

// Returns 0. Takes any mix of decode, verify and prefill sequences.
using LinearMixerFn = int (*)(const LinearMixerParams&, const Parallel&);

struct LinearMixerKernels {
  LinearMixerFn f32;
  LinearMixerFn bf16;  // the faster of the two below on this CPU
  LinearMixerFn bf16_fma, bf16_dot;  // as in GatedDeltaKernels
};
const LinearMixerKernels& LinearMixerAvx512Bf16();
const LinearMixerKernels& LinearMixerAvx2();

}  // namespace rt::kernels
