// How sequences end: stops, limits, aborts, errors, drain; and what the pipeline does with the token it drew
// too many.
#include "runtime/engine/testing/engine_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

namespace rt {
namespace {

std::string Letters(const std::vector<int32_t>& tokens) {
  std::string text;
  for (const int32_t token : tokens) text += FakeLetter(token);
  return text;
}

std::vector<int32_t> Prompt(uint64_t seed, int32_t length = 10) {
  std::mt19937_64 random(seed);
  return RandomPrompt(&random, length);
}

// ---- stops and limits ----

TEST(EngineStops, TheModelsEndTokenStopsUnlessIgnored) {
  FakeRunnerOptions options;
  options.model.eos_one_in = 5;
  EngineUnderTest engine(options);
  GenerationRequest request = MakeRequest(Prompt(1), 60);
  const auto sink = engine.Ask(request);
  engine.ExpectAnswer(request, sink);
  EXPECT_EQ(sink->Now().token_ids.back(), engine.model().eos_id);
  EXPECT_EQ(*sink->Now().last.finish_reason, FinishReason::kStop);
  request.stop.ignore_eos = true;
  const auto ignoring = engine.Ask(request);
  engine.ExpectAnswer(request, ignoring);
  const std::vector<int32_t> tokens = ignoring->Now().token_ids;
  EXPECT_EQ(tokens.size(), 60u);
  EXPECT_GT(std::count(tokens.begin(), tokens.end(), engine.model().eos_id), 0);
}

TEST(EngineStops, StopTokenIdsStopEvenWhenTheEndTokenIsIgnored) {
  EngineUnderTest engine;
  GenerationRequest request = MakeRequest(Prompt(2), 30);
  const std::vector<int32_t> free_answer = engine.model().Answer(request);
  request.stop.stop_token_ids = {free_answer[9]};
  request.stop.ignore_eos = true;
  const auto sink = engine.Ask(request);
  engine.ExpectAnswer(request, sink);
  EXPECT_LE(sink->Now().token_ids.size(), 10u);
  EXPECT_EQ(*sink->Now().last.finish_reason, FinishReason::kStop);
}

TEST(EngineStops, StopTokensAreNotDrawnBeforeMinTokens) {
  FakeRunnerOptions options;
  options.model.eos_one_in = 2;
  EngineUnderTest engine(options);
  for (const int32_t min_tokens : {1, 2, 10, 25}) {
    GenerationRequest request = MakeRequest(Prompt(3), 40);
    request.stop.min_tokens = min_tokens;
    const auto sink = engine.Ask(request);
    engine.ExpectAnswer(request, sink);
    EXPECT_GT(sink->Now().token_ids.size(), static_cast<size_t>(min_tokens));
  }
}

TEST(EngineStops, MaxTokensOfOneNeedsNoDecodeStep) {
  EngineUnderTest engine;
  const GenerationRequest request = MakeRequest(Prompt(4), 1);
  const auto sink = engine.Ask(request);
  engine.ExpectAnswer(request, sink);
  EXPECT_EQ(*sink->Now().last.finish_reason, FinishReason::kLength);
  engine.ExpectAllFree();
  EXPECT_EQ(engine->Stats().steps_total, 1);
}

TEST(EngineStops, AStopStringIsFoundAtAnyTokenBorderAndNeverShown) {
  EngineUnderTest engine({}, {}, /*with_text=*/true);
  GenerationRequest request = MakeRequest(Prompt(5), 40);
  request.want_text = true;
  const std::string text = Letters(engine.model().Answer(request));
  for (size_t begin = 0; begin + 3 <= text.size(); begin += 3) {
    for (size_t length = 1; length <= 3; ++length) {
      const std::string stop = text.substr(begin, length);
      const size_t at = text.find(stop);
      request.stop.stop_strings = {"never", stop};
      request.stop.include_stop_string = begin % 2 == 1;
      SCOPED_TRACE("stop '" + stop + "' at " + std::to_string(at));
      const CollectingSink::Answer answer = engine.Ask(request)->Wait();
      ASSERT_EQ(answer.num_finals, 1);
      EXPECT_EQ(*answer.last.finish_reason, FinishReason::kStop);
      EXPECT_EQ(answer.last.stop_string, stop);
      EXPECT_EQ(answer.text, text.substr(0, request.stop.include_stop_string ? at + length : at));
      EXPECT_EQ(answer.last.num_output_tokens, static_cast<int32_t>(at + length));
      EXPECT_EQ(answer.token_ids.size(), at + length);
      EXPECT_EQ(answer.num_after_end, 0);
    }
  }
  engine.ExpectAllFree();
}

TEST(EngineStops, TextHeldBackForAStopStringIsFlushedAtTheEnd) {
  EngineUnderTest engine({}, {}, /*with_text=*/true);
  GenerationRequest request = MakeRequest(Prompt(6), 20);
  request.want_text = true;
  const std::string text = Letters(engine.model().Answer(request));
  request.stop.stop_strings = {text.substr(text.size() - 3) + "~"};
  const CollectingSink::Answer answer = engine.Ask(request)->Wait();
  EXPECT_EQ(answer.text, text);
  EXPECT_EQ(*answer.last.finish_reason, FinishReason::kLength);
}

TEST(EngineStops, StopStringsAreNotLookedForBeforeMinTokens) {
  EngineUnderTest engine({}, {}, /*with_text=*/true);
  GenerationRequest request = MakeRequest(Prompt(7), 20);
  request.want_text = true;
  request.stop.min_tokens = 10;
  const std::string text = Letters(engine.model().Answer(request));
  request.stop.stop_strings = {text.substr(2, 4)};
  ASSERT_EQ(text.find(request.stop.stop_strings[0], 10), std::string::npos);
  const CollectingSink::Answer answer = engine.Ask(request)->Wait();
  EXPECT_EQ(answer.text, text);
}

TEST(EngineStops, TheTextOfAStopTokenIsNotShownUnlessAskedFor) {
  EngineUnderTest engine({}, {}, /*with_text=*/true);
  GenerationRequest request = MakeRequest(Prompt(8), 20);
  request.want_text = true;
  const std::vector<int32_t> tokens = engine.model().Answer(request);
  const size_t at = static_cast<size_t>(std::find(tokens.begin(), tokens.end(), tokens[5]) - tokens.begin());
  request.stop.stop_token_ids = {tokens[5]};
  EXPECT_EQ(engine.Ask(request)->Wait().text, Letters(tokens).substr(0, at));
  request.stop.include_stop_string = true;
  EXPECT_EQ(engine.Ask(request)->Wait().text, Letters(tokens).substr(0, at + 1));
}

TEST(EngineStops, LogprobsComeWithTheirTokens) {
  EngineUnderTest engine;
  GenerationRequest request = MakeRequest(Prompt(9), 10);
  request.sampling.num_logprobs = 3;
  const CollectingSink::Answer answer = engine.Ask(request)->Wait();
  ASSERT_EQ(answer.logprobs.size(), 10u);
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_EQ(answer.logprobs[i].token_id, answer.token_ids[i]);
    EXPECT_EQ(answer.logprobs[i].logprob, -static_cast<float>(answer.token_ids[i]));
    EXPECT_EQ(answer.logprobs[i].top.size(), 3u);
  }
  request.sampling.num_logprobs = -1;
  EXPECT_TRUE(engine.Ask(request)->Wait().logprobs.empty());
}

// ---- refusals ----

TEST(EngineRefusals, EachBadParameterIsNamed) {
  EngineUnderTest engine;
  const auto refusal = [&](auto change) {
    GenerationRequest request = MakeRequest({1, 2, 3}, 10);
    change(request);
    const auto result = engine->Submit(std::move(request), std::make_shared<CollectingSink>());
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
    return result.status().message();
  };
  using R = GenerationRequest;
  EXPECT_EQ(refusal([](R& r) { r.prompt_ids.clear(); }), "prompt: expected at least one token, got none");
  EXPECT_EQ(refusal([](R& r) { r.prompt_ids[1] = 1000; }),
            "prompt: expected token ids in [0, 1000), got 1000");
  EXPECT_EQ(refusal([](R& r) { r.stop.max_tokens = 0; }), "max_tokens: expected > 0, got 0");
  EXPECT_EQ(refusal([](R& r) { r.stop.max_tokens = 4096; }),
            "prompt + max_tokens: expected at most 4096 tokens, got 3 + 4096");
  EXPECT_EQ(refusal([](R& r) { r.stop.min_tokens = 11; }),
            "min_tokens: expected 0 to max_tokens (10), got 11");
  EXPECT_EQ(refusal([](R& r) { r.stop.stop_strings = {"x"}; }),
            "stop: stop strings need text, but only token ids were asked for");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(refusal([&](R& r) { r.sampling.temperature = nan; }).starts_with("temperature:"));
  EXPECT_TRUE(refusal([&](R& r) { r.sampling.top_p = nan; }).starts_with("top_p:"));
  EXPECT_TRUE(refusal([&](R& r) { r.sampling.top_p = 0.0f; }).starts_with("top_p:"));
  EXPECT_TRUE(refusal([&](R& r) { r.sampling.min_p = 1.5f; }).starts_with("min_p:"));
  EXPECT_TRUE(refusal([&](R& r) { r.sampling.top_k = -1; }).starts_with("top_k:"));
  EXPECT_TRUE(refusal([&](R& r) { r.sampling.presence_penalty = nan; }).starts_with("presence_penalty:"));
  EXPECT_TRUE(
      refusal([&](R& r) { r.sampling.repetition_penalty = 0.0f; }).starts_with("repetition_penalty:"));
  EXPECT_TRUE(refusal([&](R& r) { r.sampling.num_logprobs = 21; }).starts_with("num_logprobs:"));
  EXPECT_TRUE(refusal([&](R& r) { r.sampling.logit_bias = {{-1, 1.0f}}; }).starts_with("logit_bias:"));
  EXPECT_TRUE(refusal([&](R& r) { r.stop.stop_token_ids = {5000}; }).starts_with("stop_token_ids:"));
}

TEST(EngineRefusals, TextWithoutATokenizerSaysSo) {
  EngineUnderTest engine;
  GenerationRequest request = MakeRequest({1}, 1);
  request.want_text = true;
  const auto result = engine->Submit(request, std::make_shared<CollectingSink>());
  EXPECT_EQ(result.status().message(), "text output: the model has no tokenizer, ask for token ids");
}

TEST(EngineRefusals, ARequestThatCanNeverFitIsRefusedAtOnceAndOneThatJustFitsRuns) {
  EngineConfig config;
  config.cache_bytes = 4 * 2048;  // three slabs of 8 blocks of 4 tokens beside the state's slab: 96 tokens
  EngineUnderTest engine({}, config);
  const auto result = engine->Submit(MakeRequest(Prompt(1, 90), 8), std::make_shared<CollectingSink>());
  EXPECT_EQ(result.status().message(),
            "prompt + max_tokens: the cache memory holds 96 tokens of one sequence, 97 are needed");
  std::vector<std::pair<GenerationRequest, std::shared_ptr<CollectingSink>>> asked;
  for (uint64_t i = 0; i < 4; ++i) {
    const GenerationRequest request = MakeRequest(Prompt(i, 90), 7);
    asked.push_back({request, engine.Ask(request)});
  }
  for (const auto& [request, sink] : asked) engine.ExpectAnswer(request, sink);
  engine.ExpectAllFree();
}

TEST(EngineRefusals, AFullQueueRefusesAndRecovers) {
  EngineConfig config;
  config.max_waiting = 4;
  config.max_sequences = 1;
  EngineUnderTest engine({}, config);
  std::vector<std::shared_ptr<CollectingSink>> accepted;
  Status refused;
  for (int i = 0; i < 200 && refused.ok(); ++i) {
    auto sink = std::make_shared<CollectingSink>();
    GenerationRequest request = MakeRequest(Prompt(1), 2000);
    request.stop.ignore_eos = true;
    const auto result = engine->Submit(std::move(request), sink);
    if (result.ok())
      accepted.push_back(sink);
    else
      refused = result.status();
  }
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.message(), "the queue is full (4 requests wait)");
  EXPECT_GE(accepted.size(), 4u);
  for (const auto& sink : accepted) EXPECT_EQ(sink->Wait().token_ids.size(), 2000u);
  EXPECT_EQ(engine.Ask(MakeRequest(Prompt(1), 3))->Wait().token_ids.size(), 3u);
}

