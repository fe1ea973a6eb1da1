// For kernel tests: typed buffers with canaries and poison, fp64 views, error reports. Includes no vector code.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/isa_testing.h"
#include "kernels/common/parallel.h"
#include "kernels/common/sanitized.h"
#include "kernels/common/types.h"

namespace rt::kernels {

// A row-strided matrix of act-dtype values between canary borders. Gaps between rows and the borders hold the canary byte.
class TestMatrix {
 public:
  static constexpr unsigned char kCanary = 0xa5;
  static constexpr int64_t kBorder = 64;

  TestMatrix(DType dtype, int64_t rows, int64_t columns, int64_t stride)
      : dtype_(dtype), rows_(rows), columns_(columns), stride_(stride),
        bytes_(static_cast<size_t>(2 * kBorder + rows * stride * SizeOf(dtype)), kCanary) {}

  void* data() { return bytes_.data() + kBorder; }
  const void* data() const { return bytes_.data() + kBorder; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t stride() const { return stride_; }
  const std::vector<unsigned char>& bytes() const { return bytes_; }

  float Get(int64_t r, int64_t c) const {
    const unsigned char* at = bytes_.data() + kBorder + (r * stride_ + c) * SizeOf(dtype_);
    if (dtype_ == DType::kF32) return Read<float>(at);
    return dtype_ == DType::kBf16 ? ToFloat(Read<bf16>(at)) : ToFloat(Read<f16>(at));
  }
  void Set(int64_t r, int64_t c, float value) {
    unsigned char* at = bytes_.data() + kBorder + (r * stride_ + c) * SizeOf(dtype_);
    if (dtype_ == DType::kF32) return Write(at, value);
    if (dtype_ == DType::kBf16) return Write(at, FromFloat<bf16>(value));
    Write(at, FromFloat<f16>(value));
  }
  template <class Rng>
  void FillNormal(Rng& rng, float scale, float mean = 0.0f) {
    std::normal_distribution<float> normal(mean, scale);
    for (int64_t r = 0; r < rows_; ++r) {
      for (int64_t c = 0; c < columns_; ++c) Set(r, c, normal(rng));
    }
  }
  void FillRow(int64_t r, float value) {
    for (int64_t c = 0; c < columns_; ++c) Set(r, c, value);
  }
  // True when every byte outside the rows' columns still holds the canary.
  bool BordersIntact() const {
    const int64_t size = SizeOf(dtype_);
    for (int64_t i = 0; i < static_cast<int64_t>(bytes_.size()); ++i) {
      const int64_t at = i - kBorder;
      const bool inside = at >= 0 && at < rows_ * stride_ * size && at % (stride_ * size) < columns_ * size;
      if (!inside && bytes_[static_cast<size_t>(i)] != kCanary) return false;
    }
    return true;
  }

 private:
  template <class T>
  static T Read(const unsigned char* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  template <class T>
  static void Write(unsigned char* at, T value) {
    std::memcpy(at, &value, sizeof value);
  }

  DType dtype_;
  int64_t rows_, columns_, stride_;
  std::vector<unsigned char> bytes_;
};

// Half the distance between neighbours, relative: what one rounding to the type may cost.
inline double RoundingOf(DType dtype) {
  return dtype == DType::kF32 ? 0x1p-24 : dtype == DType::kBf16 ? 0x1p-8 : 0x1p-11;
}

// Collects the worst excess of |got - want| over tolerance.
class ErrorReport {
 public:
  explicit ErrorReport(std::string what) : what_(std::move(what)) {}
  void Add(int64_t index, double got, double want, double tolerance) {
    const double ratio = std::fabs(got - want) / tolerance;
    if (!(ratio <= worst_)) worst_ = ratio, index_ = index, got_ = got, want_ = want, tolerance_ = tolerance;
  }
  double worst() const { return worst_; }
  ::testing::AssertionResult Within() const {
    if (worst_ <= 1.0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << what_ << ": worst at index " << index_ << ": got " << got_ << ", expected " << want_
                                         << ", |difference| " << std::fabs(got_ - want_) << ", tolerance " << tolerance_;
  }

 private:
  std::string what_;
  double worst_ = 0, got_ = 0, want_ = 0, tolerance_ = 0;
  int64_t index_ = -1;
};

// Runs the "threads" one after another: what a result must not depend on is the number, and static splits need no real threads.
inline Parallel FakeParallel(int* num_threads) {
  return {*num_threads, num_threads, [](void* pool, void (*fn)(void*, int, int), void* arg) {
            const int n = *static_cast<int*>(pool);
            for (int thread = n - 1; thread >= 0; --thread) fn(arg, thread, n);
          }};
}

}  // namespace rt::kernels
