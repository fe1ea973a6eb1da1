// The token-recurrent form: one panel of 16 value channels stays in L1 (8 KB of fp32 at Dk = 128) for all tokens of a block.
#pragma once

#include <type_traits>

#include "kernels/gated_delta/delta_gates.h"

namespace rt::kernels::inline RT_ISA_NS {

// Independent sums per dot product. AVX-512: 4 + 4 hide the FMA latency; AVX2 has registers for 2 + 2 of two ymm each.
constexpr int kRecurrentSums = RT_ISA_AVX512BF16 ? 4 : 2;

// Shared by the heads of a group: k_i . q_i, which turns S_t^T q into exp(g) S^T q + (k . q) u, so both dot products read the old state.
inline void KeyDotQuery(const DeltaScratch& s, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    F32x16 sum = Zero();
    for (int64_t d = 0; d < s.key_stride; d += kLanes) {
      sum = Fma(Load(s.keys + i * s.key_stride + d), Load(s.queries + i * s.key_stride + d), sum);
    }
    s.key_dot_query[i] = ReduceAdd(sum);
  }
}

// How far ahead of the panel in work its successors are asked for. A core keeps some 16 to 48 lines in flight, and between two key heads
// there is about a microsecond of work that touches no state: 8 KB hides it (measured: 4 KB and 16 KB are slower).
constexpr int64_t kStateAheadBytes = 8 * 1024;

// Half of the lines of four state rows at `ahead` + row d, asked for by each of the two passes over a panel, so that memory never idles.
template <class StateT, int kHalf>
RT_SIMD void PrefetchRows(const char* ahead, int64_t d) {
  constexpr int64_t kHalfBytes = 2 * kLanes * static_cast<int64_t>(sizeof(StateT));
  const char* at = ahead + d * kLanes * static_cast<int64_t>(sizeof(StateT)) + kHalf * kHalfBytes;
  for (int64_t b = 0; b < kHalfBytes; b += 64) PrefetchForWrite(at + b);
}

// A token's operands. `key_read` and `query_read` meet the state before it decays: with channel decays they carry e^g themselves, with one
// decay a head they are key and query, and the sums are scaled.
struct RecurrentToken {
  const float* key;
  const float* key_read;
  const float* query_read;
  const float* decay;  // e^g: one value, or one a key channel
  float key_dot_query;
  float beta;
  float* value;  // v, becomes o
};

// One token on one panel: state [Dk][16] of type From is read, written as type To (which may be the same memory). With kStream, memory
// `ahead` (as large as the panel) is brought towards the core meanwhile; asking for memory never faults.
template <bool kStream, bool kChannels, class From, class To>
RT_SIMD void RecurrentStep(const From* from, To* to, int64_t key_dim, const RecurrentToken& token, const char* ahead) {
  const float* key = token.key;
  const float* key_read = token.key_read;
  const float* query_read = token.query_read;
  F32x16 by_key[kRecurrentSums], by_query[kRecurrentSums];
  for (int j = 0; j < kRecurrentSums; ++j) by_key[j] = by_query[j] = Zero();
  int64_t d = 0;
  for (; d + 4 <= key_dim; d += 4) {
    if constexpr (kStream) PrefetchRows<From, 0>(ahead, d);
    for (int j = 0; j < 4; ++j) {
      const F32x16 row = Load(from + (d + j) * kLanes);
      by_key[j % kRecurrentSums] = Fma(Set1(key_read[d + j]), row, by_key[j % kRecurrentSums]);
      by_query[j % kRecurrentSums] = Fma(Set1(query_read[d + j]), row, by_query[j % kRecurrentSums]);
    }
  }
  for (; d < key_dim; ++d) {
    const F32x16 row = Load(from + d * kLanes);
    by_key[0] = Fma(Set1(key_read[d]), row, by_key[0]);
    by_query[0] = Fma(Set1(query_read[d]), row, by_query[0]);
  }
  for (int width = kRecurrentSums / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) {
      by_key[j] = by_key[j] + by_key[j + width];
      by_query[j] = by_query[j] + by_query[j + width];
    }
  }
  const F32x16 scale = Set1(kChannels ? 1.0f : *token.decay);
  const F32x16 u = Set1(token.beta) * Fnma(scale, by_key[0], Load(token.value));
  Store(Fma(Set1(token.key_dot_query), u, scale * by_query[0]), token.value);
  const auto update = [&](int64_t row) {
    const F32x16 decay = kChannels ? Set1(token.decay[row]) : scale;
    Store(Fma(Set1(key[row]), u, decay * Load(from + row * kLanes)), to + row * kLanes);
  };
  for (d = 0; d + 4 <= key_dim; d += 4) {
    if constexpr (kStream) PrefetchRows<From, 1>(ahead, d);
    for (int j = 0; j < 4; ++j) update(d + j);
  }
  for (; d < key_dim; ++d) update(d);
}

// Tokens [0, n) on one panel. The first token reads the stored state (or zeros), the last one writes it; between them it lives in fp32 in
// `panel` [Dk][16], so a narrow state is rounded once. Pass panel = state when there is nothing to narrow.
template <bool kChannels, class StateT>
void RecurrentPanel(const DeltaScratch& s, int64_t key_dim, int64_t n, bool fresh, StateT* state, float* panel, float* values) {
  if (fresh) std::memset(static_cast<void*>(state), 0, static_cast<size_t>(key_dim) * kLanes * sizeof(StateT));
  const auto step = [&]<bool kStream>(std::bool_constant<kStream>, const auto* from, auto* to, int64_t i) {
    const int64_t row = i * s.key_stride;
    const RecurrentToken token = {s.keys + row,
                                  (kChannels ? s.channel.keys : s.keys) + row,
                                  (kChannels ? s.channel.queries : s.queries) + row,
                                  kChannels ? s.channel.decay + row : s.exp_g + i,
                                  s.key_dot_query[i],
                                  s.beta[i],
                                  values + i * s.value_stride};
    RecurrentStep<kStream, kChannels>(from, to, key_dim, token, reinterpret_cast<const char*>(state) + kStateAheadBytes);
  };
  if (n == 1) return step(std::true_type{}, state, state, 0);
  step(std::true_type{}, state, panel, 0);
  for (int64_t i = 1; i + 1 < n; ++i) step(std::false_type{}, panel, panel, i);
  step(std::false_type{}, panel, state, n - 1);
}

}  // namespace rt::kernels::inline RT_ISA_NS
