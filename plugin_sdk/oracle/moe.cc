#include "plugin_sdk/oracle/moe.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace rt::oracle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Indices of `values` in descending order, ties to the lower index.
std::vector<int32_t> Descending(const Values& values) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  return order;
}

Values Scores(RouterScore form, const Values& logits) {
  Values s = logits;
  if (form == RouterScore::kSigmoid) {
    for (double& v : s) v = Sigmoid(v);
    return s;
  }
  const double most = *std::max_element(s.begin(), s.end());
  double sum = 0;
  for (double& v : s) sum += v = std::exp(v - most);
  for (double& v : s) v /= sum;
  return s;
}

// Gap between entries `kept - 1` and `kept` of the order.
double Gap(const Values& values, const std::vector<int32_t>& order, int64_t kept) {
  if (kept >= static_cast<int64_t>(order.size())) return kInfinity;
  const double refused = values[order[kept]];
  return refused == -kInfinity ? kInfinity : values[order[kept - 1]] - refused;
}

// Drops the experts of groups that are not among the best; returns the gap to the next group.
double KeepGroups(const RouterParams& p, Values& corrected) {
  const int64_t width = p.num_experts / p.num_groups;
  Values groups;
  for (int64_t g = 0; g < p.num_groups; ++g) {
    Values members(corrected.begin() + g * width, corrected.begin() + (g + 1) * width);
    std::sort(members.rbegin(), members.rend());
    groups.push_back(members[0] + (width > 1 ? members[1] : 0.0));
  }
  const std::vector<int32_t> order = Descending(groups);
  for (int64_t i = p.topk_groups; i < p.num_groups; ++i) {
    std::fill_n(corrected.begin() + order[i] * width, width, -kInfinity);
  }
  return Gap(groups, order, p.topk_groups);
}

}  // namespace

Routing Route(const RouterParams& p, int64_t hidden_size, View x, View router, View bias) {
  const int64_t num_tokens = static_cast<int64_t>(x.size()) / hidden_size;
  if (!bias.empty()) CheckSize("bias", bias.size(), p.num_experts);
  Routing routing;
  for (int64_t t = 0; t < num_tokens; ++t) {
    const Values s = Scores(p.score, Linear({1, hidden_size, p.num_experts}, x.subspan(t * hidden_size, hidden_size), router));
    Values corrected = s;
    for (std::size_t e = 0; e < bias.size(); ++e) corrected[e] += bias[e];
    double margin = p.num_groups > 1 ? KeepGroups(p, corrected) : kInfinity;
    const std::vector<int32_t> order = Descending(corrected);
    margin = std::min(margin, Gap(corrected, order, p.experts_per_token));
    double sum = 1e-20;
    for (int64_t k = 0; k < p.experts_per_token; ++k) sum += s[order[k]];
    for (int64_t k = 0; k < p.experts_per_token; ++k) {
      routing.ids.push_back(order[k]);
      routing.weights.push_back(s[order[k]] / (p.renormalize ? sum : 1.0) * p.routed_scale);
    }
    routing.margins.push_back(margin);
  }
  return routing;
}

Values Experts(const ExpertsShape& s, View x, View ids, View weights, View gate, View up, View down) {
  const int64_t num_tokens = static_cast<int64_t>(x.size()) / s.hidden_size, block = s.intermediate_size * s.hidden_size;
  CheckSize("ids", ids.size(), num_tokens * s.experts_per_token);
  CheckSize("weights", weights.size(), num_tokens * s.experts_per_token);
  for (const View* w : {&gate, &up, &down}) CheckSize("experts", w->size(), s.num_experts * block);
  Values out(x.size(), 0.0);
  for (int64_t t = 0; t < num_tokens; ++t) {
    const View row = x.subspan(t * s.hidden_size, s.hidden_size);
    for (int64_t k = 0; k < s.experts_per_token; ++k) {
      const int64_t at = static_cast<int64_t>(ids[t * s.experts_per_token + k]) * block;
      const Values y = GatedMlp({1, s.hidden_size, s.intermediate_size}, row, gate.subspan(at, block), up.subspan(at, block), down.subspan(at, block));
      for (int64_t i = 0; i < s.hidden_size; ++i) out[t * s.hidden_size + i] += weights[t * s.experts_per_token + k] * y[i];
    }
  }
  return out;
}

}  // namespace rt::oracle
