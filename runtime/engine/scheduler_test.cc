// The scheduler without threads or a device: order of service, preemption, and what a broken invariant costs.
#include "runtime/engine/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace rt {
namespace {

// A slab is one state slot or 4 blocks of 4 tokens.
SlabGeometry Geometry(int32_t num_slabs) {
  SlabGeometry g;
  g.unit_bytes = {256, 1024};
  g.stride_bytes = {256, 1024};
  g.units_per_slab = {4, 1};
  g.slab_bytes = 1024;
  g.num_slabs = num_slabs;
  return g;
}

class SchedulerTest : public ::testing::Test, public StepObserver {
 protected:
  void Make(int32_t num_slabs, SchedulerConfig config = {8, 64, 64, 1000, 100}) {
    arena_ = std::make_unique<SlabArena>(Geometry(num_slabs));
    pool_ = std::make_unique<BlockPool>(arena_.get(), 4);
    ledger_ = std::make_unique<StateLedger>(arena_.get(), /*abort_on_violation=*/false);
    scheduler_ =
        std::make_unique<Scheduler>(config, arena_.get(), pool_.get(), ledger_.get(), &events_, this);
  }
  Sequence* Add(SequenceId id, int32_t num_prompt, int32_t max_tokens) {
    auto sequence = std::make_unique<Sequence>(pool_.get());
    sequence->id = id;
    sequence->output = std::make_shared<OutputStream>();
    sequence->output->id = id;
    sequence->tokens.assign(static_cast<size_t>(num_prompt), 1);
    sequence->num_prompt_tokens = num_prompt;
    sequence->max_total_tokens = num_prompt + max_tokens;
    sequence->tokens.reserve(static_cast<size_t>(sequence->max_total_tokens));
    Sequence* raw = sequence.get();
    scheduler_->Add(std::move(sequence));
    return raw;
  }
  // Plans and completes one step; every row draws token 2. Returns (id, kind, num_tokens) of its rows.
  std::vector<std::tuple<SequenceId, StepKind, int32_t>> Step() {
    StepBatch batch;
    const PlanOutcome outcome = scheduler_->Plan(step_++, 0, &batch);
    std::vector<std::tuple<SequenceId, StepKind, int32_t>> rows;
    for (const StepSequence& row : batch.plan.sequences) rows.push_back({row.id, row.kind, row.num_tokens});
    EXPECT_EQ(outcome == PlanOutcome::kPlanned, !rows.empty());
    StepOutput output;
    output.tokens.resize(static_cast<size_t>(batch.plan.num_sampled_rows), SampledToken{2, 0.0f, {}, false});
    scheduler_->Complete(&batch, &output);
    const Status status = scheduler_->CheckConsistency(/*thorough=*/true);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return rows;
  }
  const OutputEvent* EndOf(SequenceId id) const {
    for (const OutputEvent& event : events_)
      if (event.finish && event.last && event.last->id == id) return &event;
    return nullptr;
  }
  void OnPreempt(SequenceId id) override { preempted_.push_back(id); }

