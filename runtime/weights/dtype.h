// Element types of a safetensors file, and conversion into the types that weights are kept in.
#pragma once

#include <rt/plugin/status.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rt::weights {

// Every type name of the safetensors format (huggingface/safetensors:safetensors/src/tensor.rs, enum Dtype).
enum class DType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

// Bits of one element; 4 and 6 for the packed types.
int BitsOf(DType dtype);
// As written in the header: "BF16", "F8_E4M3", ...
const char* NameOf(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);

// "[4096, 256]"
std::string ShapeText(const std::vector<int64_t>& shape);
// Elements of a shape, 1 for a scalar; none if an extent is negative or the product overflows 2^63 - 1.
std::optional<uint64_t> ElementCount(const std::vector<int64_t>& shape);

// bfloat16 and binary16 as stored; exact widening, narrowing rounds to nearest even and keeps NaN a (quiet)
// NaN.
float F32FromBf16(uint16_t bits);
float F32FromF16(uint16_t bits);
uint16_t Bf16FromF32(float value);

// Whether Convert accepts the pair: equal types are copied; F16, BF16 and F32 convert to BF16 and F32.
bool CanConvert(DType from, DType to);
// Converts `count` elements; the ranges do not overlap, neither needs alignment. The pair must be one that
// CanConvert accepts and of whole bytes an element.
void Convert(DType from, const std::byte* source, DType to, std::byte* target, size_t count);

}  // namespace rt::weights
