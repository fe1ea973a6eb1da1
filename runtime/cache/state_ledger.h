// Every transition of a recurrent state goes through here.
//
// A recurrent state is bytes in a slot that encode a prefix of a sequence's tokens; unlike KV it cannot be
// truncated. So for each slot the ledger keeps the owner and three facts: how many tokens the bytes encode
// once all enqueued writes are done (`written`), how many are known to belong to the sequence (`committed`),
// and whether writes were enqueued whose tokens turned out not to belong (`spoiled`). A step is enqueued
// before the tokens of the step before reach the host, therefore commits come one step late, in step order.
//
//   Reserve ──► BeginWrite ──► Commit ──► … ──► Release
//                  │   └─────► Discard (tokens not part of the sequence: finished, aborted, rejected drafts)
//                  ──► spoiled └─► Snapshot (a copy, visible once the step that produced it is committed) ──►
//                  Lock ──► Restore
//   spoiled: only Discard, Restore, Rollback (to 0 tokens) and Release are legal.
//
// Device work is ordered as enqueued: a copy or write asked for later sees all earlier ones.
//
// Invariants (a call that would break one is refused):
//   snapshot bytes encode exactly `position` tokens of the sequence; all layers and the conv windows live in
//   the slot (I1) a slot has one owner; free + sequence + snapshot + sink + quarantined = capacity (I2)
//   references are >= 0; a locked snapshot is never released; a lock names the generation it locked (I3)
//   a restore precedes the first read; a snapshot is visible only after its producing step completed (I5)
//   positions are exact token counts and writes are contiguous: no key is rounded after the position is fixed
//   (I6) tokens that were discarded never influence a snapshot that can be restored (I7)
// A violation is our bug, never the user's input: it aborts the process when `abort_on_violation` (debug
// builds), else it is counted, the call fails with Internal (the caller fails that request), and a slot held
// by the caller is quarantined: it is never handed out again. Not thread-safe: one thread (the engine's) owns
// it.
#pragma once

#include "runtime/cache/slab_arena.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace rt {

enum class SlotOwner : uint8_t { kFree, kSequence, kSnapshot, kSink, kQuarantined };
inline constexpr int kNumSlotOwners = 5;

#ifdef NDEBUG
inline constexpr bool kAbortOnViolation = false;
#else
inline constexpr bool kAbortOnViolation = true;
#endif

// Names one snapshot; a released snapshot's handle never matches a later one in the same slot.
struct SnapshotHandle {
  int32_t state_slot_id = -1;
  uint32_t generation = 0;
};

// A device copy the caller must enqueue now, before any later write to `dst` and read of it.
struct StateCopy {
  int32_t src_slot_id = -1;
  int32_t dst_slot_id = -1;
  int64_t position_tokens = 0;
};

struct SnapshotResult {
  SnapshotHandle handle;
  StateCopy copy;
};

class StateLedger {
 public:
  using OwnerId = uint64_t;  // the sequence

  // `arena` outlives the ledger; nothing else allocates state slots from it.
  explicit StateLedger(SlabArena* arena, bool abort_on_violation = kAbortOnViolation);

  // --- a sequence's slot ---
  // Bytes are arbitrary: the first write must start at 0 and ignore them. ResourceExhausted: none free.
  Result<int32_t> Reserve(OwnerId owner);
  // A step will append tokens [from, from + num_tokens). `from` equals written_tokens(). Returns
  // has_initial_state.
  Result<bool> BeginWrite(int32_t slot_id, OwnerId owner, uint64_t step_id, int64_t from, int64_t num_tokens);
  // The oldest pending write is done and its first `num_accepted` tokens (>= 0) belong to the sequence. Fewer
  // than were written spoils the slot.
  Status Commit(int32_t slot_id, OwnerId owner, uint64_t step_id, int64_t num_accepted);
  // The oldest pending write is done; none of its tokens belongs to the sequence.
  Status Discard(int32_t slot_id, OwnerId owner, uint64_t step_id);
  // Back to 0 tokens. No write may be pending.
  Status Rollback(int32_t slot_id, OwnerId owner);
  // No write may be pending. Idle slots only: a sequence in flight waits for its steps.
  Status Release(int32_t slot_id, OwnerId owner);

