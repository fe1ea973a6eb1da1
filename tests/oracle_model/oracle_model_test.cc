// The oracle against the goldens: outputs of an independent implementation in float32, so the bound is that
// of DESIGN-level acceptance for fp32 (5e-6 of the largest entry), far below what any wrong formula gives.
#include "tests/oracle_model/kimi_linear_reference.h"
#include "tests/oracle_model/model_reference.h"
#include "tests/oracle_model/qwen3_5_reference.h"
#include "tests/oracle_model/tensor_files.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plugin_sdk/oracle/sampling.h"

#include <algorithm>
#include <fstream>

namespace rt::testing {
namespace {

using oracle::Values;
using oracle::View;

constexpr double kGolden = 5e-6;   // float32 rounding of the goldens, relative to the largest entry
constexpr double kExact = 1e-11;   // two fp64 evaluations of the whole model
constexpr double kMargin = 5e-4;   // tokens are compared up to the first step whose recorded margin is below
constexpr double kLogprob = 1e-4;  // float32 log-probabilities of tokens

struct ModelCase {
  std::string name;
  std::filesystem::path folder;
};

void PrintTo(const ModelCase& model, std::ostream* out) { *out << model.name; }

std::vector<ModelCase> Models() {
  const auto models = std::filesystem::path(RT_TESTDATA_DIR) / "models";
  return {{"tiny-gdn", std::filesystem::path(RT_ZOO_DIR) / "tiny-gdn"},
          {"qwen3_5_odd", models / "micro/qwen3_5_odd"},
          {"tiny-kda", models / "tiny-kda"},
          {"kimi_linear", models / "micro/kimi_linear"}};
}

std::filesystem::path GoldenFolder(const std::string& name) {
  return std::filesystem::path(RT_TESTDATA_DIR) / "golden" / name;
}

// Largest |found - expected| within bound times the largest |expected|; NaN never passes.
void ExpectClose(const std::string& what, View found, View expected, double bound) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double scale = 0, worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    scale = std::max(scale, std::abs(expected[i]));
    const double difference = std::abs(found[i] - expected[i]);
    if (!(difference <= worst)) worst = difference, at = i;
  }
  EXPECT_LE(worst, bound * scale) << what << ": worst at " << at << ": found " << found[at] << ", expected "
                                  << expected[at] << ", largest expected " << scale;
}

View LastRow(const Values& rows, int64_t width) { return View(rows).last(width); }

std::vector<int32_t> Ids(const std::vector<int64_t>& ids) { return {ids.begin(), ids.end()}; }

// Channels-first golden window of the last W inputs -> the [W-1, C] state of the oracle.
Values ConvWindow(const Tensor& golden) {
  const int64_t channels = golden.shape.at(0), taps = golden.shape.at(1);
  Values window;
  for (int64_t tap = 1; tap < taps; ++tap) {
    for (int64_t c = 0; c < channels; ++c) window.push_back(golden.values[c * taps + tap]);
  }
  return window;
}

class OracleModel : public ::testing::TestWithParam<ModelCase> {
 protected:
  OracleModel() : model_(LoadReference(GetParam().folder)), golden_(GoldenFolder(GetParam().name)) {}

  std::vector<int32_t> PromptIds(const std::string& prompt) const {
    return Ids(golden_.ReadIntegers(prompt + ".input_ids"));
  }

  void ExpectGolden(const std::string& prompt, const ModelOutput& out, const ModelState& state) const {
    const int64_t vocab = model_->vocab_size(), hidden = model_->hidden_size();
    ExpectClose("logits", LastRow(out.logits, vocab), golden_.Read(prompt + ".logits_last").values, kGolden);
    int states = 0;
    for (std::size_t i = 0; i < out.hidden.size(); ++i) {
      const std::string layer = std::to_string(i);
      ExpectClose("hidden." + layer, LastRow(out.hidden[i], hidden),
                  golden_.Read(prompt + ".hidden." + layer).values, kGolden);
      if (!golden_.Has(prompt + ".recurrent_state." + layer)) continue;
      const oracle::LinearMixerState& linear = state.layers[i].linear;
      ExpectClose("recurrent_state." + layer, linear.recurrent,
                  golden_.Read(prompt + ".recurrent_state." + layer).values, kGolden);
      ExpectClose("conv_state." + layer, linear.conv,
                  ConvWindow(golden_.Read(prompt + ".conv_state." + layer)), kGolden);
      ++states;
    }
    EXPECT_GE(states, 1) << "the goldens hold the first linear layer's state";
    const std::vector<int64_t> argmax = golden_.ReadIntegers(prompt + ".argmax_all");
    for (std::size_t t = 0; t < argmax.size(); ++t) {
      EXPECT_EQ(oracle::ArgMax(View(out.logits).subspan(t * vocab, vocab)), argmax[t]) << "position " << t;
    }
  }

