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

template <class Act>
void LoadGates(const DeltaItem& item, const DeltaScratch& s, int32_t head, int64_t t0, int64_t n) {
  const int64_t v_head = static_cast<int64_t>(item.k_head) * item.group() + head;
  const DeltaGates& g = item.gates;
  ComputeHeadGates(static_cast<const Act*>(g.a) + (item.first_token + t0) * g.a_stride + v_head, g.a_stride,
                   static_cast<const Act*>(g.b) + (item.first_token + t0) * g.b_stride + v_head, g.b_stride, g.a_log[v_head],
                   g.dt_bias[v_head], g.beta_scale, n, s.gate, s.beta);
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
template <class StateT>
void RecurrentHeadStored(const DeltaItem& item, const DeltaScratch& s, int32_t head, int64_t n, float* values) {
  const int64_t panel_floats = static_cast<int64_t>(item.dims.head_k_dim) * kLanes;
  StateT* state = reinterpret_cast<StateT*>(item.HeadState(head));
  const bool fresh = !item.has_initial_state;
  for (int64_t p = item.first_panel; p < item.last_panel; ++p) {
    StateT* panel = state + p * panel_floats;
    float* working = std::is_same_v<StateT, float> ? reinterpret_cast<float*>(panel) : s.state;
    RecurrentPanel(s, item.dims.head_k_dim, n, fresh, panel, working, values + p * kLanes);
  }
}

inline void RecurrentHead(const DeltaItem& item, const DeltaScratch& s, int32_t head, int64_t n, bool one_block, float* values) {
  for (int64_t i = 0; i < n; i += kLanes) Store(Exp(Load(s.gate + i)), s.exp_g + i);
  if (one_block) {
    switch (item.state.dtype) {
      case DType::kF32: return RecurrentHeadStored<float>(item, s, head, n, values);
      case DType::kBf16: return RecurrentHeadStored<bf16>(item, s, head, n, values);
      case DType::kF16: return RecurrentHeadStored<f16>(item, s, head, n, values);
    }
  }
  const int64_t panel_floats = static_cast<int64_t>(item.dims.head_k_dim) * kLanes;
  float* state = WorkingState(item, s, head);
  for (int64_t p = item.first_panel; p < item.last_panel; ++p) {
    float* panel = state + p * panel_floats;
    RecurrentPanel(s, item.dims.head_k_dim, n, false, panel, panel, values + p * kLanes);
  }
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
      PrepareChunkGroup<Math>(s, rows);
    } else {
      KeyDotQuery(s, n);
    }
    for (int32_t head = item.first_head; head < item.last_head; ++head) {
      float* values = s.values + head * s.head_value_floats();
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t d = item.dims.head_v_dim; d < s.value_stride; ++d) values[i * s.value_stride + d] = 0;
      }
      LoadGates<Act>(item, s, head, t0, n);
      if (item.chunked) {
        std::memset(values + n * s.value_stride, 0, static_cast<size_t>(rows - n) * s.value_stride * sizeof(float));
        ChunkHead<Math>(s, rows, key_dim, item.first_panel, item.last_panel, values, WorkingState(item, s, head));
      } else {
        RecurrentHead(item, s, head, n, one_block, values);
      }
      io.Store(t0, n, head, values);
    }
  }
  for (int32_t head = item.first_head; !one_block && head < item.last_head; ++head) CloseState(item, s, head);
}

}  // namespace rt::kernels::inline RT_ISA_NS
