#include "plugin_sdk/oracle/linear_attention.h"

#include "plugin_sdk/oracle/test_values.h"

#include <limits>

namespace rt::oracle {
namespace {

// Two fp64 evaluations of one map. The delta rule is contracting for |k| <= 1, 0 <= beta <= 2, so rounding
// does not grow with T.
constexpr double kExact = 1e-12;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(OracleConv, LastTapIsTheCurrentTokenAndStateHoldsRawInputs) {
  // W = 3, one channel: y_2 = silu(1*x_0 + 10*x_1 + 100*x_2) with history {5, 6} before the call.
  Values state{5, 6};
  const Values y = CausalConv1dSilu({1, 1, 3}, Values{0.25}, Values{1, 10, 100}, state);
  ExpectClose(y, Values{Silu(5 + 60 + 25)}, kExact);
  EXPECT_EQ(state, (Values{6, 0.25}));
}

TEST(OracleConv, AnySplitGivesTheSameOutputsAndState) {
  const int64_t channels = 7;
  for (int64_t taps = 2; taps <= 8; ++taps) {
    const Values x = Random(20 * channels, taps), weight = Random(channels * taps, 50 + taps);
    Values whole_state((taps - 1) * channels, 0.0), state = whole_state, pieces;
    const Values whole = CausalConv1dSilu({20, channels, taps}, x, weight, whole_state);
    int64_t begin = 0;
    for (const int64_t size : {1, 0, 2, 9, 1, 7}) {
      const View piece = View(x).subspan(begin * channels, size * channels);
      const Values y = CausalConv1dSilu({size, channels, taps}, piece, weight, state);
      pieces.insert(pieces.end(), y.begin(), y.end());
      begin += size;
    }
    EXPECT_EQ(pieces, whole) << "taps " << taps;
    EXPECT_EQ(state, whole_state) << "taps " << taps;
  }
}

TEST(OracleL2Norm, EpsIsAddedToTheSumInsideTheRoot) {
  ExpectClose(L2Norm({1, 2}, 0.0, 10.0, Values{3, 4}), Values{6, 8}, kExact);
  ExpectClose(L2Norm({1, 2}, 75.0, 1.0, Values{3, 4}), Values{0.3, 0.4}, kExact);  // sqrt(25 + 75) = 10
  EXPECT_EQ(L2Norm({1, 2}, 1e-6, 1.0, Values{0, 0}), (Values{0, 0}));
}

TEST(OracleGates, SoftplusFormByHand) {
  const double log2 = std::log(2.0), log3 = std::log(3.0);
  // softplus(log 3) = log 4; exp(log 2) = 2. Second head above the threshold of 20: the identity.
  const Gates gates = ComputeGates({1, 2}, {.beta_scale = 2.0}, Values{log3 - 1, 30}, Values{log3, 0},
                                   Values{log2, 0}, Values{1, 0.5});
  ExpectClose(gates.g, Values{-2 * std::log(4.0), -30.5}, kExact);
  ExpectClose(gates.beta, Values{1.5, 1.0}, kExact);
}

TEST(OracleGates, BoundedFormStaysWithinItsBoundAndTakesAGatePerChannel) {
  const GateParams params{.form = GateForm::kBoundedSigmoid, .lower_bound = -5.0};
  const double log3 = std::log(3.0);
  const Gates gates =
      ComputeGates({1, 1, 3}, params, Values{log3, -1000, 1000}, Values{0}, Values{0}, Values{0, 0, 0});
  ExpectClose(gates.g, Values{-3.75, 0, -5}, kExact);
}

TEST(OracleGates, AMinusInfiniteDecayRateNeverForgets) {
  const Gates gates = ComputeGates({1, 1}, {}, Values{3}, Values{0}, Values{-kInfinity}, Values{0});
  EXPECT_EQ(gates.g[0], 0.0);
}

TEST(OracleDelta, OneTokenByHand) {
  // S = [[1, 2]], one key channel, k = 1, q = 3, decay 1/2, beta 1/4, v = (4, 9):
  // S~ = (0.5, 1); u = (3.5, 8) / 4 = (0.875, 2); S = (1.375, 3); o = 3 S.
  Values state{1, 2};
  const Values q{3}, k{1}, v{4, 9}, g{std::log(0.5)}, beta{0.25};
  const Values o = GatedDeltaRecurrent({1, 1, 1, 1, 2}, {q, k, v, g, beta}, state);
  ExpectClose(state, Values{1.375, 3}, kExact);
  ExpectClose(o, Values{4.125, 9}, kExact);
}

TEST(OracleDelta, OrthonormalKeysWithoutDecayRecallTheirValues) {
  const int64_t n = 5;
  Values keys(n * n, 0.0), state(n * 3, 0.0);
  for (int64_t i = 0; i < n; ++i) keys[i * n + i] = 1.0;
  const Values v = Random(n * 3, 1), g(n, 0.0), beta(n, 1.0);
  ExpectClose(GatedDeltaRecurrent({n, 1, 1, n, 3}, {keys, keys, v, g, beta}, state), v, kExact);
  ExpectClose(state, v, kExact);
}

struct DeltaCase {
  DeltaShape shape;
  Values q, k, v, g, beta, state;

