// An engine over the fake model, and short ways to ask it and to check that nothing was lost or broken.
#pragma once

#include "runtime/engine/engine.h"
#include "runtime/engine/testing/collecting_sink.h"
#include "runtime/engine/testing/fake_model_runner.h"
#include "runtime/engine/testing/fake_text.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

namespace rt {

inline GenerationRequest MakeRequest(std::vector<int32_t> prompt, int32_t max_tokens) {
  GenerationRequest request;
  request.prompt_ids = std::move(prompt);
  request.sampling.temperature = 0.0f;
  request.stop.max_tokens = max_tokens;
  request.want_text = false;
  return request;
}

inline std::vector<int32_t> RandomPrompt(std::mt19937_64* random, int32_t length, int32_t vocab_size = 1000) {
  std::vector<int32_t> prompt(static_cast<size_t>(length));
  for (int32_t& id : prompt) id = static_cast<int32_t>((*random)() % static_cast<uint64_t>(vocab_size));
  return prompt;
}

class EngineUnderTest {
 public:
  explicit EngineUnderTest(FakeRunnerOptions options = {}, EngineConfig config = {}, bool with_text = false)
      : runner_(std::move(options)) {
    if (config.cache_bytes == 0) config.cache_bytes = 1 << 20;
    config.eos_token_ids = {runner_.model().eos_id};
    config.check_every_step = true;
    config.observer = &runner_;
    auto engine = Engine::Create(config, &runner_, with_text ? &text_ : nullptr);
    EXPECT_TRUE(engine.ok()) << engine.status().ToString();
    engine_ = std::move(engine).value();
  }
  ~EngineUnderTest() { Close(); }

  Engine* operator->() { return engine_.get(); }
  FakeModelRunner& runner() { return runner_; }
  const FakeModel& model() const { return runner_.model(); }

  std::shared_ptr<CollectingSink> Ask(GenerationRequest request, SequenceId* id = nullptr) {
    auto sink = std::make_shared<CollectingSink>();
    const auto submitted = engine_->Submit(std::move(request), sink);
    EXPECT_TRUE(submitted.ok()) << submitted.status().ToString();
    if (id && submitted.ok()) *id = *submitted;
    return sink;
  }
  void ExpectAnswer(const GenerationRequest& request, const std::shared_ptr<CollectingSink>& sink) {
    FinishReason reason = FinishReason::kError;
    const std::vector<int32_t> expected = runner_.model().Answer(request, &reason);
    const CollectingSink::Answer answer = sink->Wait();
    ASSERT_EQ(answer.num_finals, 1) << "no end arrived";
    EXPECT_STREQ(FinishReasonName(*answer.last.finish_reason), FinishReasonName(reason))
        << answer.last.error.ToString();
    EXPECT_EQ(answer.token_ids, expected);
    EXPECT_EQ(answer.num_after_end, 0);
    EXPECT_EQ(answer.last.num_output_tokens, static_cast<int32_t>(expected.size()));
    EXPECT_EQ(answer.last.num_prompt_tokens, static_cast<int32_t>(request.prompt_ids.size()));
  }
  // Waits until the engine is idle; then all memory must be free.
  void ExpectAllFree() {
    engine_->Drain(std::chrono::steady_clock::now() + std::chrono::seconds(60));
    for (int i = 0; i < 2000 && engine_->Stats().kv_blocks_free + engine_->Stats().state_slots_free !=
                                    engine_->Stats().kv_blocks_total + engine_->Stats().state_slots_total;
         ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const EngineStats stats = engine_->Stats();
    EXPECT_EQ(stats.kv_blocks_free, stats.kv_blocks_total);
    EXPECT_EQ(stats.state_slots_free, stats.state_slots_total);
    EXPECT_EQ(stats.requests_running, 0);
    EXPECT_EQ(stats.requests_waiting, 0);
    EXPECT_EQ(stats.ledger_violations_total, 0);
  }
  // Stops the engine and reports what the fake device saw go wrong.
  void Close() {
    if (!engine_) return;
    EXPECT_EQ(engine_->Stats().ledger_violations_total, 0);
    engine_.reset();
    for (const std::string& error : runner_.errors()) ADD_FAILURE() << error;
  }

 private:
  FakeModelRunner runner_;
  FakeTextDecoderFactory text_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace rt
