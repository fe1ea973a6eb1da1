// References of a mixture of experts: bias-corrected grouped top-k routing (DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section
// 2.1.2) and the weighted sum of the chosen experts.
#pragma once

#include "plugin_sdk/oracle/dense.h"

namespace rt::oracle {

enum class RouterScore { kSigmoid, kSoftmax };

struct RouterParams {
  int64_t num_experts;        // E
  int64_t experts_per_token;  // K
  int64_t num_groups = 1;     // equal runs of experts
  int64_t topk_groups = 1;
  RouterScore score = RouterScore::kSigmoid;
  bool renormalize = true;
  double routed_scale = 1.0;
};

struct Routing {
  std::vector<int32_t> ids;  // [T, K], in descending order of score + bias, ties to the lower index
  Values weights;            // [T, K]
  // [T]: by how much the choice could have gone another way: the smallest gap between a chosen and a refused score + bias (of experts
  // within the kept groups, and of groups). Infinite when nothing was refused.
  Values margins;
};

// s = score(router x); the choice is by s + bias, the weight is s. x [T, hidden], router [E, hidden], bias [E] or empty.
Routing Route(const RouterParams& params, int64_t hidden_size, View x, View router, View bias);

struct ExpertsShape {
  int64_t num_experts;
  int64_t experts_per_token;
  int64_t hidden_size;        // H
  int64_t intermediate_size;  // I
};

// y = sum_k weights[k] down_e(silu(gate_e x) * up_e x) with e = ids[k]; ids as numbers. x [T, H], ids and weights [T, K], gate and up
// [E, I, H], down [E, H, I] -> [T, H].
Values Experts(const ExpertsShape& shape, View x, View ids, View weights, View gate, View up, View down);

}  // namespace rt::oracle