TEST(EngineRefusals, ImpossibleConfigurationsAreNamed) {
  FakeModelRunner runner({});
  const auto create = [&](EngineConfig config) { return Engine::Create(config, &runner, nullptr).status(); };
  EXPECT_EQ(create({.cache_bytes = 1 << 20, .max_sequences = 17}).message(),
            "max_sequences: expected 1 to 16 (the model runner's limit), got 17");
  EXPECT_EQ(create({.cache_bytes = 1 << 20, .max_step_tokens = -1}).code(), Code::kInvalidArgument);
  EXPECT_EQ(create({.cache_bytes = 100}).code(), Code::kResourceExhausted);
  EXPECT_EQ(create({.cache_bytes = 2048}).message(),
            "cache_bytes: 2048 bytes hold not even one short sequence; expected at least 4096");
}

// ---- the pipeline ----

TEST(EnginePipeline, StepNPlusOneIsEnqueuedBeforeStepNIsCollected) {
  for (const bool pipelined : {true, false}) {
    EngineConfig config;
    config.pipelined = pipelined;
    EngineUnderTest engine({}, config);
    engine.Ask(MakeRequest(Prompt(1), 6))->Wait();
    engine.ExpectAllFree();
    engine.Close();
    EXPECT_EQ(engine.runner().calls(), pipelined ? "EECECECECECC" : "ECECECECECEC");
  }
}

