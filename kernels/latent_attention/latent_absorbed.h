// The absorbed order: queries go into the space of the cached rows, all heads share each row. Part of the per-ISA code.
#pragma once

#include "kernels/latent_attention/latent_attend.h"
#include "kernels/latent_attention/latent_rows.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

// A context of `keys` rows is cut into segments of whole chunks.
RT_SIMD int64_t NumLatentSegments(int64_t keys) { return Min(Max<int64_t>(keys / kMinLatentSegment, 1), kMaxLatentSegments); }
RT_SIMD int64_t LatentSegmentLength(int64_t keys) { return RoundUp(CeilDiv(keys, NumLatentSegments(keys)), kLatentChunk); }

// y_t[l] += sum_{d < kRows} x_t[d] w[d][l] for kTokens tokens; l up to `size`.
template <class T, int kTokens, int kRows>
RT_SIMD void AddScaledRows(const T* w, int64_t w_stride, int64_t size, const float (&x)[kTokens][kRows], float* const* y) {
  for (int64_t l = 0; l < size; l += kLanes) {
    F32x16 row[kRows];
    for (int d = 0; d < kRows; ++d) row[d] = LoadUpTo(w + d * w_stride + l, size - l);
    for (int t = 0; t < kTokens; ++t) {
      F32x16 sum = LoadUpTo(y[t] + l, size - l);
      for (int d = 0; d < kRows; ++d) sum = Fma(Set1(x[t][d]), row[d], sum);
      StoreUpTo(sum, y[t] + l, size - l);
    }
  }
}

// One token of a wave.
struct WaveToken {
  int64_t s;     // sequence
  int64_t row;   // in q and out
  int64_t keys;  // cached rows it sees
};

template <class T>
struct AbsorbedWave {
  const LatentAttentionArgs& args;
  float* queries;   // [tokens] AbsorbedQueryFloats
  float* partials;  // [tokens][kMaxLatentSegments] LatentPartialFloats
  float* scratch;   // [threads] AbsorbedScratchFloats
  int64_t num_tokens = 0;
  WaveToken tokens[kWaveTokens] = {};

  const LatentAttentionShape& shape() const { return args.shape; }
  int64_t latent() const { return args.shape.latent_dim; }
  int64_t row_stride() const { return LatentStride(LatentRow(shape())); }
  int64_t o_stride() const { return LatentStride(latent()); }
  float* Query(int64_t token, int64_t head) const { return queries + token * AbsorbedQueryFloats(shape()) + head * row_stride(); }
  float* Scratch(int thread) const { return scratch + thread * AbsorbedScratchFloats(shape()); }
  SoftmaxRows Partial(int64_t token, int64_t segment, int64_t head, int64_t num_heads) const {
    const int64_t heads = LatentHeadRows(shape());
    float* at = partials + (token * kMaxLatentSegments + segment) * LatentPartialFloats(shape());
    return {Query(token, head), row_stride(), at + 2 * heads + head * o_stride(), o_stride(), at + head, at + heads + head, num_heads};
  }
  const T* Weight(int64_t head) const { return static_cast<const T*>(args.kv_b) + head * (shape().qk_nope_dim + shape().v_dim) * latent(); }

