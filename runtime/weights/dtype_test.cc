#include "runtime/weights/dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace rt::weights {
namespace {

// From the field widths alone (IEEE 754-2019, 3.4), in double: independent of the code under test.
double DecodeFloat(uint32_t bits, int exponent_bits, int fraction_bits) {
  const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
  const int exponent = static_cast<int>((bits >> fraction_bits) & ((1u << exponent_bits) - 1));
  const double sign = (bits >> (exponent_bits + fraction_bits)) & 1 ? -1.0 : 1.0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(1 + std::ldexp(fraction, -fraction_bits), exponent - bias);
}

void ExpectSame(double expected, float actual, uint32_t bits) {
  if (std::isnan(expected)) {
    EXPECT_TRUE(std::isnan(actual)) << "bits " << bits;
  } else {
    EXPECT_EQ(expected, static_cast<double>(actual)) << "bits " << bits;
    EXPECT_EQ(std::signbit(expected), std::signbit(actual)) << "bits " << bits;
  }
}

TEST(DType, EveryBf16WidensExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    ExpectSame(DecodeFloat(bits, 8, 7), F32FromBf16(static_cast<uint16_t>(bits)), bits);
}

TEST(DType, EveryF16WidensExactly) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits)
    ExpectSame(DecodeFloat(bits, 5, 10), F32FromF16(static_cast<uint16_t>(bits)), bits);
}

// Every bf16 value and, between it and the next one, the points around the middle where rounding turns.
TEST(DType, NarrowingToBf16RoundsToNearestEven) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const double low = DecodeFloat(bits, 8, 7);
    if (!std::isfinite(low)) continue;
    // The next value away from zero; past the largest one, where it would be without the infinity.
    const double high = (bits & 0x7fff) == 0x7f7f ? std::copysign(0x1p128, low) : DecodeFloat(bits + 1, 8, 7);
    for (const uint32_t tail : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = std::bit_cast<float>((bits << 16) | tail);
      const double to_low = std::abs(value - low), to_high = std::abs(high - value);
      const bool up = to_high < to_low || (to_high == to_low && (bits & 1));
      EXPECT_EQ(Bf16FromF32(value), bits + (up ? 1 : 0)) << "bits " << bits << " tail " << tail;
    }
  }
}

TEST(DType, NarrowingKeepsInfinitiesAndNaN) {
  EXPECT_EQ(Bf16FromF32(INFINITY), 0x7f80);
  EXPECT_EQ(Bf16FromF32(-INFINITY), 0xff80);
  // Payload in the low half only: truncation alone would make it an infinity.
  EXPECT_TRUE(std::isnan(F32FromBf16(Bf16FromF32(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(F32FromBf16(Bf16FromF32(std::bit_cast<float>(0xffffffffu)))));
}

template <typename T>
std::vector<std::byte> Bytes(const std::vector<T>& values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// All 2^16 values of both narrow types through the array form, at an odd address.
TEST(DType, ArrayConversionEqualsTheScalarOneAtAnyAlignment) {
  std::vector<uint16_t> all(0x10000);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (const DType from : {DType::kBf16, DType::kF16}) {
    std::vector<std::byte> source(1);
    const auto bytes = Bytes(all);
    source.insert(source.end(), bytes.begin(), bytes.end());
    std::vector<std::byte> wide(1 + all.size() * 4), narrow(1 + all.size() * 2);
    Convert(from, source.data() + 1, DType::kF32, wide.data() + 1, all.size());
    Convert(from, source.data() + 1, DType::kBf16, narrow.data() + 1, all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      const float expected = from == DType::kBf16 ? F32FromBf16(all[i]) : F32FromF16(all[i]);
      uint32_t got_wide;
      uint16_t got_narrow;
      std::memcpy(&got_wide, wide.data() + 1 + i * 4, 4);
      std::memcpy(&got_narrow, narrow.data() + 1 + i * 2, 2);
      ASSERT_EQ(got_wide, std::bit_cast<uint32_t>(expected)) << NameOf(from) << " bits " << i;
      ASSERT_EQ(got_narrow, from == DType::kBf16 ? all[i] : Bf16FromF32(expected))
          << NameOf(from) << " bits " << i;
    }
  }
}

TEST(DType, NamesRoundTripAndUnknownOnesAreNone) {
  for (int i = 0; i <= static_cast<int>(DType::kU64); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(DTypeFromName(NameOf(dtype)), dtype);
  }
  EXPECT_EQ(DTypeFromName("bf16"), std::nullopt);
  EXPECT_EQ(DTypeFromName(""), std::nullopt);
}

TEST(DType, OnlyFloatsConvertAndOnlyToBf16AndF32) {
  EXPECT_TRUE(CanConvert(DType::kF16, DType::kBf16));
  EXPECT_TRUE(CanConvert(DType::kI64, DType::kI64));
  EXPECT_FALSE(CanConvert(DType::kI64, DType::kF32));
  EXPECT_FALSE(CanConvert(DType::kF32, DType::kF16));
  EXPECT_FALSE(CanConvert(DType::kF8E4M3, DType::kBf16));
}

TEST(DType, ElementCountRefusesOverflowAndNegativeExtents) {
  EXPECT_EQ(ElementCount({}), 1u);
  EXPECT_EQ(ElementCount({3, 0, 5}), 0u);
  EXPECT_EQ(ElementCount({int64_t{1} << 32, int64_t{1} << 31}), std::nullopt);
  EXPECT_EQ(ElementCount({-1}), std::nullopt);
}

}  // namespace
}  // namespace rt::weights
