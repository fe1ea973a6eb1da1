#include "kernels/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/common/isa_testing.h"
#include "kernels/common/thread_pool.h"

namespace rt::kernels {
namespace {

class ElementwiseTest : public ::testing::TestWithParam<Isa> {
 protected:
  const ElementwiseKernels& kernels() const {
    return GetParam() == Isa::kAvx2 ? ElementwiseAvx2() : ElementwiseAvx512Bf16();
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, ElementwiseTest, ::testing::ValuesIn(TestedIsas()), IsaTestName());

template <class T>
std::vector<T> Random(int64_t count, uint64_t seed, float scale) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<T> v(static_cast<size_t>(count));
  for (T& x : v) x = FromFloat<T>(normal(rng));
  return v;
}

template <class T>
void CheckSiluMul(SiluMulFn fn) {
  for (int64_t size : {1, 15, 16, 33, 77, 3584}) {
    const int64_t rows = 3, stride = 2 * size + 1,
                  ys = size + 2;  // gate and up are column slices of one matrix
    const auto in = Random<T>(rows * stride, static_cast<uint64_t>(size), 4.0f);
    std::vector<T> y(static_cast<size_t>(rows * ys), FromFloat<T>(99.0f));
    ASSERT_EQ(fn({rows, size, in.data(), stride, in.data() + size, stride, y.data(), ys}, SerialParallel()),
              0);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < size; ++i) {
        const double gate = ToFloat(in[static_cast<size_t>(r * stride + i)]),
                     up = ToFloat(in[static_cast<size_t>(r * stride + size + i)]);
        const double want = gate / (1 + std::exp(-gate)) * up;
        // silu within 3 ulp, a product and the output rounding.
        const double bound = std::abs(want) * (4 * 0x1p-23 + (sizeof(T) == 2 ? 0x1p-8 : 0)) + 1e-38;
        ASSERT_NEAR(ToFloat(y[static_cast<size_t>(r * ys + i)]), want, bound)
            << "size " << size << " row " << r << " element " << i;
      }
      EXPECT_EQ(ToFloat(y[static_cast<size_t>(r * ys + size)]), 99.0f);
    }
  }
}

TEST_P(ElementwiseTest, SiluMulMatchesTheFp64Formula) {
  CheckSiluMul<float>(kernels().silu_mul_f32);
  CheckSiluMul<bf16>(kernels().silu_mul_bf16);
}

TEST_P(ElementwiseTest, SiluMulSaturatesInsteadOfProducingNan) {
  const std::vector<float> gate{-1e30f, 1e30f, -100.0f, 0.0f}, up{2, 2, 2, 2};
  std::vector<float> y(4);
  kernels().silu_mul_f32({1, 4, gate.data(), 4, up.data(), 4, y.data(), 4}, SerialParallel());
  EXPECT_NEAR(y[0], 0.0f, 2e30 * 2e-38);  // sigmoid does not fall below 1.6e-38
  EXPECT_EQ(y[1], 2e30f);
  EXPECT_NEAR(y[2], 0.0f, 200 * 2e-38);
  EXPECT_EQ(y[3], 0.0f);
}

template <class T>
void CheckEmbedding(EmbeddingFn fn, const Parallel& parallel) {
  const int64_t vocab = 50;
  for (int64_t size : {1, 16, 77, 1024}) {
    const auto table = Random<T>(vocab * size, 5, 1.0f);
    std::vector<int32_t> ids{0, 49, 7, 7, -1, 50, 2147483647, -2147483647 - 1};
    for (int i = 0; i < 30; ++i) ids.push_back(i);
    const int64_t tokens = static_cast<int64_t>(ids.size()), stride = size + 1;
    std::vector<float> out(static_cast<size_t>(tokens * stride), -3.0f);
    ASSERT_EQ(fn({tokens, vocab, size, ids.data(), table.data(), out.data(), stride}, parallel), 0);
    for (int64_t t = 0; t < tokens; ++t) {
      const int32_t id = ids[static_cast<size_t>(t)];
      for (int64_t i = 0; i < size; ++i) {
        const float want = id >= 0 && id < vocab ? ToFloat(table[static_cast<size_t>(id * size + i)]) : 0.0f;
        ASSERT_EQ(out[static_cast<size_t>(t * stride + i)], want) << "token " << t << " element " << i;
      }
      EXPECT_EQ(out[static_cast<size_t>(t * stride + size)], -3.0f);
    }
  }
}

