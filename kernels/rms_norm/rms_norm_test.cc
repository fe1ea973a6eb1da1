#include "kernels/rms_norm/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/common/isa_testing.h"
#include "kernels/common/thread_pool.h"

namespace rt::kernels {
namespace {

class RmsNormTest : public ::testing::TestWithParam<Isa> {
 protected:
  const RmsNormKernels& kernels() const {
    return GetParam() == Isa::kAvx2 ? RmsNormAvx2() : RmsNormAvx512Bf16();
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, RmsNormTest, ::testing::ValuesIn(TestedIsas()), IsaTestName());

constexpr float kEps = 1e-6f;
constexpr float kCanary = -777.0f;
const int64_t kSizes[] = {1, 5, 16, 17, 77, 128, 1024, 1031};

template <class T>
std::vector<T> RandomRows(int64_t rows, int64_t size, int64_t stride, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0.3f, 2.0f);
  std::vector<T> v(static_cast<size_t>(rows * stride), FromFloat<T>(std::numeric_limits<float>::quiet_NaN()));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < size; ++i) v[static_cast<size_t>(r * stride + i)] = FromFloat<T>(normal(rng));
  }
  return v;
}

// The sum of `size` positive squares errs by at most size * 2^-24 of itself, the rest of the formula by less
// than 8 roundings; the output rounding adds half an ulp of its dtype.
template <class Y>
double RelativeBound(int64_t size) {
  return static_cast<double>(size + 8) * 0x1p-24 + (sizeof(Y) == 2 ? 0x1p-8 : 0x1p-23);
}

template <class Y>
void ExpectNormOf(const std::vector<double>& x, const std::vector<float>& weight, float offset, const Y* y,
                  int64_t row) {
  const int64_t size = static_cast<int64_t>(x.size());
  double squares = 0;
  for (double v : x) squares += v * v;
  const double inverse = 1 / std::sqrt(squares / static_cast<double>(size) + double{kEps});
  for (int64_t i = 0; i < size; ++i) {
    const double want =
        x[static_cast<size_t>(i)] * inverse * (double{offset} + double{weight[static_cast<size_t>(i)]});
    const double scale = std::abs(x[static_cast<size_t>(i)] * inverse) *
                         (std::abs(offset) + std::abs(weight[static_cast<size_t>(i)]));
    ASSERT_NEAR(ToFloat(y[i]), want, RelativeBound<Y>(size) * scale + 1e-38)
        << "size " << size << " row " << row << " element " << i;
  }
}

template <class X, class Y>
void CheckNorm(RmsNormFn fn) {
  uint64_t seed = 10;
  for (int64_t size : kSizes) {
    for (float offset : {0.0f, 1.0f}) {
      const int64_t rows = 5, xs = size + 3, ys = size + 2;
      const auto x = RandomRows<X>(rows, size, xs, ++seed);
      const auto weight = RandomRows<float>(1, size, size, ++seed);
      std::vector<Y> y(static_cast<size_t>(rows * ys), FromFloat<Y>(kCanary));
      ASSERT_EQ(fn({rows, size, x.data(), xs, weight.data(), offset, kEps, y.data(), ys}, SerialParallel()),
                0);
      for (int64_t r = 0; r < rows; ++r) {
        std::vector<double> row;
        for (int64_t i = 0; i < size; ++i) row.push_back(ToFloat(x[static_cast<size_t>(r * xs + i)]));
        ExpectNormOf(row, weight, offset, &y[static_cast<size_t>(r * ys)], r);
        for (int64_t i = size; i < ys; ++i)
          EXPECT_EQ(ToFloat(y[static_cast<size_t>(r * ys + i)]), ToFloat(FromFloat<Y>(kCanary)));
      }
    }
  }
}

TEST_P(RmsNormTest, MatchesTheFp64FormulaForEveryDtype) {
  CheckNorm<float, float>(kernels().f32_f32);
  CheckNorm<float, bf16>(kernels().f32_bf16);
  CheckNorm<bf16, bf16>(kernels().bf16_bf16);
}

