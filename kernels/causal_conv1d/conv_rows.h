// The convolution of a few channels of one sequence: shared by the stand-alone op and by the fused linear mixer.
#pragma once

#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/common/simd.h"

namespace rt::kernels::inline RT_ISA_NS {

// One sequence's inputs, starting at some channel.
template <class Act>
struct ConvSource {
  const Act* x;          // row 0 of the sequence
  int64_t x_stride;
  const Act* state;      // [width-1, channels] or null: zeros
  int64_t state_stride;  // channels
  int32_t width;

  // Raw inputs of token t >= -(width-1) of the sequence, or null for zeros.
  RT_ALWAYS_INLINE const Act* Row(int64_t t) const {
    if (t >= 0) return x + t * x_stride;
    return state == nullptr ? nullptr : state + (width - 1 + t) * state_stride;
  }
  RT_ALWAYS_INLINE ConvSource AtChannel(int64_t c) const {
    return {x + c, x_stride, state == nullptr ? nullptr : state + c, state_stride, width};
  }
};

// Tokens [t0, t0 + n) of NV vectors of channels, the window in registers. `lanes` counts the channels of the last vector.
template <int W, int NV, class Act, class Out>
RT_SIMD void ConvStrip(const ConvSource<Act>& source, const float* weight, int64_t weight_stride, int64_t t0, int64_t n, Out* out,
                       int64_t out_stride, int lanes) {
  const auto load = [lanes](const Act* row, int v) {
    return v + 1 < NV || lanes == kLanes ? Load(row + v * kLanes) : LoadN(row + v * kLanes, lanes);
  };
  F32x16 tap[W][NV];
  F32x16 window[W - 1][NV];  // oldest first
  for (int j = 0; j < W; ++j) {
    for (int v = 0; v < NV; ++v) {
      const float* w = weight + j * weight_stride + v * kLanes;
      tap[j][v] = v + 1 < NV || lanes == kLanes ? Load(w) : LoadN(w, lanes);
    }
  }
  for (int j = 0; j < W - 1; ++j) {
    const Act* row = source.Row(t0 - (W - 1) + j);
    for (int v = 0; v < NV; ++v) window[j][v] = row == nullptr ? Zero() : load(row, v);
  }
  const Act* row = source.x + t0 * source.x_stride;
  for (int64_t t = 0; t < n; ++t, row += source.x_stride, out += out_stride) {
    for (int v = 0; v < NV; ++v) {
      const F32x16 current = load(row, v);
      F32x16 sum = tap[0][v] * window[0][v];
      for (int j = 1; j < W - 1; ++j) sum = Fma(tap[j][v], window[j][v], sum);
      sum = Silu(Fma(tap[W - 1][v], current, sum));
      for (int j = 0; j + 1 < W - 1; ++j) window[j][v] = window[j + 1][v];
      window[W - 2][v] = current;
      if (v + 1 < NV || lanes == kLanes) {
        Store(sum, out + v * kLanes);
      } else {
        StoreN(sum, out + v * kLanes, lanes);
      }
    }
  }
}

// AVX-512 holds four vectors' windows and taps in its 32 registers; two cache lines of bf16 a row.
constexpr int kConvStripVectors = RT_ISA_AVX512BF16 ? 4 : 1;

template <int W, class Act, class Out>
void ConvRowsOfWidth(const ConvSource<Act>& source, const float* weight, int64_t weight_stride, int64_t channels, int64_t t0, int64_t n,
                     Out* out, int64_t out_stride) {
  constexpr int kStrip = kConvStripVectors * kLanes;
  int64_t c = 0;
  for (; c + kStrip <= channels; c += kStrip) {
    ConvStrip<W, kConvStripVectors>(source.AtChannel(c), weight + c, weight_stride, t0, n, out + c, out_stride, kLanes);
  }
  for (; c < channels; c += kLanes) {
    const int lanes = static_cast<int>(Min<int64_t>(kLanes, channels - c));
    ConvStrip<W, 1>(source.AtChannel(c), weight + c, weight_stride, t0, n, out + c, out_stride, lanes);
  }
}

// out[t - t0, c] for tokens [t0, t0 + n) and channels [0, channels) of `source`; weight points at the same first channel.
template <class Act, class Out>
void ConvRows(const ConvSource<Act>& source, const float* weight, int64_t weight_stride, int64_t channels, int64_t t0, int64_t n, Out* out,
              int64_t out_stride) {
  switch (source.width) {
    case 2: return ConvRowsOfWidth<2>(source, weight, weight_stride, channels, t0, n, out, out_stride);
    case 3: return ConvRowsOfWidth<3>(source, weight, weight_stride, channels, t0, n, out, out_stride);
    case 4: return ConvRowsOfWidth<4>(source, weight, weight_stride, channels, t0, n, out, out_stride);
    case 5: return ConvRowsOfWidth<5>(source, weight, weight_stride, channels, t0, n, out, out_stride);
    case 6: return ConvRowsOfWidth<6>(source, weight, weight_stride, channels, t0, n, out, out_stride);
    case 7: return ConvRowsOfWidth<7>(source, weight, weight_stride, channels, t0, n, out, out_stride);
    case 8: return ConvRowsOfWidth<8>(source, weight, weight_stride, channels, t0, n, out, out_stride);
    default: return;
  }
}

// Keeps the last width-1 raw inputs after n >= 1 tokens; `source.state` null means the window before was zero. Rows move towards the
// front, so walking them in order never reads a row that was already overwritten.
template <class Act>
void UpdateConvState(const ConvSource<Act>& source, int64_t n, int64_t channels, Act* state) {
  for (int64_t j = 0; j < source.width - 1; ++j) {
    Act* to = state + j * source.state_stride;
    const Act* from = source.Row(n - (source.width - 1) + j);
    if (from == nullptr) {
      std::memset(static_cast<void*>(to), 0, static_cast<size_t>(channels) * sizeof(Act));
    } else {
      std::memmove(to, from, static_cast<size_t>(channels) * sizeof(Act));
    }
  }
}

}  // namespace rt::kernels::inline RT_ISA_NS
