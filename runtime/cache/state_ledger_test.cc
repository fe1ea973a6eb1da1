#include "runtime/cache/state_ledger.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <random>

namespace rt {
namespace {

SlabGeometry Geometry(int32_t num_slots) {
  SlabGeometry g;
  g.unit_bytes = {256, 512};
  g.stride_bytes = {256, 512};
  g.units_per_slab = {4, 2};
  g.slab_bytes = 1024;
  g.num_slabs = num_slots / 2;
  return g;
}

class StateLedgerTest : public ::testing::Test {
 protected:
  StateLedgerTest() : arena_(Geometry(4)), ledger_(&arena_, /*abort_on_violation=*/false) {}
  ~StateLedgerTest() override {
    const Status status = ledger_.CheckConsistency();
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  SlabArena arena_;
  StateLedger ledger_;
};

TEST_F(StateLedgerTest, AFreshSlotStartsWithoutInitialStateAndContinuesWithOne) {
  const int32_t slot = ledger_.Reserve(1).value();
  EXPECT_FALSE(ledger_.BeginWrite(slot, 1, 10, 0, 5).value());
  EXPECT_TRUE(ledger_.BeginWrite(slot, 1, 11, 5, 1).value());
  EXPECT_EQ(ledger_.written_tokens(slot), 6);
  EXPECT_EQ(ledger_.committed_tokens(slot), 0);
  EXPECT_TRUE(ledger_.Commit(slot, 1, 10, 5).ok());
  EXPECT_EQ(ledger_.committed_tokens(slot), 5);
  EXPECT_TRUE(ledger_.Commit(slot, 1, 11, 1).ok());
  EXPECT_TRUE(ledger_.Release(slot, 1).ok());
  EXPECT_EQ(ledger_.num_violations(), 0);
}

TEST_F(StateLedgerTest, RunningOutOfSlotsIsNotAViolation) {
  for (uint64_t id = 0; id < 4; ++id) ASSERT_TRUE(ledger_.Reserve(id).ok());
  EXPECT_EQ(ledger_.Reserve(9).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(ledger_.num_violations(), 0);
}

TEST_F(StateLedgerTest, AReusedSlotForgetsItsFormerOwner) {
  const int32_t slot = ledger_.Reserve(1).value();
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 1, 0, 9).ok());
  ASSERT_TRUE(ledger_.Commit(slot, 1, 1, 9).ok());
  ASSERT_TRUE(ledger_.Release(slot, 1).ok());
  ASSERT_EQ(ledger_.Reserve(2).value(), slot);
  EXPECT_FALSE(ledger_.BeginWrite(slot, 2, 2, 0, 1).value());
  EXPECT_EQ(ledger_.BeginWrite(slot, 1, 3, 1, 1).status().code(), Code::kInternal);
  EXPECT_EQ(ledger_.owner_kind(slot), SlotOwner::kSequence)
      << "a stranger's call must not quarantine the slot";
}

TEST_F(StateLedgerTest, ADiscardedTokenIsNeverCommittedAndSpoilsTheState) {
  const int32_t slot = ledger_.Reserve(1).value();
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 1, 0, 3).ok());
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 2, 3, 1).ok());
  ASSERT_TRUE(ledger_.Commit(slot, 1, 1, 3).ok());
  ASSERT_TRUE(ledger_.Discard(slot, 1, 2).ok());
  EXPECT_EQ(ledger_.committed_tokens(slot), 3);
  EXPECT_EQ(ledger_.BeginWrite(slot, 1, 3, 4, 1).status().code(), Code::kInternal);
  EXPECT_EQ(ledger_.num_violations(), 1);
  EXPECT_EQ(ledger_.owner_kind(slot), SlotOwner::kQuarantined);
}

TEST_F(StateLedgerTest, RollbackOfASpoiledStateStartsAgainAtZero) {
  const int32_t slot = ledger_.Reserve(1).value();
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 1, 0, 3).ok());
  ASSERT_TRUE(ledger_.Discard(slot, 1, 1).ok());
  ASSERT_TRUE(ledger_.Rollback(slot, 1).ok());
  EXPECT_FALSE(ledger_.BeginWrite(slot, 1, 2, 0, 3).value());
  ASSERT_TRUE(ledger_.Commit(slot, 1, 2, 3).ok());
  EXPECT_EQ(ledger_.num_violations(), 0);
}

