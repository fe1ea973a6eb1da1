#include "kernels/gemm/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/isa.h"
#include "kernels/common/thread_pool.h"

namespace rt::kernels {
namespace {

struct Level {
  std::string name;
  const GemmKernels* kernels;
};

std::vector<Level> Levels() {
  std::vector<Level> levels{{"avx2", &GemmAvx2()}};
  if (CpuSupports(Isa::kAvx512Bf16)) {
    levels.push_back({"avx512bf16_dot", &GemmAvx512Bf16Dot()});
    levels.push_back({"avx512bf16_wide", &GemmAvx512Bf16Wide()});
  }
  return levels;
}

struct Shape {
  int64_t m, n, k;
};

// K below, at and above vector steps and parts; N below and above tiles and superblocks; M on both sides of
// each path.
const Shape kShapes[] = {{1, 1, 1},     {1, 77, 77},   {2, 13, 31},    {3, 5, 32},   {4, 64, 33},
                         {5, 7, 64},    {6, 50, 100},  {7, 1, 40},     {8, 97, 128}, {9, 3, 7},
                         {16, 80, 96},  {17, 49, 77},  {33, 100, 130}, {64, 48, 64}, {65, 53, 48},
                         {130, 31, 50}, {5, 54, 2100}, {66, 10, 1025}, {1, 9, 3584}, {4, 12, 1030}};

template <class X, class Y>
struct Case {
  Shape shape;
  std::vector<X> x, w;
  std::vector<Y> y;
  int64_t x_stride, y_stride;

  // x and y rows are padded: NaN where x may not be read, a canary where y may not be written.
  Case(Shape s, uint64_t seed, bool accumulate) : shape(s), x_stride(s.k + 3), y_stride(s.n + 5) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal;
    x.assign(static_cast<size_t>(s.m * x_stride), FromFloat<X>(std::numeric_limits<float>::quiet_NaN()));
    for (int64_t i = 0; i < s.m; ++i) {
      for (int64_t k = 0; k < s.k; ++k) x[static_cast<size_t>(i * x_stride + k)] = FromFloat<X>(normal(rng));
    }
    w.resize(static_cast<size_t>(s.n * s.k));
    for (X& v : w) v = FromFloat<X>(normal(rng));
    y.assign(static_cast<size_t>(s.m * y_stride), FromFloat<Y>(kCanary));
    if (accumulate) {
      for (int64_t i = 0; i < s.m; ++i) {
        for (int64_t j = 0; j < s.n; ++j)
          y[static_cast<size_t>(i * y_stride + j)] = FromFloat<Y>(normal(rng));
      }
    }
  }
  static constexpr float kCanary = 12345.0f;
};

GemmFn Select(const GemmKernels& kernels, float, float) { return kernels.f32_f32_f32; }
GemmFn Select(const GemmKernels& kernels, bf16, float) { return kernels.bf16_bf16_f32; }
GemmFn Select(const GemmKernels& kernels, bf16, bf16) { return kernels.bf16_bf16_bf16; }

template <class X, class Y>
void RunGemm(const GemmKernels& kernels, Case<X, Y>& c, const Parallel& parallel, bool accumulate) {
  std::vector<char> space(GemmWorkspaceBytes(parallel.num_threads) + 64);
  void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(space.data()) + 63) / 64 * 64);
  const GemmArgs args{c.shape.m,  c.shape.n,  c.shape.k,  c.x.data(), c.x_stride,
                      c.w.data(), c.y.data(), c.y_stride, accumulate, aligned};
  ASSERT_EQ(Select(kernels, X{}, Y{})(args, parallel), 0);
}

// Each fp32 operation errs by half an ulp of its result, so a sum of k products by at most k * 2^-24 * sum
// |products|; a bf16 result by another 2^-9 of itself.
template <class X, class Y>
void ExpectMatchesReference(const Case<X, Y>& c, const Case<X, Y>& before, bool accumulate,
                            const std::string& what) {
  double worst = 0;
  std::string where = "no element is outside its bound";
  for (int64_t i = 0; i < c.shape.m; ++i) {
    for (int64_t j = 0; j < c.shape.n; ++j) {
      double sum = accumulate ? ToFloat(before.y[static_cast<size_t>(i * c.y_stride + j)]) : 0;
      double magnitude = std::abs(sum);
      for (int64_t k = 0; k < c.shape.k; ++k) {
        const double product = double{ToFloat(c.x[static_cast<size_t>(i * c.x_stride + k)])} *
                               ToFloat(c.w[static_cast<size_t>(j * c.shape.k + k)]);
        sum += product;
        magnitude += std::abs(product);
      }
      const double bound = static_cast<double>(c.shape.k + 1) * 0x1p-24 * magnitude +
                           (sizeof(Y) == 2 ? std::abs(sum) * 0x1p-8 : 0) + 1e-30;
      const double got = ToFloat(c.y[static_cast<size_t>(i * c.y_stride + j)]);
      const double share = std::abs(got - sum) / bound;
      if (!(share <= worst)) {
        worst = std::isnan(share) ? 1e9 : share;
        where = "y[" + std::to_string(i) + "," + std::to_string(j) + "] is " + std::to_string(got) +
                ", expected " + std::to_string(sum) + " +- " + std::to_string(bound);
      }
    }
    for (int64_t j = c.shape.n; j < c.y_stride; ++j) {
      EXPECT_EQ(ToFloat(c.y[static_cast<size_t>(i * c.y_stride + j)]),
                ToFloat(FromFloat<Y>(Case<X, Y>::kCanary)))
          << what << ": canary " << j;
    }
  }
  EXPECT_LE(worst, 1.0) << what << ": " << where;
}

