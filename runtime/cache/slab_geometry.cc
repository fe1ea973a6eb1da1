#include "runtime/cache/slab_geometry.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

namespace rt {
namespace {

// More large units a slab than this bring no gain: padding shrinks with 1/n and is at most 1/n of a small
// unit.
constexpr int64_t kMaxLargeUnitsPerSlab = 64;

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

struct Candidate {
  int64_t num_large = 0;
  int64_t num_small = 0;
  int64_t slab_bytes = 0;
  double padding = 1.0;  // the worse of the two kinds
};

// Slabs of `num_large` large and `num_small` small units.
Candidate MakeCandidate(int64_t large_bytes, int64_t small_bytes, int64_t num_large, int64_t num_small,
                        int64_t alignment) {
  const int64_t grain = std::lcm(num_large, num_small) * alignment;
  const int64_t slab = RoundUp(std::max(num_large * large_bytes, num_small * small_bytes), grain);
  const double used = static_cast<double>(std::min(num_large * large_bytes, num_small * small_bytes));
  return {num_large, num_small, slab, 1.0 - used / static_cast<double>(slab)};
}

Candidate ChooseSlab(int64_t large_bytes, int64_t small_bytes, int64_t alignment, int64_t arena_bytes) {
  std::optional<Candidate> best;
  for (int64_t n = 1; n <= kMaxLargeUnitsPerSlab; ++n) {
    const int64_t fitting = n * large_bytes / small_bytes;
    Candidate candidate = MakeCandidate(large_bytes, small_bytes, n, fitting, alignment);
    const Candidate denser = MakeCandidate(large_bytes, small_bytes, n, fitting + 1, alignment);
    if (denser.padding < candidate.padding) candidate = denser;
    if (n > 1 && candidate.slab_bytes > arena_bytes / 4) break;
    if (!best || candidate.padding < best->padding) best = candidate;
    if (candidate.padding <= kMaxPadding) break;
  }
  return *best;
}

Status CheckRequest(const SlabRequest& request) {
  const auto bad = [](const char* name, const char* expected, int64_t found) {
    return Status(Code::kInvalidArgument,
                  std::string(name) + ": expected " + expected + ", got " + std::to_string(found));
  };
  // Products below stay far from int64 overflow with units of at most 1 TiB.
  constexpr int64_t kMaxUnitBytes = int64_t{1} << 40;
  if (request.kv_block_bytes < 0 || request.kv_block_bytes > kMaxUnitBytes)
    return bad("kv_block_bytes", "0 to 1 TiB", request.kv_block_bytes);
  if (request.state_slot_bytes < 0 || request.state_slot_bytes > kMaxUnitBytes)
    return bad("state_slot_bytes", "0 to 1 TiB", request.state_slot_bytes);
  if (request.kv_block_bytes + request.state_slot_bytes == 0)
    return bad("kv_block_bytes + state_slot_bytes", "a model with at least one cache", 0);
  const int64_t alignment = request.alignment_bytes;
  if (alignment <= 0 || (alignment & (alignment - 1)) != 0 || alignment > (int64_t{1} << 21))
    return bad("alignment_bytes", "a power of two up to 2 MiB", alignment);
  if (request.arena_bytes <= 0) return bad("arena_bytes", "> 0", request.arena_bytes);
  return Status::Ok();
}

}  // namespace

const char* UnitKindName(UnitKind kind) { return kind == UnitKind::kKvBlock ? "KV block" : "state slot"; }

double SlabGeometry::padding(UnitKind kind) const {
  const int i = static_cast<int>(kind);
  if (stride_bytes[i] == 0) return 0.0;
  return 1.0 - static_cast<double>(unit_bytes[i]) / static_cast<double>(stride_bytes[i]);
}

Result<SlabGeometry> PlanSlabs(const SlabRequest& request) {
  RT_RETURN_IF_ERROR(CheckRequest(request));
  const int64_t alignment = request.alignment_bytes;
  SlabGeometry geometry;
  geometry.unit_bytes = {request.kv_block_bytes, request.state_slot_bytes};
  const int large = request.state_slot_bytes >= request.kv_block_bytes ? 1 : 0;
  const int small = 1 - large;
  const int64_t large_bytes = RoundUp(geometry.unit_bytes[large], alignment);
  const int64_t small_bytes = RoundUp(geometry.unit_bytes[small], alignment);
  if (small_bytes == 0) {  // one kind: a slab a unit
    geometry.slab_bytes = large_bytes;
    geometry.units_per_slab[large] = 1;
  } else {
    const Candidate slab = ChooseSlab(large_bytes, small_bytes, alignment, request.arena_bytes);
    if (slab.num_small > std::numeric_limits<int32_t>::max())
      return Status(Code::kInvalidArgument,
                    "unit sizes differ by more than 2^31: " + std::to_string(small_bytes) + " and " +
                        std::to_string(large_bytes) + " bytes");
    geometry.slab_bytes = slab.slab_bytes;
    geometry.units_per_slab[large] = static_cast<int32_t>(slab.num_large);
    geometry.units_per_slab[small] = static_cast<int32_t>(slab.num_small);
  }
  for (int kind = 0; kind < kNumUnitKinds; ++kind) {
    if (geometry.units_per_slab[kind] > 0)
      geometry.stride_bytes[kind] = geometry.slab_bytes / geometry.units_per_slab[kind];
  }
  const int64_t most_units = std::max(geometry.units_per_slab[0], geometry.units_per_slab[1]);
  const int64_t num_slabs =
      std::min(request.arena_bytes / geometry.slab_bytes, std::numeric_limits<int32_t>::max() / most_units);
  if (num_slabs < 1)
    return Status(Code::kResourceExhausted, "cache memory: expected at least one slab of " +
                                                std::to_string(geometry.slab_bytes) + " bytes, got " +
                                                std::to_string(request.arena_bytes) + " bytes");
  geometry.num_slabs = static_cast<int32_t>(num_slabs);
  return geometry;
}

}  // namespace rt
