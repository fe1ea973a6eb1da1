// Scalar functions and the size check that every oracle op shares. Double precision throughout.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace rt::oracle {

using Values = std::vector<double>;     // a dense row-major tensor; its shape is in the comment beside it
using View = std::span<const double>;   // an input tensor
using MutableView = std::span<double>;  // a tensor updated in place

// 1 / (1 + e^-x), written so that neither branch overflows.
inline double Sigmoid(double x) {
  if (x >= 0) return 1.0 / (1.0 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1.0 + e);
}

inline double Silu(double x) { return x * Sigmoid(x); }

// log(1 + e^x); the identity above 20, as the models' own definition has it (torch.nn.functional.softplus,
// threshold 20).
inline double Softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }

// A size that does not fit its shape struct is a mistake in the calling test, not outside data: names the
// tensor, expected and found element counts on stderr and aborts.
void CheckSize(const char* tensor, std::size_t found, int64_t expected);

}  // namespace rt::oracle
