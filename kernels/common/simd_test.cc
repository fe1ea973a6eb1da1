#include "kernels/common/simd_test_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/isa_testing.h"

namespace rt::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class Simd : public ::testing::TestWithParam<Isa> {
 protected:
  const SimdTestKernels& kernels() const { return GetParam() == Isa::kAvx2 ? SimdTestAvx2() : SimdTestAvx512Bf16(); }
};

// One unit in the last place of `exact`, at least the smallest subnormal.
double UlpOf(double exact) {
  const float nearest = std::fabs(static_cast<float>(exact));
  if (std::isinf(nearest)) return std::ldexp(1.0, 104);
  return static_cast<double>(std::nextafter(nearest, kInf)) - nearest;
}

// Evenly spaced and random points of [lo, hi]: the largest error in ulp must stay within `max_ulp`.
template <class F>
void ExpectWithinUlp(SimdTestKernels::Map map, F exact, float lo, float hi, double max_ulp) {
  std::mt19937 rng(17);
  std::uniform_real_distribution<float> uniform(lo, hi);
  constexpr int kPoints = 400'003;  // not a multiple of 16
  std::vector<float> x(kPoints), y(kPoints);
  for (int i = 0; i < kPoints; ++i) x[i] = i % 2 ? uniform(rng) : lo + (hi - lo) * (static_cast<float>(i) / kPoints);
  map(x.data(), y.data(), kPoints);
  double worst = -1;
  int worst_index = 0;
  for (int i = 0; i < kPoints; ++i) {
    const double want = exact(static_cast<double>(x[i]));
    const double error = std::fabs(y[i] - want) / UlpOf(want);
    if (!(error <= worst)) worst = error, worst_index = i;
  }
  EXPECT_LE(worst, max_ulp) << "at x = " << x[worst_index] << ": got " << y[worst_index] << ", expected "
                            << exact(static_cast<double>(x[worst_index]));
}

double SigmoidF64(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double SoftplusF64(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }

TEST_P(Simd, ExpIsWithinTwoUlpOverItsWholeRange) {
  const auto exact = [](double x) { return std::exp(x); };
  ExpectWithinUlp(kernels().exp, exact, -87.0f, 88.7f, 2.0);
  ExpectWithinUlp(kernels().exp, exact, -1.0f, 1.0f, 2.0);
  ExpectWithinUlp(kernels().exp, exact, -104.0f, -86.0f, 2.0);  // subnormal results
}

TEST_P(Simd, Exp2IsWithinTwoUlpOverItsWholeRange) {
  const auto exact = [](double x) { return std::exp2(x); };
  ExpectWithinUlp(kernels().exp2, exact, -126.0f, 127.9f, 2.0);
  ExpectWithinUlp(kernels().exp2, exact, -1.0f, 1.0f, 2.0);
}

TEST_P(Simd, SigmoidSiluAndSoftplusKeepTheirUlpPromise) {
  ExpectWithinUlp(kernels().sigmoid, SigmoidF64, -80.0f, 80.0f, 2.5);
  ExpectWithinUlp(kernels().sigmoid, SigmoidF64, -4.0f, 4.0f, 2.5);
  const auto silu = [](double x) { return x * SigmoidF64(x); };
  ExpectWithinUlp(kernels().silu, silu, -80.0f, 80.0f, 2.5);
  ExpectWithinUlp(kernels().silu, silu, -4.0f, 4.0f, 2.5);
  ExpectWithinUlp(kernels().softplus, SoftplusF64, -85.0f, 40.0f, 3.0);
  ExpectWithinUlp(kernels().softplus, SoftplusF64, -3.0f, 3.0f, 3.0);
}

TEST_P(Simd, RsqrtIsWithinOneAndAHalfUlp) {
  ExpectWithinUlp(kernels().rsqrt, [](double x) { return 1.0 / std::sqrt(x); }, 1e-12f, 4.0f, 1.5);
}

TEST_P(Simd, SpecialValuesFollowTheFormulas) {
  const std::vector<float> x = {-kInf, kInf, kNaN, -200.0f, 200.0f, 0.0f};
  std::vector<float> y(x.size());
  const int64_t n = static_cast<int64_t>(x.size());
  kernels().exp(x.data(), y.data(), n);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], kInf);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0.0f);
  EXPECT_EQ(y[4], kInf);
  EXPECT_EQ(y[5], 1.0f);
  kernels().exp2(x.data(), y.data(), n);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], kInf);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[5], 1.0f);
  kernels().sigmoid(x.data(), y.data(), n);
  EXPECT_LE(y[0], 2e-38f);
  EXPECT_GE(y[0], 0.0f);
  EXPECT_EQ(y[1], 1.0f);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_LE(y[3], 2e-38f);
  EXPECT_EQ(y[5], 0.5f);
  kernels().softplus(x.data(), y.data(), n);
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], kInf);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[4], 200.0f);
  kernels().silu(x.data(), y.data(), n);
  EXPECT_NEAR(y[3], 0.0f, 1e-35f);
  EXPECT_EQ(y[4], 200.0f);
  EXPECT_EQ(y[5], 0.0f);
}

