#include "plugin_sdk/oracle/sampling.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace rt::oracle {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

void ApplyPenalties(const SamplingParams& p, std::span<const TokenHistory> history, MutableView logits) {
  for (const TokenHistory& token : history) {
    double& logit = logits[token.id];
    if (token.in_prompt || token.output_count > 0) {
      logit = logit > 0 ? logit / p.repetition_penalty : logit * p.repetition_penalty;
    }
    if (token.output_count > 0) {
      logit -= p.frequency_penalty * static_cast<double>(token.output_count) + p.presence_penalty;
    }
  }
}

void KeepTopK(int64_t k, MutableView logits) {
  if (k <= 0 || k >= static_cast<int64_t>(logits.size())) return;
  Values sorted(logits.begin(), logits.end());
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (double& l : logits) {
    if (l < sorted[k - 1]) l = kNever;
  }
}

// Walks down the distinct probabilities until the mass above the next one reaches top_p.
void KeepTopP(double top_p, MutableView logits) {
  if (top_p >= 1.0) return;
  Values probability = LogSoftmax(logits);
  for (double& p : probability) p = std::exp(p);
  Values sorted = probability;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  double above = 0, threshold = sorted[0];
  for (std::size_t i = 0; i < sorted.size() && above < top_p; ++i) {
    threshold = sorted[i];
    while (i + 1 < sorted.size() && sorted[i + 1] == threshold) above += sorted[i++];
    above += sorted[i];
  }
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (probability[i] < threshold) logits[i] = kNever;
  }
}

}  // namespace

Values LogSoftmax(View x) {
  const double largest = x.empty() ? kNever : *std::max_element(x.begin(), x.end());
  Values y(x.size(), kNever);
  if (largest == kNever) return y;
  double sum = 0;
  for (const double value : x) sum += std::exp(value - largest);
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] - largest - std::log(sum);
  return y;
}

int64_t ArgMax(View x) {
  int64_t best = -1;
  for (int64_t i = 0; i < static_cast<int64_t>(x.size()); ++i) {
    if (x[i] > (best < 0 ? kNever : x[best])) best = i;
  }
  return best;
}

Values SamplingProbabilities(const SamplingParams& p, View raw, std::span<const TokenHistory> history,
                             std::span<const LogitBias> bias) {
  Values logits(raw.begin(), raw.end());
  ApplyPenalties(p, history, logits);
  for (const LogitBias& b : bias) logits[b.id] += b.value;
  if (p.allowed_vocab >= 0 && p.allowed_vocab < static_cast<int64_t>(logits.size())) {
    std::fill(logits.begin() + p.allowed_vocab, logits.end(), kNever);
  }
  Values result(logits.size(), 0.0);
  const int64_t best = ArgMax(logits);
  if (best < 0) return result;
  if (p.temperature == 0.0) {
    result[best] = 1.0;
    return result;
  }
  for (double& l : logits) l /= p.temperature;
  KeepTopK(p.top_k, logits);
  KeepTopP(p.top_p, logits);
  const double largest = logits[best];
  double total = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double relative = std::exp(logits[i] - largest);
    total += result[i] = relative >= p.min_p ? relative : 0.0;
  }
  for (double& r : result) r /= total;
  return result;
}

int64_t InverseCdf(View probabilities, double u) {
  int64_t last = -1;
  double cumulative = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(probabilities.size()); ++i) {
    if (!(probabilities[i] > 0)) continue;
    cumulative += probabilities[i];
    last = i;
    if (cumulative > u) break;
  }
  return last;
}

}  // namespace rt::oracle
