// Compiled once per ISA level.
#pragma once

#include <type_traits>

#include "kernels/common/isa.h"
#include "kernels/common/work_split.h"
#include "kernels/gated_delta/delta_group.h"

namespace rt::kernels::inline RT_ISA_NS {

// q, k, v straight from activations; o straight to the output.
template <class Act>
struct DeltaTensorIo {
  const GatedDeltaParams& params;
  const DeltaItem& item;

  void Load(int64_t t0, int64_t n, const DeltaScratch& s) const {
    const int64_t row = item.first_token + t0;
    const int64_t key_dim = params.dims.head_k_dim;
    const int64_t value_dim = params.dims.head_v_dim;
    Widen(params.k, params.k_stride, row, n, item.k_head * key_dim, key_dim, s.keys, s.key_stride);
    Widen(params.q, params.q_stride, row, n, item.k_head * key_dim, key_dim, s.queries, s.key_stride);
    for (int32_t head = item.first_head; head < item.last_head; ++head) {
      const int64_t column = (static_cast<int64_t>(item.k_head) * item.group() + head) * value_dim;
      Widen(params.v, params.v_stride, row, n, column, value_dim, s.values + head * s.head_value_floats(), s.value_stride);
    }
  }
  void Store(int64_t t0, int64_t n, int32_t head, const float* o) const {
    const DeltaDims& dims = params.dims;
    const int64_t begin = item.first_panel * kLanes;
    const int64_t end = Min<int64_t>(dims.head_v_dim, item.last_panel * kLanes);
    const int64_t stride = RoundUp(dims.head_v_dim, kLanes);
    Act* out = static_cast<Act*>(params.out) + (item.first_token + t0) * params.out_stride +
               (static_cast<int64_t>(item.k_head) * item.group() + head) * dims.head_v_dim;
    for (int64_t i = 0; i < n; ++i, out += params.out_stride) {
      for (int64_t d = begin; d < end; d += kLanes) StoreUpTo(RT_ISA_NS::Load(o + i * stride + d), out + d, end - d);
    }
  }

 private:
  static void Widen(const void* from, int64_t from_stride, int64_t row, int64_t n, int64_t column, int64_t width, float* to,
                    int64_t to_stride) {
    const Act* x = static_cast<const Act*>(from) + row * from_stride + column;
    for (int64_t i = 0; i < n; ++i, x += from_stride, to += to_stride) {
      for (int64_t d = 0; d < width; d += kLanes) RT_ISA_NS::Store(LoadUpTo(x + d, width - d), to + d);  // rows are padded to 16
    }
  }
};

// How finely a batch is cut: whole groups share their key products; single value heads, then half heads, fill more threads at the price
// of forming those products again. Every cut gives the same bits.
struct DeltaSplit {
  int32_t head_parts;   // pieces of a group: 1 or the group's size
  int32_t panel_parts;  // pieces of a head: 1 or 2
  static RT_ALWAYS_INLINE DeltaSplit Choose(const SequenceBatch& batch, const DeltaDims& dims, int num_threads) {
    int64_t active = 0;
    for (int32_t s = 0; s < batch.num_seqs; ++s) active += batch.cu_seqlens[s + 1] > batch.cu_seqlens[s];
    const int32_t group = dims.num_v_heads / dims.num_k_heads;
    // Two items a thread keep the loss to uneven cuts below a third.
    if (active * dims.num_k_heads >= 2 * num_threads || num_threads == 1) return {1, 1};
    if (active * dims.num_v_heads >= 2 * num_threads || DeltaStatePanels(dims) < 2) return {group, 1};
    return {group, 2};
  }
};

template <class Act, class Math>
void RunDeltaPart(const GatedDeltaParams& params, bool chunked, const DeltaSplit& split, int32_t sequence, int32_t part,
                  const DeltaScratch& scratch) {
  const DeltaDims& dims = params.dims;
  const int32_t group = dims.num_v_heads / dims.num_k_heads;
  const int32_t panel_part = part % split.panel_parts;
  const int32_t head_part = part / split.panel_parts % split.head_parts;
  const int64_t panels = DeltaStatePanels(dims);
  DeltaItem item = MakeDeltaItem(params, sequence, part / (split.panel_parts * split.head_parts));
  item.chunked = chunked;
  item.first_head = split.head_parts == 1 ? 0 : head_part;
  item.last_head = split.head_parts == 1 ? group : head_part + 1;
  item.first_panel = panels * panel_part / split.panel_parts;
  item.last_panel = panels * (panel_part + 1) / split.panel_parts;
  if (item.slot < 0) {
    if (panel_part == 0) ZeroItemRows<Act>(params, item);
    return;
  }
  RunDeltaItem<Act, Math>(item, scratch, DeltaTensorIo<Act>{params, item});
}

template <class Act, bool kChunked, class Math>
int RunGatedDelta(const GatedDeltaParams& params, const Parallel& parallel) {
  const DeltaSplit split = DeltaSplit::Choose(params.batch, params.dims, parallel.num_threads);
  const int32_t parts = params.dims.num_k_heads * split.head_parts * split.panel_parts;
  ParallelRun(parallel, [&](int thread, int num_threads) {
    const FlushSubnormals flush;
    DeltaScratch scratch;
    const size_t bytes = LayOutDeltaScratch(params.dims, nullptr, nullptr);
    LayOutDeltaScratch(params.dims, static_cast<char*>(params.workspace) + bytes * static_cast<size_t>(thread), &scratch);
    ForEachItem(params.batch, parts, 4, thread, num_threads, [&](int32_t sequence, int32_t part) {
      RunDeltaPart<Act, Math>(params, kChunked, split, sequence, part, scratch);
    });
  });
  return 0;
}

inline const GatedDeltaKernels& GatedDeltaTable() {
  static const GatedDeltaKernels table = {RunGatedDelta<float, false, FmaMath>,
                                          RunGatedDelta<bf16, false, FmaMath>,
                                          RunGatedDelta<float, true, FmaMath>,
                                          CpuPrefersBf16Dot() ? RunGatedDelta<bf16, true, DotMath> : RunGatedDelta<bf16, true, FmaMath>,
                                          RunGatedDelta<bf16, true, FmaMath>,
                                          RunGatedDelta<bf16, true, DotMath>};
  return table;
}

}  // namespace rt::kernels::inline RT_ISA_NS
