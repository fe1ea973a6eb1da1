// The engine: one thread that owns all scheduling state, and one that delivers text.
//
//   Submit / Abort ──(mailbox)──► engine thread: plan n+1 → Enqueue(n+1) → Collect(n) → commit n
//   ──(events)──► output thread
//
// Step n+1 is enqueued before the tokens of step n reach the host, so the device never waits for the host;
// what a late token decides (end of sequence, stop, abort) takes effect one step later.
#pragma once

#include "runtime/engine/generation.h"
#include "runtime/engine/output_processor.h"
#include "runtime/engine/scheduler.h"
#include "runtime/engine/step_plan.h"
#include "runtime/engine/text_decoder.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace rt {

struct EngineConfig {
  int64_t cache_bytes = 0;         // of the arena shared by KV blocks and state slots
  int32_t max_sequences = 0;       // running at once; 0: what the runner can
  int32_t max_step_tokens = 0;     // token budget of a step; 0: what the runner can
  int32_t prefill_chunk = 0;       // tokens of one prompt in one step; 0: max_step_tokens
  int32_t max_context_tokens = 0;  // 0: what the runner can
  int32_t max_waiting = 1024;      // sequences in the queue; one more is refused
  std::vector<int32_t> eos_token_ids{};
  bool pipelined = true;  // false: collect each step before the next is planned (for comparison)
  bool check_every_step =
      kAbortOnViolation;  // recount all memory after every step (O(units)); totals are always checked
  StepObserver* observer = nullptr;  // for tests
};

class Engine : public GenerationService {
 public:
  // Plans the arena, binds it to the runner and starts both threads; the engine thread warms the runner up,
  // then Ready. `runner` and `text` (null: token ids only) outlive the engine.
  static Result<std::unique_ptr<Engine>> Create(EngineConfig config, ModelRunner* runner,
                                                TextDecoderFactory* text);
  // Aborts what still runs; every sink has its final delta when this returns.
  ~Engine() override;

  // Blocks until warm-up is done. Its error: the engine refuses all requests with it.
  Status WaitReady();

  Result<SequenceId> Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  void Abort(SequenceId id) override;
  EngineStats Stats() const override;
  bool Ready() const override { return ready_.load(std::memory_order_acquire); }
  void Drain(std::chrono::steady_clock::time_point deadline) override;
  int32_t max_context_tokens() const override { return config_.max_context_tokens; }
  int32_t vocab_size() const override { return vocab_size_; }
  const SlabGeometry& slab_geometry() const { return arena_.geometry(); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Mail {
    std::vector<std::unique_ptr<Sequence>> submitted;
    std::vector<SequenceId> aborted;
    bool abort_all = false;
  };

  // What other threads read; written by the engine thread, relaxed.
  struct SharedStats {
    std::atomic<int64_t> kv_blocks_free{0}, stranded_bytes{0}, state_slots_free{0}, running{0}, waiting{0},
        prompt_tokens{0}, output_tokens{0}, preemptions{0}, violations{0}, builds_after_ready{0}, steps{0},
        overhead_ns{0};
  };

  Engine(EngineConfig config, const SlabGeometry& geometry, ModelRunner* runner, TextDecoderFactory* text);
  std::unique_ptr<Sequence> MakeSequence(GenerationRequest request, std::shared_ptr<GenerationSink> sink,
                                         std::unique_ptr<TextDecoder> decoder);
  // --- engine thread ---
  void Run();
  Status WarmUp();
  bool HasWork() const { return in_flight_ != nullptr || !scheduler_.empty(); }
  // Waits while idle. False: stop. `*waited` tells whether time passed idle.
  bool TakeMail(bool* waited);
  void Deliver(Mail* mail);
  void Step(Clock::time_point begin);
  PlanOutcome PlanNext();
  bool EnqueuePlanned();
  void CollectInFlight(StepBatch* batch);
  void Fatal(const Status& why);
  void FinishStep(Clock::time_point begin);
  // --- output thread ---
  void OnStreamDone();

  EngineConfig config_;
  ModelRunner* runner_;
  TextDecoderFactory* text_;
  int32_t vocab_size_;
  CacheGeometry cache_geometry_;

  // Engine thread only.
  SlabArena arena_;
  BlockPool pool_;
  StateLedger ledger_;
  std::vector<OutputEvent> events_;
  Scheduler scheduler_;
  StepBatch batches_[2];  // by parity of the step id: the one in flight and the one being planned
  StepBatch* in_flight_ = nullptr;
  uint64_t next_step_id_ = 0;
  int64_t runner_ns_ = 0;  // of the current step, inside the runner
  int64_t num_failed_checks_ = 0;
  Mail mail_taken_;

  // Shared.
  mutable std::mutex mutex_;
  std::condition_variable mail_arrived_;
  std::condition_variable progress_;  // ready or failed; all streams done
  Mail mail_;
  bool stopping_ = false;
  bool warmed_up_ = false;
  Status fatal_;
  std::atomic<bool> has_mail_{false};
  std::atomic<bool> ready_{false};
  std::atomic<bool> draining_{false};
  std::atomic<int64_t> num_live_{0};    // streams without their final delta
  std::atomic<int64_t> num_queued_{0};  // submitted, never admitted
  std::atomic<SequenceId> next_id_{1};
  std::atomic<uint64_t> next_seed_;
  SharedStats stats_;

  std::unique_ptr<OutputProcessor> output_;
  std::thread thread_;
};

}  // namespace rt