TEST_F(StateLedgerTest, APartlyAcceptedVerifyStepNeedsARestore) {
  const int32_t slot = ledger_.Reserve(1).value();
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 1, 0, 8).ok());
  ASSERT_TRUE(ledger_.Commit(slot, 1, 1, 8).ok());
  const SnapshotResult snapshot = ledger_.Snapshot(slot, 1).value();
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 2, 8, 4).ok());
  ASSERT_TRUE(ledger_.Commit(slot, 1, 2, 2).ok());
  EXPECT_EQ(ledger_.committed_tokens(slot), 10);
  ASSERT_TRUE(ledger_.Lock(snapshot.handle).ok());
  const StateCopy copy = ledger_.Restore(snapshot.handle, slot, 1).value();
  EXPECT_EQ(copy.src_slot_id, snapshot.handle.state_slot_id);
  EXPECT_EQ(copy.dst_slot_id, slot);
  EXPECT_EQ(copy.position_tokens, 8);
  EXPECT_TRUE(ledger_.BeginWrite(slot, 1, 3, 8, 2).value());
  EXPECT_EQ(ledger_.num_violations(), 0);
}

TEST_F(StateLedgerTest, ASnapshotIsVisibleOnlyAfterItsProducingStepIsCommitted) {
  const int32_t slot = ledger_.Reserve(1).value();
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 1, 0, 4).ok());
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 2, 4, 1).ok());
  const SnapshotResult snapshot = ledger_.Snapshot(slot, 1).value();
  EXPECT_EQ(snapshot.copy.position_tokens, 5);
  ASSERT_TRUE(ledger_.Commit(slot, 1, 1, 4).ok());
  EXPECT_EQ(ledger_.Lock(snapshot.handle).code(), Code::kFailedPrecondition);
  ASSERT_TRUE(ledger_.Commit(slot, 1, 2, 1).ok());
  EXPECT_TRUE(ledger_.IsVisible(snapshot.handle));
  EXPECT_TRUE(ledger_.Lock(snapshot.handle).ok());
}

TEST_F(StateLedgerTest, ASnapshotOfDiscardedTokensIsNeverVisible) {
  const int32_t slot = ledger_.Reserve(1).value();
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 1, 0, 4).ok());
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 2, 4, 1).ok());
  const SnapshotResult snapshot = ledger_.Snapshot(slot, 1).value();
  ASSERT_TRUE(ledger_.Discard(slot, 1, 1).ok());
  EXPECT_EQ(ledger_.Lock(snapshot.handle).code(), Code::kFailedPrecondition);
  ASSERT_TRUE(ledger_.Discard(slot, 1, 2).ok());
  EXPECT_EQ(ledger_.Lock(snapshot.handle).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(ledger_.ReleaseSnapshot(snapshot.handle).ok());
}

TEST_F(StateLedgerTest, AnOldHandleNeverReleasesOrLocksALaterSnapshotInTheSameSlot) {
  const int32_t slot = ledger_.Reserve(1).value();
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 1, 0, 4).ok());
  ASSERT_TRUE(ledger_.Commit(slot, 1, 1, 4).ok());
  const SnapshotHandle old_handle = ledger_.Snapshot(slot, 1)->handle;
  ASSERT_TRUE(ledger_.ReleaseSnapshot(old_handle).ok());
  const SnapshotHandle handle = ledger_.Snapshot(slot, 1)->handle;
  ASSERT_EQ(handle.state_slot_id, old_handle.state_slot_id);
  ASSERT_TRUE(ledger_.Lock(handle).ok());
  EXPECT_EQ(ledger_.Lock(old_handle).code(), Code::kNotFound);
  EXPECT_EQ(ledger_.Unlock(old_handle).code(), Code::kInternal);
  EXPECT_EQ(ledger_.ReleaseSnapshot(old_handle).code(), Code::kInternal);
  EXPECT_EQ(ledger_.ReleaseSnapshot(handle).code(), Code::kInternal) << "locked";
  EXPECT_TRUE(ledger_.Unlock(handle).ok());
  EXPECT_TRUE(ledger_.ReleaseSnapshot(handle).ok());
  EXPECT_EQ(ledger_.num_violations(), 3);
}

