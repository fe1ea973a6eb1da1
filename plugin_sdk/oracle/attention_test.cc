#include "plugin_sdk/oracle/attention.h"

#include "plugin_sdk/oracle/test_values.h"

#include <limits>
#include <numeric>

namespace rt::oracle {
namespace {

constexpr double kExact = 1e-12;  // two fp64 evaluations of one formula
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<int64_t> Positions(int64_t first, int64_t count) {
  std::vector<int64_t> positions(count);
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

TEST(OracleRotary, RotatesPairsHalfTheRotaryDimApart) {
  // theta = 10000, R = 4: angles position * {1, 0.01}; feature 4 passes through.
  const double c0 = std::cos(3.0), s0 = std::sin(3.0), c1 = std::cos(0.03), s1 = std::sin(0.03);
  const std::vector<int64_t> positions{3};
  const Values y = Rotary({1, 1, 5, 4}, 10000.0, Values{1, 2, 3, 4, 5}, positions);
  ExpectClose(y, Values{c0 - 3 * s0, 2 * c1 - 4 * s1, 3 * c0 + s0, 4 * c1 + 2 * s1, 5}, kExact);
}

TEST(OracleRotary, KeepsEachHeadsLengthAndDependsOnDistanceOnly) {
  const RotaryShape shape{1, 1, 24, 6};
  auto at = [&](const Values& x, int64_t position) {
    const std::vector<int64_t> positions{position};
    return Rotary(shape, 1e7, x, positions);
  };
  auto dot = [](const Values& a, const Values& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  };
  const Values q = Random(24, 1), k = Random(24, 2);
  EXPECT_NEAR(dot(at(q, 123456), at(q, 123456)), dot(q, q), kExact * dot(q, q));
  EXPECT_NEAR(dot(at(q, 17), at(k, 5)), dot(at(q, 1012), at(k, 1000)), 1e-11);
  EXPECT_EQ(at(q, 0), q);
}

TEST(OracleRotary, ZeroRotaryDimChangesNothing) {
  const Values x = Random(2 * 3 * 8, 1);
  EXPECT_EQ(Rotary({2, 3, 8, 0}, 10000.0, x, Positions(5, 2)), x);
}

TEST(OracleAttention, FirstTokenReturnsItsOwnValueAndEqualKeysAverage) {
  const AttentionShape one{1, 1, 2};
  const Values o = CausalAttention(one, Values{1, 0, 0, 1}, Values{7, 7, 7, 7}, Values{1, 2, 3, 4});
  ExpectClose(o, Values{1, 2, 2, 3}, kExact);
}

TEST(OracleAttention, ScoresAreScaledByTheRootOfHeadDim) {
  // Scores 0 and log(3) * 2 / sqrt(4) = log 3: weights 1/4 and 3/4.
  const Values q{0, 0, 0, 0, 2, 0, 0, 0}, k{0, 0, 0, 0, std::log(3.0), 0, 0, 0};
  const Values o = CausalAttention({1, 1, 4}, q, k, Values{4, 4, 4, 4, 8, 8, 8, 8});
  ExpectClose(View(o).subspan(4), Values{7, 7, 7, 7}, kExact);
}

TEST(OracleAttention, AnExplicitScaleReplacesTheDefault) {
  // Score log(3) * 1 * scale 1: weights 1/4 and 3/4, whatever the width.
  const Values q{0, 0, 0, 0, 1, 0, 0, 0}, k{0, 0, 0, 0, std::log(3.0), 0, 0, 0}, v{4, 4, 4, 4, 8, 8, 8, 8};
  ExpectClose(View(CausalAttention({1, 1, 4, 1.0}, q, k, v)).subspan(4), Values{7, 7, 7, 7}, kExact);
}

TEST(OracleAttention, ConsecutiveQueryHeadsShareAKeyValueHead) {
  const AttentionShape shape{4, 2, 3};
  const Values o = CausalAttention(shape, Random(12, 1), Random(6, 2), Values{1, 1, 1, 2, 2, 2});
  ExpectClose(o, Values{1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2}, kExact);
}

TEST(OracleAttention, PagedEqualsDenseAndReadsNothingElse) {
  const PagedShape paged{{6, 2, 24}, 7, 4};
  const int64_t width = 2 * 24, total = 11;
  const Values k = Random(total * width, 1), v = Random(total * width, 2), q = Random(total * 6 * 24, 3);
  const std::vector<int32_t> table{5, 0, 3, -1};
  Values keys(7 * 2 * 4 * 24, kNaN), values = keys;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 3}, {3, 4}, {4, total}}) {
    const View new_k = View(k).subspan(begin * width, (end - begin) * width);
    const View new_v = View(v).subspan(begin * width, (end - begin) * width);
    WritePagedKeyValue(paged, table, begin, new_k, new_v, keys, values);
    const View new_q = View(q).subspan(begin * 6 * 24, (end - begin) * 6 * 24);
    const Values dense =
        CausalAttention(paged.heads, new_q, View(k).first(end * width), View(v).first(end * width));
    ExpectClose(PagedCausalAttention(paged, table, begin, new_q, keys, values), dense, kExact);
  }
  const auto written = std::count_if(keys.begin(), keys.end(), [](double x) { return !std::isnan(x); });
  EXPECT_EQ(written, total * width);
}

