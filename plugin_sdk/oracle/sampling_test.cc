#include "plugin_sdk/oracle/sampling.h"

#include "plugin_sdk/oracle/test_values.h"

#include <limits>
#include <numeric>

namespace rt::oracle {
namespace {

constexpr double kExact = 1e-12;
constexpr double kBanned = -std::numeric_limits<double>::infinity();

// Logits whose softmax is the given distribution.
Values Logs(Values probabilities) {
  for (double& p : probabilities) p = std::log(p);
  return probabilities;
}

TEST(OracleSampling, LogSoftmaxSumsToOneAndSurvivesLargeLogits) {
  const Values y = LogSoftmax(Values{1000, 1000 + std::log(3.0), kBanned});
  ExpectClose(View(y).first(2), Values{std::log(0.25), std::log(0.75)}, kExact);
  EXPECT_EQ(y[2], kBanned);
}

TEST(OracleSampling, ArgMaxTakesTheFirstOfEquals) {
  EXPECT_EQ(ArgMax(Values{1, 5, 5, 2}), 1);
  EXPECT_EQ(ArgMax(Values{kBanned, -3}), 1);
  EXPECT_EQ(ArgMax(Values{kBanned, kBanned}), -1);
}

TEST(OracleSampling, WithoutFiltersItIsTheSoftmax) {
  const Values p{0.5, 0.3, 0.2};
  ExpectClose(SamplingProbabilities({}, Logs(p), {}, {}), p, kExact);
}

TEST(OracleSampling, TemperatureSharpensAndZeroIsGreedy) {
  ExpectClose(SamplingProbabilities({.temperature = 0.5}, Logs({0.75, 0.25}), {}, {}), Values{0.9, 0.1},
              kExact);
  EXPECT_EQ(SamplingProbabilities({.temperature = 0.0}, Values{1, 4, 4}, {}, {}), (Values{0, 1, 0}));
}

TEST(OracleSampling, TopKKeepsTheLargestAndTheirEquals) {
  ExpectClose(SamplingProbabilities({.top_k = 2}, Logs({0.1, 0.6, 0.3}), {}, {}), Values{0, 2. / 3, 1. / 3},
              kExact);
  ExpectClose(SamplingProbabilities({.top_k = 1}, Values{2, 2, 1}, {}, {}), Values{0.5, 0.5, 0}, kExact);
}

TEST(OracleSampling, TopPKeepsTheTokenThatCrossesTheMass) {
  const Values logits = Logs({0.2, 0.5, 0.05, 0.25});
  ExpectClose(SamplingProbabilities({.top_p = 0.4}, logits, {}, {}), Values{0, 1, 0, 0}, kExact);
  ExpectClose(SamplingProbabilities({.top_p = 0.6}, logits, {}, {}), Values{0, 2. / 3, 0, 1. / 3}, kExact);
  ExpectClose(SamplingProbabilities({.top_p = 0.9}, logits, {}, {}),
              Values{0.2 / 0.95, 0.5 / 0.95, 0, 0.25 / 0.95}, kExact);
  ExpectClose(SamplingProbabilities({.top_p = 0.0}, logits, {}, {}), Values{0, 1, 0, 0}, kExact);
}

TEST(OracleSampling, TopPActsOnWhatTopKLeft) {
  // After top-k 2: 2/3 and 1/3; a mass of 0.6 is reached by the first alone. Over the full distribution it
  // would take both.
  ExpectClose(
      SamplingProbabilities({.top_k = 2, .top_p = 0.6}, Logs({0.4, 0.2, 0.2 - 1e-9, 0.2 - 1e-9}), {}, {}),
      Values{1, 0, 0, 0}, kExact);
}

TEST(OracleSampling, EqualLogitsAreKeptOrDroppedTogether) {
  ExpectClose(SamplingProbabilities({.top_p = 0.5}, Values{1, 1, 1, 0}, {}, {}),
              Values{1. / 3, 1. / 3, 1. / 3, 0}, kExact);
}

TEST(OracleSampling, MinPIsRelativeToTheLargest) {
  ExpectClose(SamplingProbabilities({.min_p = 0.5}, Logs({0.6, 0.31, 0.09}), {}, {}),
              Values{0.6 / 0.91, 0.31 / 0.91, 0}, kExact);
}

TEST(OracleSampling, PenaltiesComeFirstAndCountOutputTokensOnly) {
  const std::vector<TokenHistory> history{{0, 0, true}, {1, 3, false}, {2, 1, true}};
  const SamplingParams params{.repetition_penalty = 2.0, .presence_penalty = 0.5, .frequency_penalty = 0.25};
  // 4 / 2;  -1 * 2 - 3 * 0.25 - 0.5;  2 / 2 - 0.25 - 0.5;  untouched.
  const Values expected = LogSoftmax(Values{2, -3.25, 0.25, 1});
  Values found = SamplingProbabilities(params, Values{4, -1, 2, 1}, history, {});
  for (double& p : found) p = std::log(p);
  ExpectClose(found, expected, kExact);
}

TEST(OracleSampling, BiasIsAddedAfterPenaltiesAndMinusInfinityBans) {
  const std::vector<TokenHistory> history{{0, 0, true}};
  const std::vector<LogitBias> bias{{0, 1.0}, {1, kBanned}};
  const Values found = SamplingProbabilities({.repetition_penalty = 2.0}, Values{4, 50, 3}, history, bias);
  ExpectClose(found, Values{0.5, 0, 0.5}, kExact);  // 4 / 2 + 1 = 3
}

TEST(OracleSampling, IdsPastTheAllowedVocabularyAreNeverDrawn) {
  EXPECT_EQ(SamplingProbabilities({.temperature = 0.0, .allowed_vocab = 2}, Values{1, 2, 9}, {}, {}),
            (Values{0, 1, 0}));
  const std::vector<LogitBias> all{{0, kBanned}};
  EXPECT_EQ(SamplingProbabilities({.allowed_vocab = 1}, Values{1, 2}, {}, all), (Values{0, 0}));
}

TEST(OracleSampling, InverseCdfWalksInIndexOrderAndSkipsZeros) {
  const Values p{0, 0.25, 0, 0.75};
  EXPECT_EQ(InverseCdf(p, 0.0), 1);
  EXPECT_EQ(InverseCdf(p, 0.2499), 1);
  EXPECT_EQ(InverseCdf(p, 0.25), 3);
  EXPECT_EQ(InverseCdf(p, 0.9999999), 3);
  EXPECT_EQ(InverseCdf(Values{0, 0}, 0.5), -1);
}

}  // namespace
}  // namespace rt::oracle
