// Splits (sequence, part) work items over threads by their cost. Part of the per-ISA code: include after simd.h.
#pragma once

#include "kernels/common/sequence_batch.h"
#include "kernels/common/simd.h"

namespace rt::kernels::inline RT_ISA_NS {

// Calls body(sequence, part) for the items of `thread`. Items are ordered by sequence, then part; an item costs its number of tokens plus
// `fixed_cost` (what a sequence costs beside its tokens, in tokens); each thread gets a contiguous run of about equal cost. Every item
// goes to exactly one thread; sequences without tokens have no items.
template <class F>
void ForEachItem(const SequenceBatch& batch, int32_t parts, int64_t fixed_cost, int thread, int num_threads, F&& body) {
  const auto cost_of = [&](int32_t s) -> int64_t {
    const int64_t tokens = batch.cu_seqlens[s + 1] - batch.cu_seqlens[s];
    return tokens == 0 ? 0 : tokens + fixed_cost;
  };
  int64_t total = 0;
  for (int32_t s = 0; s < batch.num_seqs; ++s) total += cost_of(s) * parts;
  int64_t start = 0;  // cost of all items before this one
  for (int32_t s = 0; s < batch.num_seqs; ++s) {
    const int64_t cost = cost_of(s);
    if (cost == 0) continue;
    for (int32_t part = 0; part < parts; ++part, start += cost) {
      // The owner is the thread whose share holds the middle of the item.
      if ((2 * start + cost) * num_threads / (2 * total) == thread) body(s, part);
    }
  }
}

}  // namespace rt::kernels::inline RT_ISA_NS