  std::unique_ptr<ModelReference> model_;
  TensorFiles golden_;
};

TEST_P(OracleModel, EqualsTheGoldensInBothForms) {
  for (const std::string prompt : {"short", "long"}) {
    ModelOutput outputs[2];
    ModelState states[2];
    for (const Form form : {Form::kComposite, Form::kParts}) {
      SCOPED_TRACE(prompt + (form == Form::kComposite ? ", composites" : ", parts"));
      ModelState& state = states[static_cast<int>(form)] = model_->NewState();
      outputs[static_cast<int>(form)] = model_->Forward(PromptIds(prompt), state, form);
      ExpectGolden(prompt, outputs[static_cast<int>(form)], state);
    }
    ExpectClose("parts against composites", outputs[1].logits, outputs[0].logits, kExact);
  }
}

TEST_P(OracleModel, PrefillInPiecesEqualsOneShot) {
  const std::vector<int32_t> ids = PromptIds("long");
  ModelState whole_state = model_->NewState(), state = model_->NewState();
  const Values whole = model_->Forward(ids, whole_state, Form::kParts).logits;
  Values pieces;
  auto next = ids.begin();
  for (const int64_t size : {1, 2, 0, 67, 1, 65, 11}) {
    const Values logits =
        model_->Forward({next, next + size}, state, size % 2 == 0 ? Form::kComposite : Form::kParts).logits;
    pieces.insert(pieces.end(), logits.begin(), logits.end());
    next += size;
  }
  ASSERT_EQ(next, ids.end());
  ExpectClose("logits", pieces, whole, kExact);
}

// Greedy decoding, for speed in one piece after the first tokens: with the golden tokens as input every
// position must choose the next golden token, which is what decoding one by one up to the first difference
// would show.
TEST_P(OracleModel, GreedyDecodingGivesTheGoldenTokens) {
  constexpr std::size_t kSingleSteps = 4;
  std::ifstream in(GoldenFolder(GetParam().name) / "prompts.json");
  const nlohmann::json prompts = nlohmann::json::parse(in).at("prompts");
  std::size_t compared = 0;
  for (const auto& prompt : prompts) {
    SCOPED_TRACE(prompt.at("name").get<std::string>());
    const std::vector<int32_t> tokens = prompt.at("tokens");
    const auto& steps = prompt.at("steps");
    std::size_t usable = 0;  // steps before the first margin that float32 rounding could turn
    while (usable < steps.size() && steps[usable].at("margin") >= kMargin) ++usable;
    ModelState state = model_->NewState();
    std::vector<int32_t> next = prompt.at("input_ids");
    for (std::size_t step = 0; step < usable;) {
      const Values logits = model_->Forward(next, state, Form::kParts).logits;
      const int64_t vocab = model_->vocab_size();
      const std::size_t rows = step == 0 ? 1 : next.size();
      for (std::size_t row = 0; row < rows; ++row, ++step) {
        const Values logprobs = oracle::LogSoftmax(View(logits).last((rows - row) * vocab).first(vocab));
        const auto& golden = steps[step];
        ASSERT_EQ(oracle::ArgMax(logprobs), tokens[step])
            << "step " << step << ", margin " << golden.at("margin");
        EXPECT_NEAR(logprobs[tokens[step]], golden.at("logprob").get<double>(), kLogprob) << "step " << step;
      }
      const std::size_t end = step < kSingleSteps ? step : usable - 1;
      next.assign(tokens.begin() + static_cast<int64_t>(step) - 1,
                  tokens.begin() + static_cast<int64_t>(end));
    }
    compared += usable;
  }
  EXPECT_GE(compared, 8 * prompts.size()) << "the margins left too little to compare";
}

INSTANTIATE_TEST_SUITE_P(Goldens, OracleModel, ::testing::ValuesIn(Models()), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(OracleModelConfig, NestedAndFlatConfigsReadAlike) {
  const std::filesystem::path folder = std::filesystem::path(RT_ZOO_DIR) / "tiny-gdn";
  std::ifstream in(folder / "config.json");
  const nlohmann::json flat = nlohmann::json::parse(in);
  const auto nested_folder = std::filesystem::temp_directory_path() / "oracle_model_nested_config";
  std::filesystem::create_directories(nested_folder);
  std::ofstream(nested_folder / "config.json") << nlohmann::json{{"text_config", flat}};
  const Qwen35Config a = Qwen35Config::Load(folder), b = Qwen35Config::Load(nested_folder);
  std::filesystem::remove_all(nested_folder);
  EXPECT_EQ(a.is_linear, b.is_linear);
  EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
  EXPECT_EQ(a.mixer.ConvChannels(), b.mixer.ConvChannels());
  EXPECT_EQ(a.attention.rotary_dim, b.attention.rotary_dim);
}

}  // namespace
}  // namespace rt::testing
