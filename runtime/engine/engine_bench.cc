// The engine's own time per step: scheduling, metadata, ledger, events. The runner costs nothing, so the
// figure `overhead_us` (Stats().engine_overhead_ns_total / steps) is what the engine adds to every step of a
// real model. Baseline: the design's limit of 60 us at batch 1.
#include "runtime/engine/engine.h"
#include "runtime/engine/testing/collecting_sink.h"

#include <benchmark/benchmark.h>
#include <spdlog/spdlog.h>

namespace rt {
namespace {

// Draws token 1 for every row.
class FreeRunner : public ModelRunner {
 public:
  CacheGeometry cache_geometry() const override { return {16, 64 << 10, 20 << 20, 64}; }
  RunnerLimits limits() const override { return {64, 2048, 1 << 16}; }
  int32_t vocab_size() const override { return 1000; }
  Status BindCache(const CacheBinding&) override { return Status::Ok(); }
  Status Enqueue(const StepPlan& plan) override {
    num_rows_[plan.step_id & 1] = plan.num_sampled_rows;
    return Status::Ok();
  }
  Result<StepOutput> Collect(uint64_t step_id) override {
    StepOutput output;
    output.step_id = step_id;
    output.tokens.resize(static_cast<size_t>(num_rows_[step_id & 1]));
    for (SampledToken& token : output.tokens) token.token_id = 1;
    return output;
  }
  Status CopyStateSlot(int32_t, int32_t) override { return Status::Ok(); }
  Status WarmUp(std::span<const int32_t>, int32_t) override { return Status::Ok(); }
  int64_t builds_after_ready() const override { return 0; }

 private:
  int32_t num_rows_[2] = {};
};

// Arguments: sequences, 1 = with penalties.
void BM_DecodeStep(benchmark::State& state) {
  spdlog::set_level(spdlog::level::warn);
  FreeRunner runner;
  EngineConfig config;
  config.cache_bytes = int64_t{64} << 30;  // bookkeeping only: nothing is allocated
  auto engine = Engine::Create(config, &runner, nullptr).value();
  constexpr int32_t kTokens = 4000;
  for (auto _ : state) {
    std::vector<std::shared_ptr<CollectingSink>> sinks;
    for (int64_t i = 0; i < state.range(0); ++i) {
      GenerationRequest request;
      request.prompt_ids.assign(100, 2);
      request.stop.max_tokens = kTokens;
      request.want_text = false;
      if (state.range(1) != 0) request.sampling.frequency_penalty = 0.5f;
      sinks.push_back(std::make_shared<CollectingSink>());
      (void)engine->Submit(std::move(request), sinks.back());
    }
    for (const auto& sink : sinks) sink->Wait();
  }
  const EngineStats stats = engine->Stats();
  state.counters["overhead_us"] =
      static_cast<double>(stats.engine_overhead_ns_total) / 1e3 / static_cast<double>(stats.steps_total);
  state.counters["share_of_limit_%"] = state.counters["overhead_us"] / 60 * 100;
  state.counters["steps"] = static_cast<double>(stats.steps_total);
}
BENCHMARK(BM_DecodeStep)->ArgsProduct({{1, 4, 16, 64}, {0, 1}})->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace rt
