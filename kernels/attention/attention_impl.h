// The attention kernel, compiled once per instruction-set level. Design: attention.h.
#pragma once

#include <cstring>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_blocking.h"
#include "kernels/common/simd.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

constexpr float kMasked = -__builtin_inff();

// Register tiles. Scores: 4 query rows x kScoreKeys keys; values: 4 query rows x kValueVecs vectors of
// features.
constexpr int kTileRows = 4;
#if RT_ISA_AVX512BF16
constexpr int kScoreKeys = 4;
constexpr int kValueVecs = 4;
#else
constexpr int kScoreKeys = 1;  // one F32x16 is two of 16 registers
constexpr int kValueVecs = 1;
#endif
static_assert(kKeyChunk % kScoreKeys == 0 && kKeyChunk % kLanes == 0 && kMaxQueryRows % kTileRows == 0);

// ---- Normalisation and rotation of one head.

// y = rotary(norm(x)): x [d] act -> y [d] fp32. `rotary` [R] holds cosines, then sines.
template <class T>
RT_SIMD void NormRotate(const AttentionShape& shape, const T* x, const float* weight, const float* rotary,
                        float* y) {
  const int64_t d = shape.head_dim;
  if (weight == nullptr) {
    for (int64_t i = 0; i < d; i += kLanes) StoreUpTo(LoadUpTo(x + i, d - i), y + i, d - i);
  } else {
    F32x16 squares = Zero();
    for (int64_t i = 0; i < d; i += kLanes) {
      const F32x16 v = LoadUpTo(x + i, d - i);
      squares = Fma(v, v, squares);
    }
    const F32x16 inverse = Rsqrt(Set1(ReduceAdd(squares) / static_cast<float>(d) + shape.norm_eps));
    const F32x16 offset = Set1(shape.norm_weight_offset);
    for (int64_t i = 0; i < d; i += kLanes) {
      StoreUpTo(LoadUpTo(x + i, d - i) * inverse * (offset + LoadUpTo(weight + i, d - i)), y + i, d - i);
    }
  }
  const int64_t half = shape.rotary_dim / 2;
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t n = half - i;
    const F32x16 cosine = LoadUpTo(rotary + i, n), sine = LoadUpTo(rotary + half + i, n);
    const F32x16 first = LoadUpTo(y + i, n), second = LoadUpTo(y + half + i, n);
    StoreUpTo(Fnma(second, sine, first * cosine), y + i, n);
    StoreUpTo(Fma(first, sine, second * cosine), y + half + i, n);
  }
}

// ---- The cache.

template <class T>
struct Cache {
  const AttentionArgs& args;

  // Row of cached token `token` of sequence `s`, head `g`; null where the table names no block.
  RT_ALWAYS_INLINE T* Row(void* base, int64_t stride, int64_t s, int64_t token, int64_t g) const {
    const int64_t block = args.block_table[s * args.max_blocks + token / args.block_size];
    if (block < 0) return nullptr;
    T* rows = reinterpret_cast<T*>(static_cast<char*>(base) + block * stride);
    return rows + (g * args.block_size + token % args.block_size) * args.shape.head_dim;
  }
  RT_ALWAYS_INLINE T* Key(int64_t s, int64_t token, int64_t g) const {
    return Row(args.key_base, args.key_block_stride_bytes, s, token, g);
  }
  RT_ALWAYS_INLINE T* Value(int64_t s, int64_t token, int64_t g) const {
    return Row(args.value_base, args.value_block_stride_bytes, s, token, g);
  }
};

RT_SIMD bool IsPadding(const AttentionArgs& args, int64_t s) {
  return args.block_table[s * args.max_blocks] < 0;
}

