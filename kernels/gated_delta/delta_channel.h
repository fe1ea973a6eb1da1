// The two triangular matrices and the scaled operands of a chunk whose key channels decay each at their own rate:
//
//   L[i,j] = beta_i sum_d k_i[d] k_j[d] e^(G_i[d] - G_j[d])    P[i,j] = sum_d q_i[d] k_j[d] e^(G_i[d] - G_j[d])
//
// The decay sits inside the dot product, and e^(G_i) e^(-G_j) would overflow. The chunk is cut into blocks of 16 rows. With i in block I and
// j in an earlier block J, G_i - G_j = (g summed from I's first row to i) + (whole blocks between) + (g summed after j to J's last row): three
// sums of one sign, so three factors <= 1, none of them lost to cancellation, whatever the gate. The last two live in copies of the keys that
// decay block by block and end as k e^(G_end - G), which the state update needs. Inside a block the copies decay row by row.
#pragma once

#include "kernels/gated_delta/delta_gates.h"
#include "kernels/gated_delta/delta_tile.h"

namespace rt::kernels::inline RT_ISA_NS {

// Rows of a block whose sums stay in registers while the copies walk past: two sums a row.
constexpr int kWalkRows = RT_ISA_AVX512BF16 ? 8 : 2;

// Per token, once a head: e^g and the operands that read the state before it decays.
inline void PrepareRecurrentChannels(const DeltaScratch& s, int64_t n) {
  for (int64_t at = 0; at < n * s.key_stride; at += kLanes) {
    const F32x16 decay = Exp(Load(s.channel.decay + at));
    Store(decay, s.channel.decay + at);
    Store(decay * Load(s.keys + at), s.channel.keys + at);
    Store(decay * Load(s.queries + at), s.channel.queries + at);
  }
}

// For the 16 rows from `block` on: e^g in place of g, k and q times e^(g summed from the block's first row), and the block's whole sum.
inline void PrepareBlockRows(const DeltaScratch& s, int64_t block) {
  const DeltaChannelScratch& c = s.channel;
  for (int64_t d = 0; d < s.key_stride; d += kLanes) {
    F32x16 sum = Zero();
    for (int64_t at = block * s.key_stride + d; at < (block + 16) * s.key_stride; at += s.key_stride) {
      const F32x16 g = Load(c.decay + at);
      sum = sum + g;
      const F32x16 decay = Exp(sum);
      Store(Exp(g), c.decay + at);
      Store(decay * Load(s.keys + at), c.keys + at);
      Store(decay * Load(s.queries + at), c.queries + at);
    }
    Store(sum, c.block_gate + d);
  }
}

// L and P of a block's rows against NP earlier blocks from token `column` on.
template <int NP>
RT_SIMD void EarlierBlockColumns(const DeltaScratch& s, int64_t block, int64_t column) {
  const DeltaChannelScratch& c = s.channel;
  const float* keys = c.later_keys + column * s.key_stride;
  for (int64_t i = block; i < block + 16; i += kTileRows) {
    Tile<kTileRows, NP> tile;
    tile.Clear();
    tile.FmaRows(c.keys + i * s.key_stride, s.key_stride, keys, 16 * s.key_stride, s.key_stride);
    for (int r = 0; r < kTileRows; ++r) {
      for (int p = 0; p < NP; ++p) tile.acc[r][p] = tile.acc[r][p] * Set1(-s.beta[i + r]);
    }
    tile.Write(s.neg_lower + i * kDeltaChunk + column, kDeltaChunk, 16);
    tile.Clear();
    tile.FmaRows(c.queries + i * s.key_stride, s.key_stride, keys, 16 * s.key_stride, s.key_stride);
    tile.Write(s.scores + i * kDeltaChunk + column, kDeltaChunk, 16);
  }
}

// Rows [kFirst, kFirst + kWalkRows) of a block against the block itself. Lane j of a copy is k_j until row j, and e^g of each later row is
// multiplied in; lanes the row must not see are masked from the sums.
template <int kFirst>
RT_SIMD void WalkRows(const DeltaScratch& s, int64_t block) {
  const int64_t stride = s.key_stride;
  const int64_t first = (block + kFirst) * stride;
  float* copies = s.channel.later_keys + block * stride;
  const float* from = kFirst == 0 ? s.keys_t + block * stride : copies;
  F32x16 by_key[kWalkRows], by_query[kWalkRows];
  for (int r = 0; r < kWalkRows; ++r) by_key[r] = by_query[r] = Zero();
  for (int64_t d = 0; d < stride; ++d) {
    F32x16 copy = Load(from + d * kLanes);
    for (int r = 0; r < kWalkRows; ++r) {
      const int64_t at = first + r * stride + d;
      if (kFirst + r > 0) copy = Select(FirstN(kFirst + r), copy * Set1(s.channel.decay[at]), copy);
      by_key[r] = Fma(Set1(s.keys[at]), copy, by_key[r]);
      by_query[r] = Fma(Set1(s.queries[at]), copy, by_query[r]);
    }
    Store(copy, copies + d * kLanes);
  }
  for (int r = 0; r < kWalkRows; ++r) {
    const int64_t i = block + kFirst + r;
    const int64_t at = i * kDeltaChunk + block;
    Store(Select(FirstN(kFirst + r), Set1(-s.beta[i]) * by_key[r], Zero()), s.neg_lower + at);
    Store(Select(FirstN(kFirst + r + 1), by_query[r], Zero()), s.scores + at);
  }
}

template <int kFirst = 0>
RT_SIMD void WalkBlock(const DeltaScratch& s, int64_t block) {
  WalkRows<kFirst>(s, block);
  if constexpr (kFirst + kWalkRows < 16) WalkBlock<kFirst + kWalkRows>(s, block);
}

// A finished block: its k and q take the decay from the chunk's start, the keys of the blocks before it take its decay.
inline void FinishBlock(const DeltaScratch& s, int64_t block) {
  const DeltaChannelScratch& c = s.channel;
  for (int64_t d = 0; d < s.key_stride; d += kLanes) {
    const F32x16 before = Load(c.total_gate + d);
    const F32x16 decay = Exp(before);
    for (int64_t at = block * s.key_stride + d; block > 0 && at < (block + 16) * s.key_stride; at += s.key_stride) {
      Store(decay * Load(c.keys + at), c.keys + at);
      Store(decay * Load(c.queries + at), c.queries + at);
    }
    Store(before + Load(c.block_gate + d), c.total_gate + d);
    Store(Exp(Load(c.block_gate + d)), c.block_gate + d);
  }
  for (int64_t column = 0; column < block; column += 16) {
    float* keys = c.later_keys + column * s.key_stride;
    for (int64_t d = 0; d < s.key_stride; ++d) Store(Load(keys + d * kLanes) * Set1(c.block_gate[d]), keys + d * kLanes);
  }
}

// Per head: both triangular matrices, k e^G, q e^G, k e^(G_end - G) and e^(G_end). `s.channel.decay` holds g on entry.
inline void PrepareChunkChannels(const DeltaScratch& s, int64_t rows) {
  const DeltaChannelScratch& c = s.channel;
  std::memset(c.total_gate, 0, static_cast<size_t>(s.key_stride) * sizeof(float));
  for (int64_t block = 0; block < rows; block += 16) {
    PrepareBlockRows(s, block);
    int64_t column = 0;
    for (; column + 16 * kTilePanels <= block; column += 16 * kTilePanels) EarlierBlockColumns<kTilePanels>(s, block, column);
    for (; column < block; column += 16) EarlierBlockColumns<1>(s, block, column);
    WalkBlock(s, block);
    FinishBlock(s, block);
  }
  for (int64_t d = 0; d < s.key_stride; d += kLanes) Store(Exp(Load(c.total_gate + d)), c.end_decay + d);
}

}  // namespace rt::kernels::inline RT_ISA_NS