// Every bf16 and f16 value, and floats around every rounding border.
TEST_P(Simd, NarrowTypesConvertLikeTheScalarCode) {
  std::vector<float> borders;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0x1000u, 0xffffu}) borders.push_back(FloatFromBits(high << 16 | low));
  }
  const int64_t n = static_cast<int64_t>(borders.size());
  std::vector<bf16> b(borders.size());
  std::vector<f16> h(borders.size());
  kernels().to_bf16(borders.data(), b.data(), n);
  kernels().to_f16(borders.data(), h.data(), n);
  for (size_t i = 0; i < borders.size(); ++i) {
    const bool subnormal = std::fpclassify(borders[i]) == FP_SUBNORMAL;  // flushed by VCVTNEPS2BF16
    if (!(subnormal && GetParam() == Isa::kAvx512Bf16)) {
      ASSERT_EQ(b[i].bits, FromFloat<bf16>(borders[i]).bits) << "float bits " << BitsOf(borders[i]);
    }
    ASSERT_EQ(h[i].bits, FromFloat<f16>(borders[i]).bits) << "float bits " << BitsOf(borders[i]);
  }
  std::vector<bf16> all_bf16(0x10000);
  std::vector<f16> all_f16(0x10000);
  for (uint32_t i = 0; i < 0x10000; ++i) all_bf16[i].bits = all_f16[i].bits = static_cast<uint16_t>(i);
  std::vector<float> wide(0x10000);
  kernels().from_bf16(all_bf16.data(), wide.data(), 0x10000);
  for (uint32_t i = 0; i < 0x10000; ++i) ASSERT_EQ(BitsOf(wide[i]), BitsOf(ToFloat(all_bf16[i])));
  kernels().from_f16(all_f16.data(), wide.data(), 0x10000);
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const float scalar = ToFloat(all_f16[i]);
    ASSERT_TRUE(std::isnan(scalar) ? std::isnan(wide[i]) : BitsOf(wide[i]) == BitsOf(scalar)) << "f16 bits " << i;
  }
}

