#include "runtime/cache/state_ledger.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace rt {
namespace {

std::string SlotText(int32_t slot_id) { return "state slot " + std::to_string(slot_id); }

}  // namespace

StateLedger::StateLedger(SlabArena* arena, bool abort_on_violation)
    : arena_(arena),
      abort_on_violation_(abort_on_violation),
      records_(arena->geometry().max_units(UnitKind::kStateSlot)) {}

Status StateLedger::Violation(int32_t slot_id, bool quarantine, const std::string& what) {
  const std::string message = "state ledger: " + SlotText(slot_id) + ": " + what;
  if (abort_on_violation_) {
    std::fprintf(stderr, "%s\n", message.c_str());
    std::abort();
  }
  ++num_violations_;
  if (quarantine) {
    SettleSnapshots(slot_id, 0, false);
    SetOwner(slot_id, SlotOwner::kQuarantined);
  }
  return {Code::kInternal, message};
}

void StateLedger::SetOwner(int32_t slot_id, SlotOwner owner) {
  Record& record = records_[slot_id];
  if (record.owner != SlotOwner::kFree) --counts_[static_cast<int>(record.owner)];
  if (owner != SlotOwner::kFree) ++counts_[static_cast<int>(owner)];
  record.owner = owner;
}

int32_t StateLedger::TakeSlot(SlotOwner owner) {
  const int32_t slot_id = arena_->Alloc(UnitKind::kStateSlot);
  if (slot_id < 0) return -1;
  const uint32_t generation = records_[slot_id].generation;
  records_[slot_id] = Record{};
  records_[slot_id].generation = generation;
  SetOwner(slot_id, owner);
  return slot_id;
}

Status StateLedger::GiveBack(int32_t slot_id) {
  SetOwner(slot_id, SlotOwner::kFree);
  return arena_->Free(UnitKind::kStateSlot, slot_id);
}

Status StateLedger::CheckHolder(int32_t slot_id, OwnerId owner, const char* operation) {
  if (slot_id < 0 || slot_id >= static_cast<int64_t>(records_.size()))
    return Violation(slot_id, false, std::string(operation) + " of a slot that does not exist");
  const Record& record = records_[slot_id];
  if (record.owner == SlotOwner::kSequence && record.sequence == owner) return Status::Ok();
  // The caller does not hold the slot, so its holder's bytes are intact: nothing to quarantine.
  return Violation(
      slot_id, false,
      std::string(operation) + " by sequence " + std::to_string(owner) + ", which does not own it");
}

Result<int32_t> StateLedger::Reserve(OwnerId owner) {
  const int32_t slot_id = TakeSlot(SlotOwner::kSequence);
  if (slot_id < 0) return Status(Code::kResourceExhausted, "no free state slot");
  records_[slot_id].sequence = owner;
  return slot_id;
}

Result<bool> StateLedger::BeginWrite(int32_t slot_id, OwnerId owner, uint64_t step_id, int64_t from,
                                     int64_t num_tokens) {
  RT_RETURN_IF_ERROR(CheckHolder(slot_id, owner, "write"));
  Record& record = records_[slot_id];
  if (record.spoiled)
    return Violation(slot_id, true, "write after discarded tokens, without restore or rollback");
  if (from != record.written || num_tokens <= 0)
    return Violation(slot_id, true,
                     "write of " + std::to_string(num_tokens) + " tokens at " + std::to_string(from) +
                         ", its state ends at " + std::to_string(record.written));
  if (record.num_pending == kMaxPendingWrites)
    return Violation(slot_id, true, "more than " + std::to_string(kMaxPendingWrites) + " writes in flight");
  if (record.num_pending > 0 && record.pending[record.num_pending - 1].step_id >= step_id)
    return Violation(slot_id, true,
                     "step " + std::to_string(step_id) + " writes after step " +
                         std::to_string(record.pending[record.num_pending - 1].step_id));
  record.written = from + num_tokens;
  record.pending[record.num_pending++] = {step_id, record.written};
  return from > 0;
}

Status StateLedger::PopPending(int32_t slot_id, uint64_t step_id, const char* operation,
                               PendingWrite* write) {
  Record& record = records_[slot_id];
  if (record.num_pending == 0 || record.pending[0].step_id != step_id)
    return Violation(slot_id, true,
                     std::string(operation) + " of step " + std::to_string(step_id) +
                         ", which is not its oldest write in flight");
  *write = record.pending[0];
  std::copy(record.pending.begin() + 1, record.pending.begin() + record.num_pending, record.pending.begin());
  --record.num_pending;
  return Status::Ok();
}