  DeltaCase(DeltaShape s, double gate_scale, uint64_t seed) : shape(s) {
    const int64_t rows = s.num_tokens * s.num_k_heads;
    q = L2Norm({rows, s.head_k_dim}, 1e-6, 1.0 / std::sqrt(s.head_k_dim), Random(rows * s.head_k_dim, seed));
    k = L2Norm({rows, s.head_k_dim}, 1e-6, 1.0, Random(rows * s.head_k_dim, seed + 1));
    v = Random(s.num_tokens * s.num_v_heads * s.head_v_dim, seed + 2);
    g = Random(s.num_tokens * s.num_v_heads * s.gate_width, seed + 3, gate_scale);
    for (double& x : g) x = -std::abs(x);
    beta = Random(s.num_tokens * s.num_v_heads, seed + 4);
    for (double& x : beta) x = 2.0 * Sigmoid(x);
    state = Random(s.num_v_heads * s.head_k_dim * s.head_v_dim, seed + 5);
  }
  DeltaInputs Inputs() const { return {q, k, v, g, beta}; }
  void ExpectFormsAgree(int64_t chunk_size) const {
    Values recurrent_state = state, chunk_state = state;
    const Values o = GatedDeltaRecurrent(shape, Inputs(), recurrent_state);
    ExpectClose(GatedDeltaChunked(shape, chunk_size, Inputs(), chunk_state), o, kExact);
    ExpectClose(chunk_state, recurrent_state, kExact);
  }
};

TEST(OracleDelta, ChunksEqualTheRecurrenceForEveryGateWidthStrengthAndLength) {
  for (const int64_t gate_width : {1, 12}) {
    for (const double gate_scale : {0.0, 0.05, 1.0, 20.0}) {
      for (const int64_t num_tokens : {0, 1, 7, 8, 9, 33}) {
        SCOPED_TRACE(testing::Message()
                     << "gate_width " << gate_width << " scale " << gate_scale << " tokens " << num_tokens);
        const DeltaCase c({num_tokens, 2, 6, 12, 5, gate_width}, gate_scale, 100 + num_tokens);
        c.ExpectFormsAgree(8);
        c.ExpectFormsAgree(64);
      }
    }
  }
}

TEST(OracleDelta, ChunksEqualTheRecurrenceAtModelSizes) {
  DeltaCase({130, 1, 2, 96, 40}, 0.3, 7).ExpectFormsAgree(64);
}

TEST(OracleDelta, RepeatedKeysAndAForgettingGateStayExact) {
  DeltaCase c({20, 1, 1, 4, 3}, 0.1, 9);
  for (int64_t t = 1; t < 20; ++t) std::copy_n(c.k.begin(), 4, c.k.begin() + t * 4);
  c.g[6] = c.g[13] = -kInfinity;  // the state is gone; nothing becomes NaN
  c.ExpectFormsAgree(8);
}

TEST(OracleDelta, ConsecutiveValueHeadsShareAKeyHead) {
  DeltaCase grouped({6, 2, 6, 8, 3}, 0.5, 11);
  Values q, k;
  for (int64_t row = 0; row < 6 * 2; ++row) {
    for (int64_t copy = 0; copy < 3; ++copy) {
      q.insert(q.end(), grouped.q.begin() + row * 8, grouped.q.begin() + (row + 1) * 8);
      k.insert(k.end(), grouped.k.begin() + row * 8, grouped.k.begin() + (row + 1) * 8);
    }
  }
  Values state = grouped.state, expanded_state = grouped.state;
  const Values o = GatedDeltaRecurrent(grouped.shape, grouped.Inputs(), state);
  DeltaInputs expanded = grouped.Inputs();
  expanded.q = q;
  expanded.k = k;
  EXPECT_EQ(GatedDeltaRecurrent({6, 6, 6, 8, 3}, expanded, expanded_state), o);
}

TEST(OracleDelta, NoTokensLeaveTheStateBitIdentical) {
  const DeltaCase c({0, 1, 2, 4, 3}, 0.1, 3);
  Values state = c.state;
  EXPECT_TRUE(GatedDeltaRecurrent(c.shape, c.Inputs(), state).empty());
  EXPECT_TRUE(GatedDeltaChunked(c.shape, 64, c.Inputs(), state).empty());
  EXPECT_EQ(state, c.state);
}

TEST(OracleGatedRmsNorm, NormsFirstAndGatesSecond) {
  const double log3 = std::log(3.0);  // sigmoid = 3/4
  const NormShape row{1, 2};
  // sqrt(12.5 + 12.5) = 5: (3, 4) / 5 * w.
  ExpectClose(GatedRmsNorm(row, 12.5, NormGate::kSigmoid, Values{3, 4}, Values{log3, 0}, Values{20, 10}),
              Values{9, 4}, kExact);
  ExpectClose(GatedRmsNorm(row, 12.5, NormGate::kSilu, Values{3, 4}, Values{log3, 0}, Values{20, 10}),
              Values{9 * log3, 0}, kExact);
}

struct MixerCase {
  LinearMixerParams params;
  Values qkv, z, a, b, conv, a_log, dt_bias, norm;

