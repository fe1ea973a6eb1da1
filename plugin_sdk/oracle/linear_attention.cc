#include "plugin_sdk/oracle/linear_attention.h"

#include <algorithm>

namespace rt::oracle {
namespace {

void CheckDelta(const DeltaShape& s, const DeltaInputs& in, MutableView state) {
  CheckSize("gated_delta q", in.q.size(), s.num_tokens * s.num_k_heads * s.head_k_dim);
  CheckSize("gated_delta k", in.k.size(), s.num_tokens * s.num_k_heads * s.head_k_dim);
  CheckSize("gated_delta v", in.v.size(), s.num_tokens * s.num_v_heads * s.head_v_dim);
  CheckSize("gated_delta g", in.g.size(), s.num_tokens * s.num_v_heads * s.gate_width);
  CheckSize("gated_delta beta", in.beta.size(), s.num_tokens * s.num_v_heads);
  CheckSize("gated_delta gate width", s.gate_width == 1 || s.gate_width == s.head_k_dim ? 1 : 0, 1);
  CheckSize("gated_delta state", state.size(), s.num_v_heads * s.head_k_dim * s.head_v_dim);
}

// Rows of one value head.
struct Head {
  const DeltaShape& s;
  const DeltaInputs& in;
  int64_t head;

  int64_t KeyRow(int64_t t) const {
    return (t * s.num_k_heads + head / (s.num_v_heads / s.num_k_heads)) * s.head_k_dim;
  }
  const double* Q(int64_t t) const { return &in.q[KeyRow(t)]; }
  const double* K(int64_t t) const { return &in.k[KeyRow(t)]; }
  const double* V(int64_t t) const { return &in.v[(t * s.num_v_heads + head) * s.head_v_dim]; }
  double Beta(int64_t t) const { return in.beta[t * s.num_v_heads + head]; }
  double G(int64_t t, int64_t channel) const {
    return in.g[(t * s.num_v_heads + head) * s.gate_width + (s.gate_width == 1 ? 0 : channel)];
  }
};

// out[v] = sum_c row[c] * state[c, v].
Values RowTimesState(const Values& row, const double* state, int64_t head_v_dim) {
  Values out(head_v_dim, 0.0);
  for (std::size_t c = 0; c < row.size(); ++c) {
    for (int64_t v = 0; v < head_v_dim; ++v) out[v] += row[c] * state[c * head_v_dim + v];
  }
  return out;
}

// One chunk [begin, end) of one value head; state [Dk, Dv], out points at o of (token 0, this head).
void ChunkOfHead(const Head& h, int64_t begin, int64_t end, double* state, double* out) {
  const int64_t dk = h.s.head_k_dim, dv = h.s.head_v_dim, out_stride = h.s.num_v_heads * dv;
  std::vector<Values> u;      // corrected values of the chunk so far
  Values decay_all(dk, 0.0);  // sum of g from the chunk's first token, per channel
  for (int64_t i = begin; i < end; ++i) {
    Values k_entering(dk), q_entering(dk);
    for (int64_t c = 0; c < dk; ++c) {
      decay_all[c] += h.G(i, c);
      k_entering[c] = std::exp(decay_all[c]) * h.K(i)[c];
      q_entering[c] = std::exp(decay_all[c]) * h.Q(i)[c];
    }
    Values corrected = RowTimesState(k_entering, state, dv);
    for (int64_t v = 0; v < dv; ++v) corrected[v] = h.Beta(i) * (h.V(i)[v] - corrected[v]);
    Values o = RowTimesState(q_entering, state, dv);
    Values decay(dk, 0.0);        // sum of g over j+1 .. i
    Values attention(i - begin);  // <q_i, D(i, j) k_j>
    for (int64_t j = i - 1; j >= begin; --j) {
      double lower = 0;
      for (int64_t c = 0; c < dk; ++c) {
        decay[c] += h.G(j + 1, c);
        const double decayed_k = std::exp(decay[c]) * h.K(j)[c];
        lower += h.Beta(i) * h.K(i)[c] * decayed_k;
        attention[j - begin] += h.Q(i)[c] * decayed_k;
      }
      for (int64_t v = 0; v < dv; ++v) corrected[v] -= lower * u[j - begin][v];
    }
    u.push_back(std::move(corrected));
    double own = 0;
    for (int64_t c = 0; c < dk; ++c) own += h.Q(i)[c] * h.K(i)[c];
    for (int64_t v = 0; v < dv; ++v) {
      o[v] += own * u.back()[v];
      for (int64_t j = begin; j < i; ++j) o[v] += attention[j - begin] * u[j - begin][v];
      out[i * out_stride + v] = o[v];
    }
  }
  for (int64_t c = 0; c < dk; ++c) {
    double* row = &state[c * dv];
    const double kept = std::exp(decay_all[c]);
    for (int64_t v = 0; v < dv; ++v) row[v] *= kept;
    double decay = 0;  // sum of g over j+1 .. end-1
    for (int64_t j = end - 1; j >= begin; decay += h.G(j, c), --j) {
      const double decayed_k = std::exp(decay) * h.K(j)[c];
      for (int64_t v = 0; v < dv; ++v) row[v] += decayed_k * u[j - begin][v];
    }
  }
}

// SiLU of the convolution of channel c at token t; tokens before the call come from conv_state.
double MixedChannel(const LinearMixerParams& p, const LinearMixerWeights& w, const LinearMixerInputs& in,
                    const Values& conv_state, int64_t t, int64_t c) {
  const int64_t channels = p.ConvChannels(), history = p.num_taps - 1;
  double sum = 0;
  for (int64_t tap = 0; tap < p.num_taps; ++tap) {
    const int64_t token = t - history + tap;
    const double x = token < 0 ? conv_state[(token + history) * channels + c] : in.qkv[token * channels + c];
    sum += w.conv[c * p.num_taps + tap] * x;
  }
  return sum / (1.0 + std::exp(-sum));
}

double LogDecay(const GateParams& p, double a, double a_log, double dt_bias) {
  const double x = a + dt_bias;
  if (p.form == GateForm::kBoundedSigmoid) return p.lower_bound / (1.0 + std::exp(-std::exp(a_log) * x));
  return -std::exp(a_log) * (x > 20.0 ? x : std::log1p(std::exp(x)));
}

// One token of one value head of LinearMixer: q, k, v are its rows after the convolution. Returns y [Dv].
Values MixToken(const LinearMixerParams& p, const LinearMixerWeights& w, const LinearMixerInputs& in,
                int64_t t, int64_t head, Values q, Values k, const Values& v, double* state) {
  const int64_t dk = p.shape.head_k_dim, dv = p.shape.head_v_dim, gate_width = p.shape.gate_width;
  double q_square = 0, k_square = 0;
  for (int64_t c = 0; c < dk; ++c) {
    q_square += q[c] * q[c];
    k_square += k[c] * k[c];
  }
  const int64_t row = t * p.shape.num_v_heads + head;
  Values prediction(dv, 0.0);
  for (int64_t c = 0; c < dk; ++c) {
    q[c] /= std::sqrt(q_square + p.l2_norm_eps) * std::sqrt(static_cast<double>(dk));
    k[c] /= std::sqrt(k_square + p.l2_norm_eps);
    const int64_t channel = gate_width == 1 ? 0 : c;
    const double g = LogDecay(p.gates, in.a[row * gate_width + channel], w.a_log[head],
                              w.dt_bias[head * gate_width + channel]);
    const double decay = std::exp(g);
    for (int64_t i = 0; i < dv; ++i) {
      state[c * dv + i] *= decay;
      prediction[i] += state[c * dv + i] * k[c];
    }
  }
  const double beta = p.gates.beta_scale / (1.0 + std::exp(-in.b[row]));
  Values o(dv, 0.0);
  double o_square = 0;
  for (int64_t i = 0; i < dv; ++i) {
    for (int64_t c = 0; c < dk; ++c) {
      state[c * dv + i] += k[c] * beta * (v[i] - prediction[i]);
      o[i] += state[c * dv + i] * q[c];
    }
    o_square += o[i] * o[i];
  }
  for (int64_t i = 0; i < dv; ++i) {
    const double z = in.z[row * dv + i];
    const double gate = (p.norm_gate == NormGate::kSilu ? z : 1.0) / (1.0 + std::exp(-z));
    o[i] = o[i] / std::sqrt(o_square / static_cast<double>(dv) + p.norm_eps) * w.norm[i] * gate;
  }
  return o;
}

void CheckMixer(const LinearMixerParams& p, const LinearMixerWeights& w, const LinearMixerInputs& in,
                const LinearMixerState& state) {
  const DeltaShape& s = p.shape;
  const int64_t channels = p.ConvChannels();
  CheckSize("linear_mixer qkv", in.qkv.size(), s.num_tokens * channels);
  CheckSize("linear_mixer z", in.z.size(), s.num_tokens * s.num_v_heads * s.head_v_dim);
  CheckSize("linear_mixer a", in.a.size(), s.num_tokens * s.num_v_heads * s.gate_width);
  CheckSize("linear_mixer b", in.b.size(), s.num_tokens * s.num_v_heads);
  CheckSize("linear_mixer conv", w.conv.size(), channels * p.num_taps);
  CheckSize("linear_mixer A_log", w.a_log.size(), s.num_v_heads);
  CheckSize("linear_mixer dt_bias", w.dt_bias.size(), s.num_v_heads * s.gate_width);
  CheckSize("linear_mixer norm", w.norm.size(), s.head_v_dim);
  CheckSize("linear_mixer conv state", state.conv.size(), (p.num_taps - 1) * channels);
  CheckSize("linear_mixer recurrent state", state.recurrent.size(),
            s.num_v_heads * s.head_k_dim * s.head_v_dim);
}

}  // namespace

Values CausalConv1dSilu(const ConvShape& s, View x, View weight, MutableView conv_state) {
  const int64_t history = s.num_taps - 1;
  CheckSize("causal_conv1d x", x.size(), s.num_tokens * s.num_channels);
  CheckSize("causal_conv1d weight", weight.size(), s.num_channels * s.num_taps);
  CheckSize("causal_conv1d state", conv_state.size(), history * s.num_channels);
  Values inputs(conv_state.begin(), conv_state.end());  // [W-1 + T, C]
  inputs.insert(inputs.end(), x.begin(), x.end());
  Values y(x.size());
  for (int64_t t = 0; t < s.num_tokens; ++t) {
    for (int64_t c = 0; c < s.num_channels; ++c) {
      double sum = 0;
      for (int64_t j = 0; j < s.num_taps; ++j)
        sum += weight[c * s.num_taps + j] * inputs[(t + j) * s.num_channels + c];
      y[t * s.num_channels + c] = Silu(sum);
    }
  }
  std::copy_n(inputs.end() - history * s.num_channels, history * s.num_channels, conv_state.begin());
  return y;
}

Values L2Norm(const NormShape& s, double eps, double scale, View x) {
  CheckSize("l2_norm x", x.size(), s.num_rows * s.width);
  Values y(x.size());
  for (int64_t r = 0; r < s.num_rows; ++r) {
    double sum = eps;
    for (int64_t i = r * s.width; i < (r + 1) * s.width; ++i) sum += x[i] * x[i];
    for (int64_t i = r * s.width; i < (r + 1) * s.width; ++i) y[i] = x[i] / std::sqrt(sum) * scale;
  }
  return y;
}

Gates ComputeGates(const GateShape& s, const GateParams& p, View a, View b, View a_log, View dt_bias) {
  CheckSize("gates a", a.size(), s.num_tokens * s.num_heads * s.gate_width);
  CheckSize("gates b", b.size(), s.num_tokens * s.num_heads);
  CheckSize("gates A_log", a_log.size(), s.num_heads);
  CheckSize("gates dt_bias", dt_bias.size(), s.num_heads * s.gate_width);
  Gates result{Values(a.size()), Values(b.size())};
  const int64_t per_token = s.num_heads * s.gate_width;
  for (int64_t i = 0; i < static_cast<int64_t>(a.size()); ++i) {
    const int64_t channel = i % per_token;
    const double x = a[i] + dt_bias[channel], rate = std::exp(a_log[channel / s.gate_width]);
    result.g[i] = p.form == GateForm::kSoftplus ? -rate * Softplus(x) : p.lower_bound * Sigmoid(rate * x);
  }
  for (std::size_t i = 0; i < b.size(); ++i) result.beta[i] = p.beta_scale * Sigmoid(b[i]);
  return result;
}

Values GatedDeltaRecurrent(const DeltaShape& s, const DeltaInputs& in, MutableView state) {
  CheckDelta(s, in, state);
  const int64_t dk = s.head_k_dim, dv = s.head_v_dim;
  Values out(in.v.size(), 0.0);
  for (int64_t head = 0; head < s.num_v_heads; ++head) {
    const Head h{s, in, head};
    double* const head_state = state.data() + head * dk * dv;
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      double* const o = &out[(t * s.num_v_heads + head) * dv];
      Values prediction(dv, 0.0);
      for (int64_t c = 0; c < dk; ++c) {
        const double decay = std::exp(h.G(t, c));
        for (int64_t v = 0; v < dv; ++v) {
          head_state[c * dv + v] *= decay;
          prediction[v] += head_state[c * dv + v] * h.K(t)[c];
        }
      }
      for (int64_t c = 0; c < dk; ++c) {
        for (int64_t v = 0; v < dv; ++v) {
          head_state[c * dv + v] += h.K(t)[c] * h.Beta(t) * (h.V(t)[v] - prediction[v]);
          o[v] += head_state[c * dv + v] * h.Q(t)[c];
        }
      }
    }
  }
  return out;
}

