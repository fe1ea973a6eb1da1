// One chunk of up to 64 tokens in the direct form of gated_delta.h. `rows` below is the token count rounded up to 16; padding rows hold
// k = q = v = 0, g = 0, beta = 0 and so change nothing.
//
// The large products go through a `Math`: FmaMath below multiplies fp32 operands; DotMath (delta_dot.h) multiplies bf16 copies of them with
// fp32 sums. Gates, masks, the triangular solve and the state itself are fp32 in both.
//
// With channel decays the same code reads a view of the scratch whose keys and queries carry e^G and whose transposed keys carry
// e^(G_end - G) (ChannelView), so nothing is left to scale by but the state's rows.
#pragma once

#include "kernels/gated_delta/delta_channel.h"

namespace rt::kernels::inline RT_ISA_NS {

// keys [rows][stride] -> keys_t [rows/16][stride][16].
inline void TransposeKeys(const DeltaScratch& s, int64_t rows) {
  for (int64_t i = 0; i < rows; i += 16) {
    for (int64_t d = 0; d < s.key_stride; d += 16) {
      F32x16 block[16];
      for (int r = 0; r < 16; ++r) block[r] = Load(s.keys + (i + r) * s.key_stride + d);
      Transpose16x16(block);
      float* to = s.keys_t + i * s.key_stride + d * 16;
      for (int r = 0; r < 16; ++r) Store(block[r], to + r * 16);
    }
  }
}

// Operands and products in fp32. `i` is a token row, `d` a state row, `column` a token column, each the first of a tile.
struct FmaMath {
  static void PackGroup(const DeltaScratch& s, int64_t rows) { TransposeKeys(s, rows); }
  static void PackScores(const DeltaScratch&, int64_t) {}
  static void PackChannelView(const DeltaScratch&, int64_t) {}
  template <int NP>
  static RT_ALWAYS_INLINE void PackState(const DeltaScratch&, const float*, int64_t) {}
  template <int NP>
  static RT_ALWAYS_INLINE void PackU(const DeltaScratch&, int64_t) {}
  // U <- tail_decay U, ready for KeysTransposedByU.
  template <int NP>
  static RT_ALWAYS_INLINE void DecayU(const DeltaScratch& s, int64_t rows) {
    for (int p = 0; p < NP; ++p) {
      for (int64_t i = 0; i < rows; ++i) {
        float* row = s.u + p * kDeltaChunk * 16 + i * 16;
        Store(Load(row) * Set1(s.tail_decay[i]), row);
      }
    }
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void KeysByKeys(Tile& tile, const DeltaScratch& s, int64_t i, int64_t column) {
    tile.FmaRows(s.keys + i * s.key_stride, s.key_stride, s.keys_t + column * s.key_stride, 16 * s.key_stride, s.key_stride);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void QueriesByKeys(Tile& tile, const DeltaScratch& s, int64_t i, int64_t column) {
    tile.FmaRows(s.queries + i * s.key_stride, s.key_stride, s.keys_t + column * s.key_stride, 16 * s.key_stride, s.key_stride);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void KeysByState(Tile& tile, const DeltaScratch& s, int64_t i, const float* state, int64_t key_dim) {
    tile.FmaRows(s.keys + i * s.key_stride, s.key_stride, state, key_dim * 16, key_dim);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void QueriesByState(Tile& tile, const DeltaScratch& s, int64_t i, const float* state, int64_t key_dim) {
    tile.FmaRows(s.queries + i * s.key_stride, s.key_stride, state, key_dim * 16, key_dim);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void ScoresByU(Tile& tile, const DeltaScratch& s, int64_t i, int64_t depth) {
    tile.FmaRows(s.scores + i * kDeltaChunk, kDeltaChunk, s.u, kDeltaChunk * 16, depth);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void KeysTransposedByU(Tile& tile, const DeltaScratch& s, int64_t d, int64_t rows) {
    tile.FmaColumns(s.keys + d, s.key_stride, s.u, kDeltaChunk * 16, rows);
  }
  // The same product from transposed keys.
  template <class Tile>
  static RT_ALWAYS_INLINE void KeyPanelsByU(Tile& tile, const DeltaScratch& s, int64_t d, int64_t rows) {
    for (int64_t i = 0; i < rows; i += 16) tile.FmaRows(s.keys_t + i * s.key_stride + d * 16, 16, s.u + i * 16, kDeltaChunk * 16, 16);
  }
};

// key_key and query_key, 16-column blocks at and left of the diagonal.
template <class Math, int NP>
RT_SIMD void TokenProductColumns(const DeltaScratch& s, int64_t rows, int64_t column) {
  for (int64_t i = column; i < rows; i += kTileRows) {
    Tile<kTileRows, NP> tile;
    tile.Clear();
    Math::KeysByKeys(tile, s, i, column);
    tile.Write(s.key_key + i * kDeltaChunk + column, kDeltaChunk, 16);
    tile.Clear();
    Math::QueriesByKeys(tile, s, i, column);
    tile.Write(s.query_key + i * kDeltaChunk + column, kDeltaChunk, 16);
  }
}

// Everything of a group's chunk that its value heads share. Channel decays leave no product of tokens to share.
template <class Math>
void PrepareChunkGroup(const DeltaScratch& s, int64_t rows, bool channel_gates) {
  if (channel_gates) return TransposeKeys(s, rows);
  Math::PackGroup(s, rows);
  int64_t column = 0;
  for (; column + 16 * kTilePanels <= rows; column += 16 * kTilePanels) TokenProductColumns<Math, kTilePanels>(s, rows, column);
  for (; column < rows; column += 16) TokenProductColumns<Math, 1>(s, rows, column);
}

// Per head: running sums of g, their exponentials, and the two triangular matrices. `s.gate` holds g on entry. Returns e^(G_end).
inline float PrepareChunkHead(const DeltaScratch& s, int64_t rows) {
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    sum += s.gate[i];
    s.running_g[i] = sum;
  }
  for (int64_t i = 0; i < rows; i += 16) {
    // G - 0 and G_end - G, rounded once to fp32.
    Store(Exp(Neg(DifferenceF64(0.0, s.running_g + i))), s.exp_g + i);
    Store(Exp(DifferenceF64(sum, s.running_g + i)), s.tail_decay + i);
  }
  const F32x16 never = Set1(-__builtin_inff());
  for (int64_t i = 0; i < rows; ++i) {
    const F32x16 neg_beta = Set1(-s.beta[i]);
    for (int64_t j = 0; j <= i; j += 16) {
      const int below = static_cast<int>(Min<int64_t>(16, i - j));       // columns j + lane < i
      const int upto = static_cast<int>(Min<int64_t>(16, i - j + 1));    // columns j + lane <= i
      // Masked before exp: above the diagonal the difference is positive and may overflow.
      const F32x16 factor = Exp(Select(FirstN(upto), DifferenceF64(s.running_g[i], s.running_g + j), never));
      const int64_t at = i * kDeltaChunk + j;
      Store(Select(FirstN(below), neg_beta * Load(s.key_key + at) * factor, Zero()), s.neg_lower + at);
      Store(Load(s.query_key + at) * factor, s.scores + at);
    }
  }
  return ExpScalar(static_cast<float>(sum));
}

// U <- (I + L)^-1 U for one 16-row diagonal block, right-looking: once a row is final, it leaves the rows below.
RT_SIMD void SolveDiagonalBlock(const float* neg_lower, float* u) {
  F32x16 row[16];
  for (int i = 0; i < 16; ++i) row[i] = Load(u + i * 16);
  for (int j = 0; j < 15; ++j) {
    for (int i = j + 1; i < 16; ++i) row[i] = Fma(Set1(neg_lower[i * kDeltaChunk + j]), row[j], row[i]);
  }
  for (int i = 1; i < 16; ++i) Store(row[i], u + i * 16);
}

template <int NP>
RT_SIMD void SolveTriangular(const DeltaScratch& s, int64_t rows) {
  constexpr int64_t kPanel = kDeltaChunk * 16;
  for (int64_t block = 0; block < rows; block += 16) {
    for (int64_t i = block; block > 0 && i < block + 16; i += kTileRows) {
      Tile<kTileRows, NP> tile;
      tile.Read(s.u + i * 16, 16, kPanel);
      tile.FmaRows(s.neg_lower + i * kDeltaChunk, kDeltaChunk, s.u, kPanel, block);
      tile.Write(s.u + i * 16, 16, kPanel);
    }
    for (int p = 0; p < NP; ++p) SolveDiagonalBlock(s.neg_lower + block * kDeltaChunk + block, s.u + p * kPanel + block * 16);
  }
}

// S <- e^(G_end) S + K^T (tail_decay U) for state rows [d, d + MR); channel decays: tail_decay is in K, e^(G_end) has a value a row.
template <class Math, bool kChannels, int MR, int NP>
RT_SIMD void UpdateStateRows(const DeltaScratch& s, int64_t rows, int64_t d, const float* decay, float* state, int64_t state_panel) {
  Tile<MR, NP> tile;
  tile.Read(state + d * 16, 16, state_panel);
  for (int r = 0; r < MR; ++r) {
    for (int p = 0; p < NP; ++p) tile.acc[r][p] = tile.acc[r][p] * Set1(decay[kChannels ? d + r : 0]);
  }
  if constexpr (kChannels) {
    Math::KeyPanelsByU(tile, s, d, rows);
  } else {
    Math::KeysTransposedByU(tile, s, d, rows);
  }
  tile.Write(state + d * 16, 16, state_panel);
}

// NP panels of one head: values [rows][value_stride] at these panels' columns become outputs, state [NP][Dk][16] advances.
template <class Math, bool kChannels, int NP>
void ChunkPanels(const DeltaScratch& s, int64_t rows, int64_t key_dim, const float* end_decay, float* values, float* state) {
  constexpr int64_t kPanel = kDeltaChunk * 16;
  const int64_t state_panel = key_dim * 16;
  Math::template PackState<NP>(s, state, key_dim);
  for (int64_t i = 0; i < rows; i += kTileRows) {  // U <- beta (V - e^G K S)
    Tile<kTileRows, NP> tile;
    tile.Clear();
    Math::KeysByState(tile, s, i, state, key_dim);
    for (int r = 0; r < kTileRows; ++r) {
      const F32x16 exp_g = Set1(kChannels ? 1.0f : s.exp_g[i + r]);
      const F32x16 beta = Set1(s.beta[i + r]);
      for (int p = 0; p < NP; ++p) {
        const F32x16 v = Load(values + (i + r) * s.value_stride + p * 16);
        Store(beta * Fnma(exp_g, tile.acc[r][p], v), s.u + p * kPanel + (i + r) * 16);
      }
    }
  }
  SolveTriangular<NP>(s, rows);
  Math::template PackU<NP>(s, rows);
  for (int64_t i = 0; i < rows; i += kTileRows) {  // O <- e^G Q S + P U
    Tile<kTileRows, NP> tile;
    tile.Clear();
    Math::QueriesByState(tile, s, i, state, key_dim);
    if constexpr (!kChannels) tile.ScaleRows(s.exp_g + i);
    Math::ScoresByU(tile, s, i, i + kTileRows);
    tile.Write(values + i * s.value_stride, s.value_stride, 16);
  }
  if constexpr (!kChannels) Math::template DecayU<NP>(s, rows);
  int64_t d = 0;
  for (; d + kTileRows <= key_dim; d += kTileRows) UpdateStateRows<Math, kChannels, kTileRows, NP>(s, rows, d, end_decay, state, state_panel);
  for (; d < key_dim; ++d) UpdateStateRows<Math, kChannels, 1, NP>(s, rows, d, end_decay, state, state_panel);
}

// The scratch of one head as its panels see it.
RT_SIMD DeltaScratch ChannelView(const DeltaScratch& s) {
  DeltaScratch view = s;
  view.keys = s.channel.keys;
  view.queries = s.channel.queries;
  view.keys_t = s.channel.later_keys;
  return view;
}

// Panels [first, last) of one head whose gates are in scratch; `state` is the head's fp32 state, `values` its [rows][value_stride].
template <class Math, bool kChannels>
void ChunkHead(const DeltaScratch& s, int64_t rows, int64_t key_dim, int64_t first, int64_t last, float* values, float* state) {
  DeltaScratch view = s;
  float scalar_end = 1.0f;
  if constexpr (kChannels) {
    PrepareChunkChannels(s, rows);
    view = ChannelView(s);
    Math::PackChannelView(view, rows);
  } else {
    scalar_end = PrepareChunkHead(s, rows);
  }
  const float* end_decay = kChannels ? s.channel.end_decay : &scalar_end;
  Math::PackScores(s, rows);
  int64_t p = first;
  for (; p + kTilePanels <= last; p += kTilePanels) {
    ChunkPanels<Math, kChannels, kTilePanels>(view, rows, key_dim, end_decay, values + p * 16, state + p * key_dim * 16);
  }
  for (; p < last; ++p) ChunkPanels<Math, kChannels, 1>(view, rows, key_dim, end_decay, values + p * 16, state + p * key_dim * 16);
}

}  // namespace rt::kernels::inline RT_ISA_NS