  explicit MixerCase(LinearMixerParams p) : params(p) {
    const DeltaShape& s = p.shape;
    const int64_t channels = p.ConvChannels();
    qkv = Random(s.num_tokens * channels, 1);
    z = Random(s.num_tokens * s.num_v_heads * s.head_v_dim, 2);
    a = Random(s.num_tokens * s.num_v_heads * s.gate_width, 3);
    b = Random(s.num_tokens * s.num_v_heads, 4);
    conv = Random(channels * p.num_taps, 5);
    a_log = Random(s.num_v_heads, 6);
    dt_bias = Random(s.num_v_heads * s.gate_width, 7);
    norm = Random(s.head_v_dim, 8);
  }
  LinearMixerWeights Weights() const { return {conv, a_log, dt_bias, norm}; }
  LinearMixerInputs Piece(int64_t begin, int64_t end) const {
    auto rows = [&](const Values& x) {
      const int64_t width = static_cast<int64_t>(x.size()) / params.shape.num_tokens;
      return View(x).subspan(begin * width, (end - begin) * width);
    };
    return {rows(qkv), rows(z), rows(a), rows(b)};
  }
};

// The parts one after the other, as a decomposition plans them.
Values ComposedMixer(const LinearMixerParams& p, const LinearMixerWeights& w, const LinearMixerInputs& in,
                     LinearMixerState& state) {
  const DeltaShape& s = p.shape;
  const int64_t channels = p.ConvChannels(), key_width = s.num_k_heads * s.head_k_dim;
  const Values mixed = CausalConv1dSilu({s.num_tokens, channels, p.num_taps}, in.qkv, w.conv, state.conv);
  auto columns = [&](int64_t first, int64_t count) {
    Values part;
    for (int64_t t = 0; t < s.num_tokens; ++t) {
      const auto row = mixed.begin() + t * channels + first;
      part.insert(part.end(), row, row + count);
    }
    return part;
  };
  const NormShape key_rows{s.num_tokens * s.num_k_heads, s.head_k_dim};
  const Values q = L2Norm(key_rows, p.l2_norm_eps, 1.0 / std::sqrt(s.head_k_dim), columns(0, key_width));
  const Values k = L2Norm(key_rows, p.l2_norm_eps, 1.0, columns(key_width, key_width));
  const Values v = columns(2 * key_width, s.num_v_heads * s.head_v_dim);
  const Gates gates =
      ComputeGates({s.num_tokens, s.num_v_heads, s.gate_width}, p.gates, in.a, in.b, w.a_log, w.dt_bias);
  const Values o = GatedDeltaChunked(s, 8, {q, k, v, gates.g, gates.beta}, state.recurrent);
  return GatedRmsNorm({s.num_tokens * s.num_v_heads, s.head_v_dim}, p.norm_eps, p.norm_gate, o, in.z, w.norm);
}

void ExpectMixerIsComposed(const MixerCase& c) {
  LinearMixerState whole_state = LinearMixerState::Zero(c.params), state = whole_state;
  const Values whole = LinearMixer(c.params, c.Weights(), c.Piece(0, c.params.shape.num_tokens), whole_state);
  Values pieces;
  int64_t begin = 0;
  for (const int64_t size : {10, 1, 0, 1, 9}) {
    LinearMixerParams params = c.params;
    params.shape.num_tokens = size;
    const Values y = ComposedMixer(params, c.Weights(), c.Piece(begin, begin + size), state);
    pieces.insert(pieces.end(), y.begin(), y.end());
    begin += size;
  }
  ExpectClose(pieces, whole, kExact);
  EXPECT_EQ(state.conv, whole_state.conv);
  ExpectClose(state.recurrent, whole_state.recurrent, kExact);
}

TEST(OracleLinearMixer, EqualsItsPartsAtAnySplitWithOneGateAHead) {
  ExpectMixerIsComposed(MixerCase({.shape = {21, 2, 6, 12, 5}, .num_taps = 4, .gates = {.beta_scale = 2.0}}));
}

TEST(OracleLinearMixer, EqualsItsPartsWithABoundedGateAChannelAndASigmoidOutputGate) {
  ExpectMixerIsComposed(MixerCase({.shape = {21, 3, 3, 8, 8, 8},
                                   .num_taps = 4,
                                   .gates = {.form = GateForm::kBoundedSigmoid, .lower_bound = -5.0},
                                   .norm_eps = 1e-5,
                                   .norm_gate = NormGate::kSigmoid}));
}

}  // namespace
}  // namespace rt::oracle
