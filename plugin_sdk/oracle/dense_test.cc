#include "plugin_sdk/oracle/dense.h"

#include "plugin_sdk/oracle/test_values.h"

namespace rt::oracle {
namespace {

// Two fp64 evaluations of one formula over sums of at most ~100 terms: 100 * 2^-53 is 1.1e-14; headroom for
// cancellation.
constexpr double kExact = 1e-12;

TEST(OracleDense, LinearTakesWeightsAsOutByIn) {
  const Values y = Linear({2, 3, 2}, Values{1, 2, 3, 0, -1, 1}, Values{1, 0, -1, 2, 0.5, 0});
  EXPECT_EQ(y, (Values{-2, 3, -1, -0.5}));
}

TEST(OracleDense, EmbeddingCopiesRowsAndRepeatsThem) {
  const std::vector<int32_t> ids{2, 0, 2};
  EXPECT_EQ(Embedding({3, 2}, ids, Values{1, 2, 3, 4, 5, 6}), (Values{5, 6, 1, 2, 5, 6}));
}

TEST(OracleDenseDeathTest, EmbeddingRefusesAnIdPastTheTable) {
  const std::vector<int32_t> ids{3};
  EXPECT_DEATH(Embedding({3, 2}, ids, Values{1, 2, 3, 4, 5, 6}),
               "embedding row of an id: expected 1 elements, got 0");
}

TEST(OracleDense, RmsNormByHand) {
  // mean(3^2, 4^2) = 12.5; with eps 12.5 the root is 5.
  ExpectClose(RmsNorm({1, 2}, {.eps = 12.5}, Values{3, 4}, Values{10, 5}), Values{6, 4}, kExact);
  ExpectClose(RmsNorm({1, 2}, {.eps = 12.5, .weight_offset = 1.0}, Values{3, 4}, Values{9, 4}), Values{6, 4},
              kExact);
}

TEST(OracleDense, RmsNormOfZerosIsZero) {
  EXPECT_EQ(RmsNorm({1, 3}, {.eps = 1e-6}, Values{0, 0, 0}, Values{1, 1, 1}), (Values{0, 0, 0}));
}

TEST(OracleDense, AddRmsNormEqualsAddThenRmsNorm) {
  const NormShape shape{5, 77};
  const NormParams params{1e-6, 1.0};
  const Values residual = Random(5 * 77, 1), delta = Random(5 * 77, 2), weight = Random(77, 3, 0.1);
  Values updated = residual;
  const Values y = AddRmsNorm(shape, params, updated, delta, weight);
  const Values sum = Add(residual, delta);
  EXPECT_EQ(updated, sum);
  ExpectClose(y, RmsNorm(shape, params, sum, weight), kExact);
}

TEST(OracleDense, GatedMlpEqualsItsLinearsAroundSiluMul) {
  const MlpShape s{4, 13, 29};
  const Values x = Random(4 * 13, 1), gate = Random(29 * 13, 2), up = Random(29 * 13, 3),
               down = Random(29 * 13, 4);
  const Values middle = SiluMul(Linear({4, 13, 29}, x, gate), Linear({4, 13, 29}, x, up));
  ExpectClose(GatedMlp(s, x, gate, up, down), Linear({4, 29, 13}, middle, down), kExact);
}

TEST(OracleDense, SiluMulAndSigmoidGateByHand) {
  const double log3 = std::log(3.0);  // sigmoid(log 3) = 3/4
  ExpectClose(SiluMul(Values{log3, 0}, Values{4, 9}), Values{3 * log3, 0}, kExact);
  ExpectClose(SigmoidGate(Values{4, 4, 4}, Values{log3, 0, -log3}), Values{3, 2, 1}, kExact);
}

TEST(OracleDense, ScalarFunctionsStayFiniteAtTheEnds) {
  EXPECT_EQ(Sigmoid(1000), 1.0);
  EXPECT_EQ(Sigmoid(-1000), 0.0);
  EXPECT_EQ(Silu(-1000), 0.0);
  EXPECT_EQ(Softplus(1000), 1000.0);
  EXPECT_EQ(Softplus(-1000), 0.0);
}

TEST(OracleDense, SoftplusIsTheIdentityAboveTwentyOnly) {
  EXPECT_EQ(Softplus(20.5), 20.5);
  EXPECT_GT(Softplus(20.0), 20.0);
  EXPECT_NEAR(Softplus(20.0) - 20.0, std::exp(-20.0), 1e-14);
  EXPECT_NEAR(Softplus(0.0), std::log(2.0), 1e-15);
}

}  // namespace
}  // namespace rt::oracle
