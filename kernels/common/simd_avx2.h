// AVX2 half of simd.h; include simd.h instead.
#pragma once

namespace rt::kernels {
inline namespace avx2 {

struct F32x16 {
  __m256 lo, hi;
};
struct Mask16 {
  __m256 lo, hi;  // all ones or all zeros a lane
};

RT_SIMD F32x16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
RT_SIMD F32x16 Set1(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}

RT_SIMD F32x16 operator+(F32x16 a, F32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
RT_SIMD F32x16 operator-(F32x16 a, F32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
RT_SIMD F32x16 operator*(F32x16 a, F32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
RT_SIMD F32x16 operator/(F32x16 a, F32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
// a / b for normal b and 1/b; the AVX-512 level has a faster way within 2 ulp.
RT_SIMD F32x16 Quotient(F32x16 a, F32x16 b) { return a / b; }
RT_SIMD F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) {  // a*b + c
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
RT_SIMD F32x16 Fnma(F32x16 a, F32x16 b, F32x16 c) {  // c - a*b
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
RT_SIMD F32x16 Fnms(F32x16 a, F32x16 b, F32x16 c) {  // -a*b - c
  return {_mm256_fnmsub_ps(a.lo, b.lo, c.lo), _mm256_fnmsub_ps(a.hi, b.hi, c.hi)};
}
// A NaN in either operand returns the second one.
RT_SIMD F32x16 Max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
RT_SIMD F32x16 Min(F32x16 a, F32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
RT_SIMD F32x16 Sqrt(F32x16 x) { return {_mm256_sqrt_ps(x.lo), _mm256_sqrt_ps(x.hi)}; }
RT_SIMD F32x16 Abs(F32x16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.lo), _mm256_andnot_ps(sign, x.hi)};
}
RT_SIMD F32x16 RoundNearest(F32x16 x) {
  constexpr int kMode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.lo, kMode), _mm256_round_ps(x.hi, kMode)};
}

namespace simd_detail {
// x * 2^n for integral n in about [-280, 280]: two factors, so that results reach the subnormals and infinity with one rounding.
RT_SIMD __m256 ScaleHalf(__m256 x, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(whole, 1);
  const __m256i second = _mm256_sub_epi32(whole, first);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 f1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
  const __m256 f2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(x, f1), f2);
}
RT_SIMD __m256i LaneMask(int n) {  // lanes 0..7 below n
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
}  // namespace simd_detail

// NaN lanes of x stay NaN whatever n holds (a NaN n converts to INT_MIN, whose garbage factors multiply the NaN).
RT_SIMD F32x16 ScaleByPow2(F32x16 x, F32x16 integral) {
  return {simd_detail::ScaleHalf(x.lo, integral.lo), simd_detail::ScaleHalf(x.hi, integral.hi)};
}
RT_SIMD Mask16 Greater(F32x16 a, F32x16 b) {
  return {_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ)};
}
RT_SIMD F32x16 Select(Mask16 m, F32x16 yes, F32x16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, m.lo), _mm256_blendv_ps(no.hi, yes.hi, m.hi)};
}
RT_SIMD Mask16 FirstN(int n) {  // n in [0, 16]
  return {_mm256_castsi256_ps(simd_detail::LaneMask(n)), _mm256_castsi256_ps(simd_detail::LaneMask(n - 8))};
}

// Adds halves: lane i with i+8, then +4, +2, +1. The AVX-512 level uses the same order.
RT_SIMD float ReduceAdd(F32x16 x) {
  const __m256 s8 = _mm256_add_ps(x.lo, x.hi);
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
RT_SIMD float ReduceMax(F32x16 x) {
  const __m256 m8 = _mm256_max_ps(x.lo, x.hi);
  const __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
  const __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
  return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

namespace simd_detail {
RT_SIMD __m256 WidenBf16(__m128i half) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
// Round to nearest even; a NaN keeps its upper bits and becomes quiet.
RT_SIMD __m128i NarrowBf16(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
  const __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
RT_SIMD __m128i NarrowF16(__m256 x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
RT_SIMD __m128i Load8(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
RT_SIMD void Store8(__m128i x, void* p) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
}  // namespace simd_detail

RT_SIMD F32x16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
RT_SIMD F32x16 Load(const bf16* p) {
  return {simd_detail::WidenBf16(simd_detail::Load8(p)), simd_detail::WidenBf16(simd_detail::Load8(p + 8))};
}
RT_SIMD F32x16 Load(const f16* p) {
  return {_mm256_cvtph_ps(simd_detail::Load8(p)), _mm256_cvtph_ps(simd_detail::Load8(p + 8))};
}
RT_SIMD F32x16 LoadN(const float* p, int n) {
  // maskload reads nothing of a masked lane; the second half's address is formed only when it is used.
  const __m256 lo = _mm256_maskload_ps(p, simd_detail::LaneMask(n));
  return {lo, n > 8 ? _mm256_maskload_ps(p + 8, simd_detail::LaneMask(n - 8)) : _mm256_setzero_ps()};
}
// There is no 16-bit masked load below AVX-512: a tail goes through a buffer.
template <class T>
RT_SIMD F32x16 LoadN(const T* p, int n) {
  T buffer[16] = {};
  std::memcpy(buffer, p, static_cast<size_t>(n) * sizeof(T));
  return Load(buffer);
}

RT_SIMD void Store(F32x16 x, float* p) {
  _mm256_storeu_ps(p, x.lo);
  _mm256_storeu_ps(p + 8, x.hi);
}
RT_SIMD void Store(F32x16 x, bf16* p) {
  simd_detail::Store8(simd_detail::NarrowBf16(x.lo), p);
  simd_detail::Store8(simd_detail::NarrowBf16(x.hi), p + 8);
}
RT_SIMD void Store(F32x16 x, f16* p) {
  simd_detail::Store8(simd_detail::NarrowF16(x.lo), p);
  simd_detail::Store8(simd_detail::NarrowF16(x.hi), p + 8);
}
RT_SIMD void StoreN(F32x16 x, float* p, int n) {
  _mm256_maskstore_ps(p, simd_detail::LaneMask(n), x.lo);
  if (n > 8) _mm256_maskstore_ps(p + 8, simd_detail::LaneMask(n - 8), x.hi);
}
template <class T>
RT_SIMD void StoreN(F32x16 x, T* p, int n) {
  T buffer[16];
  Store(x, buffer);
  std::memcpy(p, buffer, static_cast<size_t>(n) * sizeof(T));
}

// (float)(a - b[i]) for sixteen doubles.
RT_SIMD F32x16 DifferenceF64(double a, const double* b) {
  const __m256d wide = _mm256_set1_pd(a);
  const __m128 q0 = _mm256_cvtpd_ps(_mm256_sub_pd(wide, _mm256_loadu_pd(b)));
  const __m128 q1 = _mm256_cvtpd_ps(_mm256_sub_pd(wide, _mm256_loadu_pd(b + 4)));
  const __m128 q2 = _mm256_cvtpd_ps(_mm256_sub_pd(wide, _mm256_loadu_pd(b + 8)));
  const __m128 q3 = _mm256_cvtpd_ps(_mm256_sub_pd(wide, _mm256_loadu_pd(b + 12)));
  return {_mm256_set_m128(q1, q0), _mm256_set_m128(q3, q2)};
}

namespace simd_detail {
RT_SIMD void Transpose8x8(__m256 (&r)[8]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(t[i]), _mm256_castps_pd(t[i + 2])));
    u[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(t[i]), _mm256_castps_pd(t[i + 2])));
    u[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(_mm256_castps_pd(t[i + 1]), _mm256_castps_pd(t[i + 3])));
    u[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(_mm256_castps_pd(t[i + 1]), _mm256_castps_pd(t[i + 3])));
  }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
    r[4 + c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
  }
}
}  // namespace simd_detail

// In place: lane c of row r becomes lane r of row c.
RT_SIMD void Transpose16x16(F32x16 (&r)[16]) {
  __m256 q[4][8];  // quadrants: rows 0-7 lo, rows 0-7 hi, rows 8-15 lo, rows 8-15 hi
  for (int i = 0; i < 8; ++i) {
    q[0][i] = r[i].lo;
    q[1][i] = r[i].hi;
    q[2][i] = r[8 + i].lo;
    q[3][i] = r[8 + i].hi;
  }
  for (auto& quadrant : q) simd_detail::Transpose8x8(quadrant);
  for (int i = 0; i < 8; ++i) {
    r[i] = {q[0][i], q[2][i]};
    r[8 + i] = {q[1][i], q[3][i]};
  }
}

RT_SIMD void PrefetchForWrite(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace avx2
}  // namespace rt::kernels
