#include "plugins/cpu/cpu_moe.h"

#include "kernels/moe/moe.h"

#include <rt/plugin/op_defs.h>

namespace rt::cpu {
namespace {

using kernels::DType;
using kernels::Parallel;

const kernels::MoeKernels& Kernels(kernels::Isa isa) { return isa == kernels::Isa::kAvx512Bf16 ? kernels::MoeAvx512Bf16() : kernels::MoeAvx2(); }

class RouterPlan : public plugin::Plan {
 public:
  RouterPlan(kernels::MoeRouterFn fn, const rt_attrs_moe& attrs, int64_t hidden, const Parallel& parallel)
      : fn_(fn), attrs_(attrs), parallel_(parallel), workspace_(kernels::MoeRouterWorkspaceBytes(hidden, attrs.num_experts, attrs.num_groups, parallel.num_threads)) {}
  uint64_t workspace_bytes() const override { return workspace_; }

  Status Execute(const rt_exec_args& a) override {
    const Matrix x = MatrixOf(*a.inputs[0]), ids = MatrixOf(*a.outputs[0]), weights = MatrixOf(*a.outputs[1]);
    const bool has_bias = a.num_weights > 1 && a.weights[1] != nullptr;
    const kernels::MoeRouterArgs args = {x.rows,
                                         x.columns,
                                         attrs_.num_experts,
                                         attrs_.experts_per_token,
                                         attrs_.num_groups,
                                         attrs_.topk_groups,
                                         attrs_.router_score == RT_ROUTER_SOFTMAX ? kernels::RouterScore::kSoftmax : kernels::RouterScore::kSigmoid,
                                         attrs_.renormalize != 0,
                                         attrs_.routed_scale,
                                         x.data,
                                         x.stride,
                                         static_cast<const float*>(DataOf(*a.weights[0])),
                                         has_bias ? static_cast<const float*>(DataOf(*a.weights[1])) : nullptr,
                                         ids.as<int32_t>(),
                                         ids.stride,
                                         weights.as<float>(),
                                         weights.stride,
                                         a.workspace};
    return FromKernel(fn_(args, parallel_), RT_OP_MOE_ROUTER);
  }

 private:
  kernels::MoeRouterFn fn_;
  rt_attrs_moe attrs_;
  Parallel parallel_;
  uint64_t workspace_;
};

// The first id that names no expert, for the message of a refused call.
Status BadExpert(const Matrix& ids, int64_t num_experts) {
  for (int64_t t = 0; t < ids.rows; ++t) {
    for (int64_t k = 0; k < ids.columns; ++k) {
      const int32_t id = ids.as<int32_t>()[t * ids.stride + k];
      if (id >= 0 && id < num_experts) continue;
      return {Code::kInvalidArgument, std::string(RT_OP_MOE_EXPERTS) + ": ids[" + std::to_string(t) + ", " + std::to_string(k) + "]: expected 0.." + std::to_string(num_experts - 1) + ", found " + std::to_string(id)};
    }
  }
  return {Code::kInternal, std::string(RT_OP_MOE_EXPERTS) + ": ids changed while the op ran"};
}

class ExpertsPlan : public plugin::Plan {
 public:
  ExpertsPlan(kernels::MoeExpertsFn fn, const kernels::MoeExpertsShape& shape, int64_t max_tokens, DType act, const Parallel& parallel)
      : fn_(fn), shape_(shape), max_tokens_(max_tokens), parallel_(parallel), workspace_(kernels::MoeExpertsWorkspaceBytes(shape, max_tokens, act, parallel.num_threads)) {}
  uint64_t workspace_bytes() const override { return workspace_; }

  Status Execute(const rt_exec_args& a) override {
    const Matrix x = MatrixOf(*a.inputs[0]), ids = MatrixOf(*a.inputs[1]), weights = MatrixOf(*a.inputs[2]), y = MatrixOf(*a.outputs[0]);
    if (x.rows > max_tokens_) {
      return {Code::kInvalidArgument, std::string(RT_OP_MOE_EXPERTS) + ": planned for " + std::to_string(max_tokens_) + " tokens, found " + std::to_string(x.rows)};
    }
    Matrix shared;
    if (a.num_inputs > 3 && a.inputs[3] != nullptr) shared = MatrixOf(*a.inputs[3]);
    const kernels::MoeExpertsArgs args = {shape_,
                                          x.rows,
                                          x.data,
                                          x.stride,
                                          ids.as<int32_t>(),
                                          ids.stride,
                                          weights.as<float>(),
                                          weights.stride,
                                          shared.data,
                                          shared.stride,
                                          DataOf(*a.weights[0]),
                                          DataOf(*a.weights[1]),
                                          DataOf(*a.weights[2]),
                                          y.data,
                                          y.stride,
                                          a.workspace};
    const int code = fn_(args, parallel_);
    return code == kernels::kMoeBadExpert ? BadExpert(ids, shape_.num_experts) : FromKernel(code, RT_OP_MOE_EXPERTS);
  }

