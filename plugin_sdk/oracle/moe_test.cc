// Routing rules and the sum over experts.
#include "plugin_sdk/oracle/moe.h"

#include "plugin_sdk/oracle/test_values.h"

#include <limits>

namespace rt::oracle {
namespace {

// One token x = [1], so that the router's column holds the logits.
Routing RouteLogits(const RouterParams& p, const Values& logits, const Values& bias = {}) { return Route(p, 1, Values{1}, logits, bias); }

TEST(OracleRouter, TheBiasChangesTheChoiceAndNeverTheWeight) {
  const RouterParams p = {.num_experts = 3, .experts_per_token = 1, .renormalize = false};
  EXPECT_EQ(RouteLogits(p, {2, 1, 0}).ids, std::vector<int32_t>({0}));
  const Routing biased = RouteLogits(p, {2, 1, 0}, {0, 0, 1});
  EXPECT_EQ(biased.ids, std::vector<int32_t>({2}));
  ExpectClose(biased.weights, Values{Sigmoid(0)}, 1e-15);
}

TEST(OracleRouter, WeightsAreRenormalisedThenScaled) {
  const RouterParams p = {.num_experts = 3, .experts_per_token = 2, .routed_scale = 2.5};
  const Routing routing = RouteLogits(p, {0, 3, 1});
  EXPECT_EQ(routing.ids, std::vector<int32_t>({1, 2}));
  const double sum = Sigmoid(3) + Sigmoid(1);
  ExpectClose(routing.weights, Values{2.5 * Sigmoid(3) / sum, 2.5 * Sigmoid(1) / sum}, 1e-15);
}

TEST(OracleRouter, SoftmaxRunsOverAllExperts) {
  const RouterParams p = {.num_experts = 3, .experts_per_token = 1, .score = RouterScore::kSoftmax, .renormalize = false};
  ExpectClose(RouteLogits(p, {0, std::log(2.0), 0}).weights, Values{0.5}, 1e-15);
}

TEST(OracleRouter, AGroupIsJudgedByItsTwoBest) {
  // The best single expert is in group 0, the best pair in group 1.
  const RouterParams p = {.num_experts = 6, .experts_per_token = 2, .num_groups = 2, .topk_groups = 1};
  EXPECT_EQ(RouteLogits(p, {4, -9, -9, 1, -9, 2}).ids, std::vector<int32_t>({5, 3}));
}

TEST(OracleRouter, TiesGoToTheLowerIndex) {
  const RouterParams p = {.num_experts = 4, .experts_per_token = 2};
  const Routing routing = RouteLogits(p, {1, 1, 1, 1});
  EXPECT_EQ(routing.ids, std::vector<int32_t>({0, 1}));
  EXPECT_EQ(routing.margins[0], 0);
}

TEST(OracleRouter, WithEveryExpertChosenTheMarginIsInfinite) {
  const RouterParams p = {.num_experts = 2, .experts_per_token = 2};
  EXPECT_EQ(RouteLogits(p, {1, 3}).margins[0], std::numeric_limits<double>::infinity());
}

TEST(OracleExperts, TheSumIsOverTheChosenExpertsAlone) {
  const ExpertsShape s = {3, 2, 4, 5};
  const Values x = Random(2 * 4, 1), gate = Random(3 * 20, 2), up = Random(3 * 20, 3);
  Values down = Random(3 * 20, 4);
  const auto part = [](const Values& w, int64_t e) { return View(w).subspan(e * 20, 20); };
  const Values weights = {0.25, 2, 1, 0};
  const Values y = Experts(s, x, Values{2, 0, 2, 1}, weights, gate, up, down);
  const auto mlp = [&](int64_t t, int64_t e) { return GatedMlp({1, 4, 5}, View(x).subspan(t * 4, 4), part(gate, e), part(up, e), part(down, e)); };
  Values expected;
  for (int i = 0; i < 4; ++i) expected.push_back(0.25 * mlp(0, 2)[i] + 2 * mlp(0, 0)[i]);
  for (int i = 0; i < 4; ++i) expected.push_back(mlp(1, 2)[i]);
  ExpectClose(y, expected, 1e-14);
}

}  // namespace
}  // namespace rt::oracle
