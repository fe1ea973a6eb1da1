// A deterministic model for tests of the engine: the next token is a hash of the sequence's whole token
// history, computed by reading that history back from simulated KV blocks (through the block table) and a
// simulated recurrent state (through the state slot). A wrong block table, a slot used twice, a missing
// reset, a step out of order or a write that should not be there changes tokens or is reported in errors().
// Freed and fresh units are poisoned.
#pragma once

#include "runtime/engine/engine.h"
#include "runtime/engine/step_plan.h"

#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

namespace rt {

struct FakeModel {
  int32_t vocab_size = 1000;
  int32_t eos_id = 7;
  int32_t eos_one_in = 0;  // 0: the model never ends by itself
  bool has_kv = true;
  bool has_state = true;

  // The answer the model gives to a request that runs alone, and why it ends (kStop or kLength).
  std::vector<int32_t> Answer(const GenerationRequest& request, FinishReason* reason = nullptr) const;
};

struct FakeRunnerOptions {
  FakeModel model;
  CacheGeometry geometry{.block_size_tokens = 4, .kv_block_bytes = 256, .state_slot_bytes = 2048};
  RunnerLimits limits{.max_sequences = 16, .max_step_tokens = 256, .max_context_tokens = 4096};
  // A step is computed when it is collected, like on an asynchronous device: its inputs must stay valid until
  // then.
  bool deferred = false;
  // Faults, by step id.
  std::function<Status(const StepPlan&)> fail_enqueue;
  std::function<Status(uint64_t step_id)> fail_collect;
  std::function<void(const StepPlan&, StepOutput*)> edit_output;
  Status fail_warm_up;
};

class FakeModelRunner : public ModelRunner, public StepObserver {
 public:
  explicit FakeModelRunner(FakeRunnerOptions options);

  CacheGeometry cache_geometry() const override { return options_.geometry; }
  RunnerLimits limits() const override { return options_.limits; }
  int32_t vocab_size() const override { return options_.model.vocab_size; }
  Status BindCache(const CacheBinding& binding) override;
  Status Enqueue(const StepPlan& plan) override;
  Result<StepOutput> Collect(uint64_t step_id) override;
  Status CopyStateSlot(int32_t src_slot_id, int32_t dst_slot_id) override;
  Status WarmUp(std::span<const int32_t> scratch_block_ids, int32_t scratch_state_slot_id) override;
  int64_t builds_after_ready() const override { return 0; }

  void OnUnit(UnitKind kind, int32_t id, bool allocated) override;
  void OnPreempt(SequenceId id) override;
  void OnRelease(SequenceId id) override;

  const FakeModel& model() const { return options_.model; }
  // Below: engine thread, or after the engine is gone.
  const std::vector<std::string>& errors() const { return errors_; }
  const std::string& calls() const { return calls_; }  // 'E' and 'C' in order
  int64_t num_rows() const { return num_rows_; }
  int64_t num_mixed_steps() const { return num_mixed_steps_; }  // decode and prefill rows together
  int64_t num_pending_rows() const { return num_pending_rows_; }
  int32_t most_step_tokens() const { return most_step_tokens_; }
  int32_t most_sequences() const { return most_sequences_; }
  int64_t num_preempted() const { return num_preempted_; }
  int64_t num_released() const { return num_released_; }

 private:
  struct KvEntry {
    int32_t token = -1;
    int32_t position = -1;
  };
  struct State {
    uint64_t hash = 0;
    int64_t num_tokens = -1;
  };

  void Error(uint64_t step_id, const std::string& what);
  void CheckPlan(const StepPlan& plan);
  void CheckRow(const StepPlan& plan, const StepSequence& row);
  StepOutput Compute(const StepPlan& plan);
  void ComputeRow(const StepPlan& plan, const StepSequence& row, StepOutput* output);
  int32_t InputToken(const StepPlan& plan, const StepSequence& row, int32_t i);
  int32_t PendingToken(const StepPlan& plan, int32_t pending_row);
  uint64_t ReadBackKv(const StepPlan& plan, const StepSequence& row);

  FakeRunnerOptions options_;
  std::vector<KvEntry> kv_;      // [max blocks, block_size]
  std::vector<State> states_;    // [max slots]
  std::deque<StepPlan> queued_;  // deferred: not computed yet
  std::deque<StepOutput> done_;  // computed, not collected
  uint64_t next_step_id_ = 0;
  uint64_t next_collect_id_ = 0;
  StepOutput previous_;  // of the newest computed step
  bool warmed_up_ = false;
  std::vector<std::string> errors_;
  std::string calls_;
  int64_t num_rows_ = 0, num_mixed_steps_ = 0, num_pending_rows_ = 0, num_preempted_ = 0, num_released_ = 0;
  int32_t most_step_tokens_ = 0, most_sequences_ = 0;
};

}  // namespace rt