Values GatedDeltaChunked(const DeltaShape& s, int64_t chunk_size, const DeltaInputs& in, MutableView state) {
  CheckDelta(s, in, state);
  CheckSize("gated_delta chunk size", chunk_size > 0 ? 1 : 0, 1);
  Values out(in.v.size());
  for (int64_t head = 0; head < s.num_v_heads; ++head) {
    double* const head_state = state.data() + head * s.head_k_dim * s.head_v_dim;
    for (int64_t begin = 0; begin < s.num_tokens; begin += chunk_size) {
      const int64_t end = std::min(begin + chunk_size, s.num_tokens);
      ChunkOfHead({s, in, head}, begin, end, head_state, out.data() + head * s.head_v_dim);
    }
  }
  return out;
}

Values GatedRmsNorm(const NormShape& s, double eps, NormGate gate, View o, View z, View weight) {
  CheckSize("gated_rms_norm z", z.size(), s.num_rows * s.width);
  Values y = RmsNorm(s, {.eps = eps, .weight_offset = 0.0}, o, weight);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] *= gate == NormGate::kSilu ? Silu(z[i]) : Sigmoid(z[i]);
  return y;
}

LinearMixerState LinearMixerState::Zero(const LinearMixerParams& p) {
  return {Values((p.num_taps - 1) * p.ConvChannels(), 0.0),
          Values(p.shape.num_v_heads * p.shape.head_k_dim * p.shape.head_v_dim, 0.0)};
}

