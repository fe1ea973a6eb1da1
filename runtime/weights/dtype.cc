#include "runtime/weights/dtype.h"

#include <bit>
#include <cstring>
#include <limits>

namespace rt::weights {
namespace {

struct Row {
  DType dtype;
  const char* name;
  int bits;
};

constexpr Row kRows[] = {
    {DType::kBool, "BOOL", 8},      {DType::kF4, "F4", 4},          {DType::kF6E2M3, "F6_E2M3", 6},
    {DType::kF6E3M2, "F6_E3M2", 6}, {DType::kU8, "U8", 8},          {DType::kI8, "I8", 8},
    {DType::kF8E5M2, "F8_E5M2", 8}, {DType::kF8E4M3, "F8_E4M3", 8}, {DType::kF8E8M0, "F8_E8M0", 8},
    {DType::kI16, "I16", 16},       {DType::kU16, "U16", 16},       {DType::kF16, "F16", 16},
    {DType::kBf16, "BF16", 16},     {DType::kI32, "I32", 32},       {DType::kU32, "U32", 32},
    {DType::kF32, "F32", 32},       {DType::kC64, "C64", 64},       {DType::kF64, "F64", 64},
    {DType::kI64, "I64", 64},       {DType::kU64, "U64", 64},
};

constexpr bool RowsFollowTheEnum() {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (static_cast<size_t>(kRows[i].dtype) != i) return false;
  }
  return true;
}
static_assert(RowsFollowTheEnum());

const Row& RowOf(DType dtype) { return kRows[static_cast<size_t>(dtype)]; }

// memcpy keeps unaligned access defined; compilers turn the loop into vector code.
template <typename From, typename To, typename F>
void Map(const std::byte* source, std::byte* target, size_t count, F f) {
  for (size_t i = 0; i < count; ++i) {
    From in;
    std::memcpy(&in, source + i * sizeof(From), sizeof(From));
    const To out = f(in);
    std::memcpy(target + i * sizeof(To), &out, sizeof(To));
  }
}

}  // namespace

int BitsOf(DType dtype) { return RowOf(dtype).bits; }

const char* NameOf(DType dtype) { return RowOf(dtype).name; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Row& row : kRows) {
    if (name == row.name) return row.dtype;
  }
  return std::nullopt;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::optional<uint64_t> ElementCount(const std::vector<int64_t>& shape) {
  uint64_t count = 1;
  for (const int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(extent), &count)) return std::nullopt;
    if (count > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  }
  return count;
}

float F32FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

float F32FromF16(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0x1fu) return std::bit_cast<float>(sign | 0x7f800000u | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (fraction << 13));
  // Subnormal: fraction * 2^-24, exact in float.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

uint16_t Bf16FromF32(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

bool CanConvert(DType from, DType to) {
  if (from == to) return true;
  const bool from_float = from == DType::kF16 || from == DType::kBf16 || from == DType::kF32;
  return from_float && (to == DType::kBf16 || to == DType::kF32);
}

void Convert(DType from, const std::byte* source, DType to, std::byte* target, size_t count) {
  if (from == to) {
    std::memcpy(target, source, count * static_cast<size_t>(BitsOf(from)) / 8);
  } else if (from == DType::kBf16) {
    Map<uint16_t, float>(source, target, count, F32FromBf16);
  } else if (from == DType::kF16 && to == DType::kF32) {
    Map<uint16_t, float>(source, target, count, F32FromF16);
  } else if (from == DType::kF16) {
    Map<uint16_t, uint16_t>(source, target, count,
                            [](uint16_t bits) { return Bf16FromF32(F32FromF16(bits)); });
  } else {
    Map<float, uint16_t>(source, target, count, Bf16FromF32);
  }
}

}  // namespace rt::weights
