// A mixture of experts: the router that chooses K of E experts for each token, and the chosen experts' weighted sum.
//
// Router (bias-corrected grouped top-k: DeepSeek-AI 2024, "DeepSeek-V3", arXiv:2412.19437, section 2.1.2), all in fp32:
//   s = sigmoid(W x) or softmax(W x);  c = s + bias (for the choice only)
//   groups are equal runs of experts; a group's score is the sum of its two best c; only the best `topk_groups` groups take part
//   ids = the K best c, in descending order;  w = s[ids];  w /= sum w + 1e-20 if `renormalize`;  w *= routed_scale
// Ties go to the lower index, of groups and of experts. A NaN counts as -infinity in the choice, so ids are always K different experts of
// the kept groups; the weight of an expert whose score is NaN is NaN.
//
// Experts: y = sum_k w_k down_e(silu(gate_e x) * up_e x), e = ids_k, + shared. The (token, k) pairs are sorted by expert; each chosen
// expert multiplies the rows of its pairs (kernels/gemm), so weights of other experts are not touched and each chosen one is read once a
// stage. Gate and up products and the product of both are rounded to the activation dtype, as gated_mlp rounds them; down products stay
// fp32. The sum runs in the order of ids, in fp32, adds the shared expert's row last and is rounded once.
//
// Order of operations. A token's bits depend on its own row, ids and weights alone: not on other tokens, on the number of threads, on
// strides. Rows of NaN stay NaN and touch no other row.
//
// Parallelism: one fork-join a stage. Threads share the columns of all chosen experts, laid end to end and weighted by rows, so that one
// token's K experts keep all threads streaming weights, and one expert with all tokens keeps them multiplying.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/parallel.h"
#include "kernels/common/types.h"

namespace rt::kernels {

// Codes of the launchers below.
constexpr int kMoeOk = 0;
constexpr int kMoeBadShape = 1;   // K, groups or sizes do not fit each other; nothing was written
constexpr int kMoeBadExpert = 2;  // an id outside [0, E); nothing was written

enum class RouterScore : uint8_t { kSigmoid, kSoftmax };

struct MoeRouterArgs {
  int64_t num_tokens;         // T >= 0
  int64_t hidden_size;        // H
  int64_t num_experts;        // E
  int64_t experts_per_token;  // K, 1..min(E, topk_groups * E / num_groups)
  int64_t num_groups;         // divides E; 1 = ungrouped
  int64_t topk_groups;        // 1..num_groups
  RouterScore score;
  bool renormalize;
  float routed_scale;
  const void* x;     // [T, H] activation dtype
  int64_t x_stride;  // elements between rows, here and below
  const float* router;  // [E, H] dense
  const float* bias;    // [E], or null
  int32_t* ids;         // [T, K]
  int64_t ids_stride;
  float* weights;  // [T, K]
  int64_t weights_stride;
  void* workspace;  // MoeRouterWorkspaceBytes, 64-byte aligned; contents are not kept
};

// Does not depend on the number of tokens: they pass in blocks.
size_t MoeRouterWorkspaceBytes(int64_t hidden_size, int64_t num_experts, int64_t num_groups, int num_threads);

struct MoeExpertsShape {
  int64_t num_experts;        // E
  int64_t experts_per_token;  // K
  int64_t hidden_size;        // H
  int64_t intermediate_size;  // I
};

struct MoeExpertsArgs {
  MoeExpertsShape shape;
  int64_t num_tokens;  // T >= 0
  const void* x;       // [T, H] activation dtype
  int64_t x_stride;
  const int32_t* ids;  // [T, K]; an expert may occur twice
  int64_t ids_stride;
  const float* weights;  // [T, K]
  int64_t weights_stride;
  const void* shared;  // [T, H] activation dtype, added; or null
  int64_t shared_stride;
  const void* gate;  // [E * I, H] dense, activation dtype
  const void* up;    // [E * I, H]
  const void* down;  // [E * H, I]: expert e has rows [e H, (e + 1) H)
  void* y;           // [T, H] activation dtype; overlaps no input
  int64_t y_stride;
  void* workspace;  // MoeExpertsWorkspaceBytes for at least T tokens, 64-byte aligned; contents are not kept
};

// About T K (4 H + 2 I sizeof(act)) bytes: the pairs' down products in fp32 (before them, in the same place, gathered rows of x) and two
// rows of I. The Kimi-Linear shape (H 2304, I 1024, K 8, bf16) takes 106 KB a token.
size_t MoeExpertsWorkspaceBytes(const MoeExpertsShape& shape, int64_t max_tokens, DType act, int num_threads);

using MoeRouterFn = int (*)(const MoeRouterArgs& args, const Parallel& parallel);
using MoeExpertsFn = int (*)(const MoeExpertsArgs& args, const Parallel& parallel);

// By activation dtype.
struct MoeKernels {
  MoeRouterFn router_f32;
  MoeRouterFn router_bf16;
  MoeExpertsFn experts_f32;
  MoeExpertsFn experts_bf16;
};

const MoeKernels& MoeAvx2();
const MoeKernels& MoeAvx512Bf16();

}  // namespace rt::kernels