  using Rows = std::vector<std::tuple<SequenceId, StepKind, int32_t>>;
  std::unique_ptr<SlabArena> arena_;
  std::unique_ptr<BlockPool> pool_;
  std::unique_ptr<StateLedger> ledger_;
  std::vector<OutputEvent> events_;
  std::unique_ptr<Scheduler> scheduler_;
  std::vector<SequenceId> preempted_;
  uint64_t step_ = 0;
};

TEST_F(SchedulerTest, DecodeRowsComeFirstThenChunksInOrderOfArrivalWithinTheBudget) {
  Make(40, {8, 10, 6, 1000, 100});
  Add(1, 2, 20);
  Add(2, 9, 20);
  Add(3, 9, 20);
  EXPECT_EQ(Step(),
            (Rows{{1, StepKind::kPrefill, 2}, {2, StepKind::kPrefill, 6}, {3, StepKind::kPrefill, 2}}));
  EXPECT_EQ(Step(),
            (Rows{{1, StepKind::kDecode, 1}, {2, StepKind::kPrefill, 3}, {3, StepKind::kPrefill, 6}}));
  EXPECT_EQ(Step(), (Rows{{1, StepKind::kDecode, 1}, {2, StepKind::kDecode, 1}, {3, StepKind::kPrefill, 1}}));
}

TEST_F(SchedulerTest, NoMoreSequencesRunThanAStepHasTokens) {
  Make(40, {8, 2, 2, 1000, 100});
  for (SequenceId id = 1; id <= 4; ++id) Add(id, 3, 5);
  for (int i = 0; i < 6; ++i) EXPECT_LE(Step().size(), 2u);
  EXPECT_LE(scheduler_->num_running(), 2u);
}

TEST_F(SchedulerTest, TheLatestAdmittedIsPreemptedAndResumesBeforeNewArrivals) {
  Make(7);  // 3 slots beside 4 slabs = 16 blocks
  for (SequenceId id = 1; id <= 3; ++id) Add(id, 12, 20);
  Add(4, 4, 4);
  EXPECT_EQ(Step().size(), 3u);
  while (preempted_.empty()) Step();
  EXPECT_EQ(preempted_[0], 3u);
  // Until 1 and 2 leave there is no room; then 3 computes its prompt and all it had generated before anything
  // of 4.
  int32_t recomputed = 0;
  for (int i = 0; i < 100 && recomputed == 0; ++i) {
    for (const auto& [id, kind, n] : Step()) {
      if (id == 3 && kind == StepKind::kPrefill) recomputed = n;
      ASSERT_TRUE(id != 4 || recomputed > 0) << "a later arrival overtook a preempted one";
    }
  }
  EXPECT_GT(recomputed, 12);
  for (int i = 0; i < 100 && !scheduler_->empty(); ++i) Step();
  for (SequenceId id = 1; id <= 4; ++id) {
    ASSERT_NE(EndOf(id), nullptr);
    EXPECT_EQ(*EndOf(id)->finish, FinishReason::kLength);
  }
  EXPECT_EQ(arena_->num_empty_slabs(), 7);
}

TEST_F(SchedulerTest, WithAStepInFlightMemoryShortageAsksToCollectFirst) {
  Make(4);  // two slots, 8 blocks: full when both have 16 tokens
  Add(1, 15, 40);
  Add(2, 15, 40);
  EXPECT_EQ(Step().size(), 1u) << "one spare block for each that runs";
  EXPECT_TRUE(preempted_.empty());
  Make(5);
  Add(1, 15, 20);
  Add(2, 15, 20);
  EXPECT_EQ(Step().size(), 2u);
  StepBatch batch;
  PlanOutcome outcome = PlanOutcome::kPlanned;
  for (int i = 0; i < 40 && outcome == PlanOutcome::kPlanned; ++i) {
    outcome = scheduler_->Plan(step_, 1, &batch);
    if (outcome != PlanOutcome::kPlanned) break;
    StepOutput output;
    output.tokens.resize(static_cast<size_t>(batch.plan.num_sampled_rows), SampledToken{2, 0.0f, {}, false});
    scheduler_->Complete(&batch, &output);
    ++step_;
  }
  EXPECT_EQ(outcome, PlanOutcome::kDrainFirst);
  EXPECT_TRUE(preempted_.empty());
  EXPECT_FALSE(Step().empty());
  EXPECT_EQ(preempted_, (std::vector<SequenceId>{2}));
}

TEST_F(SchedulerTest, ABrokenInvariantFailsThatRequestAloneAndItsSlotIsNeverUsedAgain) {
  Make(12);
  Sequence* victim = Add(1, 4, 20);
  Add(2, 4, 20);
  Step();
  // Somebody writes behind the scheduler's back: the positions no longer agree.
  const int32_t slot_id = victim->state_slot_id;
  ASSERT_TRUE(ledger_->BeginWrite(slot_id, 1, step_, 4, 1).ok());
  ASSERT_TRUE(ledger_->Commit(slot_id, 1, step_, 1).ok());
  ++step_;
  EXPECT_EQ(Step(), (Rows{{2, StepKind::kDecode, 1}}));
  ASSERT_NE(EndOf(1), nullptr);
  EXPECT_EQ(*EndOf(1)->finish, FinishReason::kError);
  EXPECT_EQ(EndOf(1)->error.code(), Code::kInternal);
  EXPECT_EQ(ledger_->num_violations(), 1);
  EXPECT_EQ(ledger_->owner_kind(slot_id), SlotOwner::kQuarantined);
  for (SequenceId id = 3; id < 9; ++id) {
    const Sequence* next = Add(id, 1, 1);
    StepBatch batch;
    ASSERT_EQ(scheduler_->Plan(step_++, 0, &batch), PlanOutcome::kPlanned);
    EXPECT_NE(next->state_slot_id, slot_id);
    StepOutput output;
    output.tokens.resize(static_cast<size_t>(batch.plan.num_sampled_rows), SampledToken{2, 0.0f, {}, false});
    scheduler_->Complete(&batch, &output);
  }
  EXPECT_EQ(ledger_->num_violations(), 1);
}

TEST_F(SchedulerTest, ARequestThatTheRemainingMemoryCannotHoldEndsWithAnErrorInsteadOfWaitingForEver) {
  Make(3);
  const auto lost = ledger_->Reserve(99);  // as if quarantined: never given back
  ASSERT_TRUE(lost.ok());
  ASSERT_TRUE(Scheduler::CheckFits(arena_->geometry(), 4, 30).ok()) << "fits on paper";
  Add(1, 30, 1);
  Add(2, 8, 2);
  StepBatch batch;
  EXPECT_EQ(scheduler_->Plan(0, 0, &batch), PlanOutcome::kPlanned);
  ASSERT_NE(EndOf(1), nullptr);
  EXPECT_EQ(EndOf(1)->error.code(), Code::kResourceExhausted);
  ASSERT_EQ(batch.plan.sequences.size(), 1u);
  EXPECT_EQ(batch.plan.sequences[0].id, 2u);
}

TEST_F(SchedulerTest, AnAbortedSequenceInFlightKeepsItsMemoryUntilTheStepIsCollected) {
  Make(12);
  Sequence* sequence = Add(1, 4, 20);
  StepBatch batch;
  ASSERT_EQ(scheduler_->Plan(0, 0, &batch), PlanOutcome::kPlanned);
  const int32_t slot_id = sequence->state_slot_id;
  scheduler_->Abort(1);
  ASSERT_NE(EndOf(1), nullptr) << "the client hears at once";
  EXPECT_EQ(ledger_->owner_kind(slot_id), SlotOwner::kSequence);
  EXPECT_EQ(pool_->num_used(), 1);
  StepOutput output;
  output.tokens.resize(1);
  scheduler_->Complete(&batch, &output);
  EXPECT_EQ(ledger_->committed_tokens(slot_id), 0) << "its tokens are never committed";
  EXPECT_EQ(arena_->num_empty_slabs(), 12);
  EXPECT_TRUE(scheduler_->empty());
  EXPECT_EQ(events_.size(), 1u) << "the token drawn too many is dropped";
}

}  // namespace
}  // namespace rt