Status StateLedger::Commit(int32_t slot_id, OwnerId owner, uint64_t step_id, int64_t num_accepted) {
  RT_RETURN_IF_ERROR(CheckHolder(slot_id, owner, "commit"));
  Record& record = records_[slot_id];
  if (record.spoiled) return Violation(slot_id, true, "commit after discarded tokens");
  PendingWrite write;
  RT_RETURN_IF_ERROR(PopPending(slot_id, step_id, "commit", &write));
  const int64_t num_written = write.end - record.committed;
  if (num_accepted < 0 || num_accepted > num_written)
    return Violation(slot_id, true,
                     "commit of " + std::to_string(num_accepted) + " tokens, " + std::to_string(num_written) +
                         " were written");
  record.committed += num_accepted;
  record.spoiled = num_accepted < num_written;
  SettleSnapshots(slot_id, step_id, !record.spoiled);
  return Status::Ok();
}

Status StateLedger::Discard(int32_t slot_id, OwnerId owner, uint64_t step_id) {
  RT_RETURN_IF_ERROR(CheckHolder(slot_id, owner, "discard"));
  PendingWrite write;
  RT_RETURN_IF_ERROR(PopPending(slot_id, step_id, "discard", &write));
  records_[slot_id].spoiled = true;
  SettleSnapshots(slot_id, step_id, false);
  return Status::Ok();
}

Status StateLedger::Rollback(int32_t slot_id, OwnerId owner) {
  RT_RETURN_IF_ERROR(CheckHolder(slot_id, owner, "rollback"));
  Record& record = records_[slot_id];
  if (record.num_pending > 0) return Violation(slot_id, true, "rollback with a write in flight");
  record.committed = record.written = 0;
  record.spoiled = false;
  return Status::Ok();
}

Status StateLedger::Release(int32_t slot_id, OwnerId owner) {
  RT_RETURN_IF_ERROR(CheckHolder(slot_id, owner, "release"));
  if (records_[slot_id].num_pending > 0) return Violation(slot_id, true, "release with a write in flight");
  return GiveBack(slot_id);
}

Result<SnapshotResult> StateLedger::Snapshot(int32_t slot_id, OwnerId owner) {
  RT_RETURN_IF_ERROR(CheckHolder(slot_id, owner, "snapshot"));
  if (records_[slot_id].spoiled) return Violation(slot_id, true, "snapshot of a state with discarded tokens");
  if (records_[slot_id].written == 0) return Violation(slot_id, true, "snapshot of a state without tokens");
  const int32_t copy_id = TakeSlot(SlotOwner::kSnapshot);
  if (copy_id < 0) return Status(Code::kResourceExhausted, "no free state slot for a snapshot");
  const Record& source = records_[slot_id];
  Record& copy = records_[copy_id];
  ++copy.generation;
  copy.sequence = owner;
  copy.committed = copy.written = source.written;
  copy.visible = source.num_pending == 0;
  if (!copy.visible) {
    copy.source_slot_id = slot_id;
    copy.producer_step = source.pending[source.num_pending - 1].step_id;
    unsettled_.push_back(copy_id);
  }
  return SnapshotResult{{copy_id, copy.generation}, {slot_id, copy_id, source.written}};
}

// A snapshot becomes visible with the commit of its producing step. A discarded or partly accepted step
// spoils every snapshot that was made at or after it.
void StateLedger::SettleSnapshots(int32_t source_slot_id, uint64_t step_id, bool accepted) {
  for (size_t i = 0; i < unsettled_.size();) {
    Record& snapshot = records_[unsettled_[i]];
    const bool from_here = snapshot.source_slot_id == source_slot_id;
    const bool settles =
        from_here && (accepted ? snapshot.producer_step == step_id : snapshot.producer_step >= step_id);
    if (!settles) {
      ++i;
      continue;
    }
    snapshot.visible = accepted;
    snapshot.spoiled = !accepted;
    snapshot.source_slot_id = -1;
    unsettled_[i] = unsettled_.back();
    unsettled_.pop_back();
  }
}

bool StateLedger::IsSnapshot(SnapshotHandle handle) const {
  return handle.state_slot_id >= 0 && handle.state_slot_id < static_cast<int64_t>(records_.size()) &&
         records_[handle.state_slot_id].owner == SlotOwner::kSnapshot &&
         records_[handle.state_slot_id].generation == handle.generation;
}