TEST(EnginePipeline, TheTokenDrawnAfterTheEndIsDroppedAndCostsOneStep) {
  FakeRunnerOptions options;
  options.model.eos_one_in = 6;
  EngineUnderTest engine(options);
  const GenerationRequest request = MakeRequest(Prompt(12), 100);
  const size_t length = engine.model().Answer(request).size();
  ASSERT_LT(length, 99u);
  engine.ExpectAnswer(request, engine.Ask(request));
  engine.ExpectAllFree();
  EXPECT_EQ(engine->Stats().steps_total, static_cast<int64_t>(length) + 1);
  EXPECT_EQ(engine->Stats().output_tokens_total, static_cast<int64_t>(length));
}

TEST(EnginePipeline, OverheadIsCountedWithoutTheRunnersTime) {
  EngineUnderTest engine;
  engine.Ask(MakeRequest(Prompt(1), 50))->Wait();
  engine.ExpectAllFree();
  EXPECT_GT(engine->Stats().engine_overhead_ns_total, 0);
  EXPECT_GE(engine->Stats().steps_total, 50);
}

// ---- failures ----

TEST(EngineFailures, AFailingEnqueueFailsItsRequestsWithTheReasonAndTheEngineGoesOn) {
  for (const bool deferred : {false, true}) {
    std::atomic<int> failures{0};
    FakeRunnerOptions options;
    options.deferred = deferred;
    options.fail_enqueue = [&](const StepPlan& plan) {
      return plan.step_id == 5 && failures++ == 0 ? Status(Code::kInternal, "device says no") : Status::Ok();
    };
    EngineUnderTest engine(options);
    const CollectingSink::Answer answer = engine.Ask(MakeRequest(Prompt(1), 50))->Wait();
    EXPECT_EQ(*answer.last.finish_reason, FinishReason::kError);
    EXPECT_EQ(answer.last.error.message(), "device says no");
    EXPECT_EQ(answer.token_ids.size(), 5u) << "tokens of the steps before arrive";
    const GenerationRequest next = MakeRequest(Prompt(2), 20);
    engine.ExpectAnswer(next, engine.Ask(next));
    engine.ExpectAllFree();
  }
}

