#include "kernels/moe/moe.h"

#include <algorithm>

#include "kernels/gemm/gemm.h"
#include "kernels/moe/moe_workspace.h"

namespace rt::kernels {
namespace {

// Hands out parts of a workspace one after the other.
class Carver {
 public:
  size_t Take(int64_t count, int64_t bytes_each) {
    const size_t at = end_;
    end_ += (static_cast<size_t>(count * bytes_each) + 63) / 64 * 64;
    return at;
  }
  size_t end() const { return end_; }

 private:
  size_t end_ = 0;
};

}  // namespace

MoeRouterLayout LayOutMoeRouter(int64_t hidden_size, int64_t num_experts, int64_t num_groups, int num_threads) {
  Carver carver;
  MoeRouterLayout at;
  at.x = carver.Take(kRouterBlockTokens * hidden_size, 4);
  at.logits = carver.Take(kRouterBlockTokens * RouterRow(num_experts), 4);
  at.choice = carver.Take(num_threads * (RouterRow(num_experts) + RouterRow(num_groups)), 4);
  at.kept = carver.Take(num_threads * num_groups, 4);
  at.gemm = carver.Take(1, static_cast<int64_t>(GemmWorkspaceBytes(num_threads)));
  at.total = carver.end();
  return at;
}

size_t MoeRouterWorkspaceBytes(int64_t hidden_size, int64_t num_experts, int64_t num_groups, int num_threads) {
  return LayOutMoeRouter(hidden_size, num_experts, num_groups, num_threads).total;
}

MoeExpertsLayout LayOutMoeExperts(const MoeExpertsShape& s, int64_t num_tokens, DType act, int num_threads) {
  const int64_t pairs = num_tokens * s.experts_per_token;
  Carver carver;
  MoeExpertsLayout at;
  at.counts = carver.Take(s.num_experts + 1, 4);
  at.experts = carver.Take(std::min(s.num_experts, pairs), sizeof(ExpertRows));
  at.tokens = carver.Take(pairs, 4);
  at.slots = carver.Take(pairs, 4);
  at.rows = carver.Take(pairs * s.hidden_size, 4);
  at.gate = carver.Take(pairs * s.intermediate_size, SizeOf(act));
  at.up = carver.Take(pairs * s.intermediate_size, SizeOf(act));
  at.gemm = carver.Take(num_threads, static_cast<int64_t>(GemmWorkspaceBytes(1)));
  at.total = carver.end();
  return at;
}

size_t MoeExpertsWorkspaceBytes(const MoeExpertsShape& shape, int64_t max_tokens, DType act, int num_threads) {
  return LayOutMoeExperts(shape, max_tokens, act, num_threads).total;
}

}  // namespace rt::kernels
