// Block sizes of the GEMM, in one place because the workspace depends on them.
#pragma once

#include <cstdint>

namespace rt::kernels {

// Rows of x a tile holds.
constexpr int64_t kTileRowsOfX = 4;
// Up to this many rows of x, operands go to the registers as they lie; copying W to panels pays from there
// on.
constexpr int64_t kMaxStreamRows = 16;
constexpr int64_t kMaxTileRowsOfW = 6;
// How far ahead of its load a streamed row of W is fetched, to L1. On Zen 4 512 bytes measured best and 1 KB
// slower; on Emerald Rapids 512 and 1024 are equal and fetching to L2 only is slower.
constexpr int64_t kStreamAheadBytes = 512;
// Longest part of K, in elements, that a tile sees at once: its rows of W are then at most 24 KB and stay in
// L1 (32-48 KB) while the rows of x pass by from L2.
constexpr int64_t kPart = 1024;
// Rows of W that share one copied part of x; where K has several parts, their unfinished sums are kept. A
// multiple of every tile.
constexpr int64_t kSuperRows = 48;
// Rows of x between two passes over W: a part of them (256 KB as fp32) and the sums (192 KB) stay in L2 (1-2
// MB), and every byte of a bf16 weight takes part in 64 operations, so memory is not the limit.
constexpr int64_t kGroupRows = 64;
constexpr int64_t kMaxLanes = 16;

// One thread's share of GemmArgs::workspace.
struct alignas(64) GemmThreadWorkspace {
  float w[kMaxTileRowsOfW * kPart];                    // one tile's rows of W
  float x[kGroupRows * kPart];                         // a part of a group of rows of x
  float partial[kGroupRows * kSuperRows * kMaxLanes];  // accumulators between parts of K
};

}  // namespace rt::kernels
