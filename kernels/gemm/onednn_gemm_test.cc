#include "kernels/gemm/onednn_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"

namespace rt::kernels {
namespace {

// One level a process: the limit of oneDNN cannot be changed after the first primitive.
Isa BestIsa() { return CpuSupports(Isa::kAvx512Bf16) ? Isa::kAvx512Bf16 : Isa::kAvx2; }

template <class T>
std::vector<T> Random(int64_t count, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<T> v(static_cast<size_t>(count));
  for (T& x : v) x = FromFloat<T>(normal(rng));
  return v;
}

template <class X, class Y>
void Check(int64_t m, int64_t n, int64_t k, bool accumulate, int threads) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = threads, .pin = false}, &error);
  ASSERT_NE(pool, nullptr) << error;
  auto gemm = OneDnnGemm::Create({n, k, DTypeOf<X>::value, BestIsa(), {8, 32}, threads}, &error);
  ASSERT_NE(gemm, nullptr) << error;
  const int64_t created = OneDnnGemm::num_primitives_created();
  std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(64, gemm->workspace_bytes()),
                                                   std::free);
  const int64_t xs = k + 3, ys = n + 2;
  const auto x = Random<X>(m * xs, 1), w = Random<X>(n * k, 2);
  const auto before = Random<Y>(m * ys, 3);
  auto y = before;
  ASSERT_EQ(gemm->Run({m, n, k, x.data(), xs, w.data(), y.data(), ys, accumulate, workspace.get()},
                      DTypeOf<Y>::value, pool->parallel()),
            0);
  EXPECT_EQ(OneDnnGemm::num_primitives_created(), created) << "a primitive was created while running";
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < ys; ++j) {
      const size_t at = static_cast<size_t>(i * ys + j);
      double want = ToFloat(before[at]), magnitude = std::abs(want);
      if (j < n) {
        if (!accumulate) want = magnitude = 0;
        for (int64_t c = 0; c < k; ++c) {
          const double product = double{ToFloat(x[static_cast<size_t>(i * xs + c)])} *
                                 ToFloat(w[static_cast<size_t>(j * k + c)]);
          want += product;
          magnitude += std::abs(product);
        }
      }
      const double bound = j < n ? static_cast<double>(k + 1) * 0x1p-24 * magnitude +
                                       (sizeof(Y) == 2 ? std::abs(want) * 0x1p-8 : 0)
                                 : 0;
      ASSERT_NEAR(ToFloat(y[at]), want, bound)
          << "m " << m << " n " << n << " k " << k << " row " << i << " column " << j;
    }
  }
}

TEST(OneDnnGemm, FloatMatchesTheFp64Product) {
  for (int64_t m : {1, 8, 9, 40, 70}) {
    Check<float, float>(m, 77, 77, false, 1);
    Check<float, float>(m, 50, 96, true, 3);
  }
}

TEST(OneDnnGemm, Bf16MatchesTheFp64ProductAtTheAvx512Level) {
  std::string error;
  if (BestIsa() == Isa::kAvx2) {
    EXPECT_EQ(OneDnnGemm::Create({16, 16, DType::kBf16, Isa::kAvx2, {8}, 1}, &error), nullptr)
        << "oneDNN 2.6 has no bf16 below AVX-512";
    return;
  }
  for (int64_t m : {1, 33, 70}) {
    Check<bf16, float>(m, 77, 77, false, 2);
    Check<bf16, float>(m, 100, 64, true, 3);
    Check<bf16, bf16>(m, 5, 130, false, 2);
  }
}

TEST(OneDnnGemm, BadOptionsAndASecondLevelAreRefusedByName) {
  std::string error;
  EXPECT_EQ(OneDnnGemm::Create({0, 16, DType::kF32, BestIsa(), {8}, 1}, &error), nullptr);
  EXPECT_NE(error.find("positive n"), std::string::npos) << error;
  EXPECT_EQ(OneDnnGemm::Create({16, 16, DType::kF32, BestIsa(), {32, 8}, 1}, &error), nullptr);
  EXPECT_NE(error.find("ascending"), std::string::npos) << error;
  ASSERT_NE(OneDnnGemm::Create({16, 16, DType::kF32, BestIsa(), {8}, 1}, &error), nullptr) << error;
  if (BestIsa() == Isa::kAvx2) return;
  EXPECT_EQ(OneDnnGemm::Create({16, 16, DType::kF32, Isa::kAvx2, {8}, 1}, &error), nullptr);
  EXPECT_NE(error.find("instruction set"), std::string::npos) << error;
}

}  // namespace
}  // namespace rt::kernels
