// Online softmax over one chunk of keys: the core that both orders of latent attention share. Part of the per-ISA code.
#pragma once

#include "kernels/common/simd.h"
#include "kernels/latent_attention/latent_attention_blocking.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

constexpr float kMaskedScore = -__builtin_inff();

// Register tiles. Scores: rows x the two vectors of a chunk; values: four rows x vectors of features. One F32x16 is two of
// AVX2's 16 registers.
#if RT_ISA_AVX512BF16
constexpr int kScoreTileRows = 8;
constexpr int kValueTileVecs = 4;
#else
constexpr int kScoreTileRows = 2;
constexpr int kValueTileVecs = 1;
#endif
constexpr int kValueTileRows = 4;
static_assert(kLatentChunk == 2 * kLanes && kQueryTile % kScoreTileRows == 0 && kQueryTile % kValueTileRows == 0);
static_assert(kScoreRows % kQueryTile == 0);

// Unfinished rows of a softmax. num_rows is a multiple of kQueryTile; rows past the real ones hold any finite query.
struct SoftmaxRows {
  const float* q;  // [num_rows][q_stride], scaled
  int64_t q_stride;
  float* o;  // [num_rows][o_stride]
  int64_t o_stride;
  float* maximum;  // [num_rows]
  float* sum;      // [num_rows]
  int64_t num_rows;

  RT_ALWAYS_INLINE void Clear(int64_t v_width) const {
    for (int64_t r = 0; r < num_rows; ++r) {
      maximum[r] = kMaskedScore;
      sum[r] = 0.0f;
      std::memset(o + r * o_stride, 0, static_cast<size_t>(v_width) * sizeof(float));
    }
  }
};

// Up to kLatentChunk keys, transposed, and their values. Key columns past `count` may hold anything, value rows past it are
// not read.
struct KeyValueChunk {
  const float* k;  // [k_dim][k_stride]
  int64_t k_stride, k_dim;
  const float* v;  // [count][v_stride]
  int64_t v_stride;
  int64_t v_width;  // a multiple of kLanes
  int64_t count;
};

// scores[r][j] = q_r · k_j: one chain of multiply-adds a score, in the order of the features.
RT_SIMD void ScoreTile(const SoftmaxRows& rows, int64_t r, const KeyValueChunk& chunk, float* scores) {
  F32x16 acc[kScoreTileRows][2];
  for (auto& row : acc) row[0] = row[1] = Zero();
  const float* q = rows.q + r * rows.q_stride;
  const float* k = chunk.k;
  for (int64_t d = 0; d < chunk.k_dim; ++d, k += chunk.k_stride) {
    const F32x16 low = Load(k), high = Load(k + kLanes);
    for (int t = 0; t < kScoreTileRows; ++t) {
      const F32x16 weight = Set1(q[t * rows.q_stride + d]);
      acc[t][0] = Fma(weight, low, acc[t][0]);
      acc[t][1] = Fma(weight, high, acc[t][1]);
    }
  }
  for (int t = 0; t < kScoreTileRows; ++t) {
    Store(acc[t][0], scores + t * kLatentChunk);
    Store(acc[t][1], scores + t * kLatentChunk + kLanes);
  }
}

// Turns row r's scores into probabilities relative to its running maximum; rescales what was summed before. A row that
// sees none of the chunk is left as it is.
RT_SIMD void SoftmaxRow(const SoftmaxRows& rows, int64_t r, int64_t visible, int64_t v_width, float* p) {
  if (visible <= 0) {
    std::memset(p, 0, kLatentChunk * sizeof(float));
    return;
  }
  const int first = static_cast<int>(Min<int64_t>(visible, kLanes)), second = static_cast<int>(Min<int64_t>(visible - first, kLanes));
  const F32x16 low = Select(FirstN(first), Load(p), Set1(kMaskedScore));
  const F32x16 high = Select(FirstN(second), Load(p + kLanes), Set1(kMaskedScore));
  const float before = rows.maximum[r];
  const float now = ReduceMax(Max(high, Max(low, Set1(before))));
  const F32x16 e_low = Exp(low - Set1(now)), e_high = Exp(high - Set1(now));
  Store(e_low, p);
  Store(e_high, p + kLanes);
  float sum = rows.sum[r];
  if (now != before) {
    const F32x16 factor = Exp(Set1(before) - Set1(now));
    float* o = rows.o + r * rows.o_stride;
    for (int64_t i = 0; i < v_width; i += kLanes) Store(Load(o + i) * factor, o + i);
    sum *= ReduceMax(factor);
  }
  rows.maximum[r] = now;
  rows.sum[r] = sum + ReduceAdd(e_low + e_high);
}

