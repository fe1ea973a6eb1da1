// References of linear attention: causal convolution, gates, gated delta rule (token by token and in chunks),
// gated norm, and the whole mixer between a layer's input and output projections.
//
// One sequence a call; a state argument holds what the tokens before the call left behind, and is updated. T
// tokens, Hk key heads, Hv value heads (value head h reads key head h / (Hv / Hk)), Dk/Dv head widths, W
// convolution taps. Gates come in two widths: G = 1, one decay a head (Gated DeltaNet, Yang et al. 2024,
// arXiv 2412.06464), or G = Dk, one a key channel (Kimi Delta Attention, arXiv 2510.26692).
#pragma once

#include "plugin_sdk/oracle/dense.h"

namespace rt::oracle {

struct ConvShape {
  int64_t num_tokens;
  int64_t num_channels;
  int64_t num_taps;  // W
};

// Depthwise causal convolution, then SiLU: y_t[c] = silu(sum_j weight[c, j] * x_{t-(W-1)+j}[c]); tap W-1 is
// the current token. x [T, C], weight [C, W]; conv_state [W-1, C]: the W-1 raw inputs before the call, oldest
// first (zeros before a sequence's start), replaced by the last W-1 raw inputs -> y [T, C].
Values CausalConv1dSilu(const ConvShape& shape, View x, View weight, MutableView conv_state);

// y = x / sqrt(sum(x^2) + eps) * scale per row of `width`: eps is inside the root and added to the sum, not
// to the mean.
Values L2Norm(const NormShape& shape, double eps, double scale, View x);

enum class GateForm {
  kSoftplus,        // g = -exp(A_log) * softplus(a + dt_bias)
  kBoundedSigmoid,  // g = lower_bound * sigmoid(exp(A_log) * (a + dt_bias)), lower_bound < 0
};

struct GateParams {
  GateForm form = GateForm::kSoftplus;
  double lower_bound = 0.0;  // kBoundedSigmoid only
  double beta_scale = 1.0;   // 2 where a model allows negative eigenvalues
};

struct GateShape {
  int64_t num_tokens;
  int64_t num_heads;       // Hv
  int64_t gate_width = 1;  // G
};

struct Gates {
  Values g;     // [T, Hv, G], log decay, <= 0
  Values beta;  // [T, Hv], after sigmoid and scale
};

// a [T, Hv, G] and b [T, Hv] raw, A_log [Hv], dt_bias [Hv, G]; beta = beta_scale * sigmoid(b).
Gates ComputeGates(const GateShape& shape, const GateParams& params, View a, View b, View a_log,
                   View dt_bias);

struct DeltaShape {
  int64_t num_tokens;
  int64_t num_k_heads;
  int64_t num_v_heads;
  int64_t head_k_dim;
  int64_t head_v_dim;
  int64_t gate_width = 1;  // G: 1 or head_k_dim
};

// Inputs of the delta rule as they enter the recurrence: q and k normalised, q scaled, gates activated.
struct DeltaInputs {
  View q;     // [T, Hk, Dk]
  View k;     // [T, Hk, Dk]
  View v;     // [T, Hv, Dv]
  View g;     // [T, Hv, G], log decay
  View beta;  // [T, Hv]
};

// The recurrence, per value head with S [Dk, Dv] (arXiv 2412.06464, eq. 10, transposed; arXiv 2510.26692, eq.
// 1):
//   S <- diag(exp(g_t)) S;  u = beta_t (v_t - S^T k_t);  S <- S + k_t u^T;  o_t = S^T q_t.
// state [Hv, Dk, Dv] is updated in place -> o [T, Hv, Dv].
Values GatedDeltaRecurrent(const DeltaShape& shape, const DeltaInputs& inputs, MutableView state);

// The same map in chunks of C = chunk_size tokens, in the "direct-V" order. Within a chunk, with S the
// entering state and D(i, j)[c] = exp(sum of g over tokens j+1 .. i) (never formed as a quotient, so g = -inf
// is fine):
//   W_i = v_i - S^T (exp(g_0 + .. + g_i) k_i);  U = (I + L)^-1 diag(beta) W,  L_ij = beta_i <k_i, D(i, j)
//   k_j> for j < i; o_i = S^T (exp(g_0 + .. + g_i) q_i) + sum_{j <= i} <q_i, D(i, j) k_j> U_j; S' =
//   diag(D(C-1, -1)) S + sum_j (D(C-1, j) k_j) U_j^T.
// Derivation: unrolling the recurrence over the chunk, U_t being its u.
Values GatedDeltaChunked(const DeltaShape& shape, int64_t chunk_size, const DeltaInputs& inputs,
                         MutableView state);

enum class NormGate { kSilu, kSigmoid };

// y = o / sqrt(mean(o^2) + eps) * weight * act(z) per row of `width` (= Dv): norm first, gate second.
// o, z [num_rows, width], weight [width] -> y [num_rows, width].
Values GatedRmsNorm(const NormShape& shape, double eps, NormGate gate, View o, View z, View weight);

struct LinearMixerParams {
  DeltaShape shape;
  int64_t num_taps;  // W
  GateParams gates;
  double l2_norm_eps = 1e-6;
  double norm_eps = 1e-6;
  NormGate norm_gate = NormGate::kSilu;

  int64_t ConvChannels() const {  // [q: Hk Dk | k: Hk Dk | v: Hv Dv]
    return 2 * shape.num_k_heads * shape.head_k_dim + shape.num_v_heads * shape.head_v_dim;
  }
};

struct LinearMixerInputs {
  View qkv;  // [T, ConvChannels()], raw
  View z;    // [T, Hv, Dv], raw output gate
  View a;    // [T, Hv, G], raw
  View b;    // [T, Hv], raw
};

struct LinearMixerWeights {
  View conv;     // [ConvChannels(), W]
  View a_log;    // [Hv]
  View dt_bias;  // [Hv, G]
  View norm;     // [Dv]
};

// What one sequence carries through one linear layer.
struct LinearMixerState {
  Values conv;       // [W-1, ConvChannels()]
  Values recurrent;  // [Hv, Dk, Dv]

  static LinearMixerState Zero(const LinearMixerParams& params);
};

// The composite: convolution + SiLU on q, k, v; L2 norm of q and k, q scaled by Dk^-1/2; gates; delta rule;
// gated norm. Written token by token and head by head from those formulas, without the functions above, so
// that the two check each other.
// -> y [T, Hv, Dv].
Values LinearMixer(const LinearMixerParams& params, const LinearMixerWeights& weights,
                   const LinearMixerInputs& inputs, LinearMixerState& state);

}  // namespace rt::oracle