template <class X, class Y>
void CheckAllShapes(bool accumulate) {
  uint64_t seed = 1;
  for (const Level& level : Levels()) {
    for (const Shape& shape : kShapes) {
      const Case<X, Y> before(shape, ++seed, accumulate);
      Case<X, Y> c = before;
      RunGemm(*level.kernels, c, SerialParallel(), accumulate);
      ExpectMatchesReference(c, before, accumulate,
                             level.name + " m=" + std::to_string(shape.m) + " n=" + std::to_string(shape.n) +
                                 " k=" + std::to_string(shape.k) + " seed=" + std::to_string(seed));
    }
  }
}

TEST(Gemm, Bf16ToFloatMatchesTheFp64Product) { CheckAllShapes<bf16, float>(false); }
TEST(Gemm, Bf16ToBf16MatchesTheFp64Product) { CheckAllShapes<bf16, bf16>(false); }
TEST(Gemm, FloatMatchesTheFp64Product) { CheckAllShapes<float, float>(false); }
TEST(Gemm, Bf16AddsToAnFp32Residual) { CheckAllShapes<bf16, float>(true); }
TEST(Gemm, FloatAddsToAnFp32Residual) { CheckAllShapes<float, float>(true); }

template <class X, class Y>
void CheckThreads() {
  std::string error;
  for (int threads : {2, 3, 7}) {
    auto pool = ThreadPool::Create({.num_threads = threads, .pin = false}, &error);
    ASSERT_NE(pool, nullptr) << error;
    for (const Level& level : Levels()) {
      for (const Shape& shape :
           {Shape{1, 77, 77}, Shape{16, 200, 96}, Shape{70, 301, 1100}, Shape{5, 2, 64}}) {
        Case<X, Y> serial(shape, 5, false);
        Case<X, Y> parallel = serial;
        RunGemm(*level.kernels, serial, SerialParallel(), false);
        RunGemm(*level.kernels, parallel, pool->parallel(), false);
        EXPECT_EQ(std::memcmp(serial.y.data(), parallel.y.data(), serial.y.size() * sizeof(Y)), 0)
            << level.name << " threads " << threads;
      }
    }
  }
}

TEST(Gemm, ResultsDoNotDependOnTheNumberOfThreads) {
  CheckThreads<bf16, float>();
  CheckThreads<float, float>();
}

// The same row alone, in a small batch and in a large one.
template <class X, class Y>
void CheckRows() {
  for (const Level& level : Levels()) {
    for (int64_t k : {77, 128, 1100, 2500}) {
      Case<X, Y> all({150, 61, k}, 7, false);
      RunGemm(*level.kernels, all, SerialParallel(), false);
      for (int64_t m : {1, 2, 3, 4, 5, 16, 17, 67}) {
        for (int64_t first : {0, 61, 83}) {
          Case<X, Y> part = all;
          part.shape.m = m;
          part.x.erase(part.x.begin(), part.x.begin() + first * part.x_stride);
          RunGemm(*level.kernels, part, SerialParallel(), false);
          for (int64_t i = 0; i < m; ++i) {
            ASSERT_EQ(std::memcmp(&part.y[static_cast<size_t>(i * part.y_stride)],
                                  &all.y[static_cast<size_t>((first + i) * all.y_stride)], 61 * sizeof(Y)),
                      0)
                << level.name << " k=" << k << " m=" << m << " row " << first + i;
          }
        }
      }
    }
  }
}

TEST(Gemm, ARowHasTheSameBitsInEveryBatch) {
  CheckRows<bf16, float>();
  CheckRows<bf16, bf16>();
  CheckRows<float, float>();
}

TEST(Gemm, NanInOneRowStaysInThatRow) {
  for (const Level& level : Levels()) {
    Case<bf16, float> c({9, 20, 77}, 3, false);
    c.x[static_cast<size_t>(4 * c.x_stride + 76)] = FromFloat<bf16>(std::numeric_limits<float>::quiet_NaN());
    RunGemm(*level.kernels, c, SerialParallel(), false);
    for (int64_t i = 0; i < 9; ++i) {
      for (int64_t j = 0; j < 20; ++j)
        EXPECT_EQ(std::isnan(c.y[static_cast<size_t>(i * c.y_stride + j)]), i == 4)
            << level.name << " row " << i;
    }
  }
}

TEST(Gemm, EmptyProductsWriteZerosOrLeaveTheResidual) {
  for (const Level& level : Levels()) {
    for (bool accumulate : {false, true}) {
      Case<float, float> c({3, 4, 0}, 1, true);
      const std::vector<float> before = c.y;
      RunGemm(*level.kernels, c, SerialParallel(), accumulate);
      for (int64_t j = 0; j < 4; ++j)
        EXPECT_EQ(c.y[static_cast<size_t>(j)], accumulate ? before[static_cast<size_t>(j)] : 0.0f);
      Case<float, float> none({0, 4, 8}, 1, false);
      RunGemm(*level.kernels, none, SerialParallel(), accumulate);
    }
  }
}

TEST(Gemm, OnlyOfferedDtypesAreFound) {
  const GemmKernels& kernels = GemmAvx2();
  EXPECT_EQ(FindGemm(kernels, DType::kBf16, DType::kBf16, DType::kF32), kernels.bf16_bf16_f32);
  EXPECT_EQ(FindGemm(kernels, DType::kBf16, DType::kBf16, DType::kBf16), kernels.bf16_bf16_bf16);
  EXPECT_EQ(FindGemm(kernels, DType::kF32, DType::kF32, DType::kF32), kernels.f32_f32_f32);
  EXPECT_EQ(FindGemm(kernels, DType::kF32, DType::kBf16, DType::kF32), nullptr);
  EXPECT_EQ(FindGemm(kernels, DType::kBf16, DType::kBf16, DType::kF16), nullptr);
}

}  // namespace
}  // namespace rt::kernels