bool StateLedger::IsVisible(SnapshotHandle handle) const {
  return IsSnapshot(handle) && records_[handle.state_slot_id].visible;
}

int64_t StateLedger::SnapshotPosition(SnapshotHandle handle) const {
  return IsSnapshot(handle) ? records_[handle.state_slot_id].committed : -1;
}

Status StateLedger::Lock(SnapshotHandle handle) {
  if (!IsSnapshot(handle))
    return {Code::kNotFound, "the snapshot in " + SlotText(handle.state_slot_id) + " is gone"};
  Record& record = records_[handle.state_slot_id];
  if (!record.visible)
    return {Code::kFailedPrecondition,
            "the snapshot in " + SlotText(handle.state_slot_id) + " is not visible"};
  ++record.num_refs;
  return Status::Ok();
}

Status StateLedger::Unlock(SnapshotHandle handle) {
  if (!IsSnapshot(handle) || records_[handle.state_slot_id].num_refs == 0)
    return Violation(handle.state_slot_id, false, "unlock of a snapshot that is not locked");
  --records_[handle.state_slot_id].num_refs;
  return Status::Ok();
}

Result<StateCopy> StateLedger::Restore(SnapshotHandle handle, int32_t slot_id, OwnerId owner) {
  RT_RETURN_IF_ERROR(CheckHolder(slot_id, owner, "restore"));
  if (!IsVisible(handle) || records_[handle.state_slot_id].num_refs == 0)
    return Violation(slot_id, true,
                     "restore from " + SlotText(handle.state_slot_id) + ", which is not a locked snapshot");
  Record& record = records_[slot_id];
  if (record.num_pending > 0) return Violation(slot_id, true, "restore with a write in flight");
  record.committed = record.written = records_[handle.state_slot_id].committed;
  record.spoiled = false;
  return StateCopy{handle.state_slot_id, slot_id, record.committed};
}

Status StateLedger::ReleaseSnapshot(SnapshotHandle handle) {
  if (!IsSnapshot(handle))
    return Violation(handle.state_slot_id, false, "release of a snapshot that is gone");
  const Record& record = records_[handle.state_slot_id];
  if (record.num_refs > 0) return Violation(handle.state_slot_id, false, "release of a locked snapshot");
  std::erase(unsettled_, handle.state_slot_id);
  return GiveBack(handle.state_slot_id);
}

Result<int32_t> StateLedger::ReserveSink() {
  const int32_t slot_id = TakeSlot(SlotOwner::kSink);
  if (slot_id < 0) return Status(Code::kResourceExhausted, "no free state slot for the sink");
  return slot_id;
}

Status StateLedger::ReleaseSink(int32_t slot_id) {
  if (slot_id < 0 || slot_id >= static_cast<int64_t>(records_.size()) ||
      records_[slot_id].owner != SlotOwner::kSink)
    return Violation(slot_id, false, "release of a sink that is none");
  return GiveBack(slot_id);
}

Status StateLedger::CheckTotals() const {
  int64_t owned = 0;
  for (const int64_t count : counts_) owned += count;
  const int64_t used = arena_->num_used(UnitKind::kStateSlot);
  if (owned != used)
    return {Code::kInternal, "state ledger: " + std::to_string(owned) +
                                 " slots have owners, the arena counts " + std::to_string(used) + " in use"};
  return Status::Ok();
}

Status StateLedger::CheckConsistency() const {
  RT_RETURN_IF_ERROR(CheckTotals());
  std::array<int64_t, kNumSlotOwners> counts{};
  for (int32_t id = 0; id < static_cast<int32_t>(records_.size()); ++id) {
    const Record& record = records_[id];
    if (record.owner != SlotOwner::kFree) ++counts[static_cast<int>(record.owner)];
    const bool in_use = arena_->IsUsed(UnitKind::kStateSlot, id);
    if (in_use != (record.owner != SlotOwner::kFree))
      return {Code::kInternal,
              "state ledger: " + SlotText(id) + " is " + (in_use ? "in use" : "free") + " in the arena only"};
    if (record.committed > record.written || record.num_refs < 0)
      return {Code::kInternal, "state ledger: " + SlotText(id) + " has an impossible record"};
  }
  if (counts != counts_) return {Code::kInternal, "state ledger: owner counts differ from the records"};
  return Status::Ok();
}

}  // namespace rt
