// Walks one work item, (sequence, key head and the value heads that read it), through its tokens in blocks of 64: where its q, k, v come
// from and where its o goes is the caller's business, so the stand-alone op and the fused mixer share everything in between.
#pragma once

#include "kernels/gated_delta/delta_chunk.h"
#include "kernels/gated_delta/delta_dot.h"
#include "kernels/gated_delta/delta_recurrent.h"

namespace rt::kernels::inline RT_ISA_NS {

// x <- x * factor * rsqrt(|x|^2 + eps) over a row whose tail past the head is zero.
RT_SIMD void L2NormalizeRow(float* x, int64_t stride, float eps, float factor) {
  F32x16 squares = Zero();
  for (int64_t d = 0; d < stride; d += kLanes) {
    const F32x16 row = Load(x + d);
    squares = Fma(row, row, squares);
  }
  const F32x16 scale = Set1(factor * Rsqrt(ReduceAdd(squares) + eps));
  for (int64_t d = 0; d < stride; d += kLanes) Store(Load(x + d) * scale, x + d);
}

struct DeltaItem {
  DeltaDims dims;
  DeltaGates gates;
  DeltaState state;
  float l2_eps;
  int64_t first_token;  // row of the sequence's first token
  int64_t num_tokens;   // > 0
  int64_t slot;         // >= 0
  bool has_initial_state;
  bool chunked;
  int32_t k_head;
  int32_t first_head, last_head;    // value heads of this item, relative to the group
  int64_t first_panel, last_panel;  // panels of this item

  RT_ALWAYS_INLINE int32_t group() const { return dims.num_v_heads / dims.num_k_heads; }
  RT_ALWAYS_INLINE char* HeadState(int32_t head) const {
    const int64_t offset = (static_cast<int64_t>(k_head) * group() + head) * DeltaStateFloats(dims) * SizeOf(state.dtype);
    return static_cast<char*>(state.base) + slot * state.slot_stride_bytes + offset;
  }
};

// All heads and panels of (sequence, key head), token by token; callers narrow or change that. Params: of the op or of the fused mixer.
template <class Params>
DeltaItem MakeDeltaItem(const Params& params, int32_t sequence, int32_t k_head) {
  DeltaItem item{};
  item.dims = params.dims;
  item.gates = params.gates;
  item.state = params.state;
  item.l2_eps = params.l2_eps;
  item.first_token = params.batch.cu_seqlens[sequence];
  item.num_tokens = params.batch.cu_seqlens[sequence + 1] - item.first_token;
  item.slot = params.batch.state_slot_ids[sequence];
  item.has_initial_state = params.batch.has_initial_state[sequence] != 0;
  item.k_head = k_head;
  item.last_head = item.group();
  item.last_panel = DeltaStatePanels(params.dims);
  return item;
}

// A padding sequence: the columns of the item's heads become zeros.
template <class Act, class Params>
void ZeroItemRows(const Params& params, const DeltaItem& item) {
  const int64_t width = params.dims.head_v_dim;
  Act* out = static_cast<Act*>(params.out) + item.first_token * params.out_stride +
             (static_cast<int64_t>(item.k_head) * item.group() + item.first_head) * width;
  const size_t bytes = static_cast<size_t>((item.last_head - item.first_head) * width) * sizeof(Act);
  for (int64_t t = 0; t < item.num_tokens; ++t) std::memset(static_cast<void*>(out + t * params.out_stride), 0, bytes);
}

// `rows` >= n: how many rows of channel gates the form reads.
template <class Act>
void LoadGates(const DeltaItem& item, const DeltaScratch& s, int32_t head, int64_t t0, int64_t n, int64_t rows) {
  const int64_t v_head = static_cast<int64_t>(item.k_head) * item.group() + head;
  const int64_t token = item.first_token + t0;
  if (!item.dims.channel_gates()) return ComputeHeadGates<Act, true>(item.gates, token, v_head, n, s.gate, s.beta);
  ComputeHeadGates<Act, false>(item.gates, token, v_head, n, nullptr, s.beta);
  ComputeChannelGates<Act>(item.gates, token, v_head, item.dims.head_k_dim, n, rows, s);
}

template <class StateT>
void WidenState(const StateT* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) Store(Load(from + i), to + i);
}
template <class StateT>
void NarrowState(const float* from, int64_t count, StateT* to) {
  for (int64_t i = 0; i < count; i += kLanes) Store(Load(from + i), to + i);
}