// Writes the new keys and values of rows [begin, end), counted over all sequences of the call.
template <class T>
void AppendRows(const AttentionArgs& args, int64_t begin, int64_t end, float* scratch) {
  const AttentionShape& shape = args.shape;
  const int64_t d = shape.head_dim;
  const Cache<T> cache{args};
  int64_t s = 0;
  for (int64_t row = begin; row < end; ++row) {
    while (args.cu_seqlens[s + 1] <= row) ++s;
    if (IsPadding(args, s)) continue;
    const int64_t token = args.context_lens[s] + row - args.cu_seqlens[s];
    for (int64_t g = 0; g < shape.num_kv_heads; ++g) {
      T* key = cache.Key(s, token, g);
      if (key == nullptr) continue;
      NormRotate(shape, static_cast<const T*>(args.k) + row * args.k_stride + g * d, shape.k_norm,
                 args.rotary + row * shape.rotary_dim, scratch);
      for (int64_t i = 0; i < d; i += kLanes) StoreUpTo(LoadUpTo(scratch + i, d - i), key + i, d - i);
      std::memcpy(cache.Value(s, token, g), static_cast<const T*>(args.v) + row * args.v_stride + g * d,
                  static_cast<size_t>(d) * sizeof(T));
    }
  }
}

// ---- Work items.

// Query rows of one item: tokens [token, token + num_tokens) of sequence s (counted from its first new one)
// times heads [head, head + num_heads) of key/value head g, token-major; attended to cached tokens
// [key_begin, key_end).
struct Item {
  int64_t s, g;
  int64_t token, num_tokens;
  int64_t head, num_heads;
  int64_t key_begin, key_end;
  int64_t segment;  // -1: the item finishes its rows itself
  int64_t num_rows() const { return num_tokens * num_heads; }
};

// A decode context of `keys` tokens is cut into this many segments.
RT_SIMD int64_t NumSegments(int64_t keys) { return Min(Max<int64_t>(keys / kMinSegment, 1), kMaxSegments); }
RT_SIMD int64_t SegmentLength(int64_t keys) { return RoundUp(CeilDiv(keys, NumSegments(keys)), kKeyChunk); }

template <class F>
RT_SIMD void ForEachItemOf(const AttentionArgs& args, int64_t s, F&& visit) {
  const int64_t num_new = args.cu_seqlens[s + 1] - args.cu_seqlens[s];
  const int64_t context = args.context_lens[s];
  const int64_t group = args.shape.num_q_heads / args.shape.num_kv_heads;
  const int64_t heads = Min(group, kMaxQueryRows);
  const int64_t tokens = kMaxQueryRows / heads;
  for (int64_t g = 0; g < args.shape.num_kv_heads; ++g) {
    for (int64_t head = 0; head < group; head += heads) {
      for (int64_t token = 0; token < num_new; token += tokens) {
        Item item{s, g, token, Min(tokens, num_new - token), g * group + head, Min(heads, group - head),
                  0, 0, -1};
        item.key_end = context + token + item.num_tokens;
        const int64_t segments = num_new == 1 ? NumSegments(item.key_end) : 1;
        if (segments == 1) {
          visit(item);
          continue;
        }
        const int64_t keys = item.key_end, length = SegmentLength(keys);
        for (item.segment = 0; item.segment < segments; ++item.segment) {
          item.key_begin = Min(item.segment * length, keys);
          item.key_end = Min(item.key_begin + length, keys);
          visit(item);
        }
      }
    }
  }
}

// Rows are padded to whole tiles; a chunk of keys costs the same for one row as for four. 32: writing rows
// out and starting up.
RT_SIMD int64_t CostOf(const Item& item) {
  return RoundUp(item.num_rows(), kTileRows) * (item.key_end - item.key_begin + 32);
}

RT_SIMD int64_t TotalCost(const AttentionArgs& args) {
  int64_t total = 0;
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    ForEachItemOf(args, s, [&](const Item& item) { total += CostOf(item); });
  }
  return total;
}