TEST(OracleAttention, SplitTakesQueryRowsBeforeGateRowsWithinEachHead) {
  const QueryGate split = SplitQueryGate({2, 1, 2}, Values{1, 2, 10, 20, 3, 4, 30, 40});
  EXPECT_EQ(split.q, (Values{1, 2, 3, 4}));
  EXPECT_EQ(split.gate, (Values{10, 20, 30, 40}));
}

struct Layer {
  GatedAttentionParams params{.heads = {6, 2, 24}, .rotary_dim = 6, .rope_theta = 1e7};
  int64_t num_tokens = 9;
  Values q_gate = Random(9 * 6 * 48, 1), k = Random(9 * 2 * 24, 2), v = Random(9 * 2 * 24, 3);
  Values q_norm = Random(24, 4, 0.3), k_norm = Random(24, 5, 0.3);

  QkNormRope Composed(int64_t begin, int64_t end) const {
    const int64_t n = end - begin;
    QueryGate split = SplitQueryGate(params.heads, View(q_gate).subspan(begin * 6 * 48, n * 6 * 48));
    auto rotate = [&](View x, int64_t heads, View weight) {
      return Rotary({n, heads, 24, 6}, 1e7, RmsNorm({n * heads, 24}, params.qk_norm, x, weight),
                    Positions(begin, n));
    };
    return {rotate(split.q, 6, q_norm), rotate(View(k).subspan(begin * 48, n * 48), 2, k_norm), split.gate};
  }
};

TEST(OracleAttention, QkNormRopeEqualsRmsNormThenRotary) {
  const Layer layer;
  const QkNormRope composed = layer.Composed(0, 9);
  const QkNormRope fused =
      ApplyQkNormRope(layer.params, layer.q_gate, layer.k, layer.q_norm, layer.k_norm, Positions(0, 9));
  ExpectClose(fused.q, composed.q, kExact);
  ExpectClose(fused.k, composed.k, kExact);
  EXPECT_EQ(fused.gate, composed.gate);
}

TEST(OracleAttention, QkNormRopeWithoutNormOrGateOnlyRotates) {
  Layer layer;
  layer.params.has_qk_norm = layer.params.has_output_gate = false;
  const View q = View(layer.q_gate).first(9 * 6 * 24);
  const QkNormRope fused = ApplyQkNormRope(layer.params, q, layer.k, {}, {}, Positions(0, 9));
  ExpectClose(fused.q, Rotary({9, 6, 24, 6}, 1e7, q, Positions(0, 9)), kExact);
  EXPECT_TRUE(fused.gate.empty());
}

TEST(OracleAttention, GatedAttentionEqualsItsPartsOverPagesAtAnySplit) {
  const Layer layer;
  const PagedShape paged{layer.params.heads, 3, 4};
  const std::vector<int32_t> table{2, 0, 1};
  Values keys(3 * 2 * 4 * 24, kNaN), values = keys;
  KeyValueCache cache;
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 5}, {5, 6}, {6, 9}}) {
    const int64_t n = end - begin;
    const QkNormRope parts = layer.Composed(begin, end);
    const View v = View(layer.v).subspan(begin * 48, n * 48);
    WritePagedKeyValue(paged, table, begin, parts.k, v, keys, values);
    const Values o =
        SigmoidGate(PagedCausalAttention(paged, table, begin, parts.q, keys, values), parts.gate);
    const Values fused = GatedAttention(layer.params, View(layer.q_gate).subspan(begin * 6 * 48, n * 6 * 48),
                                        View(layer.k).subspan(begin * 48, n * 48), v, layer.q_norm,
                                        layer.k_norm, Positions(begin, n), cache);
    ExpectClose(fused, o, kExact);
  }
}

}  // namespace
}  // namespace rt::oracle
