// Slab sizes: how KV blocks and state slots share one address range without padding each other.
//
// The arena is `num_slabs` slabs of `slab_bytes`. A slab holds either `units_per_slab(kKvBlock)` KV blocks or
// `units_per_slab(kStateSlot)` state slots, and slab_bytes = units_per_slab * stride for both kinds, so that
// address = base + id * stride holds for every unit of either kind, wherever its slab lies.
// Choosing n state slots and m KV blocks a slab fixes slab_bytes as the smallest multiple of lcm(n, m) *
// alignment that holds both; the padding of a unit is stride - size. Larger n makes padding smaller and slabs
// larger (slabs are the grain in which memory moves between the kinds), so the smallest slab with at most
// kMaxPadding is taken.
#pragma once

#include <rt/plugin/status.hpp>

#include <array>
#include <cstdint>

namespace rt {

enum class UnitKind : int32_t { kKvBlock = 0, kStateSlot = 1 };
inline constexpr int kNumUnitKinds = 2;
const char* UnitKindName(UnitKind kind);  // "KV block", "state slot"

struct SlabRequest {
  int64_t kv_block_bytes = 0;    // 0: the model has none
  int64_t state_slot_bytes = 0;  // 0: the model has none; not both 0
  int64_t alignment_bytes = 64;  // power of two; every unit starts at a multiple of it
  int64_t arena_bytes = 0;       // upper bound of what may be used
};

struct SlabGeometry {
  std::array<int64_t, kNumUnitKinds> unit_bytes{};      // as asked for
  std::array<int64_t, kNumUnitKinds> stride_bytes{};    // 0 for an absent kind
  std::array<int32_t, kNumUnitKinds> units_per_slab{};  // 0 for an absent kind
  int64_t slab_bytes = 0;
  int32_t num_slabs = 0;

  int64_t arena_bytes() const { return slab_bytes * num_slabs; }
  int64_t stride(UnitKind kind) const { return stride_bytes[static_cast<int>(kind)]; }
  int32_t per_slab(UnitKind kind) const { return units_per_slab[static_cast<int>(kind)]; }
  // Units when all slabs are of this kind; ids are below it.
  int32_t max_units(UnitKind kind) const { return per_slab(kind) * num_slabs; }
  // Share of a stride that is padding, in [0, 1).
  double padding(UnitKind kind) const;
};

inline constexpr double kMaxPadding = 0.02;

// InvalidArgument: sizes that make no sense. ResourceExhausted: not even one slab fits into arena_bytes.
// Padding exceeds kMaxPadding only where slabs that keep it would be more than a quarter of the arena (tiny
// pools, where the grain matters more) or where a unit is smaller than alignment / kMaxPadding.
Result<SlabGeometry> PlanSlabs(const SlabRequest& request);

}  // namespace rt
