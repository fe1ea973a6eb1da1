// Who owns which unit of the shared cache arena: pure bookkeeping over ids, no memory is touched.
//
// A slab belongs to the common pool or to one kind. A kind takes units from its fullest slab that has room,
// lowest id first; so the emptiest slabs drain and return to the common pool, where either kind may take
// them. Free units in slabs that are in part used are *stranded*: they serve their own kind only. Not
// thread-safe: one thread (the engine's) owns it.
#pragma once

#include "runtime/cache/slab_geometry.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace rt {

class SlabArena {
 public:
  // Test hook: told of each unit that is handed out or taken back.
  using Observer = std::function<void(UnitKind kind, int32_t id, bool allocated)>;

  explicit SlabArena(const SlabGeometry& geometry);

  const SlabGeometry& geometry() const { return geometry_; }
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  // A unit id, or -1 when neither a slab of this kind nor the common pool has room. Amortised O(1).
  int32_t Alloc(UnitKind kind);
  // All or nothing: fills `ids`, or takes none and returns false.
  bool AllocMany(UnitKind kind, std::span<int32_t> ids);
  // Internal: an id out of range, of the other kind's slab, or free already; nothing changes then.
  Status Free(UnitKind kind, int32_t id);

  bool IsUsed(UnitKind kind, int32_t id) const;
  int64_t num_used(UnitKind kind) const { return used_[Index(kind)]; }
  // What could be handed to this kind now, empty slabs included.
  int64_t num_available(UnitKind kind) const {
    return free_in_slabs_[Index(kind)] + num_empty_slabs() * int64_t{geometry_.per_slab(kind)};
  }
  int64_t num_empty_slabs() const { return static_cast<int64_t>(empty_slabs_.size()); }
  int64_t num_slabs(UnitKind kind) const { return slabs_of_[Index(kind)]; }
  // Bytes of free units in partly used slabs.
  int64_t stranded_bytes() const;

  // O(1): for each kind free + used = total over the slabs it holds, and slabs + empty slabs = all slabs.
  Status CheckTotals() const;
  // O(units): recounts everything from the bitmaps and walks all lists.
  Status CheckConsistency() const;

 private:
  static constexpr int8_t kEmpty = -1;
  static constexpr int32_t kNone = -1;

  struct Slab {
    int8_t kind = kEmpty;
    int32_t num_used = 0;
    int32_t prev = kNone;  // neighbours in the list of slabs of this kind with equal num_used
    int32_t next = kNone;
  };

  // Slabs of one kind by number of used units, with a bitmap of the non-empty lists.
  struct Buckets {
    std::vector<int32_t> head;       // [units_per_slab + 1]
    std::vector<uint64_t> occupied;  // bit n: head[n] is not kNone
  };

  static int Index(UnitKind kind) { return static_cast<int>(kind); }
  uint64_t* Words(int32_t slab) { return used_bits_.data() + int64_t{slab} * words_per_slab_; }
  const uint64_t* Words(int32_t slab) const { return used_bits_.data() + int64_t{slab} * words_per_slab_; }
  void Link(int32_t slab);
  void Unlink(int32_t slab);
  int32_t FullestSlabWithRoom(int kind) const;
  int32_t TakeEmptySlab(int kind);
  int32_t TakeLowestUnit(int32_t slab);
  Status CheckSlab(int32_t slab) const;

  SlabGeometry geometry_;
  Observer observer_;
  int32_t words_per_slab_ = 0;
  std::vector<Slab> slabs_;
  std::vector<uint64_t> used_bits_;   // [num_slabs, words_per_slab]
  std::vector<int32_t> empty_slabs_;  // a stack
  Buckets buckets_[kNumUnitKinds];
  int64_t used_[kNumUnitKinds] = {};
  int64_t free_in_slabs_[kNumUnitKinds] = {};
  int64_t slabs_of_[kNumUnitKinds] = {};
};

}  // namespace rt
