#include "plugin_sdk/oracle/latent_attention.h"


#include <algorithm>

namespace rt::oracle {
namespace {

double Dot(View a, View b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// Row-major access by (row, first column, width).
struct Rows {
  View values;
  int64_t width;
  View At(int64_t row, int64_t first, int64_t count) const { return values.subspan(row * width + first, count); }
};

void CheckSizes(const LatentShape& s, View q, View rows, View kv_b) {
  CheckSize("q", q.size(), static_cast<int64_t>(q.size()) / s.q_width() * s.q_width());
  CheckSize("rows", rows.size(), static_cast<int64_t>(rows.size()) / s.row() * s.row());
  CheckSize("kv_b", kv_b.size(), s.num_heads * (s.qk_nope_dim + s.v_dim) * s.latent_dim);
}

void Softmax(Values& scores) {
  const double most = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double& score : scores) sum += score = std::exp(score - most);
  for (double& score : scores) score /= sum;
}

}  // namespace

Values LatentNorm(const LatentShape& s, double eps, View kv_a, View weight) {
  const int64_t num_tokens = static_cast<int64_t>(kv_a.size()) / s.row();
  CheckSize("kv_a", kv_a.size(), num_tokens * s.row());
  Values out(kv_a.begin(), kv_a.end());
  for (int64_t t = 0; t < num_tokens; ++t) {
    const Values normed = RmsNorm({1, s.latent_dim}, {eps, 0.0}, kv_a.subspan(t * s.row(), s.latent_dim), weight);
    std::copy(normed.begin(), normed.end(), out.begin() + t * s.row());
  }
  return out;
}

Values ExpandedLatentAttention(const LatentShape& s, View q, View rows, View kv_b) {
  CheckSizes(s, q, rows, kv_b);
  const int64_t num_tokens = static_cast<int64_t>(q.size()) / s.q_width(), num_rows = static_cast<int64_t>(rows.size()) / s.row();
  const int64_t expanded = s.qk_nope_dim + s.v_dim;
  const Rows latent{rows, s.row()}, queries{q, s.q_width()};
  Values out(num_tokens * s.out_width(), 0.0);
  for (int64_t h = 0; h < s.num_heads; ++h) {
    Values keys_values(num_rows * expanded);  // W_uk c, then W_uv c
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t j = 0; j < expanded; ++j) {
        keys_values[r * expanded + j] = Dot(latent.At(r, 0, s.latent_dim), kv_b.subspan((h * expanded + j) * s.latent_dim, s.latent_dim));
      }
    }
    const Rows kv{keys_values, expanded};
    for (int64_t t = 0; t < num_tokens; ++t) {
      const int64_t column = h * (s.qk_nope_dim + s.qk_shared_dim);
      Values p(num_rows - num_tokens + t + 1);
      for (int64_t r = 0; r < static_cast<int64_t>(p.size()); ++r) {
        p[r] = s.scale * (Dot(queries.At(t, column, s.qk_nope_dim), kv.At(r, 0, s.qk_nope_dim)) +
                          Dot(queries.At(t, column + s.qk_nope_dim, s.qk_shared_dim), latent.At(r, s.latent_dim, s.qk_shared_dim)));
      }
      Softmax(p);
      for (int64_t r = 0; r < static_cast<int64_t>(p.size()); ++r) {
        for (int64_t j = 0; j < s.v_dim; ++j) out[t * s.out_width() + h * s.v_dim + j] += p[r] * keys_values[r * expanded + s.qk_nope_dim + j];
      }
    }
  }
  return out;
}

Values AbsorbedLatentAttention(const LatentShape& s, View q, View rows, View kv_b) {
  CheckSizes(s, q, rows, kv_b);
  const int64_t num_tokens = static_cast<int64_t>(q.size()) / s.q_width(), num_rows = static_cast<int64_t>(rows.size()) / s.row();
  const int64_t expanded = s.qk_nope_dim + s.v_dim;
  const Rows latent{rows, s.row()}, queries{q, s.q_width()}, weight{kv_b, s.latent_dim};
  Values out(num_tokens * s.out_width(), 0.0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    for (int64_t h = 0; h < s.num_heads; ++h) {
      const View query = queries.At(t, h * (s.qk_nope_dim + s.qk_shared_dim), s.qk_nope_dim + s.qk_shared_dim);
      Values absorbed(s.row(), 0.0);
      for (int64_t d = 0; d < s.qk_nope_dim; ++d) {
        for (int64_t l = 0; l < s.latent_dim; ++l) absorbed[l] += query[d] * weight.At(h * expanded + d, l, 1)[0];
      }
      std::copy(query.begin() + s.qk_nope_dim, query.end(), absorbed.begin() + s.latent_dim);
      Values p(num_rows - num_tokens + t + 1);
      for (int64_t r = 0; r < static_cast<int64_t>(p.size()); ++r) p[r] = s.scale * Dot(absorbed, latent.At(r, 0, s.row()));
      Softmax(p);
      Values mixed(s.latent_dim, 0.0);
      for (int64_t r = 0; r < static_cast<int64_t>(p.size()); ++r) {
        for (int64_t l = 0; l < s.latent_dim; ++l) mixed[l] += p[r] * latent.At(r, l, 1)[0];
      }
      for (int64_t j = 0; j < s.v_dim; ++j) {
        out[t * s.out_width() + h * s.v_dim + j] = Dot(weight.At(h * expanded + s.qk_nope_dim + j, 0, s.latent_dim), mixed);
      }
    }
  }
  return out;
}

}  // namespace rt::oracle