// The fp32 state a head works on between its first and last token: the slot itself when the pool is fp32, else a copy in scratch.
inline float* WorkingState(const DeltaItem& item, const DeltaScratch& s, int32_t head) {
  if (item.state.dtype == DType::kF32) return reinterpret_cast<float*>(item.HeadState(head));
  return s.state + head * DeltaStateFloats(item.dims);
}

inline void OpenState(const DeltaItem& item, const DeltaScratch& s, int32_t head) {
  const int64_t begin = item.first_panel * item.dims.head_k_dim * kLanes;
  const int64_t count = (item.last_panel - item.first_panel) * item.dims.head_k_dim * kLanes;
  float* working = WorkingState(item, s, head) + begin;
  if (!item.has_initial_state) {
    std::memset(working, 0, static_cast<size_t>(count) * sizeof(float));
  } else if (item.state.dtype == DType::kBf16) {
    WidenState(reinterpret_cast<const bf16*>(item.HeadState(head)) + begin, count, working);
  } else if (item.state.dtype == DType::kF16) {
    WidenState(reinterpret_cast<const f16*>(item.HeadState(head)) + begin, count, working);
  }
}

inline void CloseState(const DeltaItem& item, const DeltaScratch& s, int32_t head) {
  const int64_t begin = item.first_panel * item.dims.head_k_dim * kLanes;
  const int64_t count = (item.last_panel - item.first_panel) * item.dims.head_k_dim * kLanes;
  const float* working = WorkingState(item, s, head) + begin;
  if (item.state.dtype == DType::kBf16) NarrowState(working, count, reinterpret_cast<bf16*>(item.HeadState(head)) + begin);
  if (item.state.dtype == DType::kF16) NarrowState(working, count, reinterpret_cast<f16*>(item.HeadState(head)) + begin);
}

// All tokens fit one block: panels go from their stored form to their stored form without a detour.
template <bool kChannels, class StateT>
void RecurrentHeadStored(const DeltaItem& item, const DeltaScratch& s, int32_t head, int64_t n, float* values) {
  const int64_t panel_floats = static_cast<int64_t>(item.dims.head_k_dim) * kLanes;
  StateT* state = reinterpret_cast<StateT*>(item.HeadState(head));
  const bool fresh = !item.has_initial_state;
  for (int64_t p = item.first_panel; p < item.last_panel; ++p) {
    StateT* panel = state + p * panel_floats;
    float* working = std::is_same_v<StateT, float> ? reinterpret_cast<float*>(panel) : s.state;
    RecurrentPanel<kChannels>(s, item.dims.head_k_dim, n, fresh, panel, working, values + p * kLanes);
  }
}

template <bool kChannels>
void RecurrentHead(const DeltaItem& item, const DeltaScratch& s, int32_t head, int64_t n, bool one_block, float* values) {
  if constexpr (kChannels) {
    PrepareRecurrentChannels(s, n);
  } else {
    for (int64_t i = 0; i < n; i += kLanes) Store(Exp(Load(s.gate + i)), s.exp_g + i);
  }
  if (one_block) {
    switch (item.state.dtype) {
      case DType::kF32: return RecurrentHeadStored<kChannels, float>(item, s, head, n, values);
      case DType::kBf16: return RecurrentHeadStored<kChannels, bf16>(item, s, head, n, values);
      case DType::kF16: return RecurrentHeadStored<kChannels, f16>(item, s, head, n, values);
    }
  }
  const int64_t panel_floats = static_cast<int64_t>(item.dims.head_k_dim) * kLanes;
  float* state = WorkingState(item, s, head);
  for (int64_t p = item.first_panel; p < item.last_panel; ++p) {
    float* panel = state + p * panel_floats;
    RecurrentPanel<kChannels>(s, item.dims.head_k_dim, n, false, panel, panel, values + p * kLanes);
  }
}

