#include "runtime/weights/random_fill.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

namespace rt::weights {
namespace {

// SplitMix64 as a counter-based generator (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014, fig. 17).
uint64_t Mix(uint64_t counter) {
  uint64_t z = counter * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// FNV-1a, 64 bits (RFC draft-eastlake-fnv, section 2), mixed with the seed.
uint64_t KeyOf(uint64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return Mix(hash ^ Mix(seed));
}

// Sum of four bytes, centred: mean 0, variance 4 (256^2 - 1) / 12. Four bytes of the hash serve one element,
// so one hash serves two.
constexpr float kBellDeviation = 147.79942f;

float Bell(uint32_t bits) {
  const uint32_t pairs = (bits & 0x00ff00ffu) + ((bits >> 8) & 0x00ff00ffu);
  return static_cast<float>(static_cast<int32_t>((pairs & 0xffffu) + (pairs >> 16)) - 510);
}

// In (0, 1).
double Uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53; }

void Store(float value, DType dtype, std::byte* target) {
  if (dtype == DType::kF32) {
    std::memcpy(target, &value, sizeof value);
  } else {
    const uint16_t bits = Bf16FromF32(value);
    std::memcpy(target, &bits, sizeof bits);
  }
}

struct Stream {
  uint64_t key;
  uint64_t first, count;
  std::byte* target;
};

// By blocks in local arrays, so that the compiler knows that nothing aliases and vectorises all but the hash.
void FillBell(const Stream& s, float mean, float scale, DType dtype) {
  constexpr uint64_t kBlock = 512;
  const size_t size = static_cast<size_t>(BitsOf(dtype)) / 8;
  const float factor = scale / kBellDeviation;
  uint32_t bits[kBlock];
  float values[kBlock];
  for (uint64_t done = 0; done < s.count;) {
    // From the pair that holds the next element; all but a first odd one start a pair.
    const uint64_t next = s.first + done;
    const uint64_t skip = next & 1;
    for (uint64_t pair = 0; pair < kBlock / 2; ++pair) {
      const uint64_t hash = Mix(s.key + next / 2 + pair);
      bits[2 * pair] = static_cast<uint32_t>(hash);
      bits[2 * pair + 1] = static_cast<uint32_t>(hash >> 32);
    }
    for (uint64_t i = 0; i < kBlock; ++i) values[i] = mean + factor * Bell(bits[i]);
    const uint64_t count = std::min(kBlock - skip, s.count - done);
    Convert(DType::kF32, reinterpret_cast<const std::byte*>(values + skip), dtype, s.target + done * size,
            count);
    done += count;
  }
}

template <typename F>
void FillUniform(const Stream& s, DType dtype, F f) {
  const size_t size = static_cast<size_t>(BitsOf(dtype)) / 8;
  for (uint64_t k = 0; k < s.count; ++k) {
    Store(static_cast<float>(f(Uniform(Mix(s.key + s.first + k)))), dtype, s.target + k * size);
  }
}

}  // namespace

Result<uint64_t> ParseRandomSeed(std::string_view weights) {
  constexpr std::string_view kPrefix = "random:";
  uint64_t seed = 0;
  if (weights.starts_with(kPrefix)) {
    const std::string_view digits = weights.substr(kPrefix.size());
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), seed);
    if (error == std::errc() && end == digits.data() + digits.size()) return seed;
  }
  return {Code::kInvalidArgument,
          "weights: expected random:<seed> with a seed from 0 to 2^64 - 1, got " + std::string(weights)};
}

void FillRandom(uint64_t seed, std::string_view name, Init init, float scale, uint64_t first, uint64_t count,
                DType dtype, std::byte* target) {
  const Stream stream{KeyOf(seed, name), first, count, target};
  switch (init) {
    case Init::kNormal:
    case Init::kZero:
    case Init::kOne: {
      const float mean = init == Init::kOne ? 1.0f : 0.0f;
      const float deviation = init == Init::kNormal ? scale : scale / 10;
      return FillBell(stream, mean, deviation, dtype);
    }
    case Init::kALog:
      return FillUniform(stream, dtype, [](double u) { return u * std::log(16.0); });
    case Init::kDtBias:
      // softplus^-1(dt) = log(exp(dt) - 1).
      return FillUniform(stream, dtype,
                         [](double u) { return std::log(std::expm1(0.001 * std::pow(100.0, u))); });
  }
}

}  // namespace rt::weights
