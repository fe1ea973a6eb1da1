// New rows, the cache, and how work is dealt to threads. Part of the per-ISA code.
#pragma once

#include <atomic>
#include <cstring>

#include "kernels/common/simd.h"
#include "kernels/latent_attention/latent_attention.h"
#include "kernels/latent_attention/latent_attention_blocking.h"
#include "kernels/rms_norm/rms_norm_row.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

// y = [rms_norm(x[:L]) * weight ; x[L:]]; weight null: y = x.
template <class T>
RT_SIMD void LatentNormRow(const LatentAttentionShape& shape, const T* x, const float* weight, T* y) {
  const int64_t latent = shape.latent_dim;
  if (weight == nullptr) {
    std::memmove(y, x, static_cast<size_t>(LatentRow(shape)) * sizeof(T));
    return;
  }
  SquareSum sum;
  for (int64_t i = 0; i < latent; i += kLanes) sum.Add(LoadUpTo(x + i, latent - i));
  ScaleRow(x, sum.InverseRms(latent, shape.norm_eps), weight, 0.0f, latent, y);
  std::memmove(y + latent, x + latent, static_cast<size_t>(shape.qk_shared_dim) * sizeof(T));
}

template <class T>
int LatentNorm(const LatentNormArgs& args, const Parallel& parallel) {
  ParallelForCost(parallel, args.num_rows, LatentRow(args.shape), [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      LatentNormRow(args.shape, static_cast<const T*>(args.kv_a) + row * args.kv_a_stride, args.kv_norm, static_cast<T*>(args.out) + row * args.out_stride);
    }
  });
  return 0;
}

RT_SIMD bool IsPaddingSequence(const LatentAttentionArgs& args, int64_t s) { return args.block_table[s * args.max_blocks] < 0; }

// Row of cached token `token` of sequence s; null where the table names no block.
template <class T>
RT_SIMD T* CachedRow(const LatentAttentionArgs& args, int64_t s, int64_t token) {
  const int64_t block = args.block_table[s * args.max_blocks + token / args.block_size];
  if (block < 0) return nullptr;
  return reinterpret_cast<T*>(static_cast<char*>(args.cache_base) + block * args.block_stride_bytes) + token % args.block_size * LatentRow(args.shape);
}

// Writes the new rows of the call into the cache, and zeros into the output rows of padding.
template <class T>
void AppendLatentRows(const LatentAttentionArgs& args, const Parallel& parallel) {
  const int64_t first = args.cu_seqlens[0], num_rows = args.cu_seqlens[args.num_sequences] - first;
  const size_t out_bytes = static_cast<size_t>(args.shape.num_heads) * static_cast<size_t>(args.shape.v_dim) * sizeof(T);
  ParallelForCost(parallel, num_rows, LatentRow(args.shape), [&](int64_t begin, int64_t end, int) {
    int64_t s = 0;
    for (int64_t row = first + begin; row < first + end; ++row) {
      while (args.cu_seqlens[s + 1] <= row) ++s;
      if (IsPaddingSequence(args, s)) {
        std::memset(static_cast<T*>(args.out) + row * args.out_stride, 0, out_bytes);
        continue;
      }
      T* cached = CachedRow<T>(args, s, args.context_lens[s] + row - args.cu_seqlens[s]);
      if (cached != nullptr) LatentNormRow(args.shape, static_cast<const T*>(args.kv_a) + row * args.kv_a_stride, args.kv_norm, cached);
    }
  });
}

// Deals items, visited in one order by `each(visit)` with visit(item, cost), to threads that take the next one when they are
// done with one: results do not depend on who computes an item, and a thread that loses its core delays the others by one item.
// Little work (costs in multiply-adds) stays on the caller.
template <class Each, class Body>
void DealItems(const Parallel& parallel, const Each& each, const Body& body) {
  int64_t total = 0;
  each([&](const auto&, int64_t cost) { total += cost; });
  if (parallel.num_threads == 1 || total < 16 * kMinParallelCost) {
    each([&](const auto& item, int64_t) { body(item, 0); });
    return;
  }
  std::atomic<int64_t> next{0};
  ParallelRun(parallel, [&](int thread, int) {
    int64_t mine = next.fetch_add(1, std::memory_order_relaxed), index = 0;
    each([&](const auto& item, int64_t) {
      if (index++ != mine) return;
      body(item, thread);
      mine = next.fetch_add(1, std::memory_order_relaxed);
    });
  });
}

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
