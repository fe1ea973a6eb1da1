// Sizes of the attention kernel, in one place because the workspace depends on them.
#pragma once

#include <cstdint>

#include "kernels/attention/attention.h"

namespace rt::kernels {

// Query rows of an item: (tokens) x (query heads of one key/value head).
constexpr int64_t kMaxQueryRows = 64;
// Cached tokens taken at once: as fp32 rows of 256 their keys, then their values (32 KB each), fit L1 or
// nearly so.
constexpr int64_t kKeyChunk = 32;
// Decode: a segment is at least this many tokens, so that merging costs nothing beside it, and there are at
// most kMaxSegments.
constexpr int64_t kMinSegment = 512;
constexpr int64_t kMaxSegments = 16;

// Features of a row in scratch: whole vectors, tail zero, and a cache line more so that rows do not collide
// in the cache.
constexpr int64_t PaddedHeadDim(int64_t head_dim) { return (head_dim + 15) / 16 * 16 + 16; }

// Floats of one thread's scratch: q and o [rows][padded], keys and values [chunk][padded], scores
// [rows][chunk], maximum and sum [rows].
constexpr int64_t ThreadScratchFloats(int64_t head_dim) {
  return (2 * kMaxQueryRows + 2 * kKeyChunk) * PaddedHeadDim(head_dim) + kMaxQueryRows * kKeyChunk +
         2 * kMaxQueryRows;
}

// One head of a segment's unfinished softmax: maximum, sum, then o [padded].
constexpr int64_t PartialFloats(int64_t head_dim) { return PaddedHeadDim(head_dim) + 16; }

}  // namespace rt::kernels