TEST_F(StateLedgerTest, WritesMustBeContiguousAndInStepOrderAndAtMostTwoInFlight) {
  struct Case {
    const char* name;
    uint64_t step;
    int64_t from, num;
  };
  for (const Case& c :
       {Case{"gap", 7, 5, 1}, Case{"overlap", 7, 3, 1}, Case{"empty", 7, 4, 0}, Case{"old step", 5, 4, 1}}) {
    SlabArena arena(Geometry(2));
    StateLedger ledger(&arena, false);
    const int32_t slot = ledger.Reserve(1).value();
    ASSERT_TRUE(ledger.BeginWrite(slot, 1, 5, 0, 4).ok());
    EXPECT_EQ(ledger.BeginWrite(slot, 1, c.step, c.from, c.num).status().code(), Code::kInternal) << c.name;
    EXPECT_EQ(ledger.num_slots(SlotOwner::kQuarantined), 1) << c.name;
  }
  const int32_t slot = ledger_.Reserve(1).value();
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 1, 0, 1).ok());
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 2, 1, 1).ok());
  EXPECT_FALSE(ledger_.BeginWrite(slot, 1, 3, 2, 1).ok());
}

TEST_F(StateLedgerTest, ReleaseWithAWriteInFlightQuarantinesTheSlot) {
  const int32_t slot = ledger_.Reserve(1).value();
  ASSERT_TRUE(ledger_.BeginWrite(slot, 1, 1, 0, 4).ok());
  EXPECT_EQ(ledger_.Release(slot, 1).code(), Code::kInternal);
  EXPECT_EQ(ledger_.owner_kind(slot), SlotOwner::kQuarantined);
  for (int i = 0; i < 3; ++i) ASSERT_NE(ledger_.Reserve(2).value(), slot);
  EXPECT_EQ(ledger_.Reserve(2).status().code(), Code::kResourceExhausted);
}

TEST_F(StateLedgerTest, TheSinkBelongsToNobodyElse) {
  const int32_t sink = ledger_.ReserveSink().value();
  EXPECT_EQ(ledger_.Release(sink, 0).code(), Code::kInternal);
  EXPECT_EQ(ledger_.BeginWrite(sink, 0, 1, 0, 1).status().code(), Code::kInternal);
  EXPECT_TRUE(ledger_.ReleaseSink(sink).ok());
  EXPECT_EQ(ledger_.ReleaseSink(sink).code(), Code::kInternal);
}

TEST(StateLedgerDeathTest, AViolationAbortsWhenAsked) {
  SlabArena arena(Geometry(2));
  StateLedger ledger(&arena, true);
  EXPECT_DEATH((void)ledger.Release(0, 1), "state slot 0: release by sequence 1, which does not own it");
}

// The model: simulated slot memory holds token lists, and each sequence knows the tokens that are truly its
// own.
class LedgerModel {
 public:
  explicit LedgerModel(uint64_t seed)
      : random_(seed), arena_(Geometry(12)), ledger_(&arena_, false), memory_(12) {}

  void Run(int num_ops) {
    for (int op = 0; op < num_ops; ++op) {
      switch (random_() % 12) {
        case 0:
          Start();
          break;
        case 1:
        case 2:
        case 3:
          Write();
          break;
        case 4:
        case 5:
          Settle();
          break;
        case 6:
          TakeSnapshot();
          break;
        case 7:
          DropSnapshot();
          break;
        case 8:
          LockSnapshot();
          break;
        case 9:
          RestoreSnapshot();
          break;
        case 10:
          RollBack();
          break;
        case 11:
          Stop();
          break;
      }
      ASSERT_NO_FATAL_FAILURE(Check()) << "op " << op;
    }
    while (!sequences_.empty()) Stop();
    while (!snapshots_.empty()) DropSnapshot();
    EXPECT_EQ(arena_.num_used(UnitKind::kStateSlot), 0);
    EXPECT_EQ(ledger_.num_violations(), 0);
    EXPECT_GT(num_restores_, 0) << "the model must reach restores";
  }

 private:
  using Tokens = std::vector<uint32_t>;
  struct Write_ {
    uint64_t step;
    Tokens tokens;
  };
  struct Sequence {
    uint64_t id;
    int32_t slot;
    Tokens accepted;            // what truly belongs to it
    std::deque<Write_> flight;  // at most 2
    bool spoiled = false;
  };
  struct Snapshot_ {
    SnapshotHandle handle;
    uint64_t sequence, producer;
    bool visible, dead;
    int locks;
    Tokens tokens;  // what it must hold
  };

  Sequence* Pick() { return sequences_.empty() ? nullptr : &sequences_[random_() % sequences_.size()]; }