TEST_P(ElementwiseTest, EmbeddingCopiesRowsAndZeroesUnknownIds) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = 3, .pin = false}, &error);
  ASSERT_NE(pool, nullptr) << error;
  CheckEmbedding<float>(kernels().embedding_f32, SerialParallel());
  CheckEmbedding<bf16>(kernels().embedding_bf16, pool->parallel());
}

template <class T>
void CheckAdd(AddFn fn) {
  for (int64_t size : {1, 16, 77}) {
    const auto before = Random<float>(3 * (size + 1), 1, 1.0f);
    auto residual = before;
    const auto delta = Random<T>(3 * (size + 2), 2, 1.0f);
    ASSERT_EQ(fn({3, size, residual.data(), size + 1, delta.data(), size + 2}, SerialParallel()), 0);
    for (int64_t r = 0; r < 3; ++r) {
      for (int64_t i = 0; i <= size; ++i) {
        const size_t at = static_cast<size_t>(r * (size + 1) + i);
        const float add = i < size ? ToFloat(delta[static_cast<size_t>(r * (size + 2) + i)]) : 0.0f;
        EXPECT_EQ(residual[at], before[at] + add) << "size " << size << " row " << r << " element " << i;
      }
    }
  }
}

TEST_P(ElementwiseTest, AddChangesTheResidualOnly) {
  CheckAdd<float>(kernels().add_f32);
  CheckAdd<bf16>(kernels().add_bf16);
}

template <class T>
void CheckSigmoidGate(SigmoidGateFn fn) {
  const int64_t rows = 3, size = 77;
  const auto x = Random<T>(rows * size, 1, 1.0f), gate = Random<T>(rows * (size + 5), 2, 4.0f);
  std::vector<T> y(static_cast<size_t>(rows * (size + 1)), FromFloat<T>(99.0f));
  ASSERT_EQ(fn({rows, size, x.data(), size, gate.data(), size + 5, y.data(), size + 1}, SerialParallel()), 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < size; ++i) {
      const double g = ToFloat(gate[static_cast<size_t>(r * (size + 5) + i)]);
      const double want = ToFloat(x[static_cast<size_t>(r * size + i)]) / (1 + std::exp(-g));
      const double bound = std::abs(want) * (4 * 0x1p-23 + (sizeof(T) == 2 ? 0x1p-8 : 0)) + 1e-38;
      ASSERT_NEAR(ToFloat(y[static_cast<size_t>(r * (size + 1) + i)]), want, bound)
          << "row " << r << " element " << i;
    }
    EXPECT_EQ(ToFloat(y[static_cast<size_t>(r * (size + 1) + size)]), 99.0f);
  }
}

TEST_P(ElementwiseTest, SigmoidGateMatchesTheFp64Formula) {
  CheckSigmoidGate<float>(kernels().sigmoid_gate_f32);
  CheckSigmoidGate<bf16>(kernels().sigmoid_gate_bf16);
}

TEST(GatherRows, CopiesNamedRowsAndZeroesNegativeOnes) {
  const std::vector<float> in = Random<float>(6 * 10, 1, 1.0f);
  const std::vector<int32_t> rows{5, -1, 0, 5};
  std::vector<float> out(4 * 8, 42.0f);
  ASSERT_EQ(GatherRows({4, 7 * 4, rows.data(), in.data(), 10 * 4, out.data(), 8 * 4}, SerialParallel()), 0);
  for (size_t r = 0; r < 4; ++r) {
    for (size_t i = 0; i < 7; ++i)
      EXPECT_EQ(out[r * 8 + i], rows[r] < 0 ? 0.0f : in[static_cast<size_t>(rows[r]) * 10 + i]);
    EXPECT_EQ(out[r * 8 + 7], 42.0f);
  }
}

TEST(SelectIds, TakesDeviceIdsWhereASourceIsNamed) {
  const std::vector<int32_t> source{-1, 2, 0, -1}, device{10, 11, 12}, host{1, 2, 3, 4};
  std::vector<int32_t> out(4);
  ASSERT_EQ(SelectIds({4, source.data(), device.data(), host.data(), out.data()}), 0);
  EXPECT_EQ(out, (std::vector<int32_t>{1, 12, 10, 4}));
  const std::vector<int32_t> none{-1, -1, -1, -1};
  ASSERT_EQ(SelectIds({4, none.data(), nullptr, host.data(), out.data()}), 0);
  EXPECT_EQ(out, host);
}

}  // namespace
}  // namespace rt::kernels
