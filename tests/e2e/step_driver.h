// Runs steps on a DeviceRunner without the engine: a test says which sequences get which tokens in which kind
// of row, and reads logits, hidden states and caches back. Owns the cache arena's map: state slots 0..n-1 lie
// first, then a fixed table of KV blocks a sequence.
#pragma once

#include "runtime/executor/device_runner.h"

#include <span>
#include <vector>

namespace rt::testing {

// What one sequence of a step gave; of its last position unless `all_hidden` is set.
struct RowOutput {
  std::vector<float> logits;  // [vocab]
  std::vector<std::vector<float>>
      hidden;            // per decoder layer [hidden], residual after it; only if the driver keeps it
  SampledToken sampled;  // greedy
};

struct Feed {
  int32_t sequence = 0;
  std::span<const int32_t> ids;
  StepKind kind = StepKind::kPrefill;
  bool padding = false;  // state slot -1: the row must neither read nor write any state
};

class StepDriver : private RunnerProbe {
 public:
  // Room for `num_sequences` of `max_tokens` tokens each. Throws std::runtime_error when a step fails.
  StepDriver(DeviceRunner* runner, int32_t num_sequences, int32_t max_tokens);
  ~StepDriver() override { runner_->set_probe(nullptr); }

  void set_keep_hidden(bool keep) { keep_hidden_ = keep; }
  // One step; feeds in the order decode, prefill. One output per feed (of an empty feed: nothing).
  std::vector<RowOutput> Step(const std::vector<Feed>& feeds);
  // One sequence: prefill in pieces of these sizes (the rest in pieces of the step budget), or single decode
  // steps.
  RowOutput Prefill(int32_t sequence, std::span<const int32_t> ids, std::span<const int32_t> pieces = {});
  RowOutput Decode(int32_t sequence, int32_t id);

  int32_t num_cached(int32_t sequence) const { return cached_[static_cast<size_t>(sequence)]; }
  // Forgets a sequence; its bytes stay, as after a release.
  void Reset(int32_t sequence) { cached_[static_cast<size_t>(sequence)] = 0; }
  // Recurrent caches of the program, canonical fp32, in layer order.
  std::vector<std::vector<float>> RecurrentStates(int32_t sequence) const;
  // Window [W-1, channels] of one conv cache, widened.
  std::vector<float> ConvState(uint32_t cache, int32_t sequence) const;
  // Every byte of the sequence's state slot: what bit equality compares.
  std::vector<char> StateBytes(int32_t sequence) const;
  // Cache ids of a role (RT_CACHE_*), in program order.
  std::vector<uint32_t> Caches(uint32_t role) const;

 private:
  void OnHidden(int32_t layer, const StepPlan& plan, const float* x, int64_t num_tokens,
                int64_t hidden) override;
  void OnLogits(const StepPlan& plan, const float* logits, int64_t rows, int64_t vocab) override;

  DeviceRunner* runner_;
  std::vector<int32_t> cached_;
  std::vector<std::vector<int32_t>> block_tables_;
  int64_t slot_stride_ = 0;
  uint64_t next_step_id_ = 0;
  bool keep_hidden_ = false;
  std::vector<RowOutput>* outputs_ = nullptr;  // of the step that runs
};

}  // namespace rt::testing
