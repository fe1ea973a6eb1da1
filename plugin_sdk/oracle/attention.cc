#include "plugin_sdk/oracle/attention.h"

#include <algorithm>
#include <limits>

namespace rt::oracle {
namespace {

// One query head against `num_keys` keys; key(s), value(s) give the row [d] of token s. out [d] is
// overwritten.
template <typename KeyRow, typename ValueRow>
void AttendOne(int64_t head_dim, double scale, int64_t num_keys, const double* q, KeyRow key, ValueRow value,
               double* out) {
  Values weight(num_keys);
  double largest = -std::numeric_limits<double>::infinity();
  for (int64_t s = 0; s < num_keys; ++s) {
    double score = 0;
    for (int64_t i = 0; i < head_dim; ++i) score += q[i] * key(s)[i];
    weight[s] = score * scale;
    largest = std::max(largest, weight[s]);
  }
  double total = 0;
  for (double& w : weight) total += w = std::exp(w - largest);
  std::fill(out, out + head_dim, 0.0);
  for (int64_t s = 0; s < num_keys; ++s) {
    for (int64_t i = 0; i < head_dim; ++i) out[i] += weight[s] / total * value(s)[i];
  }
}

double ScaleOf(const AttentionShape& s) {
  return s.scale != 0.0 ? s.scale : 1.0 / std::sqrt(static_cast<double>(s.head_dim));
}

int64_t PoolSize(const PagedShape& s) {
  return s.num_blocks * s.heads.num_kv_heads * s.block_size * s.heads.head_dim;
}

// First element of the row of `token`, `head` in a pool.
int64_t PoolRow(const PagedShape& s, std::span<const int32_t> block_table, int64_t token, int64_t head) {
  const int64_t block = block_table[token / s.block_size];
  CheckSize("block_table entry in use", block >= 0 && block < s.num_blocks ? 1 : 0, 1);
  return ((block * s.heads.num_kv_heads + head) * s.block_size + token % s.block_size) * s.heads.head_dim;
}

// One head vector of ApplyQkNormRope / GatedAttention, straight from the formula: x [d] -> rotary(norm(x)).
void NormRotate(const GatedAttentionParams& p, const double* x, View weight, int64_t position, double* y) {
  const int64_t dim = p.heads.head_dim, half = p.rotary_dim / 2;
  double mean_square = 0;
  for (int64_t i = 0; i < dim; ++i) mean_square += x[i] * x[i] / static_cast<double>(dim);
  for (int64_t i = 0; i < dim; ++i) {
    y[i] = p.has_qk_norm
               ? x[i] * (p.qk_norm.weight_offset + weight[i]) / std::sqrt(mean_square + p.qk_norm.eps)
               : x[i];
  }
  for (int64_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * std::pow(p.rope_theta, -2.0 * i / p.rotary_dim);
    const double first = y[i], second = y[i + half];
    y[i] = first * std::cos(angle) - second * std::sin(angle);
    y[i + half] = second * std::cos(angle) + first * std::sin(angle);
  }
}

}  // namespace

Values Rotary(const RotaryShape& s, double theta, View x, std::span<const int64_t> positions) {
  CheckSize("rotary x", x.size(), s.num_tokens * s.num_heads * s.head_dim);
  CheckSize("rotary positions", positions.size(), s.num_tokens);
  const int64_t half = s.rotary_dim / 2;
  Values y(x.begin(), x.end());
  for (int64_t t = 0; t < s.num_tokens; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(s.rotary_dim);
      const double angle = static_cast<double>(positions[t]) * std::pow(theta, exponent);
      const double cosine = std::cos(angle), sine = std::sin(angle);
      for (int64_t h = 0; h < s.num_heads; ++h) {
        const int64_t at = (t * s.num_heads + h) * s.head_dim + i;
        y[at] = x[at] * cosine - x[at + half] * sine;
        y[at + half] = x[at + half] * cosine + x[at] * sine;
      }
    }
  }
  return y;
}

Values CausalAttention(const AttentionShape& s, View q, View k, View v) {
  const int64_t kv_width = s.num_kv_heads * s.head_dim, q_width = s.num_q_heads * s.head_dim;
  const int64_t num_tokens = static_cast<int64_t>(q.size()) / q_width;
  const int64_t num_keys = static_cast<int64_t>(k.size()) / kv_width;
  CheckSize("attention q", q.size(), num_tokens * q_width);
  CheckSize("attention k", k.size(), std::max(num_keys, num_tokens) * kv_width);
  CheckSize("attention v", v.size(), num_keys * kv_width);
  Values out(q.size());
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t h = 0; h < s.num_q_heads; ++h) {
      const int64_t kv_head = h / (s.num_q_heads / s.num_kv_heads);
      const int64_t at = t * q_width + h * s.head_dim;
      auto key = [&](int64_t token) { return &k[token * kv_width + kv_head * s.head_dim]; };
      auto value = [&](int64_t token) { return &v[token * kv_width + kv_head * s.head_dim]; };
      AttendOne(s.head_dim, ScaleOf(s), num_keys - num_tokens + t + 1, &q[at], key, value, &out[at]);
    }
  }
  return out;
}