// One head's tokens [t0, t0 + n), whose keys, queries and values are in scratch.
template <class Act, class Math, bool kChannels>
void RunHeadBlock(const DeltaItem& item, const DeltaScratch& s, int32_t head, int64_t t0, int64_t n, bool one_block, float* values) {
  const int64_t rows = item.chunked ? RoundUp(n, 16) : n;
  LoadGates<Act>(item, s, head, t0, n, rows);
  if (!item.chunked) return RecurrentHead<kChannels>(item, s, head, n, one_block, values);
  std::memset(values + n * s.value_stride, 0, static_cast<size_t>(rows - n) * s.value_stride * sizeof(float));
  ChunkHead<Math, kChannels>(s, rows, item.dims.head_k_dim, item.first_panel, item.last_panel, values, WorkingState(item, s, head));
}

// io.Load(t0, n, scratch) fills rows [0, n) of keys, queries (raw) and of the values of each head of the item;
// io.Store(t0, n, head, o) takes the head's output rows [n][value_stride]. Both count tokens from the sequence's first.
template <class Act, class Math, class Io>
void RunDeltaItem(const DeltaItem& item, const DeltaScratch& s, Io&& io) {
  const int64_t key_dim = item.dims.head_k_dim;
  const float query_factor = 1.0f / __builtin_sqrtf(static_cast<float>(key_dim));
  const bool one_block = !item.chunked && item.num_tokens <= kDeltaChunk;
  for (int32_t head = item.first_head; !one_block && head < item.last_head; ++head) OpenState(item, s, head);
  for (int64_t t0 = 0; t0 < item.num_tokens; t0 += kDeltaChunk) {
    const int64_t n = Min<int64_t>(kDeltaChunk, item.num_tokens - t0);
    const int64_t rows = item.chunked ? RoundUp(n, 16) : n;
    io.Load(t0, n, s);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t d = key_dim; d < s.key_stride; ++d) s.keys[i * s.key_stride + d] = s.queries[i * s.key_stride + d] = 0;
      L2NormalizeRow(s.keys + i * s.key_stride, s.key_stride, item.l2_eps, 1.0f);
      L2NormalizeRow(s.queries + i * s.key_stride, s.key_stride, item.l2_eps, query_factor);
    }
    if (item.chunked) {
      const size_t padding = static_cast<size_t>(rows - n);
      std::memset(s.keys + n * s.key_stride, 0, padding * s.key_stride * sizeof(float));
      std::memset(s.queries + n * s.key_stride, 0, padding * s.key_stride * sizeof(float));
      PrepareChunkGroup<Math>(s, rows, item.dims.channel_gates());
    } else {
      KeyDotQuery(s, n);
    }
    for (int32_t head = item.first_head; head < item.last_head; ++head) {
      float* values = s.values + head * s.head_value_floats();
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t d = item.dims.head_v_dim; d < s.value_stride; ++d) values[i * s.value_stride + d] = 0;
      }
      if (item.dims.channel_gates()) {
        RunHeadBlock<Act, Math, true>(item, s, head, t0, n, one_block, values);
      } else {
        RunHeadBlock<Act, Math, false>(item, s, head, t0, n, one_block, values);
      }
      io.Store(t0, n, head, values);
    }
  }
  for (int32_t head = item.first_head; !one_block && head < item.last_head; ++head) CloseState(item, s, head);
}

}  // namespace rt::kernels::inline RT_ISA_NS
