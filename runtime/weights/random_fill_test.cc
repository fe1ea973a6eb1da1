#include "runtime/weights/random_fill.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace rt::weights {
namespace {

std::vector<float> Fill(uint64_t seed, std::string_view name, Init init, float scale, size_t count,
                        uint64_t first = 0) {
  std::vector<float> values(count);
  FillRandom(seed, name, init, scale, first, count, DType::kF32, reinterpret_cast<std::byte*>(values.data()));
  return values;
}

struct Moments {
  double mean = 0, deviation = 0;
};

Moments MomentsOf(const std::vector<float>& values) {
  Moments m;
  for (const float v : values) m.mean += v;
  m.mean /= static_cast<double>(values.size());
  for (const float v : values) m.deviation += (v - m.mean) * (v - m.mean);
  m.deviation = std::sqrt(m.deviation / static_cast<double>(values.size()));
  return m;
}

TEST(RandomFill, AnySplitGivesTheSameBytes) {
  for (const Init init : {Init::kNormal, Init::kOne, Init::kALog, Init::kDtBias}) {
    const std::vector<float> whole = Fill(3, "w", init, 0.02f, 101);
    for (const size_t cut : {0, 1, 2, 50, 51, 100, 101}) {
      std::vector<float> parts = Fill(3, "w", init, 0.02f, cut);
      const std::vector<float> rest = Fill(3, "w", init, 0.02f, 101 - cut, cut);
      parts.insert(parts.end(), rest.begin(), rest.end());
      EXPECT_EQ(parts, whole) << "cut at " << cut << ", init " << static_cast<int>(init);
    }
  }
}

TEST(RandomFill, SeedAndNameBothMatter) {
  const auto base = Fill(1, "layers.0.w", Init::kNormal, 1, 64);
  EXPECT_EQ(base, Fill(1, "layers.0.w", Init::kNormal, 1, 64));
  EXPECT_NE(base, Fill(2, "layers.0.w", Init::kNormal, 1, 64));
  EXPECT_NE(base, Fill(1, "layers.1.w", Init::kNormal, 1, 64));
}

// n = 2^20 draws: the mean strays by sigma / sqrt(n), the deviation by about sigma / sqrt(2 n); six of those
// are allowed.
TEST(RandomFill, NormalHasTheMeanAndDeviationAskedFor) {
  constexpr size_t kCount = 1 << 20;
  const double stray = 6 / std::sqrt(static_cast<double>(kCount));
  const Moments normal = MomentsOf(Fill(5, "w", Init::kNormal, 0.02f, kCount));
  EXPECT_NEAR(normal.mean, 0, 0.02 * stray);
  EXPECT_NEAR(normal.deviation, 0.02, 0.02 * stray);
  const Moments one = MomentsOf(Fill(5, "w", Init::kOne, 0.02f, kCount));
  EXPECT_NEAR(one.mean, 1, 0.002 * stray);
  EXPECT_NEAR(one.deviation, 0.002, 0.002 * stray);
  const Moments zero = MomentsOf(Fill(5, "w", Init::kZero, 0.02f, kCount));
  EXPECT_NEAR(zero.mean, 0, 0.002 * stray);
}

// Neighbours come from one hash: their correlation must stay within the same six deviations.
TEST(RandomFill, NeighboursAreUncorrelated) {
  constexpr size_t kCount = 1 << 20;
  const auto values = Fill(9, "w", Init::kNormal, 1, kCount);
  for (const size_t lag : {1, 2, 3}) {
    double sum = 0;
    for (size_t i = 0; i + lag < kCount; ++i) sum += static_cast<double>(values[i]) * values[i + lag];
    EXPECT_NEAR(sum / kCount, 0, 6 / std::sqrt(static_cast<double>(kCount))) << "lag " << lag;
  }
}

TEST(RandomFill, GateParametersStayInTheirRange) {
  const auto a_log = Fill(1, "A_log", Init::kALog, 0, 10'000);
  const auto [low, high] = std::minmax_element(a_log.begin(), a_log.end());
  EXPECT_GE(*low, 0);
  EXPECT_LE(*high, std::log(16.0f) * (1 + 1e-6f));
  EXPECT_LT(*low, 0.01f);
  EXPECT_GT(*high, 2.76f);
  for (const float bias : Fill(1, "dt_bias", Init::kDtBias, 0, 10'000)) {
    const double step = std::log1p(std::exp(static_cast<double>(bias)));  // softplus
    ASSERT_GE(step, 0.001 * (1 - 1e-5));
    ASSERT_LE(step, 0.1 * (1 + 1e-5));
  }
}

TEST(RandomFill, Bf16IsTheRoundedF32) {
  const auto wide = Fill(4, "w", Init::kNormal, 0.02f, 1000);
  std::vector<uint16_t> narrow(1000);
  FillRandom(4, "w", Init::kNormal, 0.02f, 0, 1000, DType::kBf16,
             reinterpret_cast<std::byte*>(narrow.data()));
  for (size_t i = 0; i < wide.size(); ++i) ASSERT_EQ(narrow[i], Bf16FromF32(wide[i])) << "element " << i;
}

TEST(RandomFill, SeedTextIsStrict) {
  EXPECT_EQ(ParseRandomSeed("random:18446744073709551615").value(), ~uint64_t{0});
  for (const char* bad : {"random", "random:", "random:x", "random:1x", "random: 1", "random:-1",
                          "random:18446744073709551616", "rand:1", ""}) {
    EXPECT_EQ(ParseRandomSeed(bad).status().message(),
              "weights: expected random:<seed> with a seed from 0 to 2^64 - 1, got " + std::string(bad));
  }
}

}  // namespace
}  // namespace rt::weights