  void Run(const Parallel& parallel) {
    const int64_t heads = LatentHeadRows(shape());
    const int64_t cost = num_tokens * latent() * shape().qk_nope_dim / 8;
    ParallelForCost(parallel, heads, cost, [&](int64_t begin, int64_t end, int) {
      for (int64_t head = begin; head < end; ++head) AbsorbHead(head);
    });
    AttendAll(parallel);
    ParallelForCost(parallel, shape().num_heads, num_tokens * latent() * shape().v_dim / 8, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t head = begin; head < end; ++head) FinishHead(head, Scratch(thread));
    });
  }

  // ---- q^ = scale [W_uk^T q_n ; q_e] of one head for all tokens; heads past the last are zeros.

  void AbsorbHead(int64_t head) const {
    int64_t t = 0;
    for (; t + 4 <= num_tokens; t += 4) AbsorbTokens<4>(head, t);
    for (; t < num_tokens; ++t) AbsorbTokens<1>(head, t);
  }

  template <int kTokens>
  void AbsorbTokens(int64_t head, int64_t first) const {
    float* y[kTokens];
    for (int t = 0; t < kTokens; ++t) {
      y[t] = Query(first + t, head);
      std::memset(y[t], 0, static_cast<size_t>(row_stride()) * sizeof(float));
    }
    if (head >= shape().num_heads) return;
    const T* x[kTokens];
    for (int t = 0; t < kTokens; ++t) x[t] = static_cast<const T*>(args.q) + tokens[first + t].row * args.q_stride + head * LatentQueryDim(shape());
    int64_t d = 0;
    for (; d + 4 <= shape().qk_nope_dim; d += 4) AddRows<kTokens, 4>(head, d, x, y);
    for (; d < shape().qk_nope_dim; ++d) AddRows<kTokens, 1>(head, d, x, y);
    for (int t = 0; t < kTokens; ++t) {
      for (int64_t i = 0; i < shape().qk_shared_dim; ++i) y[t][latent() + i] = shape().scale * ToFloat(x[t][shape().qk_nope_dim + i]);
    }
  }

  template <int kTokens, int kRows>
  RT_ALWAYS_INLINE void AddRows(int64_t head, int64_t d, const T* const* x, float* const* y) const {
    float scaled[kTokens][kRows];
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < kRows; ++i) scaled[t][i] = shape().scale * ToFloat(x[t][d + i]);
    }
    AddScaledRows<T, kTokens, kRows>(Weight(head) + d * latent(), latent(), latent(), scaled, y);
  }

  // ---- Items (token, segment, heads).

  struct Item {
    int64_t token, segment, head, num_heads;
  };

  void AttendAll(const Parallel& parallel) {
    // Results do not depend on which heads share an item: few items are cut by heads until every thread has one.
    const int64_t heads = LatentHeadRows(shape());
    int64_t num_items = 0;
    for (int64_t t = 0; t < num_tokens; ++t) num_items += NumLatentSegments(tokens[t].keys);
    int64_t part = heads;
    while (part > kQueryTile && num_items * CeilDiv(heads, part) < parallel.num_threads) part = RoundUp(part / 2, kQueryTile);
    const auto each = [&](const auto& visit) {
      for (int64_t t = 0; t < num_tokens; ++t) {
        const int64_t keys = tokens[t].keys, segments = NumLatentSegments(keys), length = LatentSegmentLength(keys);
        for (int64_t segment = 0; segment < segments; ++segment) {
          for (int64_t head = 0; head < heads; head += part) {
            const Item item{t, segment, head, Min(part, heads - head)};
            const int64_t rows = Max<int64_t>(Min(length, keys - segment * length), 1);
            visit(item, rows * item.num_heads * (latent() + LatentRow(shape())) / 8);
          }
        }
      }
    };
    DealItems(parallel, each, [&](const Item& item, int thread) { Attend(item, Scratch(thread)); });
  }

  void Attend(const Item& item, float* space) const {
    const WaveToken& token = tokens[item.token];
    const int64_t length = LatentSegmentLength(token.keys);
    const int64_t begin = Min(item.segment * length, token.keys), end = Min(begin + length, token.keys);
    const SoftmaxRows rows = Partial(item.token, item.segment, item.head, item.num_heads);
    const int64_t v_width = RoundUp(latent(), kLanes);
    rows.Clear(v_width);
    float* values = space;
    float* keys = values + kLatentChunk * row_stride();
    float* scores = keys + kLatentChunk * RoundUp(LatentRow(shape()), kLanes);
    for (int64_t key = begin; key < end; key += kLatentChunk) {
      const int64_t count = LoadChunk(token.s, key, Min(kLatentChunk, end - key), values);
      if (count == 0) break;
      TransposeChunk(values, count, keys);
      const KeyValueChunk chunk{keys, kLatentChunk, LatentRow(shape()), values, row_stride(), v_width, count};
      AttendChunk(rows, 0, kScoreRows, chunk, [count](int64_t) { return count; }, scores);
    }
  }

  // Widens rows [key, key + count) of sequence s; returns how many there are before the block table ends. Rows up to the
  // next multiple of kLanes become zeros.
  int64_t LoadChunk(int64_t s, int64_t key, int64_t count, float* values) const {
    const int64_t width = LatentRow(shape());
    int64_t j = 0;
    for (; j < count; ++j) {
      const T* row = CachedRow<T>(args, s, key + j);
      if (row == nullptr) break;
      for (int64_t i = 0; i < width; i += kLanes) Store(LoadUpTo(row + i, width - i), values + j * row_stride() + i);
    }
    for (int64_t r = j; r < RoundUp(j, kLanes); ++r) std::memset(values + r * row_stride(), 0, static_cast<size_t>(row_stride()) * sizeof(float));
    return j;
  }

  void TransposeChunk(const float* values, int64_t count, float* keys) const {
    for (int64_t j = 0; j < count; j += kLanes) {
      for (int64_t i = 0; i < LatentRow(shape()); i += kLanes) {
        F32x16 block[kLanes];
        for (int r = 0; r < kLanes; ++r) block[r] = Load(values + (j + r) * row_stride() + i);
        Transpose16x16(block);
        for (int r = 0; r < kLanes; ++r) Store(block[r], keys + (i + r) * kLatentChunk + j);
      }
    }
  }

  // ---- out = W_uv (sum of segments / sum) of one head for all tokens.

  void FinishHead(int64_t head, float* merged) const {
    for (int64_t t = 0; t < num_tokens; ++t) MergeSegments(t, head, merged + t * o_stride());
    int64_t t = 0;
    for (; t + 4 <= num_tokens; t += 4) ExpandTokens<4>(head, t, merged + t * o_stride());
    for (; t < num_tokens; ++t) ExpandTokens<1>(head, t, merged + t * o_stride());
  }

  void MergeSegments(int64_t token, int64_t head, float* y) const {
    const int64_t width = RoundUp(latent(), kLanes), segments = NumLatentSegments(tokens[token].keys);
    float largest = kMaskedScore, sum = 0.0f;
    for (int64_t i = 0; i < segments; ++i) largest = Max(largest, Partial(token, i, head, 1).maximum[0]);
    std::memset(y, 0, static_cast<size_t>(width) * sizeof(float));
    for (int64_t i = 0; i < segments; ++i) {
      const SoftmaxRows part = Partial(token, i, head, 1);
      if (part.sum[0] == 0.0f) continue;  // a segment without rows
      const F32x16 alpha = Exp(Set1(part.maximum[0] - largest));
      sum += ReduceMax(alpha) * part.sum[0];
      for (int64_t l = 0; l < width; l += kLanes) Store(Fma(Load(part.o + l), alpha, Load(y + l)), y + l);
    }
    const F32x16 inverse = Set1(InverseOfSum(sum));
    for (int64_t l = 0; l < width; l += kLanes) Store(Load(y + l) * inverse, y + l);
  }

  template <int kTokens>
  void ExpandTokens(int64_t head, int64_t first, const float* merged) const {
    const T* w = Weight(head) + shape().qk_nope_dim * latent();
    T* out[kTokens];
    for (int t = 0; t < kTokens; ++t) out[t] = static_cast<T*>(args.out) + tokens[first + t].row * args.out_stride + head * shape().v_dim;
    int64_t j = 0;
    for (; j + 4 <= shape().v_dim; j += 4) DotRows<kTokens, 4>(w + j * latent(), merged, j, out);
    for (; j < shape().v_dim; ++j) DotRows<kTokens, 1>(w + j * latent(), merged, j, out);
  }

  // out_t[j + r] = w_r · merged_t.
  template <int kTokens, int kRows>
  RT_ALWAYS_INLINE void DotRows(const T* w, const float* merged, int64_t j, T* const* out) const {
    F32x16 acc[kTokens][kRows];
    for (auto& row : acc) {
      for (F32x16& a : row) a = Zero();
    }
    for (int64_t l = 0; l < latent(); l += kLanes) {
      F32x16 x[kTokens];
      for (int t = 0; t < kTokens; ++t) x[t] = LoadUpTo(merged + t * o_stride() + l, latent() - l);
      for (int r = 0; r < kRows; ++r) {
        const F32x16 row = LoadUpTo(w + r * latent() + l, latent() - l);
        for (int t = 0; t < kTokens; ++t) acc[t][r] = Fma(x[t], row, acc[t][r]);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kRows; ++r) out[t][j + r] = FromFloat<T>(ReduceAdd(acc[t][r]));
    }
  }
};

template <class T>
int AbsorbedLatentAttention(const LatentAttentionArgs& args, const Parallel& parallel) {
  if (args.num_sequences == 0) return 0;
  AppendLatentRows<T>(args, parallel);
  const int64_t num_rows = args.cu_seqlens[args.num_sequences] - args.cu_seqlens[0];
  const int64_t wave_tokens = Min(num_rows, kWaveTokens);
  float* queries = static_cast<float*>(args.workspace);
  float* partials = queries + wave_tokens * AbsorbedQueryFloats(args.shape);
  AbsorbedWave<T> wave{args, queries, partials, partials + wave_tokens * kMaxLatentSegments * LatentPartialFloats(args.shape)};
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t num_new = IsPaddingSequence(args, s) ? 0 : args.cu_seqlens[s + 1] - args.cu_seqlens[s];
    for (int64_t t = 0; t < num_new; ++t) {
      wave.tokens[wave.num_tokens++] = {s, args.cu_seqlens[s] + t, args.context_lens[s] + t + 1};
      if (wave.num_tokens < wave_tokens) continue;
      wave.Run(parallel);
      wave.num_tokens = 0;
    }
  }
  if (wave.num_tokens > 0) wave.Run(parallel);
  return 0;
}

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
