// AVX-512 half of simd.h; include simd.h instead.
#pragma once

namespace rt::kernels {
inline namespace avx512 {

struct F32x16 {
  __m512 v;
};
struct Mask16 {
  __mmask16 m;
};

RT_SIMD F32x16 Zero() { return {_mm512_setzero_ps()}; }
RT_SIMD F32x16 Set1(float x) { return {_mm512_set1_ps(x)}; }

RT_SIMD F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
RT_SIMD F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
RT_SIMD F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
RT_SIMD F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a / b within 2 ulp for normal b and 1/b. VDIVPS takes 16 cycles a zmm on Intel cores; a 14-bit reciprocal and one Newton step on the
// quotient take 4.
RT_SIMD F32x16 Quotient(F32x16 a, F32x16 b) {
  const __m512 r = _mm512_rcp14_ps(b.v);
  const __m512 q = _mm512_mul_ps(a.v, r);
  return {_mm512_fmadd_ps(q, _mm512_fnmadd_ps(b.v, r, _mm512_set1_ps(1.0f)), q)};
}
RT_SIMD F32x16 Fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }    // a*b + c
RT_SIMD F32x16 Fnma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }  // c - a*b
RT_SIMD F32x16 Fnms(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fnmsub_ps(a.v, b.v, c.v)}; }  // -a*b - c
// A NaN in either operand returns the second one.
RT_SIMD F32x16 Max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
RT_SIMD F32x16 Min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
RT_SIMD F32x16 Sqrt(F32x16 x) { return {_mm512_sqrt_ps(x.v)}; }
RT_SIMD F32x16 Abs(F32x16 x) { return {_mm512_abs_ps(x.v)}; }
RT_SIMD F32x16 RoundNearest(F32x16 x) { return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
RT_SIMD F32x16 ScaleByPow2(F32x16 x, F32x16 integral) { return {_mm512_scalef_ps(x.v, integral.v)}; }
RT_SIMD Mask16 Greater(F32x16 a, F32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
RT_SIMD F32x16 Select(Mask16 m, F32x16 yes, F32x16 no) { return {_mm512_mask_blend_ps(m.m, no.v, yes.v)}; }
RT_SIMD Mask16 FirstN(int n) { return {static_cast<__mmask16>((1u << n) - 1u)}; }  // n in [0, 16]

// Adds halves: lane i with i+8, then +4, +2, +1. The AVX2 level uses the same order.
RT_SIMD float ReduceAdd(F32x16 x) {
  const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
  return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}
RT_SIMD float ReduceMax(F32x16 x) { return _mm512_reduce_max_ps(x.v); }

RT_SIMD F32x16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
RT_SIMD F32x16 Load(const bf16* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
RT_SIMD F32x16 Load(const f16* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))}; }
RT_SIMD F32x16 LoadN(const float* p, int n) { return {_mm512_maskz_loadu_ps(FirstN(n).m, p)}; }
RT_SIMD F32x16 LoadN(const bf16* p, int n) {
  const __m256i half = _mm256_maskz_loadu_epi16(FirstN(n).m, p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
RT_SIMD F32x16 LoadN(const f16* p, int n) { return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstN(n).m, p))}; }

namespace simd_detail {
RT_SIMD __m256i NarrowBf16(F32x16 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v)); }
RT_SIMD __m256i NarrowF16(F32x16 x) { return _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
}  // namespace simd_detail

RT_SIMD void Store(F32x16 x, float* p) { _mm512_storeu_ps(p, x.v); }
RT_SIMD void Store(F32x16 x, bf16* p) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), simd_detail::NarrowBf16(x)); }
RT_SIMD void Store(F32x16 x, f16* p) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), simd_detail::NarrowF16(x)); }
RT_SIMD void StoreN(F32x16 x, float* p, int n) { _mm512_mask_storeu_ps(p, FirstN(n).m, x.v); }
RT_SIMD void StoreN(F32x16 x, bf16* p, int n) { _mm256_mask_storeu_epi16(p, FirstN(n).m, simd_detail::NarrowBf16(x)); }
RT_SIMD void StoreN(F32x16 x, f16* p, int n) { _mm256_mask_storeu_epi16(p, FirstN(n).m, simd_detail::NarrowF16(x)); }

// (float)(a - b[i]) for sixteen doubles.
RT_SIMD F32x16 DifferenceF64(double a, const double* b) {
  const __m512d wide = _mm512_set1_pd(a);
  const __m256 low = _mm512_cvtpd_ps(_mm512_sub_pd(wide, _mm512_loadu_pd(b)));
  const __m256 high = _mm512_cvtpd_ps(_mm512_sub_pd(wide, _mm512_loadu_pd(b + 8)));
  return {_mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1)};
}

// In place: lane c of row r becomes lane r of row c.
RT_SIMD void Transpose16x16(F32x16 (&r)[16]) {
  __m512 t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i].v, r[i + 1].v);
    t[i + 1] = _mm512_unpackhi_ps(r[i].v, r[i + 1].v);
  }
  __m512 u[16];
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
    u[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i]), _mm512_castps_pd(t[i + 2])));
    u[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
    u[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(_mm512_castps_pd(t[i + 1]), _mm512_castps_pd(t[i + 3])));
  }
  // u[4q + c] holds, in 128-bit lane l, column 4l + c of rows 4q..4q+3: transpose the 4x4 grid of 128-bit lanes.
  for (int c = 0; c < 4; ++c) {
    const __m512 a = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
    const __m512 e = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
    r[c].v = _mm512_shuffle_f32x4(a, b, 0x88);
    r[8 + c].v = _mm512_shuffle_f32x4(a, b, 0xdd);
    r[4 + c].v = _mm512_shuffle_f32x4(d, e, 0x88);
    r[12 + c].v = _mm512_shuffle_f32x4(d, e, 0xdd);
  }
}

RT_SIMD void PrefetchForWrite(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }

}  // namespace avx512
}  // namespace rt::kernels