Values LinearMixer(const LinearMixerParams& p, const LinearMixerWeights& w, const LinearMixerInputs& in,
                   LinearMixerState& state) {
  CheckMixer(p, w, in, state);
  const DeltaShape& s = p.shape;
  const int64_t channels = p.ConvChannels(), history = p.num_taps - 1;
  Values y;
  for (int64_t t = 0; t < s.num_tokens; ++t) {
    for (int64_t head = 0; head < s.num_v_heads; ++head) {
      const int64_t key_head = head / (s.num_v_heads / s.num_k_heads);
      auto rows = [&](int64_t first, int64_t count) {
        Values values(count);
        for (int64_t c = 0; c < count; ++c) values[c] = MixedChannel(p, w, in, state.conv, t, first + c);
        return values;
      };
      const int64_t dk = s.head_k_dim, dv = s.head_v_dim, key_width = s.num_k_heads * dk;
      const Values o =
          MixToken(p, w, in, t, head, rows(key_head * dk, dk), rows(key_width + key_head * dk, dk),
                   rows(2 * key_width + head * dv, dv), &state.recurrent[head * dk * dv]);
      y.insert(y.end(), o.begin(), o.end());
    }
  }
  Values inputs = std::move(state.conv);
  inputs.insert(inputs.end(), in.qkv.begin(), in.qkv.end());
  state.conv.assign(inputs.end() - history * channels, inputs.end());
  return y;
}

}  // namespace rt::oracle
