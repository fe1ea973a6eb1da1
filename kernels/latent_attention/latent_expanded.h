// The expanded order: keys and values of a tile of rows are formed for one head, then attended to by many queries. Part of
// the per-ISA code.
#pragma once

#include "kernels/gemm/gemm.h"
#include "kernels/latent_attention/latent_attend.h"
#include "kernels/latent_attention/latent_rows.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

RT_SIMD const GemmKernels& LevelGemm() {
#if RT_ISA_AVX512BF16
  return GemmAvx512Bf16();
#else
  return GemmAvx2();
#endif
}
template <class T>
RT_SIMD GemmFn ExpandGemm() {
  return sizeof(T) == 2 ? LevelGemm().bf16_bf16_f32 : LevelGemm().f32_f32_f32;
}

// A caller of the GEMM that is itself one of many threads.
inline void RunOnCaller(void*, void (*fn)(void* arg, int thread, int num_threads), void* arg) { fn(arg, 0, 1); }

// Queries [query, query + num_queries) of sequence s, counted from its first new token, for one head.
struct ExpandedItem {
  int64_t s, head, query, num_queries;
};

template <class T>
struct ExpandedAttend {
  const LatentAttentionArgs& args;
  float* space;         // ExpandedScratchFloats(shape, max_queries)
  int64_t max_queries;  // of an item
  void* gemm_space;

  const LatentAttentionShape& shape() const { return args.shape; }
  int64_t padded_queries() const { return RoundUp(max_queries, kQueryTile); }
  int64_t q_stride() const { return LatentStride(LatentQueryDim(shape())); }
  int64_t v_stride() const { return LatentStride(shape().v_dim); }
  int64_t v_width() const { return RoundUp(shape().v_dim, kLanes); }
  float* q() const { return space; }
  float* o() const { return q() + padded_queries() * q_stride(); }
  float* maximum() const { return o() + padded_queries() * v_stride(); }
  float* sum() const { return maximum() + padded_queries(); }
  float* keys() const { return space + RoundUp(padded_queries() * ExpandedQueryFloats(shape()), kLanes); }  // [Dn + De][kExpandTile]
  float* values() const { return keys() + LatentQueryDim(shape()) * kExpandTile; }                           // [kExpandTile][v_stride]
  float* scores() const { return values() + kExpandTile * v_stride(); }
  T* rows() const { return reinterpret_cast<T*>(scores() + kScoreRows * kLatentChunk); }  // [kExpandTile][L]

  void Run(const ExpandedItem& item) const {
    LoadQueries(item);
    const SoftmaxRows softmax{q(), q_stride(), o(), v_stride(), maximum(), sum(), RoundUp(item.num_queries, kQueryTile)};
    softmax.Clear(v_width());
    const int64_t position = args.context_lens[item.s] + item.query;  // of the item's first query
    const int64_t end = position + item.num_queries;
    for (int64_t tile = 0; tile < end; tile += kExpandTile) {
      const int64_t count = GatherRows(item.s, tile, Min(kExpandTile, end - tile));
      if (count == 0) break;
      Expand(item.head, count);
      for (int64_t key = 0; key < count; key += kLatentChunk) AttendTo(softmax, position, tile, key, Min(kLatentChunk, count - key));
    }
    StoreOutputs(item);
  }

  // Queries before the first that sees key `tile + key` are skipped by whole tiles.
  void AttendTo(const SoftmaxRows& softmax, int64_t position, int64_t tile, int64_t key, int64_t count) const {
    const int64_t first = Max<int64_t>(tile + key - position, 0) / kQueryTile * kQueryTile;
    const KeyValueChunk chunk{keys() + key, kExpandTile, LatentQueryDim(shape()), values() + key * v_stride(), v_stride(), v_width(), count};
    AttendChunk(softmax, first, kQueryTile, chunk, [=](int64_t r) { return position + r + 1 - tile - key; }, scores());
  }

  void LoadQueries(const ExpandedItem& item) const {
    const int64_t width = LatentQueryDim(shape());
    const F32x16 scale = Set1(shape().scale);
    for (int64_t r = 0; r < item.num_queries; ++r) {
      const T* x = static_cast<const T*>(args.q) + (args.cu_seqlens[item.s] + item.query + r) * args.q_stride + item.head * width;
      for (int64_t i = 0; i < width; i += kLanes) Store(LoadUpTo(x + i, width - i) * scale, q() + r * q_stride() + i);
    }
    for (int64_t r = item.num_queries; r < RoundUp(item.num_queries, kQueryTile); ++r) std::memset(q() + r * q_stride(), 0, static_cast<size_t>(width) * sizeof(float));
  }

