// F32x16: sixteen fp32 lanes, on whatever instruction set the including file is compiled for.
//
//   flags                                                     namespace               one F32x16 is
//   -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16   rt::kernels::avx512     one zmm
//   -mavx2 -mfma -mf16c                                       rt::kernels::avx2       two ymm
//
// The namespace is inline, so kernel templates that open `namespace rt::kernels::inline RT_ISA_NS` use the right one unqualified and their
// symbols differ by level: the linker can never hand AVX-512 code to an AVX2 machine. For the same reason an *_impl.h file must not call
// std:: templates (std::min ...), whose weak symbols carry the flags of the file; Min/Max below stand in.
//
// Numeric promises: Exp, Exp2 <= 2 ulp, Sigmoid, Silu, Softplus <= 3 ulp (measured in simd_test.cc); reductions add in one fixed order;
// narrowing rounds to nearest even, NaN stays NaN. VCVTNEPS2BF16 (AVX-512 level) flushes subnormal inputs to zero, the AVX2 level keeps them.
#pragma once

#include <immintrin.h>

#include "kernels/common/types.h"

#if defined(__AVX512BF16__)
#define RT_ISA_NS avx512
#define RT_ISA_AVX512BF16 1
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define RT_ISA_NS avx2
#define RT_ISA_AVX512BF16 0
#else
#error "kernels/common/simd.h: compile this file with the flags of one ISA level (rt_kernel or rt_kernel_flags in CMake)"
#endif

#define RT_SIMD static inline __attribute__((always_inline, unused))

namespace rt::kernels {
inline namespace RT_ISA_NS {

#if RT_ISA_AVX512BF16
constexpr Isa kIsa = Isa::kAvx512Bf16;
#else
constexpr Isa kIsa = Isa::kAvx2;
#endif
constexpr int kLanes = 16;

template <class T>
RT_SIMD constexpr T Min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
RT_SIMD constexpr T Max(T a, T b) {
  return a < b ? b : a;
}
RT_SIMD constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
RT_SIMD constexpr int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

}  // namespace RT_ISA_NS
}  // namespace rt::kernels

#if RT_ISA_AVX512BF16
#include "kernels/common/simd_avx512.h"
#else
#include "kernels/common/simd_avx2.h"
#endif

