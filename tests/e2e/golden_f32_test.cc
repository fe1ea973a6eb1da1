// float32 against the goldens, on every ISA level: greedy tokens, logits, hidden states after every layer,
// conv windows and recurrent states.
#include "runtime/engine/testing/collecting_sink.h"
#include "tests/e2e/goldens.h"
#include "tests/e2e/model_setup.h"
#include "tests/e2e/step_driver.h"
#include "tests/oracle_model/model_reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <random>

namespace rt::testing {
namespace {

constexpr double kGolden = 5e-6;   // of the largest entry: the acceptance bound of float32 on CPUs
constexpr double kMargin = 5e-4;   // tokens are compared up to the first step whose recorded margin is below
constexpr double kLogprob = 1e-4;  // float32 log-probabilities

struct Case {
  ModelCase model;
  std::string isa;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model.name << " " << c.isa; }

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const ModelCase& model : GoldenModels()) {
    for (const std::string& isa : IsaLevels()) cases.push_back({model, isa});
  }
  return cases;
}

std::vector<int32_t> Ids(const std::vector<int64_t>& ids) { return {ids.begin(), ids.end()}; }

// Channels-first golden window of the last W inputs -> our [W-1, channels].
std::vector<double> ConvWindow(const Tensor& golden) {
  const int64_t channels = golden.shape.at(0), taps = golden.shape.at(1);
  std::vector<double> window;
  for (int64_t tap = 1; tap < taps; ++tap) {
    for (int64_t c = 0; c < channels; ++c)
      window.push_back(golden.values[static_cast<size_t>(c * taps + tap)]);
  }
  return window;
}

class GoldenF32 : public ::testing::TestWithParam<Case> {
 protected:
  GoldenF32() : tensors_(ReadGoldenTensors(GetParam().model.name)) {
    ModelSetup setup;
    setup.model = GetParam().model;
    setup.isa = GetParam().isa;
    session_ = OpenSession(setup);
  }

  std::vector<int32_t> PromptIds(const std::string& prompt) const {
    return Ids(tensors_.ReadIntegers(prompt + ".input_ids"));
  }

  void Worst(const char* kind, double relative) { worst_[kind] = std::max(worst_[kind], relative); }
  void PrintWorst(const std::string& prompt) const {
    std::printf("%s %s:", ::testing::PrintToString(GetParam()).c_str(), prompt.c_str());
    for (const auto& [kind, relative] : worst_) std::printf("  %s %.2e", kind.c_str(), relative);
    std::printf("\n");
  }

  void ExpectLogitsAndHidden(const std::string& prompt, const RowOutput& out) {
    Worst("logits",
          ExpectClose("logits", out.logits, tensors_.Read(prompt + ".logits_last").values, kGolden));
    ASSERT_EQ(out.hidden.size(), static_cast<size_t>(session_->program().info.num_layers));
    for (size_t i = 0; i < out.hidden.size(); ++i) {
      const std::string name = "hidden." + std::to_string(i);
      Worst("hidden", ExpectClose(name, out.hidden[i], tensors_.Read(prompt + "." + name).values, kGolden));
    }
  }

  void ExpectStates(const std::string& prompt, const StepDriver& driver, int32_t sequence) {
    int compared = 0;
    const std::vector<uint32_t> recurrent = driver.Caches(RT_CACHE_RECURRENT),
                                conv = driver.Caches(RT_CACHE_CONV);
    const std::vector<std::vector<float>> states = driver.RecurrentStates(sequence);
    for (size_t i = 0; i < recurrent.size(); ++i) {
      const std::string layer = std::to_string(session_->program().caches[recurrent[i]].layer);
      if (!tensors_.Has(prompt + ".recurrent_state." + layer)) continue;
      Worst("state", ExpectClose("recurrent_state." + layer, states[i],
                                 tensors_.Read(prompt + ".recurrent_state." + layer).values, kGolden));
      Worst("conv", ExpectClose("conv_state." + layer, driver.ConvState(conv[i], sequence),
                                ConvWindow(tensors_.Read(prompt + ".conv_state." + layer)), kGolden));
      ++compared;
    }
    EXPECT_GE(compared, 1) << "the goldens hold the first linear layer's state";
  }

  TensorFiles tensors_;
  std::unique_ptr<Session> session_;
  std::map<std::string, double> worst_;
};

TEST_P(GoldenF32, OneShotPrefillGivesLogitsHiddenStatesAndStates) {
  for (const std::string prompt : {"short", "long"}) {
    SCOPED_TRACE(prompt);
    StepDriver driver(session_->runner(), 2, 256);
    driver.set_keep_hidden(true);
    const RowOutput out = driver.Prefill(1, PromptIds(prompt));
    ExpectLogitsAndHidden(prompt, out);
    ExpectStates(prompt, driver, 1);
    PrintWorst(prompt + " prefill");
  }
}

TEST_P(GoldenF32, OneTokenStepsGiveEveryPositionsBestTokenAndTheSameStates) {
  for (const std::string prompt : {"short", "long"}) {
    SCOPED_TRACE(prompt);
    StepDriver driver(session_->runner(), 2, 256);
    driver.set_keep_hidden(true);
    const std::vector<int32_t> ids = PromptIds(prompt);
    const std::vector<int64_t> argmax = tensors_.ReadIntegers(prompt + ".argmax_all");
    ASSERT_EQ(argmax.size(), ids.size());
    RowOutput out;
    for (size_t t = 0; t < ids.size(); ++t) {
      out = t == 0 ? driver.Prefill(0, std::span(ids).first(1)) : driver.Decode(0, ids[t]);
      EXPECT_EQ(ArgMax(out.logits), argmax[t]) << "position " << t;
      EXPECT_EQ(out.sampled.token_id, ArgMax(out.logits)) << "position " << t;
    }
    ExpectLogitsAndHidden(prompt, out);
    ExpectStates(prompt, driver, 0);
    PrintWorst(prompt + " one by one");
  }
}

