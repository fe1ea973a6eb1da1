#include "runtime/engine/scheduler.h"

#include <algorithm>
#include <string>
#include <utility>

namespace rt {

Scheduler::Scheduler(const SchedulerConfig& config, SlabArena* arena, BlockPool* pool, StateLedger* ledger,
                     std::vector<OutputEvent>* events, StepObserver* observer)
    : config_(config), arena_(arena), pool_(pool), ledger_(ledger), events_(events), observer_(observer) {
  // An admitted sequence has work in every step, so admitting more than a step has tokens would starve some.
  config_.max_sequences = std::min(config_.max_sequences, config_.max_step_tokens);
}

Status Scheduler::CheckFits(const SlabGeometry& geometry, int32_t block_size_tokens,
                            int64_t num_cached_tokens) {
  const int64_t blocks_per_slab = geometry.per_slab(UnitKind::kKvBlock);
  if (blocks_per_slab == 0) return Status::Ok();
  // The worst case of a sequence that runs alone: one slab serves its state slot, all others are free for its
  // blocks.
  const int64_t kv_slabs = geometry.num_slabs - (geometry.per_slab(UnitKind::kStateSlot) > 0 ? 1 : 0);
  const int64_t room = kv_slabs * blocks_per_slab * block_size_tokens;
  if (num_cached_tokens <= room) return Status::Ok();
  return {Code::kInvalidArgument, "prompt + max_tokens: the cache memory holds " + std::to_string(room) +
                                      " tokens of one sequence, " + std::to_string(num_cached_tokens) +
                                      " are needed"};
}

void Scheduler::Add(std::unique_ptr<Sequence> sequence) {
  Sequence* s = sequence.get();
  sequences_.emplace(s->id, std::move(sequence));
  waiting_.push_back(s);
}

void Scheduler::Abort(SequenceId id) {
  const auto found = sequences_.find(id);
  if (found != sequences_.end()) Retire(found->second.get(), FinishReason::kAbort);
}

void Scheduler::AbortAll() {
  while (!waiting_.empty()) Retire(waiting_.back(), FinishReason::kAbort);
  while (!running_.empty()) Retire(running_.back(), FinishReason::kAbort);
}

void Scheduler::FailAll(const Status& why) {
  while (!waiting_.empty()) Retire(waiting_.back(), FinishReason::kError, why);
  while (!running_.empty()) Retire(running_.back(), FinishReason::kError, why);
}

// ---- planning ----

// Past its prompt, and its newest token (known or pending) is not the last one it may have.
bool Scheduler::WantsDecode(const Sequence& sequence) {
  return !sequence.is_prefilling() && sequence.num_known_or_pending() < sequence.max_total_tokens;
}

PlanOutcome Scheduler::Plan(uint64_t step_id, int steps_in_flight, StepBatch* batch) {
  batch->plan.step_id = step_id;
  batch->plan.sequences.clear();
  batch->plan.num_tokens = 0;
  batch->plan.num_sampled_rows = 0;
  batch->sequences.clear();
  const int64_t preemptions_before = counters_.preemptions;
  if (!SecureDecodeBlocks(steps_in_flight)) return PlanOutcome::kDrainFirst;
  AddDecodeRows(batch);
  // A step that had to preempt admits nobody: the memory just freed belongs to those who asked for it.
  if (counters_.preemptions == preemptions_before && !waiting_.empty())
    AdmitWaiting(config_.max_step_tokens - batch->plan.num_tokens, steps_in_flight);
  AddPrefillRows(batch);
  return batch->sequences.empty() ? PlanOutcome::kNothing : PlanOutcome::kPlanned;
}

// Gives each decode row the block its token goes to; preempts from the back. False: collect the step in
// flight first.
bool Scheduler::SecureDecodeBlocks(int steps_in_flight) {
  for (size_t i = 0; i < running_.size(); ++i) {
    Sequence* sequence = running_[i];
    if (!WantsDecode(*sequence)) continue;
    while (!sequence->blocks.Grow(sequence->num_written_tokens + 1)) {
      if (steps_in_flight > 0) return false;
      Sequence* victim = running_.back();
      const bool gives_up = victim == sequence;  // it is the last one
      Preempt(victim);
      if (gives_up) return true;
    }
  }
  return true;
}

void Scheduler::AddDecodeRows(StepBatch* batch) {
  for (size_t i = 0; i < running_.size();) {
    Sequence* sequence = running_[i];
    // A row that fails its ledger check leaves `running_`, then the next one has moved here.
    if (!WantsDecode(*sequence) || AddRow(batch, sequence, StepKind::kDecode, 1)) ++i;
  }
}

void Scheduler::AddPrefillRows(StepBatch* batch) {
  for (size_t i = 0; i < running_.size();) {
    Sequence* sequence = running_[i];
    const int32_t budget = config_.max_step_tokens - batch->plan.num_tokens;
    if (budget <= 0) return;
    const int32_t left = sequence->prefill_target - sequence->num_written_tokens;
    const int32_t chunk = std::min({left, budget, config_.prefill_chunk});
    if (chunk <= 0 || AddRow(batch, sequence, StepKind::kPrefill, chunk)) ++i;
  }
}

void Scheduler::AdmitWaiting(int32_t budget, int steps_in_flight) {
  // Chunks of those already prefilling come first and may use the budget up.
  for (const Sequence* sequence : running_) {
    if (sequence->is_prefilling())
      budget -= std::min(sequence->prefill_target - sequence->num_written_tokens, config_.prefill_chunk);
  }
  while (budget > 0 && !waiting_.empty() && static_cast<int32_t>(running_.size()) < config_.max_sequences) {
    Sequence* sequence = waiting_.front();
    if (!TryAdmit(sequence)) {
      // Nothing runs, nothing will be freed, and still no room (slots lost to quarantine): waiting on would
      // be forever.
      const bool hopeless = running_.empty() && steps_in_flight == 0;
      if (!hopeless) return;
      Retire(sequence, FinishReason::kError,
             Status(Code::kResourceExhausted, "the cache memory left cannot hold this sequence even alone"));
      continue;
    }
    waiting_.pop_front();
    running_.push_back(sequence);
    LeaveQueue(sequence);
    budget -= std::min(sequence->prefill_target, config_.prefill_chunk);
  }
}

bool Scheduler::TryAdmit(Sequence* sequence) {
  const int32_t num_tokens = static_cast<int32_t>(sequence->tokens.size());
  // Room for the first decode token too, unless there will be none.
  const int64_t wanted_tokens = std::min(num_tokens + 1, sequence->max_total_tokens - 1);
  const int64_t spare = static_cast<int64_t>(running_.size());
  if (pool_->has_blocks() && pool_->BlocksFor(wanted_tokens) + spare > pool_->num_available()) return false;
  if (ledger_->has_slots()) {
    const Result<int32_t> slot_id = ledger_->Reserve(sequence->id);
    if (!slot_id.ok()) return false;
    sequence->state_slot_id = *slot_id;
  }
  // The slot may have taken a slab that the blocks needed.
  const bool has_room =
      !pool_->has_blocks() || pool_->BlocksFor(wanted_tokens) + spare <= pool_->num_available();
  if (!has_room || !sequence->blocks.Grow(num_tokens)) {
    (void)GiveBackMemory(sequence);
    return false;
  }
  sequence->phase = SequencePhase::kRunning;
  sequence->prefill_target = num_tokens;
  sequence->num_written_tokens = 0;
  return true;
}

void Scheduler::LeaveQueue(Sequence* sequence) {
  if (std::exchange(sequence->was_admitted, true)) return;
  ++num_dequeued_;
}

// False: the ledger refused the write and the sequence is gone from `running_`.
bool Scheduler::AddRow(StepBatch* batch, Sequence* sequence, StepKind kind, int32_t num_tokens) {
  StepPlan& plan = batch->plan;
  if (sequence->state_slot_id >= 0) {
    const Result<bool> has_state = ledger_->BeginWrite(sequence->state_slot_id, sequence->id, plan.step_id,
                                                       sequence->num_written_tokens, num_tokens);
    if (!has_state.ok()) {
      Retire(sequence, FinishReason::kError, has_state.status());
      return false;
    }
  }
  StepSequence& row = plan.sequences.emplace_back();
  row.id = sequence->id;
  row.kind = kind;
  row.num_tokens = num_tokens;
  row.num_cached_tokens = sequence->num_written_tokens;
  row.block_table = sequence->blocks.ids();
  row.state_slot_id = sequence->state_slot_id;
  row.has_initial_state = sequence->num_written_tokens > 0;
  if (kind == StepKind::kDecode && sequence->num_pending_tokens > 0) {
    row.pending_row = sequence->pending_row;
  } else {
    row.token_ids = std::span(sequence->tokens)
                        .subspan(static_cast<size_t>(row.num_cached_tokens), static_cast<size_t>(num_tokens));
  }
  sequence->num_written_tokens += num_tokens;
  row.samples = !sequence->is_prefilling();
  if (row.samples) {
    FillSampleRow(sequence, plan.step_id, &row.sample);
    sequence->pending_row = plan.num_sampled_rows++;
    ++sequence->num_pending_tokens;
  }
  plan.num_tokens += num_tokens;
  ++sequence->num_steps_in_flight;
  batch->sequences.push_back(sequence);
  const int32_t prompt_done = std::min(sequence->num_written_tokens, sequence->num_prompt_tokens);
  if (prompt_done > sequence->num_counted_prompt_tokens) {
    counters_.prompt_tokens += prompt_done - sequence->num_counted_prompt_tokens;
    sequence->num_counted_prompt_tokens = prompt_done;
  }
  return true;
}

void Scheduler::FillSampleRow(Sequence* sequence, uint64_t step_id, SampleRow* row) {
  const int32_t num_tokens = sequence->num_known_or_pending();
  row->params = &sequence->sampling;
  row->seed = sequence->seed;
  row->position = static_cast<uint64_t>(num_tokens);
  row->pending_row = sequence->num_pending_tokens > 0 ? sequence->pending_row : -1;
  if (num_tokens - sequence->num_prompt_tokens < sequence->stop.min_tokens)
    row->banned_ids = sequence->stop_ids;
  if (sequence->has_penalties) {
    const TokenHistory::View view =
        sequence->history.At(step_id, sequence->tokens, sequence->num_prompt_tokens);
    row->history_ids = view.ids;
    row->history_output_counts = view.output_counts;
    row->history_in_prompt = view.in_prompt;
  }
}

void Scheduler::Preempt(Sequence* sequence) {
  ++counters_.preemptions;
  std::erase(running_, sequence);
  const Status status = GiveBackMemory(sequence);
  sequence->num_written_tokens = 0;
  sequence->prefill_target = 0;
  sequence->phase = SequencePhase::kWaiting;
  waiting_.push_front(sequence);
  if (observer_) observer_->OnPreempt(sequence->id);
  if (!status.ok()) Retire(sequence, FinishReason::kError, status);
}

// ---- what came back ----

void Scheduler::Complete(StepBatch* batch, StepOutput* output) {
  size_t sampled_row = 0;
  for (size_t i = 0; i < batch->sequences.size(); ++i) {
    Sequence* sequence = batch->sequences[i];
    const StepSequence& row = batch->plan.sequences[i];
    SampledToken* token = row.samples ? &output->tokens[sampled_row++] : nullptr;
    --sequence->num_steps_in_flight;
    if (token) --sequence->num_pending_tokens;
    if (sequence->phase == SequencePhase::kFinishing) {
      DiscardState(sequence, batch->plan.step_id);
      if (sequence->num_steps_in_flight == 0) Release(sequence);
      continue;
    }
    if (sequence->state_slot_id >= 0) {
      const Status status =
          ledger_->Commit(sequence->state_slot_id, sequence->id, batch->plan.step_id, row.num_tokens);
      if (!status.ok()) {
        Retire(sequence, FinishReason::kError, status);
        continue;
      }
    }
    if (token) AcceptToken(sequence, token);
  }
}

void Scheduler::Fail(StepBatch* batch, const Status& why) {
  for (size_t i = 0; i < batch->sequences.size(); ++i) {
    Sequence* sequence = batch->sequences[i];
    --sequence->num_steps_in_flight;
    if (batch->plan.sequences[i].samples) --sequence->num_pending_tokens;
    DiscardState(sequence, batch->plan.step_id);
    if (sequence->phase != SequencePhase::kFinishing) {
      Retire(sequence, FinishReason::kError, why);
    } else if (sequence->num_steps_in_flight == 0) {
      Release(sequence);
    }
  }
}

// A violation is counted by the ledger and quarantines the slot; the sequence is ending already.
void Scheduler::DiscardState(Sequence* sequence, uint64_t step_id) {
  if (HoldsSlot(*sequence)) (void)ledger_->Discard(sequence->state_slot_id, sequence->id, step_id);
}

bool Scheduler::HoldsSlot(const Sequence& sequence) const {
  return sequence.state_slot_id >= 0 && ledger_->owner_kind(sequence.state_slot_id) == SlotOwner::kSequence;
}

void Scheduler::AcceptToken(Sequence* sequence, SampledToken* token) {
  if (token->bad_logits) {
    Retire(sequence, FinishReason::kError,
           Status(Code::kInternal, "the logits at position " + std::to_string(sequence->tokens.size()) +
                                       " hold NaN or leave no token to sample"));
    return;
  }
  if (token->token_id < 0 || token->token_id >= config_.vocab_size) {
    Retire(
        sequence, FinishReason::kError,
        Status(Code::kInternal, "sampled token: expected an id below " + std::to_string(config_.vocab_size) +
                                    ", got " + std::to_string(token->token_id)));
    return;
  }
  ++counters_.output_tokens;
  sequence->tokens.push_back(token->token_id);
  const int32_t num_outputs = static_cast<int32_t>(sequence->tokens.size()) - sequence->num_prompt_tokens;
  const bool is_stop = num_outputs > sequence->stop.min_tokens &&
                       std::find(sequence->stop_ids.begin(), sequence->stop_ids.end(), token->token_id) !=
                           sequence->stop_ids.end();
  OutputEvent& event = events_->emplace_back();
  event.stream = sequence->output.get();
  event.token_id = token->token_id;
  event.is_stop_token = is_stop;
  event.logprob = token->logprob;
  event.top = std::move(token->top);
  if (is_stop) {
    Retire(sequence, FinishReason::kStop);
  } else if (static_cast<int32_t>(sequence->tokens.size()) == sequence->max_total_tokens) {
    Retire(sequence, FinishReason::kLength);
  }
}

// ---- endings ----

void Scheduler::Retire(Sequence* sequence, FinishReason reason, Status error) {
  if (sequence->phase == SequencePhase::kFinishing) return;
  if (sequence->phase == SequencePhase::kWaiting) {
    std::erase(waiting_, sequence);
    LeaveQueue(sequence);
  } else {
    std::erase(running_, sequence);
  }
  sequence->phase = SequencePhase::kFinishing;
  // The ending of a token that was just accepted travels with it; any other ending is an event of its own.
  const bool joins_token = !events_->empty() && events_->back().stream == sequence->output.get() &&
                           events_->back().token_id >= 0 &&
                           (reason == FinishReason::kStop || reason == FinishReason::kLength);
  OutputEvent& event = joins_token ? events_->back() : events_->emplace_back();
  event.stream = sequence->output.get();
  event.finish = reason;
  event.error = std::move(error);
  event.last = std::move(sequence->output);
  if (sequence->num_steps_in_flight == 0) Release(sequence);
}

Status Scheduler::GiveBackMemory(Sequence* sequence) {
  Status status = sequence->blocks.Clear();
  if (HoldsSlot(*sequence)) {  // a quarantined slot is the ledger's: it stays out of use
    const Status released = ledger_->Release(sequence->state_slot_id, sequence->id);
    if (status.ok()) status = released;
  }
  sequence->state_slot_id = -1;
  return status;
}

void Scheduler::Release(Sequence* sequence) {
  (void)GiveBackMemory(sequence);  // violations are counted by the ledger; the request has ended already
  const SequenceId id = sequence->id;
  sequences_.erase(id);
  if (observer_) observer_->OnRelease(id);
}

Status Scheduler::CheckConsistency(bool thorough) const {
  RT_RETURN_IF_ERROR(arena_->CheckTotals());
  RT_RETURN_IF_ERROR(ledger_->CheckTotals());
  if (!thorough) return Status::Ok();
  RT_RETURN_IF_ERROR(arena_->CheckConsistency());
  RT_RETURN_IF_ERROR(pool_->CheckConsistency());
  RT_RETURN_IF_ERROR(ledger_->CheckConsistency());
  int64_t blocks = 0;
  int64_t slots = 0;
  for (const auto& [id, sequence] : sequences_) {
    blocks += static_cast<int64_t>(sequence->blocks.ids().size());
    slots += HoldsSlot(*sequence) ? 1 : 0;
  }
  if (blocks != pool_->num_used() || slots != ledger_->num_slots(SlotOwner::kSequence))
    return {Code::kInternal, "scheduler: sequences hold " + std::to_string(blocks) + " blocks and " +
                                 std::to_string(slots) + " state slots, in use are " +
                                 std::to_string(pool_->num_used()) + " and " +
                                 std::to_string(ledger_->num_slots(SlotOwner::kSequence))};
  return Status::Ok();
}

}  // namespace rt