namespace rt::kernels {
inline namespace RT_ISA_NS {

RT_SIMD F32x16 Neg(F32x16 x) { return Zero() - x; }

namespace simd_detail {

// exp(r) for |r| <= ln2/2 + a little: Taylor terms refitted by Cephes (expf); error below 0.6 ulp before scaling.
RT_SIMD F32x16 ExpReduced(F32x16 r) {
  F32x16 p = Set1(1.9875691500e-4f);
  p = Fma(p, r, Set1(1.3981999507e-3f));
  p = Fma(p, r, Set1(8.3334519073e-3f));
  p = Fma(p, r, Set1(4.1665795894e-2f));
  p = Fma(p, r, Set1(1.6666665459e-1f));
  p = Fma(p, r, Set1(5.0000001201e-1f));
  return Fma(p, r * r, r) + Set1(1.0f);
}

constexpr float kLn2Hi = 0.693359375f;        // 9 significant bits, so n * kLn2Hi is exact for |n| < 2^15
constexpr float kLn2Lo = -2.12194440e-4f;     // ln2 - kLn2Hi
constexpr float kLog2E = 1.44269504088896341f;

}  // namespace simd_detail

// e^x. Below -104 (half the smallest subnormal is e^-103.97) zero, above 88.8 infinity; NaN in, NaN out.
RT_SIMD F32x16 Exp(F32x16 x) {
  const F32x16 bounded = Min(Set1(89.0f), Max(Set1(-105.0f), x));  // second operand wins on NaN
  const F32x16 n = RoundNearest(bounded * Set1(simd_detail::kLog2E));
  F32x16 r = Fnma(n, Set1(simd_detail::kLn2Hi), bounded);
  r = Fnma(n, Set1(simd_detail::kLn2Lo), r);
  return ScaleByPow2(simd_detail::ExpReduced(r), n);
}

// 2^x, same range rules.
RT_SIMD F32x16 Exp2(F32x16 x) {
  const F32x16 bounded = Min(Set1(129.0f), Max(Set1(-151.0f), x));
  const F32x16 n = RoundNearest(bounded);
  const F32x16 f = bounded - n;  // exact
  // f * ln2 in two pieces: the low piece keeps the product within half an ulp.
  const F32x16 high = f * Set1(0.693147182464599609375f);
  const F32x16 r = high + Fma(f, Set1(-1.904654323148236e-9f), Fma(f, Set1(0.693147182464599609375f), Neg(high)));
  return ScaleByPow2(simd_detail::ExpReduced(r), n);
}

namespace simd_detail {
// 1 + e^-x with x bounded to [-87, 87], so that e^-x and the reciprocal of the sum are normal numbers. The activations run once per
// channel and token, and on AVX-512 cores with two vector ports their instruction count is their time: no further range checks, and
// rounding to an integer by adding 1.5 * 2^23.
RT_SIMD F32x16 OnePlusExpNeg(F32x16 x) {
  const F32x16 bounded = Min(Set1(87.0f), Max(Set1(-87.0f), x));
  const F32x16 magic = Set1(0x1.8p23f);
  const F32x16 n = Fnma(bounded, Set1(kLog2E), magic) - magic;  // round(-x / ln2)
  F32x16 r = Fnms(n, Set1(kLn2Hi), bounded);                    // -x - n ln2
  r = Fnma(n, Set1(kLn2Lo), r);
  return Set1(1.0f) + ScaleByPow2(ExpReduced(r), n);
}
}  // namespace simd_detail

// Below x = -87 the result stays near 1.6e-38 instead of fading to zero.
RT_SIMD F32x16 Sigmoid(F32x16 x) { return Quotient(Set1(1.0f), simd_detail::OnePlusExpNeg(x)); }

// x * sigmoid(x), with the same floor.
RT_SIMD F32x16 Silu(F32x16 x) { return Quotient(x, simd_detail::OnePlusExpNeg(x)); }

// log(1 + y) for y in [0, 1]. u = 1 + y rounds; (y - (u - 1)) / u puts the lost part back (Higham, Accuracy and Stability, 1.14.1).
RT_SIMD F32x16 Log1pUnit(F32x16 y) {
  const F32x16 one = Set1(1.0f);
  const F32x16 u = one + y;
  const F32x16 lost = (y - (u - one)) / u;
  // log(u), u in [1, 2]: halve above sqrt(2) so that f = m - 1 stays in [-0.29, 0.42]; Cephes logf polynomial.
  const F32x16 k = Select(Greater(u, Set1(1.41421356237f)), one, Zero());
  const F32x16 f = Fnma(k, u * Set1(0.5f), u) - one;  // u - k*u/2 - 1, exact
  F32x16 p = Set1(7.0376836292e-2f);
  p = Fma(p, f, Set1(-1.1514610310e-1f));
  p = Fma(p, f, Set1(1.1676998740e-1f));
  p = Fma(p, f, Set1(-1.2420140846e-1f));
  p = Fma(p, f, Set1(1.4249322787e-1f));
  p = Fma(p, f, Set1(-1.6668057665e-1f));
  p = Fma(p, f, Set1(2.0000714765e-1f));
  p = Fma(p, f, Set1(-2.4999993993e-1f));
  p = Fma(p, f, Set1(3.3333331174e-1f));
  const F32x16 f2 = f * f;
  F32x16 tail = p * f * f2;
  tail = Fma(k, Set1(simd_detail::kLn2Lo), tail);
  tail = Fnma(f2, Set1(0.5f), tail) + lost;
  return Fma(k, Set1(simd_detail::kLn2Hi), f + tail);
}

// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|). Above 20 the second term is below half an ulp, so the usual threshold of 20 changes nothing.
RT_SIMD F32x16 Softplus(F32x16 x) { return Max(Zero(), x) + Log1pUnit(Exp(Neg(Abs(x)))); }

// 1/sqrt(x) by IEEE square root and division: no approximation instruction.
RT_SIMD F32x16 Rsqrt(F32x16 x) { return Set1(1.0f) / Sqrt(x); }
RT_SIMD float Rsqrt(float x) { return 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }

// While one lives, this thread's subnormal results and inputs are zeros. Decays underflow by design, and each subnormal costs a
// microcode assist of some 150 cycles.
class FlushSubnormals {
 public:
  RT_ALWAYS_INLINE FlushSubnormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040u); }  // FTZ, DAZ
  RT_ALWAYS_INLINE ~FlushSubnormals() { _mm_setcsr(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
  unsigned saved_;
};

// Loads 16 lanes, or the first n with the others zero; never touches memory past the n-th element.
template <class T>
RT_SIMD F32x16 LoadUpTo(const T* p, int64_t n) {
  return n >= kLanes ? Load(p) : LoadN(p, static_cast<int>(n));
}
template <class T>
RT_SIMD void StoreUpTo(F32x16 x, T* p, int64_t n) {
  if (n >= kLanes) {
    Store(x, p);
  } else {
    StoreN(x, p, static_cast<int>(n));
  }
}

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
