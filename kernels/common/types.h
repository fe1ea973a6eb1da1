// Storage types and names every kernel shares. No vector code here: this header is included by files of every ISA level and by plain
// code, so everything in it is forced inline (a weak copy compiled with AVX-512 flags must never be picked by the linker for all).
#pragma once

#include <cstdint>
#include <cstring>

namespace rt::kernels {

#define RT_ALWAYS_INLINE inline __attribute__((always_inline))

// bfloat16 and IEEE binary16 as stored; arithmetic is always fp32.
struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

enum class DType : uint8_t { kF32, kBf16, kF16 };

// Instruction set levels a kernel is compiled for.
//   kAvx2:        AVX2 + FMA + F16C
//   kAvx512Bf16:  AVX-512 F/BW/DQ/VL + AVX512_BF16
enum class Isa : uint8_t { kAvx2, kAvx512Bf16 };

RT_ALWAYS_INLINE constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBf16;
};
template <>
struct DTypeOf<f16> {
  static constexpr DType value = DType::kF16;
};

RT_ALWAYS_INLINE uint32_t BitsOf(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
RT_ALWAYS_INLINE float FloatFromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

RT_ALWAYS_INLINE float ToFloat(float x) { return x; }
RT_ALWAYS_INLINE float ToFloat(bf16 x) { return FloatFromBits(static_cast<uint32_t>(x.bits) << 16); }
RT_ALWAYS_INLINE float ToFloat(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t exponent = (x.bits >> 10) & 0x1fu;
  const uint32_t mantissa = x.bits & 0x3ffu;
  if (exponent == 0x1f) return FloatFromBits(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return FloatFromBits(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;  // subnormal: exact
  return sign ? -magnitude : magnitude;
}

// Narrowing rounds to nearest even; a NaN stays a (quiet) NaN; f16 overflow becomes infinity.
template <class T>
RT_ALWAYS_INLINE T FromFloat(float x);
template <>
RT_ALWAYS_INLINE float FromFloat<float>(float x) {
  return x;
}
template <>
RT_ALWAYS_INLINE bf16 FromFloat<bf16>(float x) {
  const uint32_t bits = BitsOf(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
template <>
RT_ALWAYS_INLINE f16 FromFloat<f16>(float x) {
  const uint32_t bits = BitsOf(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu))};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};  // >= 65520 rounds to infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal; adding 0.5 rounds at 2^-24
    const float rounded = FloatFromBits(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (BitsOf(rounded) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}

}  // namespace rt::kernels