  void Start() {
    const bool room = ledger_.num_available() > 0;
    const auto slot = ledger_.Reserve(next_id_);
    ASSERT_EQ(slot.ok(), room);
    if (slot.ok()) sequences_.push_back({next_id_++, *slot, {}, {}, false});
  }
  void Write() {
    Sequence* s = Pick();
    if (!s || s->spoiled || s->flight.size() == 2) return;
    Tokens tokens(1 + random_() % 5);
    for (uint32_t& t : tokens) t = next_token_++;
    const int64_t from = ledger_.written_tokens(s->slot);
    const auto initial =
        ledger_.BeginWrite(s->slot, s->id, ++step_, from, static_cast<int64_t>(tokens.size()));
    ASSERT_TRUE(initial.ok());
    if (!*initial) memory_[s->slot].clear();
    memory_[s->slot].insert(memory_[s->slot].end(), tokens.begin(), tokens.end());
    s->flight.push_back({step_, tokens});
  }
  // The oldest step of a sequence completes: accepted as a whole, in part, or not at all.
  void Settle() {
    Sequence* s = Pick();
    if (!s || s->flight.empty()) return;
    const Write_ write = s->flight.front();
    s->flight.pop_front();
    const size_t accepted =
        s->spoiled || random_() % 8 == 0 ? random_() % write.tokens.size() : write.tokens.size();
    if (s->spoiled || random_() % 16 == 0) {
      ASSERT_TRUE(ledger_.Discard(s->slot, s->id, write.step).ok());
      s->spoiled = true;
    } else {
      ASSERT_TRUE(ledger_.Commit(s->slot, s->id, write.step, static_cast<int64_t>(accepted)).ok());
      s->accepted.insert(s->accepted.end(), write.tokens.begin(), write.tokens.begin() + accepted);
      s->spoiled = accepted < write.tokens.size();
    }
    for (Snapshot_& snapshot : snapshots_) {
      if (snapshot.sequence != s->id || snapshot.visible || snapshot.dead) continue;
      if (s->spoiled)
        snapshot.dead = snapshot.producer >= write.step;
      else
        snapshot.visible = snapshot.producer == write.step;
    }
  }
  void TakeSnapshot() {
    Sequence* s = Pick();
    if (!s || s->spoiled || ledger_.written_tokens(s->slot) == 0) return;
    const bool room = ledger_.num_available() > 0;
    const auto result = ledger_.Snapshot(s->slot, s->id);
    ASSERT_EQ(result.ok(), room);
    if (!room) return;
    memory_[result->copy.dst_slot_id] = memory_[result->copy.src_slot_id];
    Tokens tokens = s->accepted;
    for (const Write_& write : s->flight)
      tokens.insert(tokens.end(), write.tokens.begin(), write.tokens.end());
    ASSERT_EQ(result->copy.position_tokens, static_cast<int64_t>(tokens.size()));
    snapshots_.push_back({result->handle, s->id, s->flight.empty() ? 0 : s->flight.back().step,
                          s->flight.empty(), false, 0, tokens});
  }
  void DropSnapshot() {
    if (snapshots_.empty()) return;
    const size_t i = random_() % snapshots_.size();
    for (; snapshots_[i].locks > 0; --snapshots_[i].locks)
      ASSERT_TRUE(ledger_.Unlock(snapshots_[i].handle).ok());
    ASSERT_TRUE(ledger_.ReleaseSnapshot(snapshots_[i].handle).ok());
    snapshots_.erase(snapshots_.begin() + static_cast<int64_t>(i));
  }
  void LockSnapshot() {
    if (snapshots_.empty()) return;
    Snapshot_& snapshot = snapshots_[random_() % snapshots_.size()];
    const Status status = ledger_.Lock(snapshot.handle);
    ASSERT_EQ(status.ok(), snapshot.visible);
    if (status.ok()) ++snapshot.locks;
  }
  void RestoreSnapshot() {
    Sequence* s = Pick();
    if (!s || !s->flight.empty() || snapshots_.empty()) return;
    const Snapshot_& snapshot = snapshots_[random_() % snapshots_.size()];
    if (snapshot.locks == 0) return;
    const auto copy = ledger_.Restore(snapshot.handle, s->slot, s->id);
    ASSERT_TRUE(copy.ok());
    memory_[copy->dst_slot_id] = memory_[copy->src_slot_id];
    s->accepted = snapshot.tokens;
    s->spoiled = false;
    ++num_restores_;
  }
  void RollBack() {
    Sequence* s = Pick();
    if (!s || !s->flight.empty() || random_() % 4 != 0) return;
    ASSERT_TRUE(ledger_.Rollback(s->slot, s->id).ok());
    s->accepted.clear();
    s->spoiled = false;
  }
  void Stop() {
    Sequence* s = Pick();
    if (!s) return;
    while (!s->flight.empty()) {
      ASSERT_TRUE(ledger_.Discard(s->slot, s->id, s->flight.front().step).ok());
      for (Snapshot_& snapshot : snapshots_) {
        if (snapshot.sequence == s->id && !snapshot.visible) snapshot.dead = true;
      }
      s->flight.pop_front();
    }
    ASSERT_TRUE(ledger_.Release(s->slot, s->id).ok());
    *s = sequences_.back();
    sequences_.pop_back();
  }
  void Check() {
    const Status status = ledger_.CheckConsistency();
    ASSERT_TRUE(status.ok()) << status.ToString();
    ASSERT_EQ(ledger_.num_slots(SlotOwner::kSequence), static_cast<int64_t>(sequences_.size()));
    ASSERT_EQ(ledger_.num_slots(SlotOwner::kSnapshot), static_cast<int64_t>(snapshots_.size()));
    for (const Sequence& s : sequences_) {
      ASSERT_EQ(ledger_.committed_tokens(s.slot), static_cast<int64_t>(s.accepted.size()));
      if (s.spoiled) continue;
      Tokens expected = s.accepted;
      for (const Write_& write : s.flight)
        expected.insert(expected.end(), write.tokens.begin(), write.tokens.end());
      ASSERT_EQ(ledger_.written_tokens(s.slot), static_cast<int64_t>(expected.size()));
      if (!expected.empty()) {
        ASSERT_EQ(memory_[s.slot], expected);
      }
    }
    for (const Snapshot_& snapshot : snapshots_) {
      ASSERT_EQ(ledger_.IsVisible(snapshot.handle), snapshot.visible);
      if (snapshot.visible) {
        ASSERT_EQ(memory_[snapshot.handle.state_slot_id], snapshot.tokens);
      }
    }
  }