// A tail of n lanes reads and writes exactly n elements: the neighbours hold canaries, loads past the end would be seen by asan.
TEST_P(Simd, TailsTouchNothingPastTheEnd) {
  for (int n = 1; n <= 35; ++n) {
    const std::vector<float> x(n, 1.0f);
    std::vector<float> y(n + 40, 7.0f);
    kernels().exp(x.data(), y.data(), n);
    for (int i = 0; i < n + 40; ++i) ASSERT_EQ(y[i] == 7.0f, i >= n) << "n = " << n << ", i = " << i;
    std::vector<bf16> b(n + 40, bf16{0x1234});
    kernels().to_bf16(x.data(), b.data(), n);
    for (int i = 0; i < n + 40; ++i) ASSERT_EQ(b[i].bits, i < n ? 0x3f80 : 0x1234) << "n = " << n << ", i = " << i;
    std::vector<f16> h(n + 40, f16{0x1234});
    kernels().to_f16(x.data(), h.data(), n);
    for (int i = 0; i < n + 40; ++i) ASSERT_EQ(h[i].bits, i < n ? 0x3c00 : 0x1234) << "n = " << n << ", i = " << i;
    const std::vector<bf16> exact_bf16(n, bf16{0x4000});
    kernels().from_bf16(exact_bf16.data(), y.data(), n);
    for (int i = 0; i < n; ++i) ASSERT_EQ(y[i], 2.0f);
  }
}

TEST_P(Simd, ReductionsTransposeAndFusedOpsAgreeWithScalarCode) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(256), y(256);
  for (float& value : x) value = normal(rng);
  double sum = 0;
  float largest = -kInf;
  for (int i = 0; i < 16; ++i) sum += x[i], largest = std::fmax(largest, x[i]);
  EXPECT_NEAR(kernels().reduce_add(x.data()), sum, 1e-5);
  EXPECT_EQ(kernels().reduce_max(x.data()), largest);
  kernels().transpose(x.data(), y.data());
  for (int r = 0; r < 16; ++r) {
    for (int c = 0; c < 16; ++c) ASSERT_EQ(y[c * 16 + r], x[r * 16 + c]);
  }
  std::vector<float> fnma(16);
  kernels().fused(x.data(), x.data() + 16, x.data() + 32, y.data(), fnma.data());
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(y[i], std::fma(x[i], x[16 + i], x[32 + i]));
    EXPECT_EQ(fnma[i], std::fma(-x[i], x[16 + i], x[32 + i]));
  }
  std::vector<double> wide(16);
  for (int i = 0; i < 16; ++i) wide[i] = -1000.0 - i * 1e-5;
  kernels().difference(-1000.0, wide.data(), y.data());
  for (int i = 0; i < 16; ++i) EXPECT_EQ(y[i], static_cast<float>(-1000.0 - wide[i]));
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, Simd, ::testing::ValuesIn(TestedIsas()), IsaTestName());

TEST(ScalarTypes, EveryNarrowValueSurvivesARoundTrip) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const bf16 b{static_cast<uint16_t>(i)};
    const f16 h{static_cast<uint16_t>(i)};
    if (!std::isnan(ToFloat(b))) {
      ASSERT_EQ(FromFloat<bf16>(ToFloat(b)).bits, b.bits);
    }
    if (!std::isnan(ToFloat(h))) {
      ASSERT_EQ(FromFloat<f16>(ToFloat(h)).bits, h.bits);
    }
  }
}

TEST(ScalarTypes, HalvesAreTheNearestRepresentableValue) {
  EXPECT_EQ(ToFloat(f16{0x0001}), 0x1p-24f);
  EXPECT_EQ(ToFloat(f16{0x3c00}), 1.0f);
  EXPECT_EQ(ToFloat(f16{0xfbff}), -65504.0f);
  EXPECT_EQ(FromFloat<f16>(65519.0f).bits, 0x7bff);
  EXPECT_EQ(FromFloat<f16>(65520.0f).bits, 0x7c00);
  EXPECT_EQ(FromFloat<f16>(0x1p-25f).bits, 0x0000);  // tie to even
  EXPECT_EQ(FromFloat<f16>(0x1.8p-24f).bits, 0x0002);
  EXPECT_EQ(FromFloat<bf16>(0x1.01p0f).bits, 0x3f80);  // tie to even
  EXPECT_EQ(FromFloat<bf16>(0x1.03p0f).bits, 0x3f82);
}

}  // namespace
}  // namespace rt::kernels
