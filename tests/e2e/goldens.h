// The expected outputs of an independent implementation (tests/data/README.md) and the comparisons made with
// them.
#pragma once

#include "tests/oracle_model/tensor_files.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace rt::testing {

struct GoldenStep {
  int32_t id = 0;
  double logprob = 0;
  double margin = 0;  // best minus second log-probability
};

struct GoldenPrompt {
  std::string name;
  std::vector<int32_t> input_ids;
  std::vector<int32_t> tokens;    // greedy, past the end token
  std::vector<GoldenStep> steps;  // per token
};

std::vector<GoldenPrompt> ReadGoldenPrompts(const std::string& model);
TensorFiles ReadGoldenTensors(const std::string& model);

// Steps before the first whose margin is below `margin`: the ones whose tokens must be equal.
std::size_t NumComparable(const GoldenPrompt& prompt, double margin);

double LogProb(std::span<const float> logits, int32_t id);  // in double
int32_t ArgMax(std::span<const float> logits);              // first maximum

// Largest |found - expected| over the largest |expected|; NaN counts as infinite.
struct Difference {
  double relative = 0;
  std::size_t index = 0;
  double found = 0, expected = 0, scale = 0;
};
Difference Compare(std::span<const float> found, std::span<const double> expected);
Difference Compare(std::span<const float> found, std::span<const float> expected);
// Fails the test with the worst entry unless `relative` <= bound. Returns the difference.
double ExpectClose(const std::string& what, std::span<const float> found, std::span<const double> expected,
                   double bound);
double ExpectClose(const std::string& what, std::span<const float> found, std::span<const float> expected,
                   double bound);

}  // namespace rt::testing
