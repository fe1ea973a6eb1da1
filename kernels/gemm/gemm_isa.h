// The few vector operations the GEMM tile needs, for the instruction set this file is compiled for.
//
// An Op multiplies kStep elements of K a step in kPhases passes over the same vectors: Load<phase>,
// LoadTail<phase> (the first n < kStep elements, zeros above; reads only those) and Dot(acc, a, b). Reduce4
// adds up the lanes of four accumulators.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "kernels/common/simd.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

#if RT_ISA_AVX512BF16

using Acc = __m512;
constexpr int kAccLanes = 16;
inline Acc ZeroAcc() { return _mm512_setzero_ps(); }
inline Acc LoadAcc(const float* p) { return _mm512_load_ps(p); }
inline void StoreAcc(float* p, Acc acc) { _mm512_store_ps(p, acc); }

// Pairs lanes l and l + 8, then + 4, + 2, + 1.
inline __m128 Reduce4(Acc a, Acc b, Acc c, Acc d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xEE));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xEE));
  const __m512 quads = _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xDD));
  const __m512 pairs = _mm512_add_ps(quads, _mm512_permute_ps(quads, 0x4E));
  const __m512 ones = _mm512_add_ps(pairs, _mm512_permute_ps(pairs, 0xB1));
  return _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, ones));
}

struct F32Op {
  using Elem = float;
  using Vec = __m512;
  static constexpr int kStep = 16;
  static constexpr int kPhases = 1;
  template <int phase>
  static Vec Load(const float* p) {
    return _mm512_loadu_ps(p);
  }
  template <int phase>
  static Vec LoadTail(const float* p, int64_t n) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
  }
  static void Put(Vec v, float* p) { _mm512_store_ps(p, v); }
  static Acc Dot(Acc acc, Vec a, Vec b) { return _mm512_fmadd_ps(a, b, acc); }
};

inline __m512i LoadBf16Tail(const bf16* p, int64_t n) {
  return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint32_t{1} << n) - 1), p);
}

// VDPBF16PS.
struct Bf16DotOp {
  using Elem = bf16;
  using Vec = __m512bh;
  static constexpr int kStep = 32;
  static constexpr int kPhases = 1;
  template <int phase>
  static Vec Load(const bf16* p) {
    return (__m512bh)_mm512_loadu_si512(p);
  }
  template <int phase>
  static Vec LoadTail(const bf16* p, int64_t n) {
    return (__m512bh)LoadBf16Tail(p, n);
  }
  static void Put(Vec v, bf16* p) { _mm512_store_si512(p, (__m512i)v); }
  static Acc Dot(Acc acc, Vec a, Vec b) { return _mm512_dpbf16_ps(acc, a, b); }
};

// Widening without shuffles: a pair of bf16 in a 32-bit lane is two fp32 values, one shift (even elements,
// phase 0) or one mask (odd) away.
struct Bf16WideOp {
  using Elem = bf16;
  using Vec = __m512;
  static constexpr int kStep = 32;
  static constexpr int kPhases = 2;
  template <int phase>
  static Vec Widen(__m512i v) {
    if constexpr (phase == 0) return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
    return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  template <int phase>
  static Vec Load(const bf16* p) {
    return Widen<phase>(_mm512_loadu_si512(p));
  }
  template <int phase>
  static Vec LoadTail(const bf16* p, int64_t n) {
    return Widen<phase>(LoadBf16Tail(p, n));
  }
  static Acc Dot(Acc acc, Vec a, Vec b) { return _mm512_fmadd_ps(a, b, acc); }
};

// Rows of W of a tile. 32 registers: 4 x 6 accumulators leave room for 4 vectors of x and one of W; fewer
// rows of x need more of W to cover the latency of the multiply-add (4-6 cycles, up to two a cycle).
constexpr int kTileRowsOfW = 6;          // beside up to 4 rows of x
constexpr int kStreamTileThreeRows = 8;  // beside up to 3
constexpr int kStreamTileOneRow = 8;     // beside one

#else

using Acc = __m256;
constexpr int kAccLanes = 8;
inline Acc ZeroAcc() { return _mm256_setzero_ps(); }
inline Acc LoadAcc(const float* p) { return _mm256_load_ps(p); }
inline void StoreAcc(float* p, Acc acc) { _mm256_store_ps(p, acc); }

// Pairs lanes l and l + 4, then + 2, + 1.
inline __m128 Reduce4(Acc a, Acc b, Acc c, Acc d) {
  const __m256 ab = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  const __m256 cd = _mm256_add_ps(_mm256_permute2f128_ps(c, d, 0x20), _mm256_permute2f128_ps(c, d, 0x31));
  const __m256 pairs = _mm256_add_ps(_mm256_unpacklo_ps(ab, cd),
                                     _mm256_unpackhi_ps(ab, cd));  // a02 c02 a13 c13 | b02 d02 b13 d13
  const __m256 ones = _mm256_add_ps(pairs, _mm256_permute_ps(pairs, 0x4E));  // a c . . | b d . .
  return _mm_unpacklo_ps(_mm256_castps256_ps128(ones), _mm256_extractf128_ps(ones, 1));
}

struct F32Op {
  using Elem = float;
  using Vec = __m256;
  static constexpr int kStep = 8;
  static constexpr int kPhases = 1;
  template <int phase>
  static Vec Load(const float* p) {
    return _mm256_loadu_ps(p);
  }
  template <int phase>
  static Vec LoadTail(const float* p, int64_t n) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(p, _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane));
  }
  static void Put(Vec v, float* p) { _mm256_store_ps(p, v); }
  static Acc Dot(Acc acc, Vec a, Vec b) { return _mm256_fmadd_ps(a, b, acc); }
};

// Widening without shuffles: a pair of bf16 in a 32-bit lane is two fp32 values, one shift (even elements,
// phase 0) or one mask (odd) away.
struct Bf16WideOp {
  using Elem = bf16;
  using Vec = __m256;
  static constexpr int kStep = 16;
  static constexpr int kPhases = 2;
  template <int phase>
  static Vec Widen(__m256i v) {
    if constexpr (phase == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }
  template <int phase>
  static Vec Load(const bf16* p) {
    return Widen<phase>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  template <int phase>
  static Vec LoadTail(const bf16* p, int64_t n) {
    alignas(32) bf16 padded[kStep] = {};
    std::memcpy(padded, p, static_cast<size_t>(n) * sizeof(bf16));
    return Load<phase>(padded);
  }
  static Acc Dot(Acc acc, Vec a, Vec b) { return _mm256_fmadd_ps(a, b, acc); }
};

// Rows of W of a tile. 16 registers: 4 x 3 accumulators, 3 vectors of W, one of x.
constexpr int kTileRowsOfW = 3;          // beside up to 4 rows of x
constexpr int kStreamTileThreeRows = 4;  // beside up to 3
constexpr int kStreamTileOneRow = 8;     // beside one

#endif

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