// Greedy decoding of all prompts at once, through the engine. Tokens of random weights repeat, but must still
// be equal.
TEST_P(GoldenF32, GreedyDecodingThroughTheEngineGivesTheGoldenTokens) {
  const std::vector<GoldenPrompt> prompts = ReadGoldenPrompts(GetParam().model.name);
  EngineConfig config = session_->DefaultEngineConfig();
  config.check_every_step = true;
  ASSERT_TRUE(session_->StartEngine(nullptr, {}, &config).ok());
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (const GoldenPrompt& prompt : prompts) {
    GenerationRequest request;
    request.prompt_ids = prompt.input_ids;
    request.sampling.temperature = 0;
    request.sampling.num_logprobs = 0;
    request.stop.max_tokens = static_cast<int32_t>(prompt.tokens.size());
    request.want_text = false;
    sinks.push_back(std::make_shared<CollectingSink>());
    const auto id = session_->engine()->Submit(std::move(request), sinks.back());
    ASSERT_TRUE(id.ok()) << id.status().ToString();
  }
  double worst = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    SCOPED_TRACE(prompts[i].name);
    const CollectingSink::Answer answer = sinks[i]->Wait();
    ASSERT_EQ(answer.num_finals, 1) << "no end arrived";
    ASSERT_EQ(answer.token_ids.size(), prompts[i].tokens.size()) << answer.last.error.ToString();
    const size_t comparable = NumComparable(prompts[i], kMargin);
    for (size_t step = 0; step < comparable; ++step) {
      ASSERT_EQ(answer.token_ids[step], prompts[i].tokens[step])
          << "step " << step << ", margin " << prompts[i].steps[step].margin;
      const double difference = std::abs(answer.logprobs.at(step).logprob - prompts[i].steps[step].logprob);
      EXPECT_LE(difference, kLogprob) << "step " << step;
      worst = std::max(worst, difference);
    }
    EXPECT_GE(comparable, 8u) << "the margins left too little to compare";
  }
  EXPECT_EQ(session_->engine()->Stats().ledger_violations_total, 0);
  EXPECT_EQ(session_->engine()->Stats().builds_after_ready_total, 0);
  std::printf("%s: worst log-probability difference %.2e\n", ::testing::PrintToString(GetParam()).c_str(),
              worst);
}

// Other lengths than the goldens', and the state of every linear layer, against the fp64 model: causality
// makes one pass of the longest prompt the reference of every shorter one.
TEST_P(GoldenF32, PromptsOfAnyLengthFollowTheOracle) {
  if (!GetParam().model.has_reference) return;
  constexpr size_t kLongest = Scaled<size_t>(200, 70);
  const std::unique_ptr<ModelReference> reference = LoadReference(GetParam().model.folder);
  std::mt19937 random(77);
  const int64_t vocab = reference->vocab_size(), hidden = reference->hidden_size();
  std::vector<int32_t> ids(kLongest);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  ModelState state = reference->NewState();
  const ModelOutput expected = reference->Forward(ids, state, Form::kParts);
  const auto row = [](const oracle::Values& rows, size_t t, int64_t width) {
    return oracle::View(rows).subspan(t * static_cast<size_t>(width), static_cast<size_t>(width));
  };
  StepDriver driver(session_->runner(), 1, 256);
  driver.set_keep_hidden(true);
  for (const size_t length : {size_t{1}, size_t{2}, size_t{8}, size_t{9}, size_t{63}, size_t{64}, size_t{65},
                              size_t{128}, size_t{129}, kLongest}) {
    if (length > kLongest) continue;
    SCOPED_TRACE("length " + std::to_string(length));
    driver.Reset(0);
    const RowOutput out = driver.Prefill(0, std::span(ids).first(length));
    Worst("logits", ExpectClose("logits", out.logits, row(expected.logits, length - 1, vocab), kGolden));
    for (size_t i = 0; i < out.hidden.size(); ++i) {
      Worst("hidden", ExpectClose("hidden." + std::to_string(i), out.hidden[i],
                                  row(expected.hidden[i], length - 1, hidden), kGolden));
    }
  }
  const std::vector<uint32_t> caches = driver.Caches(RT_CACHE_RECURRENT), conv = driver.Caches(RT_CACHE_CONV);
  const std::vector<std::vector<float>> states = driver.RecurrentStates(0);
  for (size_t i = 0; i < caches.size(); ++i) {
    const uint32_t layer = session_->program().caches[caches[i]].layer;
    Worst("state", ExpectClose("recurrent_state." + std::to_string(layer), states[i],
                               state.layers[layer].linear.recurrent, kGolden));
    Worst("conv", ExpectClose("conv_state." + std::to_string(layer), driver.ConvState(conv[i], 0),
                              state.layers[layer].linear.conv, kGolden));
  }
  PrintWorst("random prompts");
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenF32, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return TestName(info.param.model.name + "_" + info.param.isa);
});

}  // namespace
}  // namespace rt::testing
