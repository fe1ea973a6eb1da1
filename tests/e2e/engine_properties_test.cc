// The real engine over the real model: whatever runs beside a request, in whatever order it came, with
// however little memory, its answer is the one it gets alone. Every engine under test starts on a cache full
// of NaN and recounts its memory after every step; the reference runs one request at a time on a clean one.
#include "runtime/engine/testing/collecting_sink.h"
#include "tests/e2e/goldens.h"
#include "tests/e2e/model_setup.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <set>
#include <thread>

namespace rt::testing {
namespace {

using Answer = CollectingSink::Answer;

struct Case {
  ModelCase model;
  std::string compute_dtype;
  bool f32() const { return compute_dtype == "float32"; }
  // Where a prompt may be cut elsewhere than alone, roundings differ: log-probabilities agree within the
  // first number, and tokens are compared up to the first step whose two best log-probabilities lie closer
  // than the second (see golden_f32_test and teacher_forced_bf16_test).
  double logprob_bound() const { return f32() ? 1e-4 : 0.12; }
  size_t min_share() const {
    return f32() ? 2 : 40;
  }  // at least 1 / this of all tokens must come before near-ties
  double margin() const { return f32() ? 5e-4 : 0.08; }
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.model.name << " " << c.compute_dtype; }

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const ModelCase& model : Families()) {
    for (const char* dtype : {"float32", "bfloat16"}) cases.push_back({model, dtype});
  }
  return cases;
}

// A session with a running engine.
class EngineRun {
 public:
  EngineRun(const ModelSetup& setup, EngineConfig (*adjust)(EngineConfig, const DeviceRunner&) = nullptr)
      : session_(OpenSession(setup)) {
    EngineConfig config = session_->DefaultEngineConfig();
    config.cache_bytes = std::min<int64_t>(config.cache_bytes, int64_t{256} << 20);
    config.check_every_step = true;
    if (adjust != nullptr) config = adjust(config, *session_->runner());
    const Status status = session_->StartEngine(nullptr, {}, &config);
    if (!status.ok()) throw std::runtime_error(status.ToString());
  }
  ~EngineRun() { ExpectIdleAndClean(); }

  Engine& engine() { return *session_->engine(); }

  std::shared_ptr<CollectingSink> Submit(const GenerationRequest& request, SequenceId* id = nullptr) {
    auto sink = std::make_shared<CollectingSink>();
    const Result<SequenceId> submitted = engine().Submit(request, sink);
    EXPECT_TRUE(submitted.ok()) << submitted.status().ToString();
    if (submitted.ok() && id != nullptr) *id = *submitted;
    return sink;
  }

  // An end that comes late on a busy or sanitized machine is no failure; one that never comes is.
  static Answer WaitForEnd(CollectingSink* sink) {
    Answer answer;
    for (int i = 0; i < 10 && answer.num_finals == 0; ++i) answer = sink->Wait();
    EXPECT_EQ(answer.num_finals, 1) << "no end arrived, or more than one";
    EXPECT_EQ(answer.num_after_end, 0);
    return answer;
  }

  std::vector<Answer> Alone(const std::vector<GenerationRequest>& requests) {
    std::vector<Answer> answers;
    for (const GenerationRequest& request : requests) answers.push_back(WaitForEnd(Submit(request).get()));
    return answers;
  }

  // Submitted in a random order with random gaps; answers in the order of `requests`.
  std::vector<Answer> Together(const std::vector<GenerationRequest>& requests, std::mt19937* random,
                               int max_gap_us) {
    std::vector<size_t> order(requests.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), *random);
    std::vector<std::shared_ptr<CollectingSink>> sinks(requests.size());
    for (const size_t i : order) {
      sinks[i] = Submit(requests[i]);
      if (max_gap_us > 0)
        std::this_thread::sleep_for(
            std::chrono::microseconds((*random)() % static_cast<unsigned>(max_gap_us)));
    }
    std::vector<Answer> answers;
    for (const auto& sink : sinks) answers.push_back(WaitForEnd(sink.get()));
    return answers;
  }

  // Idle: everything is free again, no invariant was broken, nothing was built on the way.
  void ExpectIdleAndClean() {
    EngineStats stats = engine().Stats();
    for (int i = 0; i < 20000 && (stats.kv_blocks_free != stats.kv_blocks_total ||
                                  stats.state_slots_free != stats.state_slots_total);
         ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      stats = engine().Stats();
    }
    EXPECT_EQ(stats.kv_blocks_free, stats.kv_blocks_total);
    EXPECT_EQ(stats.state_slots_free, stats.state_slots_total);
    EXPECT_EQ(stats.requests_running + stats.requests_waiting, 0);
    EXPECT_EQ(stats.ledger_violations_total, 0);
    EXPECT_EQ(stats.builds_after_ready_total, 0);
  }

 private:
  std::unique_ptr<Session> session_;
};