void WritePagedKeyValue(const PagedShape& s, std::span<const int32_t> block_table, int64_t context_len,
                        View k, View v, MutableView key_pool, MutableView value_pool) {
  const int64_t dim = s.heads.head_dim, width = s.heads.num_kv_heads * dim;
  CheckSize("paged v", v.size(), static_cast<int64_t>(k.size()));
  CheckSize("key pool", key_pool.size(), PoolSize(s));
  CheckSize("value pool", value_pool.size(), PoolSize(s));
  for (int64_t t = 0; t < static_cast<int64_t>(k.size()) / width; ++t) {
    for (int64_t h = 0; h < s.heads.num_kv_heads; ++h) {
      const int64_t row = PoolRow(s, block_table, context_len + t, h), from = t * width + h * dim;
      std::copy_n(k.begin() + from, dim, key_pool.begin() + row);
      std::copy_n(v.begin() + from, dim, value_pool.begin() + row);
    }
  }
}

Values PagedCausalAttention(const PagedShape& s, std::span<const int32_t> block_table, int64_t context_len,
                            View q, View key_pool, View value_pool) {
  const int64_t dim = s.heads.head_dim, q_width = s.heads.num_q_heads * dim;
  const int64_t num_tokens = static_cast<int64_t>(q.size()) / q_width;
  CheckSize("paged q", q.size(), num_tokens * q_width);
  CheckSize("key pool", key_pool.size(), PoolSize(s));
  CheckSize("value pool", value_pool.size(), PoolSize(s));
  Values out(q.size());
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t h = 0; h < s.heads.num_q_heads; ++h) {
      const int64_t kv_head = h / (s.heads.num_q_heads / s.heads.num_kv_heads);
      const int64_t at = t * q_width + h * dim;
      auto key = [&](int64_t token) { return &key_pool[PoolRow(s, block_table, token, kv_head)]; };
      auto value = [&](int64_t token) { return &value_pool[PoolRow(s, block_table, token, kv_head)]; };
      AttendOne(dim, ScaleOf(s.heads), context_len + t + 1, &q[at], key, value, &out[at]);
    }
  }
  return out;
}

QueryGate SplitQueryGate(const AttentionShape& s, View q_gate) {
  const int64_t num_heads = static_cast<int64_t>(q_gate.size()) / (2 * s.head_dim);  // tokens * query heads
  CheckSize("split_query_gate q_gate", q_gate.size(), num_heads * 2 * s.head_dim);
  QueryGate result;
  for (int64_t h = 0; h < num_heads; ++h) {
    const View head = q_gate.subspan(h * 2 * s.head_dim, 2 * s.head_dim);
    result.q.insert(result.q.end(), head.begin(), head.begin() + s.head_dim);
    result.gate.insert(result.gate.end(), head.begin() + s.head_dim, head.end());
  }
  return result;
}

QkNormRope ApplyQkNormRope(const GatedAttentionParams& p, View q_gate, View k, View q_norm, View k_norm,
                           std::span<const int64_t> positions) {
  const int64_t num_tokens = static_cast<int64_t>(positions.size()), dim = p.heads.head_dim;
  const int64_t q_stride = p.has_output_gate ? 2 * dim : dim;
  CheckSize("qk_norm_rope q_gate", q_gate.size(), num_tokens * p.heads.num_q_heads * q_stride);
  CheckSize("qk_norm_rope k", k.size(), num_tokens * p.heads.num_kv_heads * dim);
  if (p.has_qk_norm) CheckSize("qk_norm_rope q_norm", q_norm.size(), dim);
  if (p.has_qk_norm) CheckSize("qk_norm_rope k_norm", k_norm.size(), dim);
  QkNormRope result;
  result.q.resize(num_tokens * p.heads.num_q_heads * dim);
  result.k.resize(k.size());
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t h = t * p.heads.num_q_heads; h < (t + 1) * p.heads.num_q_heads; ++h) {
      const double* head = &q_gate[h * q_stride];
      NormRotate(p, head, q_norm, positions[t], &result.q[h * dim]);
      if (p.has_output_gate) result.gate.insert(result.gate.end(), head + dim, head + 2 * dim);
    }
    for (int64_t h = t * p.heads.num_kv_heads; h < (t + 1) * p.heads.num_kv_heads; ++h) {
      NormRotate(p, &k[h * dim], k_norm, positions[t], &result.k[h * dim]);
    }
  }
  return result;
}

Values GatedAttention(const GatedAttentionParams& p, View q_gate, View k, View v, View q_norm, View k_norm,
                      std::span<const int64_t> positions, KeyValueCache& cache) {
  const QkNormRope projected = ApplyQkNormRope(p, q_gate, k, q_norm, k_norm, positions);
  CheckSize("gated_attention v", v.size(), static_cast<int64_t>(k.size()));
  cache.k.insert(cache.k.end(), projected.k.begin(), projected.k.end());
  cache.v.insert(cache.v.end(), v.begin(), v.end());
  Values out = CausalAttention(p.heads, projected.q, cache.k, cache.v);
  for (std::size_t i = 0; i < projected.gate.size(); ++i) out[i] /= 1.0 + std::exp(-projected.gate[i]);
  return out;
}

}  // namespace rt::oracle
