#include "runtime/executor/weight_traffic.h"

#include <rt/plugin/op_defs.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace rt {
namespace {

// Share of weight `index` of `op` that a step reads.
double ShareRead(const ProgramOp& op, size_t index, const ProgramWeight& weight, int64_t num_tokens) {
  const auto n = static_cast<double>(num_tokens);
  if (op.op == RT_OP_EMBEDDING) return std::min(1.0, n / static_cast<double>(std::max<int64_t>(1, weight.dims[0])));
  // gate, up and down of the experts: see op_defs.h.
  const size_t first = op.op == RT_OP_MOE_BLOCK ? 1 : 0;
  if ((op.op != RT_OP_MOE_BLOCK && op.op != RT_OP_MOE_EXPERTS) || index < first || index >= first + 3) return 1;
  rt_attrs_moe attrs = {};
  std::memcpy(&attrs, op.attrs.data(), std::min(op.attrs.size(), sizeof attrs));
  if (attrs.num_experts == 0) return 1;
  return 1 - std::pow(1 - static_cast<double>(attrs.experts_per_token) / attrs.num_experts, n);
}

}  // namespace

uint64_t StepWeightBytes(const Program& program, const std::vector<uint64_t>& bytes, int64_t num_tokens) {
  std::vector<double> shares(program.weights.size(), 0.0);  // a weight with several readers is read once, by the one that reads most
  for (const ProgramOp& op : program.ops) {
    for (size_t i = 0; i < op.weights.size(); ++i) {
      const uint32_t id = op.weights[i];
      if (id != kNoId) shares[id] = std::max(shares[id], ShareRead(op, i, program.weights[id], num_tokens));
    }
  }
  uint64_t total = 0;
  for (size_t id = 0; id < shares.size(); ++id) total += static_cast<uint64_t>(std::llround(shares[id] * static_cast<double>(bytes[id])));
  return total;
}

}  // namespace rt
