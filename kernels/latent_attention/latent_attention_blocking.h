// Sizes of the latent attention kernels, in one place because the workspaces depend on them. Constants and forced-inline
// functions only: every instruction-set level includes this file.
#pragma once

#include <cstdint>

#include "kernels/latent_attention/latent_attention.h"

namespace rt::kernels {

// Query rows are padded to whole register tiles of this many.
constexpr int64_t kQueryTile = 8;
// Cached rows of one softmax step: two vectors of scores. Expanded keys (192 x 32 fp32, 24 KB) and values (16 KB) fit L1.
constexpr int64_t kLatentChunk = 32;
// Rows expanded at once: a whole group of rows of the GEMM, so that each row of W is copied once for 64 of them.
constexpr int64_t kExpandTile = 64;
// Queries that share an expansion, per item: attention then costs 2.5 times the expansion (Dn = Dv = 128, De = 64,
// L = 512), and a thread keeps 1.4 MB of queries and sums.
constexpr int64_t kMaxQueries = 1024;
// Query rows whose scores are kept before values are added: all heads of a token for 32 heads.
constexpr int64_t kScoreRows = 32;
// Absorbed: tokens that share one pass over the expansion weight; segments of a context are at least kMinLatentSegment
// rows (a segment costs a row of L sums a head to merge) and at most kMaxLatentSegments.
constexpr int64_t kWaveTokens = 16;
constexpr int64_t kMinLatentSegment = 256;
constexpr int64_t kMaxLatentSegments = 16;

#define RT_LATENT_SIZE RT_ALWAYS_INLINE constexpr int64_t
RT_LATENT_SIZE LatentPad(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
RT_LATENT_SIZE LatentMin(int64_t a, int64_t b) { return a < b ? a : b; }
// fp32 rows in scratch: whole vectors and a cache line more, so that rows do not collide in the cache.
RT_LATENT_SIZE LatentStride(int64_t n) { return LatentPad(n, 16) + 16; }
RT_LATENT_SIZE LatentRow(const LatentAttentionShape& s) { return int64_t{s.latent_dim} + s.qk_shared_dim; }
RT_LATENT_SIZE LatentQueryDim(const LatentAttentionShape& s) { return int64_t{s.qk_nope_dim} + s.qk_shared_dim; }
RT_LATENT_SIZE LatentHeadRows(const LatentAttentionShape& s) { return LatentPad(s.num_heads, kQueryTile); }

// Absorbed, in floats. Queries of a token: [heads][row]. A partial: maximum [heads], sum [heads], o [heads][L].
RT_LATENT_SIZE AbsorbedQueryFloats(const LatentAttentionShape& s) { return LatentHeadRows(s) * LatentStride(LatentRow(s)); }
RT_LATENT_SIZE LatentPartialFloats(const LatentAttentionShape& s) {
  return LatentPad(2 * LatentHeadRows(s) + LatentHeadRows(s) * LatentStride(s.latent_dim), 16);
}
// A thread: rows [chunk][row], their transpose [row][chunk], scores; the merged sums of a wave reuse the first two.
RT_LATENT_SIZE AbsorbedScratchFloats(const LatentAttentionShape& s) {
  const int64_t chunk = kLatentChunk * (LatentStride(LatentRow(s)) + LatentPad(LatentRow(s), 16));
  return chunk + kScoreRows * kLatentChunk;
}
static_assert(kWaveTokens <= kLatentChunk);

// Expanded, in floats, for items of up to `queries` queries: queries, sums o, maximum and sum; then keys [Dn + De][tile],
// values [tile][Dv], scores, and rows [tile][L] of the activation dtype. The GEMM's workspace follows.
RT_LATENT_SIZE ExpandedQueryFloats(const LatentAttentionShape& s) { return LatentStride(LatentQueryDim(s)) + LatentStride(s.v_dim) + 2; }
RT_LATENT_SIZE ExpandedScratchFloats(const LatentAttentionShape& s, int64_t queries) {
  const int64_t tile = kExpandTile * (LatentQueryDim(s) + LatentStride(s.v_dim) + s.latent_dim);
  return LatentPad(LatentPad(queries, kQueryTile) * ExpandedQueryFloats(s), 16) + LatentPad(tile, 16) + kScoreRows * kLatentChunk;
}
#undef RT_LATENT_SIZE

}  // namespace rt::kernels