template <class X, class Y>
void CheckAddNorm(AddRmsNormFn fn) {
  uint64_t seed = 50;
  for (int64_t size : kSizes) {
    const int64_t rows = 4, rs = size + 1, ds = size + 4, ys = size + 2;
    const auto before = RandomRows<float>(rows, size, rs, ++seed);
    auto residual = before;
    const auto delta = RandomRows<X>(rows, size, ds, ++seed);
    const auto weight = RandomRows<float>(1, size, size, ++seed);
    std::vector<Y> y(static_cast<size_t>(rows * ys), FromFloat<Y>(kCanary));
    ASSERT_EQ(fn({rows, size, residual.data(), rs, delta.data(), ds, weight.data(), 1.0f, kEps, y.data(), ys},
                 SerialParallel()),
              0);
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<double> row;
      for (int64_t i = 0; i < size; ++i) {
        const float sum =
            before[static_cast<size_t>(r * rs + i)] + ToFloat(delta[static_cast<size_t>(r * ds + i)]);
        ASSERT_EQ(residual[static_cast<size_t>(r * rs + i)], sum) << "residual row " << r << " element " << i;
        row.push_back(sum);
      }
      EXPECT_TRUE(std::isnan(residual[static_cast<size_t>(r * rs + size)]))
          << "padding after row " << r << " was written";
      ExpectNormOf(row, weight, 1.0f, &y[static_cast<size_t>(r * ys)], r);
      for (int64_t i = size; i < ys; ++i)
        EXPECT_EQ(ToFloat(y[static_cast<size_t>(r * ys + i)]), ToFloat(FromFloat<Y>(kCanary)));
    }
  }
}

TEST_P(RmsNormTest, AddsToTheResidualAndNormsTheSum) {
  CheckAddNorm<float, float>(kernels().add_f32_f32);
  CheckAddNorm<float, bf16>(kernels().add_f32_bf16);
  CheckAddNorm<bf16, bf16>(kernels().add_bf16_bf16);
}

TEST_P(RmsNormTest, ARowHasTheSameBitsInEveryBatchAndOnAnyNumberOfThreads) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = 3, .pin = false}, &error);
  ASSERT_NE(pool, nullptr) << error;
  const int64_t rows = 40, size = 1031;
  const auto x = RandomRows<bf16>(rows, size, size, 3);
  const auto weight = RandomRows<float>(1, size, size, 4);
  std::vector<bf16> all(static_cast<size_t>(rows * size)), one(static_cast<size_t>(size));
  kernels().bf16_bf16({rows, size, x.data(), size, weight.data(), 1, kEps, all.data(), size},
                      pool->parallel());
  for (int64_t r = 0; r < rows; ++r) {
    kernels().bf16_bf16({1, size, x.data() + r * size, size, weight.data(), 1, kEps, one.data(), size},
                        SerialParallel());
    ASSERT_EQ(std::memcmp(one.data(), all.data() + r * size, static_cast<size_t>(size) * sizeof(bf16)), 0)
        << "row " << r;
  }
}

TEST_P(RmsNormTest, WorksInPlace) {
  auto x = RandomRows<float>(3, 77, 77, 8);
  const auto weight = RandomRows<float>(1, 77, 77, 9);
  std::vector<float> y(x.size());
  kernels().f32_f32({3, 77, x.data(), 77, weight.data(), 0, kEps, y.data(), 77}, SerialParallel());
  kernels().f32_f32({3, 77, x.data(), 77, weight.data(), 0, kEps, x.data(), 77}, SerialParallel());
  EXPECT_EQ(x, y);
}

TEST(RmsNorm, OnlyOfferedDtypesAreFound) {
  EXPECT_EQ(FindRmsNorm(RmsNormAvx2(), DType::kF32, DType::kBf16), RmsNormAvx2().f32_bf16);
  EXPECT_EQ(FindAddRmsNorm(RmsNormAvx2(), DType::kBf16, DType::kBf16), RmsNormAvx2().add_bf16_bf16);
  EXPECT_EQ(FindRmsNorm(RmsNormAvx2(), DType::kF16, DType::kBf16), nullptr);
  EXPECT_EQ(FindAddRmsNorm(RmsNormAvx2(), DType::kBf16, DType::kF32), nullptr);
}

}  // namespace
}  // namespace rt::kernels