TEST(EngineFailures, AFailingCollectFailsItsRequestsAndTheEngineGoesOn) {
  FakeRunnerOptions options;
  options.fail_collect = [](uint64_t step) {
    return step == 4 ? Status(Code::kInternal, "lost the output") : Status::Ok();
  };
  EngineUnderTest engine(options);
  const auto a = engine.Ask(MakeRequest(Prompt(1), 50));
  EXPECT_EQ(a->Wait().last.error.message(), "lost the output");
  const GenerationRequest next = MakeRequest(Prompt(2), 20);
  engine.ExpectAnswer(next, engine.Ask(next));
  engine.ExpectAllFree();
}

TEST(EngineFailures, AWrongNumberOfTokensIsAnErrorNotACrash) {
  FakeRunnerOptions options;
  options.edit_output = [](const StepPlan& plan, StepOutput* output) {
    if (plan.step_id == 3) output->tokens.clear();
  };
  EngineUnderTest engine(options);
  EXPECT_EQ(engine.Ask(MakeRequest(Prompt(1), 50))->Wait().last.error.message(),
            "step 3: expected 1 sampled tokens, got 0");
  engine.ExpectAllFree();
}

TEST(EngineFailures, BadLogitsAndImpossibleTokensFailOnlyTheirOwnRequest) {
  for (const bool bad_logits : {true, false}) {
    FakeRunnerOptions options;
    options.edit_output = [bad_logits](const StepPlan& plan, StepOutput* output) {
      size_t row = 0;
      for (const StepSequence& sequence : plan.sequences) {
        if (!sequence.samples) continue;
        SampledToken& token = output->tokens[row++];
        if (sequence.id != 2 || sequence.num_cached_tokens < 15) continue;
        token.bad_logits = bad_logits;
        if (!bad_logits) token.token_id = 1000;
      }
    };
    EngineUnderTest engine(options);
    const GenerationRequest request = MakeRequest(Prompt(1), 30);
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (int i = 0; i < 3; ++i) sinks.push_back(engine.Ask(request));
    EXPECT_EQ(*sinks[1]->Wait().last.finish_reason, FinishReason::kError);
    EXPECT_EQ(sinks[1]->Now().last.error.message(),
              bad_logits ? "the logits at position 16 hold NaN or leave no token to sample"
                         : "sampled token: expected an id below 1000, got 1000");
    engine.ExpectAnswer(request, sinks[0]);
    engine.ExpectAnswer(request, sinks[2]);
    engine.ExpectAllFree();
  }
}

