// Decides what each step contains and does the bookkeeping of steps: admission, memory, preemption, commits,
// finishing.
//
// Single-threaded and free of any device: the engine asks for a plan, enqueues it, and reports what came
// back. At most one step may be in flight when a plan is made; rows of sequences whose newest token is still
// on the device then refer to it by `pending_row`.
//
// Policy
// - Decode rows first (each 1 token), then chunks of prompts in order of admission, then new admissions in
// order of
//   arrival, within max_step_tokens. No more sequences are admitted than a step has tokens, so every admitted
//   sequence advances in every step in which it has work: no starvation, whatever the budget.
// - Admission takes a state slot and the blocks of all tokens known so far, or nothing; one spare block for
// each running
//   sequence must remain, so that a new one is not preempted at once.
// - A decode row that needs a block when there is none first waits for the step in flight (it may free
// memory), then the
//   latest admitted sequence is preempted: it gives everything back and waits at the head of the queue, to be
//   recomputed from its prompt and generated tokens. Sampling is keyed by (seed, position), so its answer
//   does not change.
// - A request that passes the capacity check of `CheckFits` can always run alone, so the queue's head always
// gets in.
// - A sequence that ends while a later step is in flight keeps its memory until that step is collected; that
// step's token
//   is dropped and its state discarded, never committed.
#pragma once

#include "runtime/cache/block_pool.h"
#include "runtime/cache/slab_arena.h"
#include "runtime/cache/state_ledger.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/step_plan.h"

#include <deque>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace rt {

struct SchedulerConfig {
  int32_t max_sequences = 1;
  int32_t max_step_tokens = 1;
  int32_t prefill_chunk = 1;  // tokens of one sequence in one step
  int32_t max_context_tokens = 1;
  int32_t vocab_size = 1;
};

// A step with its sequences; the plan's row i belongs to sequences[i].
struct StepBatch {
  StepPlan plan;
  std::vector<Sequence*> sequences;
};

// Hook for tests and tracing. Engine thread; must be cheap.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  virtual void OnEnqueue(const StepPlan& /*plan*/) {}
  virtual void OnPreempt(SequenceId /*id*/) {}
  virtual void OnRelease(SequenceId /*id*/) {}  // all memory of a sequence has been given back
  virtual void OnUnit(UnitKind /*kind*/, int32_t /*id*/, bool /*allocated*/) {}
};

enum class PlanOutcome {
  kPlanned,
  kNothing,     // no sequence has work that could be enqueued now
  kDrainFirst,  // memory is short: collect the step in flight, then ask again
};

class Scheduler {
 public:
  struct Counters {
    int64_t prompt_tokens = 0;
    int64_t output_tokens = 0;
    int64_t preemptions = 0;
  };

  // Pointers outlive the scheduler. Finished tokens and endings are appended to `events`.
  Scheduler(const SchedulerConfig& config, SlabArena* arena, BlockPool* pool, StateLedger* ledger,
            std::vector<OutputEvent>* events, StepObserver* observer);

  // InvalidArgument when a sequence of this many cached tokens could never run, even alone.
  static Status CheckFits(const SlabGeometry& geometry, int32_t block_size_tokens, int64_t num_cached_tokens);

  void Add(std::unique_ptr<Sequence> sequence);
  void Abort(SequenceId id);  // unknown ids are ignored
  void FailAll(const Status& why);
  void AbortAll();

  // Fills `batch` with the step `step_id`. `steps_in_flight` is 0 or 1.
  PlanOutcome Plan(uint64_t step_id, int steps_in_flight, StepBatch* batch);
  // The oldest step in flight is done. `output` has one token a sampled row.
  void Complete(StepBatch* batch, StepOutput* output);
  // The oldest step in flight failed (or was never enqueued): its sequences end with `why`.
  void Fail(StepBatch* batch, const Status& why);

  size_t num_running() const { return running_.size(); }
  size_t num_waiting() const { return waiting_.size(); }
  bool empty() const { return sequences_.empty(); }
  const Counters& counters() const { return counters_; }
  // Sequences that left the queue for the first time since the last call.
  int64_t TakeNumDequeued() { return std::exchange(num_dequeued_, 0); }
  // O(1): free + used = total. With `thorough` everything is recounted, including who holds what.
  Status CheckConsistency(bool thorough) const;

 private:
  bool SecureDecodeBlocks(int steps_in_flight);
  bool TryAdmit(Sequence* sequence);
  void AdmitWaiting(int32_t budget, int steps_in_flight);
  void AddDecodeRows(StepBatch* batch);
  void AddPrefillRows(StepBatch* batch);
  bool AddRow(StepBatch* batch, Sequence* sequence, StepKind kind, int32_t num_tokens);
  void FillSampleRow(Sequence* sequence, uint64_t step_id, SampleRow* row);
  void Preempt(Sequence* sequence);
  void AcceptToken(Sequence* sequence, SampledToken* token);
  // Ends the answer: the final event goes out now, memory is released when no step in flight uses it.
  void Retire(Sequence* sequence, FinishReason reason, Status error = Status::Ok());
  void DiscardState(Sequence* sequence, uint64_t step_id);
  bool HoldsSlot(const Sequence& sequence) const;
  Status GiveBackMemory(Sequence* sequence);
  void Release(Sequence* sequence);
  void LeaveQueue(Sequence* sequence);
  static bool WantsDecode(const Sequence& sequence);

  SchedulerConfig config_;
  SlabArena* arena_;
  BlockPool* pool_;
  StateLedger* ledger_;
  std::vector<OutputEvent>* events_;
  StepObserver* observer_;
  std::unordered_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  std::vector<Sequence*> running_;  // in order of admission
  std::deque<Sequence*> waiting_;   // preempted ones first, then in order of arrival
  Counters counters_;
  int64_t num_dequeued_ = 0;
};

}  // namespace rt
