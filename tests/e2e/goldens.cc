#include "tests/e2e/goldens.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

namespace rt::testing {
namespace {

std::filesystem::path Folder(const std::string& model) {
  return std::filesystem::path(RT_TESTDATA_DIR) / "golden" / model;
}

template <typename T>
Difference CompareAs(std::span<const float> found, std::span<const T> expected) {
  Difference d;
  double worst = -1;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    d.scale = std::max(d.scale, std::abs(static_cast<double>(expected[i])));
    const double difference = std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i]));
    if (difference <= worst) continue;
    worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    d.index = i;
  }
  if (expected.empty()) return d;
  d.found = found[d.index];
  d.expected = static_cast<double>(expected[d.index]);
  d.relative = worst == 0 ? 0 : worst / d.scale;
  return d;
}

template <typename T>
double Expect(const std::string& what, std::span<const float> found, std::span<const T> expected,
              double bound) {
  if (found.size() != expected.size() || found.empty()) {
    ADD_FAILURE() << what << ": " << found.size() << " values, expected " << expected.size();
    return std::numeric_limits<double>::infinity();
  }
  const Difference d = CompareAs(found, expected);
  EXPECT_LE(d.relative, bound) << what << ": worst at " << d.index << ": found " << d.found << ", expected "
                               << d.expected << ", largest expected " << d.scale;
  return d.relative;
}

}  // namespace

std::vector<GoldenPrompt> ReadGoldenPrompts(const std::string& model) {
  std::ifstream in(Folder(model) / "prompts.json");
  const nlohmann::json root = nlohmann::json::parse(in);
  std::vector<GoldenPrompt> prompts;
  for (const auto& p : root.at("prompts")) {
    GoldenPrompt prompt = {p.at("name"), p.at("input_ids"), p.at("tokens"), {}};
    for (const auto& step : p.at("steps"))
      prompt.steps.push_back({step.at("id"), step.at("logprob"), step.at("margin")});
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

TensorFiles ReadGoldenTensors(const std::string& model) { return TensorFiles(Folder(model)); }

std::size_t NumComparable(const GoldenPrompt& prompt, double margin) {
  std::size_t usable = 0;
  while (usable < prompt.steps.size() && prompt.steps[usable].margin >= margin) ++usable;
  return usable;
}

double LogProb(std::span<const float> logits, int32_t id) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  return static_cast<double>(logits[static_cast<std::size_t>(id)]) - top - std::log(sum);
}

int32_t ArgMax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Difference Compare(std::span<const float> found, std::span<const double> expected) {
  return CompareAs(found, expected);
}
Difference Compare(std::span<const float> found, std::span<const float> expected) {
  return CompareAs(found, expected);
}
double ExpectClose(const std::string& what, std::span<const float> found, std::span<const double> expected,
                   double bound) {
  return Expect(what, found, expected, bound);
}
double ExpectClose(const std::string& what, std::span<const float> found, std::span<const float> expected,
                   double bound) {
  return Expect(what, found, expected, bound);
}

}  // namespace rt::testing