  // --- snapshots ---
  // A copy of the state after all enqueued writes. ResourceExhausted: no slot free. Violation: spoiled or
  // empty.
  Result<SnapshotResult> Snapshot(int32_t slot_id, OwnerId owner);
  bool IsVisible(SnapshotHandle handle) const;
  // Position of a live snapshot in tokens, or -1.
  int64_t SnapshotPosition(SnapshotHandle handle) const;
  // FailedPrecondition when the snapshot is not visible (yet), NotFound when it is gone.
  Status Lock(SnapshotHandle handle);
  Status Unlock(SnapshotHandle handle);
  // Overwrites the sequence's state by a locked snapshot. No write may be pending.
  Result<StateCopy> Restore(SnapshotHandle handle, int32_t slot_id, OwnerId owner);
  // Unlocked only.
  Status ReleaseSnapshot(SnapshotHandle handle);

  // --- the sink: a slot that padding rows may write, for backends that cannot skip them ---
  Result<int32_t> ReserveSink();
  Status ReleaseSink(int32_t slot_id);

  // --- facts ---
  SlotOwner owner_kind(int32_t slot_id) const { return records_[slot_id].owner; }
  int64_t committed_tokens(int32_t slot_id) const { return records_[slot_id].committed; }
  int64_t written_tokens(int32_t slot_id) const { return records_[slot_id].written; }
  bool has_pending_writes(int32_t slot_id) const { return records_[slot_id].num_pending > 0; }
  int64_t num_slots(SlotOwner owner) const { return counts_[static_cast<int>(owner)]; }
  int64_t num_available() const { return arena_->num_available(UnitKind::kStateSlot); }
  int64_t num_violations() const { return num_violations_; }
  bool has_slots() const { return !records_.empty(); }

  // O(1): slots by owner add up to the arena's count.
  Status CheckTotals() const;
  // O(slots).
  Status CheckConsistency() const;

 private:
  static constexpr int kMaxPendingWrites = 2;  // steps in flight

  struct PendingWrite {
    uint64_t step_id = 0;
    int64_t end = 0;  // tokens after it
  };

  struct Record {
    SlotOwner owner = SlotOwner::kFree;
    bool spoiled = false;
    bool visible = false;  // snapshots
    uint8_t num_pending = 0;
    int32_t num_refs = 0;         // snapshots
    uint32_t generation = 0;      // counts the snapshots this slot has held
    int32_t source_slot_id = -1;  // snapshots not yet visible: where the producing write is pending
    uint64_t producer_step = 0;   // snapshots not yet visible
    OwnerId sequence = 0;
    int64_t committed = 0;
    int64_t written = 0;
    std::array<PendingWrite, kMaxPendingWrites> pending{};  // oldest first
  };

  int32_t TakeSlot(SlotOwner owner);
  Status GiveBack(int32_t slot_id);
  void SetOwner(int32_t slot_id, SlotOwner owner);
  Status CheckHolder(int32_t slot_id, OwnerId owner, const char* operation);
  Status PopPending(int32_t slot_id, uint64_t step_id, const char* operation, PendingWrite* write);
  void SettleSnapshots(int32_t source_slot_id, uint64_t step_id, bool accepted);
  bool IsSnapshot(SnapshotHandle handle) const;
  // Counts (or aborts), quarantines the slot when `quarantine`, and returns the Status of the failed call.
  Status Violation(int32_t slot_id, bool quarantine, const std::string& what);

  SlabArena* arena_;
  bool abort_on_violation_;
  std::vector<Record> records_;     // [max state slots]
  std::vector<int32_t> unsettled_;  // snapshots that wait for their producing step
  std::array<int64_t, kNumSlotOwners> counts_{};
  int64_t num_violations_ = 0;
};

}  // namespace rt
