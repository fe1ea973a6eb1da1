// Random inputs and the comparison that the oracle's own tests share.
#pragma once

#include "plugin_sdk/oracle/math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace rt::oracle {

// Normal values from a fixed seed, so that a failure repeats.
inline Values Random(int64_t count, uint64_t seed, double scale = 1.0) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<double> normal(0.0, scale);
  Values values(count);
  for (double& v : values) v = normal(engine);
  return values;
}

// Largest |found - expected| within `bound` times the largest |expected|; reports the worst entry. NaN never
// passes.
inline void ExpectClose(View found, View expected, double bound) {
  ASSERT_EQ(found.size(), expected.size());
  double scale = 0, worst = 0;
  std::size_t at = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    scale = std::max(scale, std::abs(expected[i]));
    const double difference = std::abs(found[i] - expected[i]);
    if (!(difference <= worst)) worst = difference, at = i;
  }
  EXPECT_LE(worst, bound * scale) << "worst at " << at << " of " << found.size() << ": found "
                                  << (found.empty() ? 0 : found[at]) << ", expected "
                                  << (expected.empty() ? 0 : expected[at]) << ", largest expected " << scale;
}

}  // namespace rt::oracle