class EngineProperties : public ::testing::TestWithParam<Case> {
 protected:
  EngineProperties() {
    for (const GoldenPrompt& prompt : ReadGoldenPrompts(GetParam().model.name)) {
      text_.insert(text_.end(), prompt.input_ids.begin(), prompt.input_ids.end());
      text_.insert(text_.end(), prompt.tokens.begin(), prompt.tokens.end());
    }
  }

  // A step holds every prompt whole, so that no prompt is cut: answers are equal bit for bit where rows are
  // batch invariant.
  static ModelSetup Uncut() {
    ModelSetup setup;
    setup.model = GetParam().model;
    setup.compute_dtype = GetParam().compute_dtype;
    setup.state_dtype = "float32";
    setup.max_step_tokens = setup.prefill_chunk =
        Scaled(1024, 512);  // warm-up runs as many tokens several times
    return setup;
  }
  static ModelSetup Poisoned(ModelSetup setup) {
    setup.fill_arena_byte = 0xff;
    return setup;
  }

  // A stretch of text the model knows, and how long to go on.
  std::vector<GenerationRequest> DrawRequests(int count, int max_prompt, int max_tokens) {
    std::vector<GenerationRequest> requests;
    for (int i = 0; i < count; ++i) {
      const size_t length = 1 + random_() % static_cast<unsigned>(max_prompt),
                   start = random_() % (text_.size() - length);
      GenerationRequest request;
      request.prompt_ids.assign(text_.begin() + static_cast<std::ptrdiff_t>(start),
                                text_.begin() + static_cast<std::ptrdiff_t>(start + length));
      request.sampling.temperature = 0;
      request.sampling.num_logprobs = 2;
      request.stop.max_tokens =
          max_tokens / 2 + static_cast<int>(random_() % static_cast<unsigned>(max_tokens / 2)) + 1;
      request.want_text = false;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  static void ExpectSameBits(const std::vector<Answer>& found, const std::vector<Answer>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      EXPECT_STREQ(FinishReasonName(*found[i].last.finish_reason),
                   FinishReasonName(*expected[i].last.finish_reason))
          << found[i].last.error.ToString();
      ASSERT_EQ(found[i].token_ids, expected[i].token_ids);
      ASSERT_EQ(found[i].logprobs.size(), expected[i].logprobs.size());
      for (size_t t = 0; t < found[i].logprobs.size(); ++t) {
        EXPECT_EQ(found[i].logprobs[t].logprob, expected[i].logprobs[t].logprob) << "token " << t;
        EXPECT_EQ(found[i].logprobs[t].top, expected[i].logprobs[t].top) << "token " << t;
      }
    }
  }

  // Equal up to the first near-tie; returns how many tokens were compared.
  static size_t ExpectSameWithinBound(const std::vector<Answer>& found, const std::vector<Answer>& expected) {
    size_t compared = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      SCOPED_TRACE("request " + std::to_string(i));
      EXPECT_STREQ(FinishReasonName(*found[i].last.finish_reason), "length")
          << found[i].last.error.ToString();
      EXPECT_EQ(found[i].token_ids.size(), expected[i].token_ids.size());
      for (size_t t = 0; t < std::min(found[i].logprobs.size(), expected[i].logprobs.size()); ++t) {
        const TokenLogprob& a = found[i].logprobs[t];
        const TokenLogprob& b = expected[i].logprobs[t];
        if (b.top.at(0).second - b.top.at(1).second < GetParam().margin()) break;
        EXPECT_EQ(a.token_id, b.token_id) << "token " << t;
        if (a.token_id != b.token_id) break;
        EXPECT_NEAR(a.logprob, b.logprob, GetParam().logprob_bound()) << "token " << t;
        ++compared;
      }
    }
    return compared;
  }
  static size_t NumTokens(const std::vector<Answer>& answers) {
    size_t tokens = 0;
    for (const Answer& answer : answers) tokens += answer.token_ids.size();
    return tokens;
  }

