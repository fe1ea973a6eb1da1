// Answers must not depend on what else runs, on chunking, memory pressure or pipelining; memory must always
// come back.
#include "runtime/engine/engine.h"

#include "runtime/engine/testing/engine_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

namespace rt {
namespace {

struct Mode {
  const char* name;
  bool pipelined;
  bool deferred;
};

void PrintTo(const Mode& mode, std::ostream* out) { *out << mode.name; }

class EngineEquality : public ::testing::TestWithParam<Mode> {
 protected:
  FakeRunnerOptions Options() const {
    FakeRunnerOptions options;
    options.deferred = GetParam().deferred;
    return options;
  }
  EngineConfig Config() const {
    EngineConfig config;
    config.pipelined = GetParam().pipelined;
    return config;
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, EngineEquality,
                         ::testing::Values(Mode{"Pipelined", true, false},
                                           Mode{"PipelinedDeferred", true, true},
                                           Mode{"Serial", false, false}),
                         [](const auto& info) { return info.param.name; });

TEST_P(EngineEquality, OneSequenceOfAnyLengthGivesTheModelsAnswer) {
  std::mt19937_64 random(1);
  EngineUnderTest engine(Options(), Config());
  for (const int32_t length : {1, 2, 3, 4, 5, 7, 8, 9, 63, 64, 65, 200}) {
    for (const int32_t max_tokens : {1, 2, 3, 17}) {
      SCOPED_TRACE(std::to_string(length) + " + " + std::to_string(max_tokens));
      const GenerationRequest request = MakeRequest(RandomPrompt(&random, length), max_tokens);
      engine.ExpectAnswer(request, engine.Ask(request));
    }
  }
  engine.ExpectAllFree();
}

TEST_P(EngineEquality, AnyTokenBudgetAndChunkSizeGiveTheSameAnswers) {
  for (const auto& [budget, chunk] : std::vector<std::pair<int32_t, int32_t>>{{1, 1},
                                                                              {2, 2},
                                                                              {3, 1},
                                                                              {5, 5},
                                                                              {7, 3},
                                                                              {16, 16},
                                                                              {63, 63},
                                                                              {64, 64},
                                                                              {65, 64},
                                                                              {100, 33},
                                                                              {200, 200}}) {
    SCOPED_TRACE("budget " + std::to_string(budget) + ", chunk " + std::to_string(chunk));
    std::mt19937_64 random(2);
    EngineConfig config = Config();
    config.max_step_tokens = budget;
    config.prefill_chunk = chunk;
    EngineUnderTest engine(Options(), config);
    std::vector<std::pair<GenerationRequest, std::shared_ptr<CollectingSink>>> asked;
    for (const int32_t length : {1, 40, 3, 100, 64, 2, 17}) {
      const GenerationRequest request = MakeRequest(RandomPrompt(&random, length), 12);
      asked.push_back({request, engine.Ask(request)});
    }
    for (const auto& [request, sink] : asked) engine.ExpectAnswer(request, sink);
    engine.ExpectAllFree();
    EXPECT_LE(engine.runner().most_step_tokens(), budget);
  }
}

TEST_P(EngineEquality, SequencesThatArriveAtRandomTimesAnswerAsIfAlone) {
  std::mt19937_64 random(3);
  FakeRunnerOptions options = Options();
  options.model.eos_one_in = 40;
  EngineConfig config = Config();
  config.max_step_tokens = 48;
  EngineUnderTest engine(options, config);
  std::vector<std::pair<GenerationRequest, std::shared_ptr<CollectingSink>>> asked;
  for (int i = 0; i < 60; ++i) {
    const GenerationRequest request =
        MakeRequest(RandomPrompt(&random, 1 + static_cast<int32_t>(random() % 90)),
                    1 + static_cast<int32_t>(random() % 60));
    asked.push_back({request, engine.Ask(request)});
    if (random() % 3 == 0) asked.back().second->WaitForTokens(random() % 4);
  }
  for (const auto& [request, sink] : asked) engine.ExpectAnswer(request, sink);
  engine.ExpectAllFree();
  engine.Close();
  EXPECT_GT(engine.runner().num_mixed_steps(), 0) << "decode and prefill must have shared steps";
  EXPECT_EQ(engine.runner().num_pending_rows() > 0, GetParam().pipelined);
}

TEST_P(EngineEquality, APoolForThreeServesTwentyWithPreemptionAndTheSameAnswers) {
  std::mt19937_64 random(4);
  EngineConfig config = Config();
  // Slabs of 2048 bytes: one state slot or 8 blocks of 4 tokens. A sequence grows to 60 tokens: 15 blocks, so
  // 3 slabs.
  config.cache_bytes = 9 * 2048;
  EngineUnderTest engine(Options(), config);
  std::vector<std::pair<GenerationRequest, std::shared_ptr<CollectingSink>>> asked;
  for (int i = 0; i < 20; ++i) {
    GenerationRequest request = MakeRequest(RandomPrompt(&random, 8 + i % 5), 48);
    request.stop.ignore_eos = true;
    request.sampling.temperature = i % 2 == 0 ? 0.0f : 0.8f;
    request.sampling.seed = 1000 + static_cast<uint64_t>(i);
    request.sampling.frequency_penalty = i % 3 == 0 ? 0.5f : 0.0f;
    asked.push_back({request, engine.Ask(request)});
  }
  for (const auto& [request, sink] : asked) engine.ExpectAnswer(request, sink);
  EXPECT_GT(engine->Stats().preemptions_total, 0);
  engine.ExpectAllFree();
  // Recomputed prompts are not counted twice.
  int64_t prompt_tokens = 0;
  for (const auto& [request, sink] : asked) prompt_tokens += static_cast<int64_t>(request.prompt_ids.size());
  EXPECT_EQ(engine->Stats().prompt_tokens_total, prompt_tokens);
  EXPECT_EQ(engine->Stats().output_tokens_total, 20 * 48);
}

TEST_P(EngineEquality, IdenticalPromptsInOneBatchGiveOneAnswer) {
  std::mt19937_64 random(5);
  EngineUnderTest engine(Options(), Config());
  const GenerationRequest request = MakeRequest(RandomPrompt(&random, 37), 40);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 16; ++i) sinks.push_back(engine.Ask(request));
  for (const auto& sink : sinks) engine.ExpectAnswer(request, sink);
  engine.Close();
  EXPECT_GT(engine.runner().most_sequences(), 4);
}

TEST_P(EngineEquality, PenaltiesSeeEveryTokenIncludingTheOneStillOnTheDevice) {
  std::mt19937_64 random(6);
  FakeRunnerOptions options = Options();
  options.model.vocab_size = 12;  // many repeats
  EngineConfig config = Config();
  config.max_step_tokens = 20;
  EngineUnderTest engine(options, config);
  std::vector<std::pair<GenerationRequest, std::shared_ptr<CollectingSink>>> asked;
  for (int i = 0; i < 8; ++i) {
    GenerationRequest request = MakeRequest(RandomPrompt(&random, 5 + 7 * i, 12), 60);
    request.stop.ignore_eos = true;
    if (i % 3 == 0) request.sampling.presence_penalty = 0.5f;
    if (i % 3 == 1) request.sampling.frequency_penalty = 0.5f;
    if (i % 3 == 2) request.sampling.repetition_penalty = 1.2f;
    asked.push_back({request, engine.Ask(request)});
  }
  for (const auto& [request, sink] : asked) engine.ExpectAnswer(request, sink);
}

TEST_P(EngineEquality, ASeedGivesTheSameTokensWhateverElseRuns) {
  std::mt19937_64 random(7);
  EngineUnderTest engine(Options(), Config());
  GenerationRequest request = MakeRequest(RandomPrompt(&random, 20), 30);
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 42;
  const auto alone = engine.Ask(request);
  engine.ExpectAnswer(request, alone);
  std::vector<std::shared_ptr<CollectingSink>> crowd;
  for (int i = 0; i < 6; ++i) crowd.push_back(engine.Ask(MakeRequest(RandomPrompt(&random, 30), 30)));
  engine.ExpectAnswer(request, engine.Ask(request));
  // Without a seed two requests draw different ones.
  request.sampling.seed.reset();
  const auto a = engine.Ask(request);
  const auto b = engine.Ask(request);
  EXPECT_NE(a->Wait().token_ids, b->Wait().token_ids);
}

TEST_P(EngineEquality, ModelsWithoutAttentionOrWithoutRecurrentStateWork) {
  for (const bool has_kv : {false, true}) {
    std::mt19937_64 random(8);
    FakeRunnerOptions options = Options();
    options.model.has_kv = has_kv;
    options.model.has_state = !has_kv;
    EngineUnderTest engine(options, Config());
    std::vector<std::pair<GenerationRequest, std::shared_ptr<CollectingSink>>> asked;
    for (int i = 0; i < 20; ++i) {
      const GenerationRequest request = MakeRequest(RandomPrompt(&random, 1 + i * 3), 20);
      asked.push_back({request, engine.Ask(request)});
    }
    for (const auto& [request, sink] : asked) engine.ExpectAnswer(request, sink);
    engine.ExpectAllFree();
  }
}

// Pairs of features are where schedulers break: memory pressure x chunking x limits x endings x arrival, at
// random.
TEST_P(EngineEquality, RandomConfigurationsNeverChangeAnAnswerOrStall) {
  for (uint64_t seed = 100; seed < 125; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    const auto between = [&](int32_t low, int32_t high) {
      return low + static_cast<int32_t>(random() % static_cast<uint64_t>(high - low + 1));
    };
    FakeRunnerOptions options = Options();
    options.model.vocab_size = between(0, 1) == 0 ? 20 : 1000;
    options.model.eos_one_in = between(0, 1) * between(5, 60);
    options.geometry.block_size_tokens = between(1, 9);
    options.geometry.kv_block_bytes = between(64, 700);
    options.geometry.state_slot_bytes = between(64, 4000);
    EngineConfig config = Config();
    config.max_step_tokens = between(1, 80);
    config.prefill_chunk = between(1, 80);
    config.max_sequences = between(1, 16);
    const int32_t longest = 80;
    // From hardly room for one sequence to plenty; slabs may take up to a quarter more.
    const int64_t one =
        (longest / options.geometry.block_size_tokens + 1) * (options.geometry.kv_block_bytes + 64) +
        options.geometry.state_slot_bytes;
    config.cache_bytes = 2 * one * between(2, 9);
    EngineUnderTest engine(options, config);
    std::vector<std::pair<GenerationRequest, std::shared_ptr<CollectingSink>>> asked;
    for (int i = 0; i < 14; ++i) {
      GenerationRequest request =
          MakeRequest(RandomPrompt(&random, between(1, 40), options.model.vocab_size), between(1, 40));
      request.sampling.temperature = static_cast<float>(between(0, 1));
      request.sampling.seed = random();
      request.sampling.presence_penalty = between(0, 3) == 0 ? 0.5f : 0.0f;
      request.stop.min_tokens = between(0, request.stop.max_tokens);
      request.stop.ignore_eos = between(0, 1) == 1;
      if (between(0, 2) == 0) request.stop.stop_token_ids = {between(0, options.model.vocab_size - 1)};
      asked.push_back({request, engine.Ask(request)});
      if (between(0, 3) == 0) asked.back().second->WaitForTokens(static_cast<size_t>(between(0, 3)));
    }
    for (const auto& [request, sink] : asked) ASSERT_NO_FATAL_FAILURE(engine.ExpectAnswer(request, sink));
    engine.ExpectAllFree();
  }
}

TEST_P(EngineEquality, TenThousandAbortsAtRandomPhasesLeaveNothingBehind) {
  const uint64_t seed = 9;
  std::mt19937_64 random(seed);
  FakeRunnerOptions options = Options();
  options.model.eos_one_in = 30;
  EngineConfig config = Config();
  config.cache_bytes = 20 * 2048;
  config.max_step_tokens = 24;
  config.max_waiting = 100000;
  EngineUnderTest engine(options, config);
  std::vector<std::pair<SequenceId, std::shared_ptr<CollectingSink>>> live;
  std::vector<std::shared_ptr<CollectingSink>> all;
  for (int i = 0; i < 10000; ++i) {
    SequenceId id = 0;
    const auto sink = engine.Ask(MakeRequest(RandomPrompt(&random, 1 + static_cast<int32_t>(random() % 40)),
                                             1 + static_cast<int32_t>(random() % 40)),
                                 &id);
    all.push_back(sink);
    live.push_back({id, sink});
    if (random() % 64 == 0) sink->WaitForTokens(random() % 5);
    while (live.size() > 12 || (!live.empty() && random() % 3 == 0)) {
      const size_t pick = random() % live.size();
      engine->Abort(live[pick].first);
      if (random() % 8 == 0) engine->Abort(live[pick].first);  // idempotent
      live[pick] = live.back();
      live.pop_back();
    }
  }
  for (const auto& [id, sink] : live) engine->Abort(id);
  int64_t aborted = 0;
  for (const auto& sink : all) {
    const CollectingSink::Answer answer = sink->Wait();
    ASSERT_EQ(answer.num_finals, 1) << "seed " << seed;
    ASSERT_EQ(answer.num_after_end, 0) << "seed " << seed;
    aborted += *answer.last.finish_reason == FinishReason::kAbort ? 1 : 0;
  }
  EXPECT_GT(aborted, 1000);
  engine.ExpectAllFree();
  engine.Close();
  EXPECT_EQ(engine.runner().num_released(), 10000);
}

}  // namespace
}  // namespace rt
