// References of multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, section 2.1) without rotation: one
// compressed row a token, shared by all heads, from which keys and values are expanded.
//
// One sequence a call. T new tokens follow S - T tokens whose latent rows are already known. N heads; a latent row is L compressed
// features and De key features that all heads share; per head Dn expanded key features and Dv values.
#pragma once

#include "plugin_sdk/oracle/dense.h"

namespace rt::oracle {

struct LatentShape {
  int64_t num_heads;      // N
  int64_t latent_dim;     // L
  int64_t qk_nope_dim;    // Dn
  int64_t qk_shared_dim;  // De
  int64_t v_dim;          // Dv
  double scale;           // of the score

  int64_t row() const { return latent_dim + qk_shared_dim; }
  int64_t q_width() const { return num_heads * (qk_nope_dim + qk_shared_dim); }
  int64_t out_width() const { return num_heads * v_dim; }
};

// [rms_norm(kv_a[:L]) * weight ; kv_a[L:]] per token. kv_a [T, L+De], weight [L] -> [T, L+De].
Values LatentNorm(const LatentShape& shape, double eps, View kv_a, View weight);

// Causal attention with keys [W_uk c ; e] and values W_uv c formed for every row: query t sees rows 0 .. S - T + t.
// q [T, N, Dn+De], rows [S, L+De], kv_b [N, Dn+Dv, L] (Dn rows of W_uk, then Dv rows of W_uv) -> [T, N, Dv].
Values ExpandedLatentAttention(const LatentShape& shape, View q, View rows, View kv_b);

// The same numbers in the absorbed order: scores (W_uk^T q_n) . c + q_e . e, output W_uv (sum p c).
Values AbsorbedLatentAttention(const LatentShape& shape, View q, View rows, View kv_b);

}  // namespace rt::oracle