  // Copies the compressed features of up to `count` rows, and the shared features into the keys' last rows; returns how
  // many rows there are before the block table ends.
  int64_t GatherRows(int64_t s, int64_t tile, int64_t count) const {
    const int64_t latent = shape().latent_dim;
    float* shared = keys() + shape().qk_nope_dim * kExpandTile;
    for (int64_t j = 0; j < count; ++j) {
      const T* row = CachedRow<T>(args, s, tile + j);
      if (row == nullptr) return j;
      std::memcpy(rows() + j * latent, row, static_cast<size_t>(latent) * sizeof(T));
      for (int64_t i = 0; i < shape().qk_shared_dim; ++i) shared[i * kExpandTile + j] = ToFloat(row[latent + i]);
    }
    return count;
  }

  // keys = W_uk C^T (one output is the same chain of multiply-adds from either side), values = C W_uv^T.
  void Expand(int64_t head, int64_t count) const {
    const int64_t latent = shape().latent_dim, nope = shape().qk_nope_dim, v_dim = shape().v_dim;
    const T* w = static_cast<const T*>(args.kv_b) + head * (nope + v_dim) * latent;
    const Parallel caller{1, nullptr, RunOnCaller};
    const GemmFn gemm = ExpandGemm<T>();
    gemm({.m = nope, .n = count, .k = latent, .x = w, .x_stride = latent, .w = rows(), .y = keys(), .y_stride = kExpandTile, .accumulate = false, .workspace = gemm_space}, caller);
    gemm({.m = count, .n = v_dim, .k = latent, .x = rows(), .x_stride = latent, .w = w + nope * latent, .y = values(), .y_stride = v_stride(), .accumulate = false, .workspace = gemm_space}, caller);
    for (int64_t j = 0; j < count && v_dim % kLanes != 0; ++j) {
      for (int64_t i = v_dim; i < v_width(); ++i) values()[j * v_stride() + i] = 0.0f;
    }
  }

  void StoreOutputs(const ExpandedItem& item) const {
    const int64_t v_dim = shape().v_dim;
    for (int64_t r = 0; r < item.num_queries; ++r) {
      T* out = static_cast<T*>(args.out) + (args.cu_seqlens[item.s] + item.query + r) * args.out_stride + item.head * v_dim;
      const F32x16 inverse = Set1(InverseOfSum(sum()[r]));
      for (int64_t i = 0; i < v_dim; i += kLanes) StoreUpTo(LoadUpTo(o() + r * v_stride() + i, v_dim - i) * inverse, out + i, v_dim - i);
    }
  }
};

// Results do not depend on the cut of the queries: few items are cut finer until every thread has some.
RT_SIMD int64_t QueriesOfAnItem(const LatentAttentionArgs& args, int64_t num_rows, int num_threads) {
  int64_t num_items = 0;
  for (int64_t s = 0; s < args.num_sequences; ++s) num_items += args.cu_seqlens[s + 1] > args.cu_seqlens[s] ? args.shape.num_heads : 0;
  int64_t queries = Min(num_rows, kMaxQueries);
  for (; queries > kExpandTile && num_items < num_threads; num_items *= 2) queries = RoundUp(queries / 2, kQueryTile);
  return queries;
}

template <class T>
int ExpandedLatentAttention(const LatentAttentionArgs& args, const Parallel& parallel) {
  if (args.num_sequences == 0) return 0;
  AppendLatentRows<T>(args, parallel);
  const LatentAttentionShape& shape = args.shape;
  const int64_t num_rows = args.cu_seqlens[args.num_sequences] - args.cu_seqlens[0];
  const int64_t queries = QueriesOfAnItem(args, num_rows, parallel.num_threads);
  const size_t scratch_bytes = static_cast<size_t>(ExpandedScratchFloats(shape, queries)) * sizeof(float);
  const size_t gemm_bytes = GemmWorkspaceBytes(1);
  const auto each = [&](const auto& visit) {
    for (int64_t s = 0; s < args.num_sequences; ++s) {
      const int64_t num_new = IsPaddingSequence(args, s) ? 0 : args.cu_seqlens[s + 1] - args.cu_seqlens[s];
      for (int64_t head = 0; head < shape.num_heads; ++head) {
        for (int64_t query = 0; query < num_new; query += queries) {
          const ExpandedItem item{s, head, query, Min(queries, num_new - query)};
          const int64_t keys = args.context_lens[s] + query + item.num_queries;
          visit(item, keys * (int64_t{shape.qk_nope_dim} + shape.v_dim) * shape.latent_dim + item.num_queries * (keys - item.num_queries / 2) * (LatentQueryDim(shape) + shape.v_dim));
        }
      }
    }
  };
  DealItems(parallel, each, [&](const ExpandedItem& item, int thread) {
    char* space = static_cast<char*>(args.workspace) + static_cast<size_t>(thread) * (scratch_bytes + gemm_bytes);
    ExpandedAttend<T>{args, reinterpret_cast<float*>(space + gemm_bytes), queries, space}.Run(item);
  });
  return 0;
}

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