 private:
  kernels::MoeExpertsFn fn_;
  kernels::MoeExpertsShape shape_;
  int64_t max_tokens_;
  Parallel parallel_;
  uint64_t workspace_;
};

}  // namespace

std::vector<plugin::Constraint> MoeRouterConstraints() {
  return {plugin::OneOf(RT_COL_IN_DTYPE, ActDTypes()), plugin::Any(RT_COL_NUM_EXPERTS), plugin::Any(RT_COL_EXPERTS_PER_TOKEN), plugin::Any(RT_COL_NUM_EXPERT_GROUPS),
          plugin::OneOf(RT_COL_ROUTER_SCORE, {RT_ROUTER_SIGMOID, RT_ROUTER_SOFTMAX}), plugin::Any(RT_COL_IN_FEATURES)};
}

std::vector<plugin::Constraint> MoeExpertsConstraints() {
  return {plugin::OneOf(RT_COL_IN_DTYPE, ActDTypes()), plugin::OneOf(RT_COL_OUT_DTYPE, ActDTypes()), plugin::OneOf(RT_COL_WEIGHT_DTYPE, ActDTypes()), plugin::Any(RT_COL_NUM_EXPERTS),
          plugin::Any(RT_COL_EXPERTS_PER_TOKEN), plugin::Any(RT_COL_WIDTH), plugin::Any(RT_COL_IN_FEATURES)};
}

void MoeExpertsSupports(const plugin::ProblemView& problem, rt_verdict* verdict) {
  const int64_t in = problem.Get(RT_COL_IN_DTYPE);
  if (problem.Get(RT_COL_OUT_DTYPE) != in) return plugin::Refuse(verdict, RT_COL_OUT_DTYPE, "must equal in_dtype");
  if (problem.Get(RT_COL_WEIGHT_DTYPE) != in) return plugin::Refuse(verdict, RT_COL_WEIGHT_DTYPE, "weights must have the dtype of the activations");
}

Result<std::unique_ptr<plugin::Plan>> MakeMoeRouterPlan(kernels::Isa isa, const plugin::ProblemView& p, const Parallel& parallel) {
  const auto* attrs = p.attrs<rt_attrs_moe>();
  if (attrs == nullptr) return {Code::kInvalidArgument, std::string(RT_OP_MOE_ROUTER) + ": attributes are missing"};
  const auto fn = KernelDType(p.Get(RT_COL_IN_DTYPE)) == DType::kF32 ? Kernels(isa).router_f32 : Kernels(isa).router_bf16;
  return std::unique_ptr<plugin::Plan>(std::make_unique<RouterPlan>(fn, *attrs, p.Get(RT_COL_IN_FEATURES), parallel));
}

Result<std::unique_ptr<plugin::Plan>> MakeMoeExpertsPlan(kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc& desc, const Parallel& parallel) {
  const auto* attrs = p.attrs<rt_attrs_moe>();
  if (attrs == nullptr) return {Code::kInvalidArgument, std::string(RT_OP_MOE_EXPERTS) + ": attributes are missing"};
  const DType act = KernelDType(p.Get(RT_COL_IN_DTYPE));
  const auto fn = act == DType::kF32 ? Kernels(isa).experts_f32 : Kernels(isa).experts_bf16;
  const kernels::MoeExpertsShape shape = {attrs->num_experts, attrs->experts_per_token, p.Get(RT_COL_IN_FEATURES), p.Get(RT_COL_WIDTH)};
  return std::unique_ptr<plugin::Plan>(std::make_unique<ExpertsPlan>(fn, shape, desc.max_tokens, act, parallel));
}

}  // namespace rt::cpu
