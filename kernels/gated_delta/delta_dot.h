// The chunk form's large products on VDPBF16PS: operands rounded to bf16 in pairs along the summed index, sums in fp32. Twice the rate of
// fp32 FMA on AMD cores from Zen 4 on, half of it on Intel cores (see CpuPrefersBf16Dot); below AVX512-BF16 there is only fp32.
#pragma once

#include "kernels/gated_delta/delta_chunk.h"

namespace rt::kernels::inline RT_ISA_NS {

#if RT_ISA_AVX512BF16

namespace dot_detail {

RT_SIMD __m512i LoadPairs(const bf16* p) { return _mm512_loadu_si512(p); }
RT_SIMD void StorePairs(__m512i x, bf16* p) { _mm512_storeu_si512(p, x); }

// Lane l of the result holds (even[l], odd[l]).
RT_SIMD __m512i PairLanes(F32x16 even, F32x16 odd) {
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd.v, even.v));  // even below odd
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3,
                                         18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, halves);
}

RT_SIMD F32x16 Dot(F32x16 sum, __m512i a, __m512i b) {
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))};
}

RT_SIMD __m512i BroadcastPair(const bf16* p) {
  int32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return _mm512_set1_epi32(pair);
}

// tile[r][p] += sum over pairs of A[r] . B[p]; row r of A starts at a + r * a_row, its pairs are a_pair elements apart.
template <int MR, int NP>
RT_SIMD void DotTile(Tile<MR, NP>& tile, const bf16* a, int64_t a_row, int64_t a_pair, const bf16* b, int64_t b_panel, int64_t pairs) {
  for (int64_t k = 0; k < pairs; ++k, a += a_pair, b += 2 * kLanes) {
    __m512i lanes[NP];
    for (int p = 0; p < NP; ++p) lanes[p] = LoadPairs(b + p * b_panel);
    for (int r = 0; r < MR; ++r) {
      const __m512i pair = BroadcastPair(a + r * a_row);
      for (int p = 0; p < NP; ++p) tile.acc[r][p] = Dot(tile.acc[r][p], pair, lanes[p]);
    }
  }
}

// One row of Dk floats to bf16 with a zero tail up to the packed stride.
RT_SIMD void NarrowRow(const float* from, int64_t width, bf16* to, int64_t stride) {
  for (int64_t d = 0; d < stride; d += kLanes) Store(d < width ? Load(from + d) : Zero(), to + d);
}

}  // namespace dot_detail

struct DotMath {
  static constexpr int64_t kPanelPairs = kDeltaChunk * 16;  // bf16 of one packed U panel

  static void PackGroup(const DeltaScratch& s, int64_t rows) {
    const DeltaPackedScratch& packed = s.packed;
    for (int64_t i = 0; i < rows; ++i) {
      dot_detail::NarrowRow(s.keys + i * s.key_stride, s.key_stride, packed.keys + i * packed.key_stride, packed.key_stride);
      dot_detail::NarrowRow(s.queries + i * s.key_stride, s.key_stride, packed.queries + i * packed.key_stride, packed.key_stride);
    }
    for (int64_t i = 0; i < rows; i += 2) {
      const float* row = s.keys + i * s.key_stride;
      bf16* to = packed.key_pairs + i * packed.key_stride;
      for (int64_t d = 0; d < s.key_stride; d += kLanes) {
        dot_detail::StorePairs(dot_detail::PairLanes(Load(row + d), Load(row + s.key_stride + d)), to + 2 * d);
      }
    }
    // A pair of bf16 moves as one 32-bit lane, so the fp32 transpose serves.
    const int64_t pairs = packed.key_stride / 2;
    for (int64_t i = 0; i < rows; i += 16) {
      for (int64_t d = 0; d < pairs; d += 16) {
        F32x16 block[16];
        for (int r = 0; r < 16; ++r) {
          block[r] = {_mm512_castsi512_ps(dot_detail::LoadPairs(packed.keys + (i + r) * packed.key_stride + 2 * d))};
        }
        Transpose16x16(block);
        bf16* to = packed.keys_t + i * packed.key_stride + d * 2 * kLanes;
        for (int r = 0; r < 16; ++r) dot_detail::StorePairs(_mm512_castps_si512(block[r].v), to + r * 2 * kLanes);
      }
    }
  }

  // Keys and queries that carry their decay; transposed keys stay [16-token block][key_stride][16], tokens side by side.
  static void PackChannelView(const DeltaScratch& s, int64_t rows) {
    const DeltaPackedScratch& packed = s.packed;
    for (int64_t i = 0; i < rows; ++i) {
      dot_detail::NarrowRow(s.keys + i * s.key_stride, s.key_stride, packed.keys + i * packed.key_stride, packed.key_stride);
      dot_detail::NarrowRow(s.queries + i * s.key_stride, s.key_stride, packed.queries + i * packed.key_stride, packed.key_stride);
    }
    for (int64_t at = 0; at < rows * s.key_stride; at += kLanes) Store(Load(s.keys_t + at), packed.keys_t + at);
  }