  static constexpr int kPrompt = Scaled(60, 24);  // at most; sixteen fit into one step

  std::mt19937 random_{4711};
  std::vector<int32_t> text_;
};

TEST_P(EngineProperties, SixteenPromptsInAnyOrderOfArrivalAnswerAsEachAlone) {
  const auto requests = DrawRequests(16, kPrompt, Scaled(24, 8));
  const std::vector<Answer> alone = EngineRun(Uncut()).Alone(requests);
  EngineRun run(Poisoned(Uncut()));
  for (const int gap_us : Scaled(std::vector<int>{0, 3000, 20000}, std::vector<int>{3000})) {
    SCOPED_TRACE(gap_us);
    ExpectSameBits(run.Together(requests, &random_, gap_us), alone);
  }
}

TEST_P(EngineProperties, SmallStepBudgetsCutPromptsAndGiveTheSameAnswers) {
  const auto requests = DrawRequests(16, Scaled(150, 60), Scaled(24, 8));
  const std::vector<Answer> alone = EngineRun(Uncut()).Alone(requests);
  ModelSetup setup = Poisoned(Uncut());
  setup.max_step_tokens = 48;
  setup.prefill_chunk = 17;
  const size_t compared = ExpectSameWithinBound(EngineRun(setup).Together(requests, &random_, 2000), alone);
  std::printf("%s: %zu of %zu tokens compared\n", ::testing::PrintToString(GetParam()).c_str(), compared,
              NumTokens(alone));
  EXPECT_GE(compared, NumTokens(alone) / GetParam().min_share()) << "near-ties left too little to compare";
}

TEST_P(EngineProperties, SixteenIdenticalPromptsGiveOneAnswer) {
  GenerationRequest request = DrawRequests(1, kPrompt, Scaled(40, 10)).front();
  EngineRun run(Poisoned(Uncut()));
  for (const float temperature : {0.0f, 1.0f}) {
    SCOPED_TRACE(temperature);
    request.sampling.temperature = temperature;
    request.sampling.seed = 99;
    std::set<std::vector<int32_t>> tokens;
    std::set<std::vector<float>> logprobs;
    for (const Answer& answer : run.Together(std::vector<GenerationRequest>(16, request), &random_, 500)) {
      tokens.insert(answer.token_ids);
      std::vector<float> row;
      for (const TokenLogprob& t : answer.logprobs) row.push_back(t.logprob);
      logprobs.insert(row);
    }
    EXPECT_EQ(tokens.size(), 1u);
    EXPECT_EQ(logprobs.size(), 1u) << "the same tokens with other bits";
  }
}

// Three slabs of one state slot each and a fourth for KV blocks: three sequences run until their keys and
// values outgrow that one.
EngineConfig RoomForThree(EngineConfig config, const DeviceRunner& runner) {
  config.cache_bytes = 4 * runner.cache_geometry().state_slot_bytes * 21 / 20;
  return config;
}

TEST_P(EngineProperties, APoolForThreeSequencesServesTwentyByPreemption) {
  const int tokens = 120;
  auto requests = DrawRequests(Scaled(20, 6), 100, tokens);
  // Ending in a question of the goldens: the answer to a question is surer, and so comparable for longer, than the continuation of prose.
  std::vector<GoldenPrompt> questions = ReadGoldenPrompts(GetParam().model.name);
  std::erase_if(questions, [](const GoldenPrompt& q) { return q.input_ids.size() > 64; });
  ASSERT_FALSE(questions.empty());
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t>& ids = requests[i].prompt_ids;
    ids.insert(ids.end(), text_.begin(), text_.begin() + 100);
    const std::vector<int32_t>& question = questions[i % questions.size()].input_ids;
    ids.insert(ids.end(), question.begin(), question.end());
    requests[i].stop.max_tokens = tokens;
  }
  ModelSetup setup = Uncut();
  setup.state_dtype =
      GetParam().compute_dtype;  // a small slot, so that keys and values take a large share of the pool
  const std::vector<Answer> alone = EngineRun(setup).Alone(requests);
  EngineRun run(Poisoned(setup), RoomForThree);
  EXPECT_EQ(run.engine().Stats().state_slots_total, 4)
      << "the pool has another size than this test is made for";
  const size_t compared = ExpectSameWithinBound(run.Together(requests, &random_, 0), alone);
  const EngineStats stats = run.engine().Stats();
  std::printf("%s: %zu of %zu tokens compared, %lld preemptions\n",
              ::testing::PrintToString(GetParam()).c_str(), compared, NumTokens(alone),
              static_cast<long long>(stats.preemptions_total));
  EXPECT_GE(compared, NumTokens(alone) / GetParam().min_share()) << "near-ties left too little to compare";
  EXPECT_GE(stats.preemptions_total, 1) << "the pool was never short: this test shows nothing";
}