// Visits the items of `thread`: contiguous runs of about equal cost.
template <class F>
RT_SIMD void ForEachItem(const AttentionArgs& args, int thread, int num_threads, F&& visit) {
  const int64_t total = TotalCost(args);
  int64_t before = 0;
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    ForEachItemOf(args, s, [&](const Item& item) {
      const int64_t cost = CostOf(item);
      // The owner is the thread whose share holds the middle of the item.
      if ((2 * before + cost) * num_threads / (2 * total) == thread) visit(item);
      before += cost;
    });
  }
}

// ---- One item.

// Lane sums of a tile of scores: out[r][j] = sum(acc[j][r]), rows kKeyChunk apart. Every sum adds lanes l and
// l + 8, then + 4, + 2, + 1.
#if RT_ISA_AVX512BF16
RT_SIMD void StoreSums(const F32x16 (&acc)[4][4], float* out) {
  // Each level halves the number of vectors: two are interleaved by halves of what is left of a sum, and
  // added.
  __m512 quads[4];
  for (int j = 0; j < 4; ++j) {
    const __m512 a = acc[j][0].v, b = acc[j][1].v, c = acc[j][2].v, d = acc[j][3].v;
    const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
    const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
    quads[j] = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  }
  const auto halves = [](__m512 a, __m512 b) {
    const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  };
  const __m512 low = halves(quads[0], quads[1]), high = halves(quads[2], quads[3]);
  const __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(low, high, 0x88), _mm512_shuffle_ps(low, high, 0xDD));
  _mm_storeu_ps(out, _mm512_castps512_ps128(sums));  // 128-bit lane r holds the four keys of row r
  _mm_storeu_ps(out + kKeyChunk, _mm512_extractf32x4_ps(sums, 1));
  _mm_storeu_ps(out + 2 * kKeyChunk, _mm512_extractf32x4_ps(sums, 2));
  _mm_storeu_ps(out + 3 * kKeyChunk, _mm512_extractf32x4_ps(sums, 3));
}
#else
RT_SIMD void StoreSums(const F32x16 (&acc)[1][4], float* out) {
  for (int r = 0; r < 4; ++r) out[r * kKeyChunk] = ReduceAdd(acc[0][r]);
}
#endif

template <class T>
struct Attend {
  const AttentionArgs& args;
  float* space;  // ThreadScratchFloats

  int64_t d() const { return args.shape.head_dim; }
  int64_t width() const { return RoundUp(d(), kLanes); }
  int64_t stride() const { return PaddedHeadDim(d()); }
  float* q() const { return space; }
  float* o() const { return q() + kMaxQueryRows * stride(); }
  float* keys() const { return o() + kMaxQueryRows * stride(); }
  float* values() const { return keys() + kKeyChunk * stride(); }
  float* scores() const { return values() + kKeyChunk * stride(); }
  float* maximum() const { return scores() + kMaxQueryRows * kKeyChunk; }
  float* sum() const { return maximum() + kMaxQueryRows; }

  // Rows of one chunk of cached tokens, in the cache or widened in scratch. Past `count` they repeat, for
  // whole tiles.
  template <class E>
  struct Chunk {
    int64_t count;
    const E* k[kKeyChunk];
    const E* v[kKeyChunk];
  };

  // Runs the online softmax of the item over its keys; leaves o (not divided), maximum and sum.
  void Run(const Item& item) const {
    LoadQueries(item);
    Chunk<T> chunks[2];
    FindRows(item, item.key_begin, chunks[0]);
    int now = 0;
    for (int64_t key = item.key_begin; chunks[now].count > 0; key += kKeyChunk, now = 1 - now) {
      FindRows(item, key + kKeyChunk, chunks[1 - now]);
      // The tiles of few query rows read each cached row once or twice: copying it first would not pay.
      if (item.num_rows() <= 2 * kTileRows) {
        AttendChunk(item, key, chunks[now], chunks[1 - now]);
      } else {
        Chunk<float> wide;
        Widen(chunks[now], wide);
        AttendChunk(item, key, wide, chunks[1 - now]);
      }
    }
  }

