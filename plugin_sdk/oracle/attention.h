// References of full attention: partial rotary, q/k norm, causal grouped-query attention dense and paged,
// output gate.
//
// One sequence a call. T new tokens follow S - T tokens whose keys and values are already known. Nq query
// heads, Nkv key/value heads, query head h reads key/value head h / (Nq / Nkv); d = head_dim.
#pragma once

#include "plugin_sdk/oracle/dense.h"

namespace rt::oracle {

struct RotaryShape {
  int64_t num_tokens;
  int64_t num_heads;
  int64_t head_dim;
  int64_t rotary_dim;  // even, <= head_dim; 0 = no rotation
};

// Half-split ("NeoX") rotary embedding of the first R = rotary_dim features (Su et al. 2021, "RoFormer", eq.
// 34, features paired i with i + R/2): angle_i = position * theta^(-2i/R); y_i = x_i cos - x_{i+R/2} sin;
// y_{i+R/2} = x_{i+R/2} cos + x_i sin; features from R on pass through. x [T, num_heads, head_dim], positions
// [T] -> y, same shape as x.
Values Rotary(const RotaryShape& shape, double theta, View x, std::span<const int64_t> positions);

struct AttentionShape {
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  double scale = 0.0;  // of q k^T; 0 = 1 / sqrt(head_dim)
};

// softmax(scale q k^T) v with causal mask: query t sees the keys 0 .. S - T + t (Vaswani et al. 2017, eq.
// 1). q [T, Nq, d]; k, v [S, Nkv, d], S >= T -> o [T, Nq, d].
Values CausalAttention(const AttentionShape& shape, View q, View k, View v);

// Where a sequence's keys and values lie: token s is row s mod block_size of block block_table[s /
// block_size]. Pools are [num_blocks, num_kv_heads, block_size, head_dim], one for keys and one for values.
struct PagedShape {
  AttentionShape heads;
  int64_t num_blocks;
  int64_t block_size;
};

// Writes k, v [T, Nkv, d] of the tokens context_len .. context_len + T - 1 into the pools; no other byte
// changes.
void WritePagedKeyValue(const PagedShape& shape, std::span<const int32_t> block_table, int64_t context_len,
                        View k, View v, MutableView key_pool, MutableView value_pool);

// CausalAttention with S = context_len + T keys and values read from the pools. Only block_table entries that
// hold one of the S tokens are read. q [T, Nq, d] -> o [T, Nq, d].
Values PagedCausalAttention(const PagedShape& shape, std::span<const int32_t> block_table,
                            int64_t context_len, View q, View key_pool, View value_pool);

// What a gated attention layer does to its raw projections before and after the attention itself.
struct GatedAttentionParams {
  AttentionShape heads;
  int64_t rotary_dim = 0;
  double rope_theta = 10000.0;
  bool has_qk_norm = true;  // per head, over head_dim, before the rotation
  NormParams qk_norm{1e-6, 1.0};
  bool has_output_gate = true;  // q rows per head h: d rows of q_h, then d rows of gate_h
};

struct QueryGate {
  Values q;     // [T, Nq, d]
  Values gate;  // [T, Nq, d]
};

// Splits q_gate [T, Nq, 2, d] into the query and its output gate.
QueryGate SplitQueryGate(const AttentionShape& shape, View q_gate);

struct QkNormRope {
  Values q;     // [T, Nq, d], normalised and rotated
  Values k;     // [T, Nkv, d], normalised and rotated
  Values gate;  // [T, Nq, d], raw; empty without output gate
};

// q = rotary(rms_norm(q)), k = rotary(rms_norm(k)), gate untouched. q_gate [T, Nq, 2, d] with an output gate,
// else [T, Nq, d]; k [T, Nkv, d]; q_norm, k_norm [d], unused without has_qk_norm; positions [T].
QkNormRope ApplyQkNormRope(const GatedAttentionParams& params, View q_gate, View k, View q_norm, View k_norm,
                           std::span<const int64_t> positions);

// Keys (rotated) and values of the tokens so far, [S, Nkv, d] each; grows by one call's tokens.
struct KeyValueCache {
  Values k;
  Values v;
};

// The composite from raw projections to the input of the output projection:
// o = attention(qk_norm_rope(q), cache + qk_norm_rope(k), cache + v) * sigmoid(gate). Positions of the new
// tokens as in ApplyQkNormRope. q_gate as above, k, v [T, Nkv, d] -> [T, Nq, d].
Values GatedAttention(const GatedAttentionParams& params, View q_gate, View k, View v, View q_norm,
                      View k_norm, std::span<const int64_t> positions, KeyValueCache& cache);

}  // namespace rt::oracle