// o[r..r+3][i..] += p · v.
template <int kVecs>
RT_SIMD void ValueTile(const SoftmaxRows& rows, int64_t r, int64_t i, const KeyValueChunk& chunk, const float* p) {
  float* o = rows.o + r * rows.o_stride + i;
  F32x16 acc[kValueTileRows][kVecs];
  for (int t = 0; t < kValueTileRows; ++t) {
    for (int c = 0; c < kVecs; ++c) acc[t][c] = Load(o + t * rows.o_stride + c * kLanes);
  }
  const float* v = chunk.v + i;
  for (int64_t j = 0; j < chunk.count; ++j, v += chunk.v_stride) {
    F32x16 value[kVecs];
    for (int c = 0; c < kVecs; ++c) value[c] = Load(v + c * kLanes);
    for (int t = 0; t < kValueTileRows; ++t) {
      const F32x16 weight = Set1(p[t * kLatentChunk + j]);
      for (int c = 0; c < kVecs; ++c) acc[t][c] = Fma(weight, value[c], acc[t][c]);
    }
  }
  for (int t = 0; t < kValueTileRows; ++t) {
    for (int c = 0; c < kVecs; ++c) Store(acc[t][c], o + t * rows.o_stride + c * kLanes);
  }
}

// Rows [begin, end), multiples of kQueryTile, at most kScoreRows of them. scores [kScoreRows][kLatentChunk].
template <class Visible>
RT_SIMD void AttendGroup(const SoftmaxRows& rows, int64_t begin, int64_t end, const KeyValueChunk& chunk, const Visible& visible, float* scores) {
  for (int64_t r = begin; r < end; r += kScoreTileRows) ScoreTile(rows, r, chunk, scores + (r - begin) * kLatentChunk);
  for (int64_t r = begin; r < end; ++r) SoftmaxRow(rows, r, Min(visible(r), chunk.count), chunk.v_width, scores + (r - begin) * kLatentChunk);
  // Features outside: a block of values stays in L1 while the rows pass.
  int64_t i = 0;
  for (; i + kValueTileVecs * kLanes <= chunk.v_width; i += kValueTileVecs * kLanes) {
    for (int64_t r = begin; r < end; r += kValueTileRows) ValueTile<kValueTileVecs>(rows, r, i, chunk, scores + (r - begin) * kLatentChunk);
  }
  for (; i < chunk.v_width; i += kLanes) {
    for (int64_t r = begin; r < end; r += kValueTileRows) ValueTile<1>(rows, r, i, chunk, scores + (r - begin) * kLatentChunk);
  }
}

// Rows from `first` (a multiple of kQueryTile) on, `group` at a time; row r sees the first visible(r) keys of the chunk.
template <class Visible>
void AttendChunk(const SoftmaxRows& rows, int64_t first, int64_t group, const KeyValueChunk& chunk, const Visible& visible, float* scores) {
  for (int64_t r = first; r < rows.num_rows; r += group) AttendGroup(rows, r, Min(r + group, rows.num_rows), chunk, visible, scores);
}

// 1 / sum; 0 for a row that saw no key; NaN stays.
RT_SIMD float InverseOfSum(float sum) { return sum > 0.0f ? 1.0f / sum : sum == 0.0f ? 0.0f : sum; }

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