  // `next` is fetched meanwhile.
  template <class E>
  void AttendChunk(const Item& item, int64_t key, const Chunk<E>& chunk, const Chunk<T>& next) const {
    const int64_t num_rows = RoundUp(item.num_rows(), kTileRows);
    Scores(num_rows, chunk, next);
    for (int64_t r = 0; r < num_rows; ++r) Softmax(item, r, key, chunk.count);
    AddValues(num_rows, chunk, next);
  }

  void LoadQueries(const Item& item) const {
    const AttentionShape& shape = args.shape;
    const int64_t row_width = shape.output_gate ? 2 * d() : d();
    const int64_t num_rows = RoundUp(item.num_rows(), kTileRows);
    std::memset(q(), 0, static_cast<size_t>(num_rows * stride()) * sizeof(float));
    std::memset(o(), 0, static_cast<size_t>(num_rows * stride()) * sizeof(float));
    for (int64_t r = 0; r < num_rows; ++r) {
      maximum()[r] = kMasked;
      sum()[r] = 0.0f;
    }
    const F32x16 scale = Set1(shape.scale);
    for (int64_t r = 0; r < item.num_rows(); ++r) {
      const int64_t row = args.cu_seqlens[item.s] + item.token + r / item.num_heads;
      const T* x =
          static_cast<const T*>(args.q) + row * args.q_stride + (item.head + r % item.num_heads) * row_width;
      float* y = q() + r * stride();
      NormRotate(shape, x, shape.q_norm, args.rotary + row * shape.rotary_dim, y);
      for (int64_t i = 0; i < width(); i += kLanes) Store(Load(y + i) * scale, y + i);
    }
  }

  // The rows of the tokens of the chunk at `key`; none past the item's end or where the block table ends.
  void FindRows(const Item& item, int64_t key, Chunk<T>& chunk) const {
    const Cache<T> cache{args};
    const int64_t count = Min(kKeyChunk, item.key_end - key);
    chunk.count = 0;
    for (; chunk.count < count; ++chunk.count) {
      chunk.k[chunk.count] = cache.Key(item.s, key + chunk.count, item.g);
      if (chunk.k[chunk.count] == nullptr) break;
      chunk.v[chunk.count] = cache.Value(item.s, key + chunk.count, item.g);
    }
    for (int64_t j = chunk.count; j < kKeyChunk; ++j) {
      chunk.k[j] = j > 0 ? chunk.k[j - 1] : nullptr;
      chunk.v[j] = j > 0 ? chunk.v[j - 1] : nullptr;
    }
  }

  void Widen(const Chunk<T>& chunk, Chunk<float>& wide) const {
    wide.count = chunk.count;
    for (int64_t j = 0; j < kKeyChunk; ++j) {
      const int64_t from = Min(j, chunk.count - 1);
      wide.k[j] = keys() + from * stride();
      wide.v[j] = values() + from * stride();
    }
    for (int64_t j = 0; j < chunk.count; ++j) {
      for (int64_t i = 0; i < d(); i += kLanes) {
        Store(LoadUpTo(chunk.k[j] + i, d() - i), keys() + j * stride() + i);
        Store(LoadUpTo(chunk.v[j] + i, d() - i), values() + j * stride() + i);
      }
    }
  }

  // Requests to L2 (to L1 measured half as fast: a chunk and its successor do not fit it) the cache lines of
  // the vectors at feature i of rows [0, kRows); a bf16 line holds two vectors, so every other row at a time.
  template <int kRows>
  static RT_ALWAYS_INLINE void Prefetch(const T* const* rows, int64_t i) {
    constexpr bool kHalf = sizeof(T) == 2 && kRows % 2 == 0;
    const T* const* from = kHalf && i % (2 * kLanes) != 0 ? rows + 1 : rows;
    for (int j = 0; j < kRows; j += kHalf ? 2 : 1)
      _mm_prefetch(reinterpret_cast<const char*>(from[j] + i), _MM_HINT_T1);
  }