  static void PackScores(const DeltaScratch& s, int64_t rows) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j <= i; j += kLanes) Store(Load(s.scores + i * kDeltaChunk + j), s.packed.scores + i * kDeltaChunk + j);
    }
  }

  template <int NP>
  static RT_ALWAYS_INLINE void PackState(const DeltaScratch& s, const float* state, int64_t key_dim) {
    for (int p = 0; p < NP; ++p) {
      const float* from = state + p * key_dim * kLanes;
      bf16* to = s.packed.state + p * s.packed.key_stride * kLanes;
      for (int64_t d = 0; d < key_dim; d += 2, to += 2 * kLanes) {
        const F32x16 odd = d + 1 < key_dim ? Load(from + (d + 1) * kLanes) : Zero();
        dot_detail::StorePairs(dot_detail::PairLanes(Load(from + d * kLanes), odd), to);
      }
    }
  }

  template <int NP>
  static RT_ALWAYS_INLINE void PackU(const DeltaScratch& s, int64_t rows) {
    for (int p = 0; p < NP; ++p) {
      const float* from = s.u + p * kDeltaChunk * kLanes;
      bf16* to = s.packed.u + p * kPanelPairs;
      for (int64_t i = 0; i < rows; i += 2) {
        dot_detail::StorePairs(dot_detail::PairLanes(Load(from + i * kLanes), Load(from + (i + 1) * kLanes)), to + i * kLanes);
      }
    }
  }

  template <int NP>
  static RT_ALWAYS_INLINE void DecayU(const DeltaScratch& s, int64_t rows) {
    FmaMath::DecayU<NP>(s, rows);
    PackU<NP>(s, rows);
  }

  template <class Tile>
  static RT_ALWAYS_INLINE void KeysByKeys(Tile& tile, const DeltaScratch& s, int64_t i, int64_t column) {
    RowsByKeys(tile, s.packed, s.packed.keys, i, column);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void QueriesByKeys(Tile& tile, const DeltaScratch& s, int64_t i, int64_t column) {
    RowsByKeys(tile, s.packed, s.packed.queries, i, column);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void KeysByState(Tile& tile, const DeltaScratch& s, int64_t i, const float*, int64_t key_dim) {
    RowsByState(tile, s.packed, s.packed.keys, i, key_dim);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void QueriesByState(Tile& tile, const DeltaScratch& s, int64_t i, const float*, int64_t key_dim) {
    RowsByState(tile, s.packed, s.packed.queries, i, key_dim);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void ScoresByU(Tile& tile, const DeltaScratch& s, int64_t i, int64_t depth) {
    dot_detail::DotTile(tile, s.packed.scores + i * kDeltaChunk, kDeltaChunk, 2, s.packed.u, kPanelPairs, depth / 2);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void KeysTransposedByU(Tile& tile, const DeltaScratch& s, int64_t d, int64_t rows) {
    dot_detail::DotTile(tile, s.packed.key_pairs + 2 * d, 2, 2 * s.packed.key_stride, s.packed.u, kPanelPairs, rows / 2);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void KeyPanelsByU(Tile& tile, const DeltaScratch& s, int64_t d, int64_t rows) {
    for (int64_t i = 0; i < rows; i += 16) {
      dot_detail::DotTile(tile, s.packed.keys_t + i * s.key_stride + d * 16, 16, 2, s.packed.u + i * kLanes, kPanelPairs, 8);
    }
  }

 private:
  template <class Tile>
  static RT_ALWAYS_INLINE void RowsByKeys(Tile& tile, const DeltaPackedScratch& packed, const bf16* rows, int64_t i, int64_t column) {
    dot_detail::DotTile(tile, rows + i * packed.key_stride, packed.key_stride, 2, packed.keys_t + column * packed.key_stride,
                        16 * packed.key_stride, packed.key_stride / 2);
  }
  template <class Tile>
  static RT_ALWAYS_INLINE void RowsByState(Tile& tile, const DeltaPackedScratch& packed, const bf16* rows, int64_t i, int64_t key_dim) {
    dot_detail::DotTile(tile, rows + i * packed.key_stride, packed.key_stride, 2, packed.state, packed.key_stride * kLanes,
                        (key_dim + 1) / 2);
  }
};

#else

using DotMath = FmaMath;

#endif

}  // namespace rt::kernels::inline RT_ISA_NS
