// Register tiles of the chunk form: acc[rows][panels] += A * B with A read one broadcast scalar at a time and B in 16-lane panels.
#pragma once

#include "kernels/common/simd.h"
#include "kernels/gated_delta/delta_scratch.h"

namespace rt::kernels::inline RT_ISA_NS {

// AVX-512: 8 rows x 2 panels = 16 accumulators of 32 registers; per step 2 loads and 8 broadcasts feed 16 FMAs (two ports, latency 4: 8
// in flight would do). AVX2: 4 rows x 1 panel = 8 ymm accumulators of 16 registers.
constexpr int kTileRows = RT_ISA_AVX512BF16 ? 8 : 4;
constexpr int kTilePanels = RT_ISA_AVX512BF16 ? 2 : 1;
static_assert(kTilePanels <= kDeltaTilePanels && 16 % kTileRows == 0);

template <int MR, int NP>
struct Tile {
  F32x16 acc[MR][NP];

  RT_ALWAYS_INLINE void Clear() {
    for (int r = 0; r < MR; ++r) {
      for (int p = 0; p < NP; ++p) acc[r][p] = Zero();
    }
  }
  // Row r scaled by factor[r].
  RT_ALWAYS_INLINE void ScaleRows(const float* factor) {
    for (int r = 0; r < MR; ++r) {
      for (int p = 0; p < NP; ++p) acc[r][p] = acc[r][p] * Set1(factor[r]);
    }
  }
  // A[r][k] = a[r * a_stride + k]
  RT_ALWAYS_INLINE void FmaRows(const float* a, int64_t a_stride, const float* b, int64_t b_panel, int64_t depth) {
    for (int64_t k = 0; k < depth; ++k, b += kLanes) {
      F32x16 lanes[NP];
      for (int p = 0; p < NP; ++p) lanes[p] = Load(b + p * b_panel);
      for (int r = 0; r < MR; ++r) {
        const F32x16 scalar = Set1(a[r * a_stride + k]);
        for (int p = 0; p < NP; ++p) acc[r][p] = Fma(scalar, lanes[p], acc[r][p]);
      }
    }
  }
  // A[r][k] = a[k * a_stride + r]
  RT_ALWAYS_INLINE void FmaColumns(const float* a, int64_t a_stride, const float* b, int64_t b_panel, int64_t depth) {
    for (int64_t k = 0; k < depth; ++k, a += a_stride, b += kLanes) {
      F32x16 lanes[NP];
      for (int p = 0; p < NP; ++p) lanes[p] = Load(b + p * b_panel);
      for (int r = 0; r < MR; ++r) {
        const F32x16 scalar = Set1(a[r]);
        for (int p = 0; p < NP; ++p) acc[r][p] = Fma(scalar, lanes[p], acc[r][p]);
      }
    }
  }
  RT_ALWAYS_INLINE void Read(const float* from, int64_t row_stride, int64_t panel_stride) {
    for (int r = 0; r < MR; ++r) {
      for (int p = 0; p < NP; ++p) acc[r][p] = Load(from + r * row_stride + p * panel_stride);
    }
  }
  RT_ALWAYS_INLINE void Write(float* to, int64_t row_stride, int64_t panel_stride) const {
    for (int r = 0; r < MR; ++r) {
      for (int p = 0; p < NP; ++p) Store(acc[r][p], to + r * row_stride + p * panel_stride);
    }
  }
};

}  // namespace rt::kernels::inline RT_ISA_NS