  // scores[r][j] = q_r · k_j.
  template <class E>
  void Scores(int64_t num_rows, const Chunk<E>& chunk, const Chunk<T>& next) const {
    for (int64_t r = 0; r < num_rows; r += kTileRows) {
      for (int64_t j = 0; j < chunk.count; j += kScoreKeys) {
        const T* const* fetch = r == 0 && next.count > 0 ? next.k + j : nullptr;
        ScoreTile(q() + r * stride(), chunk.k + j, fetch, scores() + r * kKeyChunk + j);
      }
    }
  }

  template <class E>
  void ScoreTile(const float* q_rows, const E* const* k_rows, const T* const* fetch, float* out) const {
    F32x16 acc[kScoreKeys][kTileRows];
    for (auto& row : acc) {
      for (F32x16& a : row) a = Zero();
    }
    const float* qr[kTileRows];
    for (int r = 0; r < kTileRows; ++r) qr[r] = q_rows + r * stride();
    const E* kr[kScoreKeys];
    for (int j = 0; j < kScoreKeys; ++j) kr[j] = k_rows[j];
    const auto step = [&](int64_t i, auto load) {
      if (fetch != nullptr) Prefetch<kScoreKeys>(fetch, i);
      F32x16 qv[kTileRows];
      for (int r = 0; r < kTileRows; ++r) qv[r] = Load(qr[r] + i);
      for (int j = 0; j < kScoreKeys; ++j) {
        const F32x16 kv = load(kr[j] + i);
        for (int r = 0; r < kTileRows; ++r) acc[j][r] = Fma(qv[r], kv, acc[j][r]);
      }
    };
    int64_t i = 0;
    for (; i + kLanes <= d(); i += kLanes) step(i, [](const E* p) { return Load(p); });
    const int left = static_cast<int>(d() - i);
    if (left > 0) step(i, [left](const E* p) { return LoadN(p, left); });
    StoreSums(acc, out);
  }

  // Turns row r of the scores into probabilities relative to the running maximum; rescales what was summed
  // before.
  void Softmax(const Item& item, int64_t r, int64_t key, int64_t count) const {
    // Row r is token `position` of its sequence and sees the keys up to itself.
    const int64_t position = args.context_lens[item.s] + item.token + r / item.num_heads;
    const int visible = static_cast<int>(Min(Max<int64_t>(position + 1 - key, 0), count));
    float* p = scores() + r * kKeyChunk;
    F32x16 largest = Set1(maximum()[r]);
    for (int j = 0; j < kKeyChunk; j += kLanes) {
      const int n = Min(Max(visible - j, 0), kLanes);
      const F32x16 s = Select(FirstN(n), Load(p + j), Set1(kMasked));
      Store(s, p + j);
      largest = Max(s, largest);
    }
    const float before = maximum()[r];
    const float now = ReduceMax(largest);
    if (visible == 0) {  // exp(-inf - -inf) would be NaN
      std::memset(p, 0, kKeyChunk * sizeof(float));
      return;
    }
    F32x16 total = Zero();
    for (int j = 0; j < kKeyChunk; j += kLanes) {
      const F32x16 e = Exp(Load(p + j) - Set1(now));
      Store(e, p + j);
      total = total + e;
    }
    float alpha = 1.0f;
    if (now != before) {
      const F32x16 factor = Exp(Set1(before) - Set1(now));
      float lanes[kLanes];
      Store(factor, lanes);
      alpha = lanes[0];
      float* row = o() + r * stride();
      for (int64_t i = 0; i < width(); i += kLanes) Store(Load(row + i) * factor, row + i);
    }
    maximum()[r] = now;
    sum()[r] = sum()[r] * alpha + ReduceAdd(total);
  }