TEST(EngineFailures, ALostDeviceFailsEverythingAndRefusesMore) {
  FakeRunnerOptions options;
  options.fail_enqueue = [](const StepPlan& plan) {
    return plan.step_id >= 6 ? Status(Code::kDeviceLost, "the device fell off the bus") : Status::Ok();
  };
  EngineUnderTest engine(options);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 30; ++i) sinks.push_back(engine.Ask(MakeRequest(Prompt(1), 100)));
  for (const auto& sink : sinks) {
    EXPECT_EQ(*sink->Wait().last.finish_reason, FinishReason::kError);
    EXPECT_EQ(sink->Now().last.error.code(), Code::kDeviceLost);
  }
  EXPECT_FALSE(engine->Ready());
  const auto refused = engine->Submit(MakeRequest(Prompt(1), 1), std::make_shared<CollectingSink>());
  EXPECT_EQ(refused.status().message(), "the engine has failed: the device fell off the bus");
}

TEST(EngineFailures, AFailedWarmUpIsReportedAndNothingIsServed) {
  FakeRunnerOptions options;
  options.fail_warm_up = Status(Code::kUnsupported, "no kernel for bucket 3");
  EngineUnderTest engine(options);
  EXPECT_EQ(engine->WaitReady().message(), "warm-up: no kernel for bucket 3");
  EXPECT_FALSE(engine->Ready());
  EXPECT_EQ(engine->Submit(MakeRequest(Prompt(1), 1), std::make_shared<CollectingSink>()).status().code(),
            Code::kUnavailable);
}

// ---- abort and drain ----

TEST(EngineEnding, AbortEndsWithAbortWhateverThePhase) {
  EngineConfig config;
  config.max_sequences = 1;
  config.max_step_tokens = 8;
  EngineUnderTest engine({}, config);
  ASSERT_TRUE(engine->WaitReady().ok());
  SequenceId running = 0, waiting = 0;
  const auto a = engine.Ask(MakeRequest(Prompt(1, 2000), 2000), &running);  // prefills for 250 steps
  const auto b = engine.Ask(MakeRequest(Prompt(2), 2000), &waiting);
  engine->Abort(waiting);
  EXPECT_EQ(*b->Wait().last.finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(b->Now().token_ids.empty());
  engine->Abort(running);
  EXPECT_EQ(*a->Wait().last.finish_reason, FinishReason::kAbort);
  engine->Abort(running);
  engine->Abort(99999);
  engine.ExpectAllFree();
}

TEST(EngineEnding, DrainFinishesWhatRunsAndRefusesTheRest) {
  EngineUnderTest engine;
  const GenerationRequest request = MakeRequest(Prompt(1), 300);
  const auto sink = engine.Ask(request);
  engine->Drain(std::chrono::steady_clock::now() + std::chrono::seconds(60));
  EXPECT_EQ(sink->Now().num_finals, 1) << "drain returned before the last delta";
  engine.ExpectAnswer(request, sink);
  const auto refused = engine->Submit(request, std::make_shared<CollectingSink>());
  EXPECT_EQ(refused.status().code(), Code::kFailedPrecondition);
}

TEST(EngineEnding, ADrainWhoseDeadlineHasPassedAbortsTheRest) {
  EngineUnderTest engine;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 40; ++i) sinks.push_back(engine.Ask(MakeRequest(Prompt(1), 4000)));
  engine->Drain(std::chrono::steady_clock::now());
  int aborted = 0;
  for (const auto& sink : sinks) {
    ASSERT_EQ(sink->Now().num_finals, 1);
    aborted += *sink->Now().last.finish_reason == FinishReason::kAbort ? 1 : 0;
  }
  EXPECT_GT(aborted, 0);
  engine.ExpectAllFree();
}

TEST(EngineEnding, DestroyingTheEngineGivesEverySinkItsFinalDelta) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  {
    EngineUnderTest engine;
    for (int i = 0; i < 40; ++i) sinks.push_back(engine.Ask(MakeRequest(Prompt(1), 3000)));
  }
  for (const auto& sink : sinks) EXPECT_EQ(sink->Now().num_finals, 1);
}

}  // namespace
}  // namespace rt
