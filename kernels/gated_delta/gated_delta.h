// The gated delta rule (Gated DeltaNet and Kimi Delta Attention): token-recurrent and chunked forms over a panelled state.
//
// Per sequence and value head h, which reads key head h / (num_v_heads / num_k_heads), with S in R^(Dk x Dv):
//
//   q^ = q * rsqrt(|q|^2 + l2_eps) * Dk^-1/2          k^ = k * rsqrt(|k|^2 + l2_eps)
//   g  = -exp(A_log) * softplus(a + dt_bias)          beta = beta_scale * sigmoid(b)
//     or, bounded, g = bound * sigmoid(exp(A_log) * (a + dt_bias))
//   S~ = exp(g) S_{t-1};   u = beta (v - S~^T k^);    S_t = S~ + k^ u^T;   o = S_t^T q^
//
// a, dt_bias and g have gate_width values a head: one, or one per key channel (row d of S then decays by exp(g[d])).
//
// Sources: Yang, Kautz, Hatamizadeh, "Gated Delta Networks", arXiv:2412.06464, eq. 10; chunked ("UT") form section 3.3. Channel decay and
// the same form for it: Kimi Team, "Kimi Linear", arXiv:2510.26692, section 3. The chunked kernel works on 64 tokens at a time in the direct
// order: with G the running sum of g inside the chunk and S the entering state, one decay a head gives
//
//   (I + L) U = diag(beta) (V - diag(e^G) K S),        L[i,j] = beta_i (k_i . k_j) e^(G_i - G_j), j < i
//   O = diag(e^G) Q S + P U,                           P[i,j] = (q_i . k_j) e^(G_i - G_j), j <= i
//   S' = e^(G_end) S + K^T diag(e^(G_end - G)) U
//
// and channel decays move inside the dot products (delta_channel.h): L[i,j] = beta_i sum_d k_i[d] k_j[d] e^(G_i[d] - G_j[d]), P likewise,
// K e^G and Q e^G in place of diag(e^G) K and Q, K e^(G_end - G) in the last line.
//
// The unit triangular system is solved in fp32 by blocked forward substitution on U itself, so no inverse is formed. A scalar G is summed in
// double and differenced before exp, so strong decays lose nothing; a step's g is bounded below by -128 (e^-128 is 0 in fp32).
// All other arithmetic is fp32. Results depend neither on the number of threads nor on the other sequences of the batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/parallel.h"
#include "kernels/common/sequence_batch.h"
#include "kernels/common/types.h"

namespace rt::kernels {

struct DeltaDims {
  int32_t num_k_heads;
  int32_t num_v_heads;  // a multiple of num_k_heads
  int32_t head_k_dim;   // Dk
  int32_t head_v_dim;   // Dv
  int32_t gate_width = 1;  // decays a head and token: 1, or head_k_dim

  RT_ALWAYS_INLINE bool channel_gates() const { return gate_width != 1; }
};

// State layout VPANEL16, per slot: [num_v_heads][ceil(Dv/16)][Dk][16]; lanes past Dv are zero. f32, bf16 or f16. Narrow states are widened
// when a call starts and rounded to nearest even once when it ends, per (sequence, head).
RT_ALWAYS_INLINE int64_t DeltaStatePanels(const DeltaDims& dims) { return (dims.head_v_dim + 15) / 16; }
RT_ALWAYS_INLINE int64_t DeltaStateBytes(const DeltaDims& dims, DType dtype) {
  return dims.num_v_heads * DeltaStatePanels(dims) * dims.head_k_dim * 16 * SizeOf(dtype);
}

enum class GateForm : uint8_t { kSoftplus, kBoundedSigmoid };

// How g and beta come about; shared by the stand-alone op and the fused mixer.
struct DeltaGates {
  const void* a;         // [num_tokens, num_v_heads * gate_width], act dtype, rows a_stride elements apart
  int64_t a_stride;
  const void* b;         // [num_tokens, num_v_heads], act dtype, for beta
  int64_t b_stride;
  const float* a_log;    // [num_v_heads]; -inf = no decay (softplus form)
  const float* dt_bias;  // [num_v_heads * gate_width]
  float beta_scale;      // 1, or 2 where negative eigenvalues are allowed
  GateForm form = GateForm::kSoftplus;
  float bound = 0;       // kBoundedSigmoid: every g lies in (bound, 0); below 0
};

// The recurrent state pool.
struct DeltaState {
  void* base;                 // slot s starts at base + s * slot_stride_bytes
  int64_t slot_stride_bytes;  // at least DeltaStateBytes
  DType dtype;
};

struct GatedDeltaParams {
  const void* q;       // [num_tokens, num_k_heads, Dk], act dtype, raw; token rows q_stride elements apart
  int64_t q_stride;
  const void* k;       // the same
  int64_t k_stride;
  const void* v;       // [num_tokens, num_v_heads, Dv]
  int64_t v_stride;
  DeltaGates gates;
  void* out;           // [num_tokens, num_v_heads, Dv], act dtype, rows out_stride apart
  int64_t out_stride;
  DeltaState state;
  SequenceBatch batch;
  DeltaDims dims;
  float l2_eps;
  void* workspace;     // GatedDeltaWorkspaceBytes(dims, num_threads), 64-byte aligned, contents irrelevant
};

size_t GatedDeltaWorkspaceBytes(const DeltaDims& dims, int num_threads);

// Return 0. `recurrent` steps token by token at any length; `chunked` uses the chunk form at any length.
using GatedDeltaFn = int (*)(const GatedDeltaParams&, const Parallel&);

struct GatedDeltaKernels {
  GatedDeltaFn recurrent_f32, recurrent_bf16;
  GatedDeltaFn chunked_f32;
  GatedDeltaFn chunked_bf16;  // the faster of the two below on this CPU (CpuPrefersBf16Dot)
  // The large chunk products in fp32, or on bf16 copies of their operands with fp32 sums (VDPBF16PS; the AVX2 level has no such
  // instruction and uses fp32 for both). Solve, gates and state are fp32 either way.
  GatedDeltaFn chunked_bf16_fma, chunked_bf16_dot;
};
const GatedDeltaKernels& GatedDeltaAvx512Bf16();
const GatedDeltaKernels& GatedDeltaAvx2();

}  // namespace rt::kernels