TEST_P(EngineProperties, AbortsInAnyPhaseLeaveTheOthersAnswersAndAllMemory) {
  const auto requests = DrawRequests(16, kPrompt, Scaled(32, 10));
  const std::vector<Answer> alone = EngineRun(Uncut()).Alone(requests);
  ModelSetup setup = Poisoned(Uncut());
  setup.max_sequences = 6;  // some wait, some run
  EngineRun run(setup);
  for (int round = 0; round < Scaled(4, 1); ++round) {
    SCOPED_TRACE(round);
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    std::vector<SequenceId> ids(requests.size(), 0);
    for (size_t i = 0; i < requests.size(); ++i) sinks.push_back(run.Submit(requests[i], &ids[i]));
    for (size_t i = 0; i < requests.size(); ++i) {
      if (i % 2 == 0) continue;
      if (i % 4 == 1) sinks[i]->WaitForTokens(random_() % 6);
      run.engine().Abort(ids[i]);
      if (i % 3 == 0) run.engine().Abort(ids[i]);  // twice is once
    }
    std::vector<Answer> kept, expected;
    for (size_t i = 0; i < requests.size(); ++i) {
      const Answer answer = EngineRun::WaitForEnd(sinks[i].get());
      if (i % 2 == 0) {
        kept.push_back(answer);
        expected.push_back(alone[i]);
        continue;
      }
      ASSERT_LE(answer.token_ids.size(), alone[i].token_ids.size());
      EXPECT_TRUE(std::equal(answer.token_ids.begin(), answer.token_ids.end(), alone[i].token_ids.begin()))
          << "an aborted answer is no prefix of the whole";
    }
    ExpectSameBits(kept, expected);
    run.ExpectIdleAndClean();
  }
}

TEST_P(EngineProperties, PipeliningChangesNoBit) {
  auto requests = DrawRequests(12, kPrompt, Scaled(24, 8));
  for (size_t i = 0; i < requests.size(); ++i) {
    if (i % 2 == 0) continue;
    requests[i].sampling.repetition_penalty = 1.3f;  // depends on the token still on the device
    requests[i].sampling.frequency_penalty = 0.5f;
  }
  EngineRun plain(Uncut(), [](EngineConfig config, const DeviceRunner&) {
    config.pipelined = false;
    return config;
  });
  EngineRun pipelined(Poisoned(Uncut()));
  ExpectSameBits(pipelined.Together(requests, &random_, 1000), plain.Together(requests, &random_, 1000));
}

TEST_P(EngineProperties, SeededSamplingDependsOnNothingElseThatRuns) {
  auto requests = DrawRequests(12, kPrompt, Scaled(24, 8));
  for (size_t i = 0; i < requests.size(); ++i) {
    requests[i].sampling.temperature = 1.0f;
    requests[i].sampling.seed = 1000 + i;
    if (i % 3 == 1) requests[i].sampling.top_p = 0.9f;
    if (i % 3 == 2) requests[i].sampling.top_k = 20;
  }
  const std::vector<Answer> alone = EngineRun(Uncut()).Alone(requests);
  EngineRun run(Poisoned(Uncut()));
  for (const int gap_us : {0, 5000}) ExpectSameBits(run.Together(requests, &random_, gap_us), alone);
  std::vector<GenerationRequest> same_prompt(4, requests.front());
  for (size_t i = 0; i < same_prompt.size(); ++i) same_prompt[i].sampling.seed = i;
  std::set<std::vector<int32_t>> distinct;
  for (const Answer& answer : run.Together(same_prompt, &random_, 0)) distinct.insert(answer.token_ids);
  EXPECT_GE(distinct.size(), 2u) << "other seeds give other answers";
}

INSTANTIATE_TEST_SUITE_P(Models, EngineProperties, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return TestName(info.param.model.name + "_" + info.param.compute_dtype);
});

}  // namespace
}  // namespace rt::testing
