#include "plugin_sdk/oracle/dense.h"

namespace rt::oracle {
namespace {

// Four partial sums, so that an addition need not wait for the one before it: whole-model checks take a
// quarter of the time.
double Dot(const double* a, const double* b, int64_t n) {
  double sum[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int64_t lane = 0; lane < 4; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sum[0] += a[i] * b[i];
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

}  // namespace

Values Linear(const LinearShape& s, View x, View weight) {
  CheckSize("linear x", x.size(), s.num_tokens * s.in_features);
  CheckSize("linear weight", weight.size(), s.out_features * s.in_features);
  Values y(s.num_tokens * s.out_features);
  for (int64_t n = 0; n < s.out_features; ++n) {  // outermost: a weight row is read from memory once
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      y[t * s.out_features + n] = Dot(&x[t * s.in_features], &weight[n * s.in_features], s.in_features);
    }
  }
  return y;
}

Values Embedding(const EmbeddingShape& s, std::span<const int32_t> ids, View table) {
  CheckSize("embedding table", table.size(), s.vocab_size * s.hidden_size);
  Values y;
  y.reserve(ids.size() * s.hidden_size);
  for (const int32_t id : ids) {
    CheckSize("embedding row of an id", id >= 0 && id < s.vocab_size ? 1 : 0, 1);
    const View row = table.subspan(id * s.hidden_size, s.hidden_size);
    y.insert(y.end(), row.begin(), row.end());
  }
  return y;
}

Values RmsNorm(const NormShape& s, const NormParams& params, View x, View weight) {
  CheckSize("rms_norm x", x.size(), s.num_rows * s.width);
  CheckSize("rms_norm weight", weight.size(), s.width);
  Values y(x.size());
  for (int64_t r = 0; r < s.num_rows; ++r) {
    const double* row = &x[r * s.width];
    const double scale = 1.0 / std::sqrt(Dot(row, row, s.width) / static_cast<double>(s.width) + params.eps);
    for (int64_t i = 0; i < s.width; ++i) {
      y[r * s.width + i] = row[i] * scale * (params.weight_offset + weight[i]);
    }
  }
  return y;
}

Values AddRmsNorm(const NormShape& s, const NormParams& params, MutableView residual, View delta,
                  View weight) {
  CheckSize("add_rms_norm residual", residual.size(), s.num_rows * s.width);
  CheckSize("add_rms_norm delta", delta.size(), s.num_rows * s.width);
  CheckSize("add_rms_norm weight", weight.size(), s.width);
  Values y(residual.size());
  for (int64_t r = 0; r < s.num_rows; ++r) {
    double sum_of_squares = 0;
    for (int64_t i = r * s.width; i < (r + 1) * s.width; ++i) {
      residual[i] += delta[i];
      sum_of_squares += residual[i] * residual[i];
    }
    const double length = std::sqrt(sum_of_squares / static_cast<double>(s.width) + params.eps);
    for (int64_t i = 0; i < s.width; ++i) {
      y[r * s.width + i] = (params.weight_offset + weight[i]) * residual[r * s.width + i] / length;
    }
  }
  return y;
}

Values Add(View a, View b) {
  CheckSize("add b", b.size(), static_cast<int64_t>(a.size()));
  Values y(a.begin(), a.end());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += b[i];
  return y;
}

Values SiluMul(View gate, View up) {
  CheckSize("silu_mul up", up.size(), static_cast<int64_t>(gate.size()));
  Values y(gate.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = Silu(gate[i]) * up[i];
  return y;
}

Values SigmoidGate(View x, View gate) {
  CheckSize("sigmoid_gate gate", gate.size(), static_cast<int64_t>(x.size()));
  Values y(x.size());
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = x[i] * Sigmoid(gate[i]);
  return y;
}

Values GatedMlp(const MlpShape& s, View x, View gate_proj, View up_proj, View down_proj) {
  CheckSize("gated_mlp x", x.size(), s.num_tokens * s.hidden_size);
  for (const View w : {gate_proj, up_proj, down_proj}) {
    CheckSize("gated_mlp weight", w.size(), s.intermediate_size * s.hidden_size);
  }
  Values y(x.size());
  for (int64_t t = 0; t < s.num_tokens; ++t) {
    Values activated(s.intermediate_size);
    for (int64_t i = 0; i < s.intermediate_size; ++i) {
      const double gate = Dot(&x[t * s.hidden_size], &gate_proj[i * s.hidden_size], s.hidden_size);
      const double up = Dot(&x[t * s.hidden_size], &up_proj[i * s.hidden_size], s.hidden_size);
      activated[i] = gate / (1.0 + std::exp(-gate)) * up;
    }
    for (int64_t h = 0; h < s.hidden_size; ++h) {
      y[t * s.hidden_size + h] =
          Dot(activated.data(), &down_proj[h * s.intermediate_size], s.intermediate_size);
    }
  }
  return y;
}

}  // namespace rt::oracle