  template <class E>
  void AddValues(int64_t num_rows, const Chunk<E>& chunk, const Chunk<T>& next) const {
    const auto whole = [](const E* p) { return Load(p); };
    for (int64_t r = 0; r < num_rows; r += kTileRows) {
      const T* const* fetch = r == 0 && next.count > 0 ? next.v : nullptr;
      int64_t i = 0;
      for (; i + kValueVecs * kLanes <= d(); i += kValueVecs * kLanes)
        ValueTile<kValueVecs>(r, i, chunk, fetch, whole);
      for (; i + kLanes <= d(); i += kLanes) ValueTile<1>(r, i, chunk, fetch, whole);
      const int left = static_cast<int>(d() - i);
      if (left > 0) ValueTile<1>(r, i, chunk, fetch, [left](const E* p) { return LoadN(p, left); });
    }
  }

  // o[r..r+3][i..] += p · v.
  template <int kVecs, class E, class LoadFn>
  void ValueTile(int64_t r, int64_t i, const Chunk<E>& chunk, const T* const* fetch, LoadFn load) const {
    float* out = o() + r * stride() + i;
    const float* p = scores() + r * kKeyChunk;
    F32x16 acc[kTileRows][kVecs];
    for (int t = 0; t < kTileRows; ++t) {
      for (int c = 0; c < kVecs; ++c) acc[t][c] = Load(out + t * stride() + c * kLanes);
    }
    for (int64_t j = 0; j < chunk.count; ++j) {
      if (fetch != nullptr) {
        constexpr int kLineElements = 64 / sizeof(T);
        for (int c = 0; c < kVecs * kLanes; c += kLineElements) {
          _mm_prefetch(reinterpret_cast<const char*>(fetch[j] + i + c), _MM_HINT_T1);
        }
      }
      const E* v = chunk.v[j] + i;
      F32x16 vv[kVecs];
      for (int c = 0; c < kVecs; ++c) vv[c] = load(v + c * kLanes);
      for (int t = 0; t < kTileRows; ++t) {
        const F32x16 weight = Set1(p[t * kKeyChunk + j]);
        for (int c = 0; c < kVecs; ++c) acc[t][c] = Fma(weight, vv[c], acc[t][c]);
      }
    }
    for (int t = 0; t < kTileRows; ++t) {
      for (int c = 0; c < kVecs; ++c) Store(acc[t][c], out + t * stride() + c * kLanes);
    }
  }
};

// out = o / sum * sigmoid(gate) of one head of one row.
template <class T>
RT_SIMD void Finish(const AttentionArgs& args, int64_t row, int64_t head, const float* o, float sum) {
  const int64_t d = args.shape.head_dim;
  T* out = static_cast<T*>(args.out) + row * args.out_stride + head * d;
  const T* gate = static_cast<const T*>(args.q) + row * args.q_stride + head * 2 * d + d;
  const F32x16 inverse = Set1(sum > 0.0f    ? 1.0f / sum
                              : sum == 0.0f ? 0.0f
                                            : sum);  // no key: zeros; NaN stays
  for (int64_t i = 0; i < d; i += kLanes) {
    F32x16 y = LoadUpTo(o + i, d - i) * inverse;
    if (args.shape.output_gate) y = y * Sigmoid(LoadUpTo(gate + i, d - i));
    StoreUpTo(y, out + i, d - i);
  }
}

RT_SIMD float* Partial(const AttentionArgs& args, float* partials, int64_t s, int64_t segment, int64_t head) {
  return partials +
         ((s * kMaxSegments + segment) * args.shape.num_q_heads + head) * PartialFloats(args.shape.head_dim);
}

template <class T>
void RunItem(const AttentionArgs& args, const Item& item, float* scratch, float* partials) {
  const Attend<T> attend{args, scratch};
  if (IsPadding(args, item.s)) {
    std::memset(attend.o(), 0, static_cast<size_t>(attend.stride()) * sizeof(float));
    for (int64_t r = 0; r < item.num_rows() && item.segment <= 0; ++r) {
      Finish<T>(args, args.cu_seqlens[item.s] + item.token + r / item.num_heads,
                item.head + r % item.num_heads, attend.o(), 0.0f);
    }
    return;
  }
  attend.Run(item);
  for (int64_t r = 0; r < item.num_rows(); ++r) {
    const int64_t head = item.head + r % item.num_heads;
    const float* o = attend.o() + r * attend.stride();
    if (item.segment < 0) {
      Finish<T>(args, args.cu_seqlens[item.s] + item.token + r / item.num_heads, head, o, attend.sum()[r]);
      continue;
    }
    float* partial = Partial(args, partials, item.s, item.segment, head);
    partial[0] = attend.maximum()[r];
    partial[1] = attend.sum()[r];
    std::memcpy(partial + 16, o, static_cast<size_t>(attend.width()) * sizeof(float));
  }
}

