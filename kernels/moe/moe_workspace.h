// Where the parts of a workspace lie; offsets in bytes, each on a cache line.
#pragma once

#include "kernels/moe/moe.h"

namespace rt::kernels {

// Tokens that the router takes at once: the rows of x a product reads W once for.
constexpr int64_t kRouterBlockTokens = 64;
// Row length of the router's logits and corrected scores: whole vectors of 16 lanes.
RT_ALWAYS_INLINE int64_t RouterRow(int64_t num_experts) { return (num_experts + 15) / 16 * 16; }

struct MoeRouterLayout {
  size_t x;       // [kRouterBlockTokens, H] fp32: widened rows
  size_t logits;  // [kRouterBlockTokens, RouterRow] fp32: logits, then scores
  size_t choice;  // [num_threads, RouterRow(E) + RouterRow(G)] fp32: corrected scores of a token and of its groups
  size_t kept;    // [num_threads, G] int32: groups in order of score
  size_t gemm;
  size_t total;
};
MoeRouterLayout LayOutMoeRouter(int64_t hidden_size, int64_t num_experts, int64_t num_groups, int num_threads);

// The pairs of one chosen expert: sorted slots [begin, begin + num_rows).
struct ExpertRows {
  int32_t expert;
  int32_t begin;
  int32_t num_rows;
  int32_t first_token;  // its tokens are first_token, first_token + 1, ...: x is read in place; -1: rows are gathered
};

struct MoeExpertsLayout {
  size_t counts;   // [E + 1] int32
  size_t experts;  // [min(E, T K)] ExpertRows
  size_t tokens;   // [T K] int32: token of a sorted slot
  size_t slots;    // [T K] int32: sorted slot of pair t K + k
  size_t rows;     // [T K, H]: gathered rows of x (act), then down products (fp32)
  size_t gate;     // [T K, I] act: gate products, then silu(gate) up
  size_t up;       // [T K, I] act
  size_t gemm;     // one GemmWorkspaceBytes(1) a thread
  size_t total;
};
MoeExpertsLayout LayOutMoeExperts(const MoeExpertsShape& shape, int64_t num_tokens, DType act, int num_threads);

}  // namespace rt::kernels
