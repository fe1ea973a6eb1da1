// bf16 compute with every state dtype, teacher-forced on the golden tokens of all prompts, on every ISA
// level. The rule and where its numbers come from: the independent implementation itself, run in bf16,
// differs from its float32 goldens by 0.0026 in the mean and 0.081 at most, and its best token changes only
// below a margin of 0.05. The bounds leave room for another order of rounding, not for a mistake.
#include "tests/e2e/goldens.h"
#include "tests/e2e/model_setup.h"
#include "tests/e2e/step_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace rt::testing {
namespace {

constexpr double kMargin =
    0.08;  // the best token must be the golden one wherever the golden margin is at least this

struct Case {
  ModelCase model;
  std::string isa, state_dtype;
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model.name << " " << c.isa << " state " << c.state_dtype;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const ModelCase& model : Families()) {
    for (const std::string& isa : IsaLevels()) {
      for (const char* dtype : {"float32", "bfloat16", "float16"}) cases.push_back({model, isa, dtype});
    }
  }
  return cases;
}

// Differences of the golden token's log-probability over all steps of all prompts.
struct Figures {
  int steps = 0, judged = 0,
      flips = 0;  // judged: margin >= kMargin; flips: another best token at a smaller margin
  double sum = 0, worst = 0, largest_flip_margin = 0;
  double mean() const { return sum / steps; }
};

void Judge(const GoldenPrompt& prompt, size_t step, std::span<const float> logits, Figures* figures) {
  const GoldenStep& golden = prompt.steps[step];
  const int32_t best = ArgMax(logits);
  if (golden.margin >= kMargin) {
    ++figures->judged;
    EXPECT_EQ(best, prompt.tokens[step]) << prompt.name << " step " << step << ", margin " << golden.margin;
  } else if (best != prompt.tokens[step]) {
    ++figures->flips;
    figures->largest_flip_margin = std::max(figures->largest_flip_margin, golden.margin);
  }
  const double difference = std::abs(LogProb(logits, prompt.tokens[step]) - golden.logprob);
  ++figures->steps;
  figures->sum += difference;
  if (!(difference <= figures->worst)) figures->worst = difference;  // NaN sticks
}

class TeacherForcedBf16 : public ::testing::TestWithParam<Case> {};

TEST_P(TeacherForcedBf16, BestTokensAndLogProbabilitiesFollowTheGoldens) {
  const Case& c = GetParam();
  ModelSetup setup;
  setup.model = c.model;
  setup.isa = c.isa;
  setup.compute_dtype = "bfloat16";
  setup.state_dtype = c.state_dtype;
  const auto session = OpenSession(setup);
  const std::vector<GoldenPrompt> prompts = ReadGoldenPrompts(c.model.name);
  StepDriver driver(session->runner(), static_cast<int32_t>(prompts.size()), 256);
  Figures figures;
  for (size_t i = 0; i < prompts.size(); ++i)
    Judge(prompts[i], 0, driver.Prefill(static_cast<int32_t>(i), prompts[i].input_ids).logits, &figures);
  // One decode row a prompt, as a server would batch them.
  for (size_t step = 1; step < prompts[0].tokens.size(); ++step) {
    std::vector<Feed> feeds;
    for (size_t i = 0; i < prompts.size(); ++i) {
      ASSERT_EQ(prompts[i].tokens.size(), prompts[0].tokens.size());
      feeds.push_back(
          {static_cast<int32_t>(i), std::span(prompts[i].tokens).subspan(step - 1, 1), StepKind::kDecode});
    }
    const std::vector<RowOutput> outputs = driver.Step(feeds);
    for (size_t i = 0; i < prompts.size(); ++i) Judge(prompts[i], step, outputs[i].logits, &figures);
  }
  const bool narrow = c.state_dtype != "float32";
  EXPECT_EQ(figures.steps, static_cast<int>(prompts.size() * prompts[0].tokens.size()));
  EXPECT_LE(figures.mean(), narrow ? 0.01 : 0.005);
  EXPECT_LE(figures.worst, narrow ? 0.25 : 0.12);
  std::printf(
      "%s: %d steps, |dlogprob| mean %.5f max %.4f; best token equal in all %d with margin >= %.2f; %d flips "
      "below, largest margin %.4f\n",
      ::testing::PrintToString(c).c_str(), figures.steps, figures.mean(), figures.worst, figures.judged,
      kMargin, figures.flips, figures.largest_flip_margin);
}

INSTANTIATE_TEST_SUITE_P(Models, TeacherForcedBf16, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return TestName(info.param.model.name + "_" + info.param.isa + "_" + info.param.state_dtype);
});

}  // namespace
}  // namespace rt::testing