// Adds up the segments of one decode row's head, in order.
template <class T>
void MergeSegments(const AttentionArgs& args, int64_t s, int64_t head, float* scratch, float* partials) {
  const int64_t width = RoundUp(args.shape.head_dim, kLanes);
  const int64_t segments = NumSegments(args.context_lens[s] + 1);
  float largest = kMasked;
  for (int64_t i = 0; i < segments; ++i) largest = Max(largest, Partial(args, partials, s, i, head)[0]);
  float sum = 0.0f;
  std::memset(scratch, 0, static_cast<size_t>(width) * sizeof(float));
  for (int64_t i = 0; i < segments; ++i) {
    const float* partial = Partial(args, partials, s, i, head);
    if (partial[1] == 0.0f) continue;  // an empty segment
    const F32x16 alpha = Exp(Set1(partial[0] - largest));
    sum += ReduceMax(alpha) * partial[1];
    for (int64_t c = 0; c < width; c += kLanes)
      Store(Fma(Load(partial + 16 + c), alpha, Load(scratch + c)), scratch + c);
  }
  Finish<T>(args, args.cu_seqlens[s], head, scratch, sum);
}

RT_SIMD bool IsSegmented(const AttentionArgs& args, int64_t s) {
  return args.cu_seqlens[s + 1] - args.cu_seqlens[s] == 1 && NumSegments(args.context_lens[s] + 1) > 1 &&
         !IsPadding(args, s);
}

template <class T>
int Attention(const AttentionArgs& args, const Parallel& parallel) {
  if (args.num_sequences == 0) return 0;
  const AttentionShape& shape = args.shape;
  const int64_t first = args.cu_seqlens[0];
  const int64_t num_rows = args.cu_seqlens[args.num_sequences] - first;
  const int64_t scratch_floats = ThreadScratchFloats(shape.head_dim);
  float* scratch = static_cast<float*>(args.workspace);
  float* partials = scratch + parallel.num_threads * scratch_floats;
  ParallelForCost(parallel, num_rows, int64_t{4} * shape.num_kv_heads * shape.head_dim,
                  [&](int64_t begin, int64_t end, int thread) {
                    AppendRows<T>(args, first + begin, first + end, scratch + thread * scratch_floats);
                  });
  const auto run_items = [&](int thread, int num_threads) {
    ForEachItem(args, thread, num_threads, [&](const Item& item) {
      RunItem<T>(args, item, scratch + thread * scratch_floats, partials);
    });
  };
  if (TotalCost(args) * shape.head_dim < kMinParallelCost * 4) {  // a sixteenth of them are vector operations
    run_items(0, 1);
  } else {
    ParallelRun(parallel, run_items);
  }
  bool segmented = false;
  for (int64_t s = 0; s < args.num_sequences; ++s) segmented = segmented || IsSegmented(args, s);
  if (!segmented) return 0;
  const int64_t num_heads = shape.num_q_heads;
  ParallelForCost(parallel, args.num_sequences * num_heads, shape.head_dim * 8,
                  [&](int64_t begin, int64_t end, int thread) {
                    for (int64_t i = begin; i < end; ++i) {
                      if (IsSegmented(args, i / num_heads))
                        MergeSegments<T>(args, i / num_heads, i % num_heads,
                                         scratch + thread * scratch_floats, partials);
                    }
                  });
  return 0;
}

constexpr AttentionKernels kAttentionKernels{Attention<float>, Attention<bf16>};

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
