#include "runtime/cache/slab_arena.h"

#include <algorithm>
#include <bit>
#include <string>

namespace rt {
namespace {

constexpr int kWordBits = 64;

Status Broken(const std::string& what) { return Status(Code::kInternal, "slab arena: " + what); }

std::string UnitText(UnitKind kind, int32_t id) {
  return std::string(UnitKindName(kind)) + " " + std::to_string(id);
}

}  // namespace

SlabArena::SlabArena(const SlabGeometry& geometry) : geometry_(geometry) {
  const int32_t most_units = std::max(geometry.units_per_slab[0], geometry.units_per_slab[1]);
  words_per_slab_ = (most_units + kWordBits - 1) / kWordBits;
  slabs_.resize(geometry.num_slabs);
  used_bits_.assign(int64_t{geometry.num_slabs} * words_per_slab_, 0);
  empty_slabs_.resize(geometry.num_slabs);
  // The lowest slab lies on top of the stack.
  for (int32_t i = 0; i < geometry.num_slabs; ++i) empty_slabs_[i] = geometry.num_slabs - 1 - i;
  for (int kind = 0; kind < kNumUnitKinds; ++kind) {
    const int32_t num_buckets = geometry.units_per_slab[kind] + 1;
    buckets_[kind].head.assign(num_buckets, kNone);
    buckets_[kind].occupied.assign((num_buckets + kWordBits - 1) / kWordBits, 0);
  }
}

void SlabArena::Link(int32_t slab) {
  Slab& s = slabs_[slab];
  Buckets& buckets = buckets_[s.kind];
  int32_t& head = buckets.head[s.num_used];
  s.prev = kNone;
  s.next = head;
  if (head != kNone) slabs_[head].prev = slab;
  head = slab;
  buckets.occupied[s.num_used / kWordBits] |= uint64_t{1} << (s.num_used % kWordBits);
}

void SlabArena::Unlink(int32_t slab) {
  Slab& s = slabs_[slab];
  Buckets& buckets = buckets_[s.kind];
  int32_t& head = buckets.head[s.num_used];
  if (s.prev != kNone) slabs_[s.prev].next = s.next;
  if (s.next != kNone) slabs_[s.next].prev = s.prev;
  if (head == slab) head = s.next;
  if (head == kNone) buckets.occupied[s.num_used / kWordBits] &= ~(uint64_t{1} << (s.num_used % kWordBits));
}

int32_t SlabArena::FullestSlabWithRoom(int kind) const {
  const Buckets& buckets = buckets_[kind];
  const int32_t full = geometry_.units_per_slab[kind];
  for (int word = static_cast<int>(buckets.occupied.size()) - 1; word >= 0; --word) {
    uint64_t bits = buckets.occupied[word];
    if (full / kWordBits == word) bits &= ~(uint64_t{1} << (full % kWordBits));  // full slabs have no room
    if (bits != 0) return buckets.head[word * kWordBits + kWordBits - 1 - std::countl_zero(bits)];
  }
  return kNone;
}

int32_t SlabArena::TakeEmptySlab(int kind) {
  if (empty_slabs_.empty() || geometry_.units_per_slab[kind] == 0) return kNone;
  const int32_t slab = empty_slabs_.back();
  empty_slabs_.pop_back();
  slabs_[slab].kind = static_cast<int8_t>(kind);
  ++slabs_of_[kind];
  free_in_slabs_[kind] += geometry_.units_per_slab[kind];
  Link(slab);
  return slab;
}

int32_t SlabArena::TakeLowestUnit(int32_t slab) {
  uint64_t* words = Words(slab);
  int32_t word = 0;
  while (words[word] == ~uint64_t{0}) ++word;
  const int bit = std::countr_one(words[word]);
  words[word] |= uint64_t{1} << bit;
  return word * kWordBits + bit;
}

int32_t SlabArena::Alloc(UnitKind unit_kind) {
  const int kind = Index(unit_kind);
  int32_t slab = FullestSlabWithRoom(kind);
  if (slab == kNone) slab = TakeEmptySlab(kind);
  if (slab == kNone) return kNone;
  Unlink(slab);
  const int32_t id = slab * geometry_.units_per_slab[kind] + TakeLowestUnit(slab);
  ++slabs_[slab].num_used;
  Link(slab);
  ++used_[kind];
  --free_in_slabs_[kind];
  if (observer_) observer_(unit_kind, id, true);
  return id;
}

bool SlabArena::AllocMany(UnitKind kind, std::span<int32_t> ids) {
  if (static_cast<int64_t>(ids.size()) > num_available(kind)) return false;
  for (int32_t& id : ids) id = Alloc(kind);
  return true;
}

bool SlabArena::IsUsed(UnitKind unit_kind, int32_t id) const {
  const int kind = Index(unit_kind);
  const int32_t per_slab = geometry_.units_per_slab[kind];
  if (per_slab == 0 || id < 0 || id / per_slab >= geometry_.num_slabs) return false;
  const int32_t slab = id / per_slab;
  const int32_t unit = id % per_slab;
  return slabs_[slab].kind == kind && (Words(slab)[unit / kWordBits] >> (unit % kWordBits) & 1) != 0;
}

Status SlabArena::Free(UnitKind unit_kind, int32_t id) {
  if (!IsUsed(unit_kind, id)) return Broken("freed " + UnitText(unit_kind, id) + " that is not in use");
  const int kind = Index(unit_kind);
  const int32_t per_slab = geometry_.units_per_slab[kind];
  const int32_t slab = id / per_slab;
  const int32_t unit = id % per_slab;
  Unlink(slab);
  Words(slab)[unit / kWordBits] &= ~(uint64_t{1} << (unit % kWordBits));
  --slabs_[slab].num_used;
  --used_[kind];
  ++free_in_slabs_[kind];
  if (slabs_[slab].num_used > 0) {
    Link(slab);
  } else {
    slabs_[slab].kind = kEmpty;
    --slabs_of_[kind];
    free_in_slabs_[kind] -= per_slab;
    empty_slabs_.push_back(slab);
  }
  if (observer_) observer_(unit_kind, id, false);
  return Status::Ok();
}

int64_t SlabArena::stranded_bytes() const {
  return free_in_slabs_[0] * geometry_.stride_bytes[0] + free_in_slabs_[1] * geometry_.stride_bytes[1];
}

Status SlabArena::CheckTotals() const {
  for (int kind = 0; kind < kNumUnitKinds; ++kind) {
    const int64_t total = slabs_of_[kind] * geometry_.units_per_slab[kind];
    if (used_[kind] + free_in_slabs_[kind] != total)
      return Broken(std::string(UnitKindName(static_cast<UnitKind>(kind))) + "s: used " +
                    std::to_string(used_[kind]) + " + free " + std::to_string(free_in_slabs_[kind]) +
                    " != total " + std::to_string(total));
  }
  if (slabs_of_[0] + slabs_of_[1] + num_empty_slabs() != geometry_.num_slabs)
    return Broken("slabs: " + std::to_string(slabs_of_[0]) + " + " + std::to_string(slabs_of_[1]) +
                  " + empty " + std::to_string(num_empty_slabs()) +
                  " != " + std::to_string(geometry_.num_slabs));
  return Status::Ok();
}

Status SlabArena::CheckSlab(int32_t index) const {
  const Slab& slab = slabs_[index];
  int32_t bits = 0;
  for (int32_t word = 0; word < words_per_slab_; ++word) bits += std::popcount(Words(index)[word]);
  const std::string name = "slab " + std::to_string(index);
  if (bits != slab.num_used)
    return Broken(name + ": bitmap has " + std::to_string(bits) + " used units, count says " +
                  std::to_string(slab.num_used));
  if (slab.kind == kEmpty) return bits == 0 ? Status::Ok() : Broken(name + ": empty slab with used units");
  if (slab.num_used == 0 || slab.num_used > geometry_.units_per_slab[slab.kind])
    return Broken(name + ": " + std::to_string(slab.num_used) + " used units of " +
                  std::to_string(geometry_.units_per_slab[slab.kind]));
  return Status::Ok();
}

Status SlabArena::CheckConsistency() const {
  RT_RETURN_IF_ERROR(CheckTotals());
  int64_t used[kNumUnitKinds] = {};
  int64_t slabs[kNumUnitKinds] = {};
  for (int32_t i = 0; i < geometry_.num_slabs; ++i) {
    RT_RETURN_IF_ERROR(CheckSlab(i));
    if (slabs_[i].kind == kEmpty) continue;
    used[slabs_[i].kind] += slabs_[i].num_used;
    ++slabs[slabs_[i].kind];
  }
  for (int kind = 0; kind < kNumUnitKinds; ++kind) {
    if (used[kind] != used_[kind] || slabs[kind] != slabs_of_[kind])
      return Broken("counts differ from the slabs for " +
                    std::string(UnitKindName(static_cast<UnitKind>(kind))));
    int64_t listed = 0;
    for (int32_t n = 0; n < static_cast<int32_t>(buckets_[kind].head.size()); ++n) {
      for (int32_t s = buckets_[kind].head[n]; s != kNone; s = slabs_[s].next, ++listed) {
        if (slabs_[s].kind != kind || slabs_[s].num_used != n || listed > geometry_.num_slabs)
          return Broken("slab " + std::to_string(s) + " lies in a wrong list");
      }
    }
    if (listed != slabs_of_[kind]) return Broken("a slab is in no list");
  }
  for (const int32_t slab : empty_slabs_) {
    if (slabs_[slab].kind != kEmpty) return Broken("slab " + std::to_string(slab) + " is empty and owned");
  }
  return Status::Ok();
}

}  // namespace rt