  std::mt19937_64 random_;
  SlabArena arena_;
  StateLedger ledger_;
  std::vector<Tokens> memory_;
  std::vector<Sequence> sequences_;
  std::vector<Snapshot_> snapshots_;
  uint64_t next_id_ = 1, step_ = 0;
  uint32_t next_token_ = 1;
  int num_restores_ = 0;
};

TEST(StateLedgerModel, RandomHistoriesAgreeWithAModelThatKeepsTheTokensOfEverySlot) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    LedgerModel model(seed);
    ASSERT_NO_FATAL_FAILURE(model.Run(3000));
  }
}

// Whatever nonsense a caller asks for, no slot gets two owners and none is lost.
TEST(StateLedgerModel, RandomNonsenseNeverBreaksTheTotals) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    SlabArena arena(Geometry(40));
    StateLedger ledger(&arena, false);
    std::vector<SnapshotHandle> handles;
    const auto any = [&](int n) { return static_cast<int32_t>(random() % static_cast<uint64_t>(n)); };
    for (int op = 0; op < 3000; ++op) {
      const int32_t slot = any(42) - 1;
      const uint64_t owner = random() % 3;
      const SnapshotHandle handle = handles.empty() ? SnapshotHandle{} : handles[random() % handles.size()];
      switch (random() % 10) {
        case 0:
          (void)ledger.Reserve(owner);
          break;
        case 1:
          (void)ledger.BeginWrite(slot, owner, static_cast<uint64_t>(op), any(3), any(3));
          break;
        case 2:
          (void)ledger.Commit(slot, owner, static_cast<uint64_t>(op - any(20)), any(3));
          break;
        case 3:
          (void)ledger.Discard(slot, owner, static_cast<uint64_t>(op - any(20)));
          break;
        case 4:
          (void)ledger.Release(slot, owner);
          break;
        case 5: {
          const auto result = ledger.Snapshot(slot, owner);
          if (result.ok()) handles.push_back(result->handle);
          break;
        }
        case 6:
          (void)ledger.Lock(handle);
          break;
        case 7:
          (void)ledger.Restore(handle, slot, owner);
          break;
        case 8:
          (void)ledger.ReleaseSnapshot(handle);
          break;
        case 9:
          (void)ledger.Rollback(slot, owner);
          break;
      }
      const Status status = ledger.CheckConsistency();
      ASSERT_TRUE(status.ok()) << "op " << op << ": " << status.ToString();
    }
    EXPECT_GT(ledger.num_violations(), 0);
  }
}

}  // namespace
}  // namespace rt
