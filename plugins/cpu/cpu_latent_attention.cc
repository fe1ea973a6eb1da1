// Latent attention over the paged cache: absorbed for decode, expanded for prefill, and the norm of its rows alone.
#include "kernels/latent_attention/latent_attention.h"
#include "plugins/cpu/cpu_attention.h"

#include <rt/plugin/op_defs.h>

namespace rt::cpu {
namespace {

using kernels::DType;
using kernels::Parallel;

kernels::LatentAttentionShape ShapeOf(const rt_attrs_mla& a) {
  kernels::LatentAttentionShape shape = {};
  shape.num_heads = static_cast<int32_t>(a.num_heads);
  shape.latent_dim = static_cast<int32_t>(a.latent_dim);
  shape.qk_nope_dim = static_cast<int32_t>(a.qk_nope_dim);
  shape.qk_shared_dim = static_cast<int32_t>(a.qk_shared_dim);
  shape.v_dim = static_cast<int32_t>(a.v_dim);
  shape.scale = a.scale;
  shape.norm_eps = a.norm_eps;
  return shape;
}

const kernels::LatentAttentionKernels& TableOf(kernels::Isa isa) { return isa == kernels::Isa::kAvx512Bf16 ? kernels::LatentAttentionAvx512Bf16() : kernels::LatentAttentionAvx2(); }

// What every plan of these ops knows.
struct Common {
  rt_attrs_mla attrs;
  kernels::Isa isa;
  DType act;
  uint32_t phases;  // that the row serves
  int32_t max_tokens, block_size;
  const StepView* view;
  Parallel parallel;
};

// mla_mixer; mla_attention is the same with rows that are normalised already.
class LatentAttentionPlan : public plugin::Plan {
 public:
  LatentAttentionPlan(const Common& common, bool norm) : c_(common), norm_(norm) {
    const auto& table = TableOf(c_.isa);
    const bool f32 = c_.act == DType::kF32;
    fn_ = absorbed() ? (f32 ? table.absorbed_f32 : table.absorbed_bf16) : (f32 ? table.expanded_f32 : table.expanded_bf16);
  }
  uint64_t workspace_bytes() const override {
    const auto shape = ShapeOf(c_.attrs);
    return absorbed() ? kernels::AbsorbedLatentWorkspaceBytes(shape, c_.max_tokens, c_.parallel.num_threads) : kernels::ExpandedLatentWorkspaceBytes(shape, c_.max_tokens, c_.parallel.num_threads);
  }
  Status Execute(const rt_exec_args& a) override {
    const StepView::Phase& phase = c_.view->phase(a.phase);
    if (phase.num_tokens == 0) return Status::Ok();
    const Matrix q = MatrixOf(*a.inputs[0]), kv_a = MatrixOf(*a.inputs[1]), y = MatrixOf(*a.outputs[0]);
    kernels::LatentAttentionArgs args = {};
    args.shape = ShapeOf(c_.attrs);
    PlaceSequences(c_.view->meta(), phase, &args);
    args.q = q.data;
    args.q_stride = q.stride;
    args.kv_a = kv_a.data;
    args.kv_a_stride = kv_a.stride;
    args.kv_norm = norm_ ? static_cast<const float*>(DataOf(*a.weights[0])) : nullptr;
    args.kv_b = DataOf(*a.weights[a.num_weights - 1]);
    args.out = y.data;
    args.out_stride = y.stride;
    args.cache_base = a.caches[0]->base;
    args.block_stride_bytes = a.caches[0]->unit_stride_bytes;
    args.block_size = c_.block_size;
    args.workspace = a.workspace;
    return FromKernel(fn_(args, c_.parallel), norm_ ? RT_OP_MLA_MIXER : RT_OP_MLA_ATTENTION);
  }

 private:
  bool absorbed() const { return c_.phases == RT_PHASE_DECODE; }

  Common c_;
  bool norm_;
  kernels::LatentAttentionFn fn_;
};

class LatentNormPlan : public plugin::Plan {
 public:
  explicit LatentNormPlan(const Common& common) : c_(common), fn_(c_.act == DType::kF32 ? TableOf(c_.isa).norm_f32 : TableOf(c_.isa).norm_bf16) {}
  Status Execute(const rt_exec_args& a) override {
    const StepView::Phase& phase = c_.view->phase(a.phase);
    if (phase.num_tokens == 0) return Status::Ok();
    const int64_t bytes = kernels::SizeOf(c_.act);
    const Matrix kv_a = MatrixOf(*a.inputs[0]), c = MatrixOf(*a.outputs[0]);
    kernels::LatentNormArgs args = {};
    args.shape = ShapeOf(c_.attrs);
    args.num_rows = phase.num_tokens;
    args.kv_a = kv_a.Row(phase.first_token, bytes);
    args.kv_a_stride = kv_a.stride;
    args.kv_norm = static_cast<const float*>(DataOf(*a.weights[0]));
    args.out = c.Row(phase.first_token, bytes);
    args.out_stride = c.stride;
    return FromKernel(fn_(args, c_.parallel), RT_OP_LATENT_NORM);
  }

 private:
  Common c_;
  kernels::LatentNormFn fn_;
};

}  // namespace

bool IsLatentOp(std::string_view op) { return op == RT_OP_MLA_MIXER || op == RT_OP_LATENT_NORM || op == RT_OP_MLA_ATTENTION; }

void AddLatentRows(const Level& level, const std::function<void(plugin::RowSpec)>& add) {
  using plugin::Any;
  using plugin::OneOf;
  using plugin::Range;
  plugin::RowSpec base;
  base.score = level.score;
  base.guarantees = RT_ROW_RUN_DETERMINISTIC | RT_ROW_BATCH_INVARIANT | RT_ROW_NAN_SAFE_PADDING;
  base.unavailable = level.unavailable;
  base.unavailable_reason = level.reason;
  base.constraints = {OneOf(RT_COL_IN_DTYPE, ActDTypes()), OneOf(RT_COL_OUT_DTYPE, ActDTypes()), Range(RT_COL_LATENT_DIM, 1, 4096), Range(RT_COL_QK_SHARED_DIM, 0, 1024)};
  const auto add_as = [&](const char* op, const char* suffix, uint32_t phases, const std::vector<plugin::Constraint>& more) {
    plugin::RowSpec spec = base;
    spec.op = op;
    spec.phases = phases;
    spec.kernel = std::string(op) + suffix + "." + level.name;
    spec.constraints.insert(spec.constraints.end(), more.begin(), more.end());
    add(std::move(spec));
  };
  // One row a token for all heads, so that heads before tokens (HND) and tokens before heads (NHD) are the same bytes.
  const std::vector<plugin::Constraint> attention = {OneOf(RT_COL_KV_DTYPE, ActDTypes()), OneOf(RT_COL_KV_LAYOUT, {RT_KV_LAYOUT_HND, RT_KV_LAYOUT_NHD}), Range(RT_COL_KV_BLOCK_SIZE, 1, 256),
                                                     OneOf(RT_COL_WEIGHT_DTYPE, ActDTypes()), Any(RT_COL_NUM_Q_HEADS), Range(RT_COL_QK_NOPE_DIM, 1, 1024), Range(RT_COL_V_DIM, 1, 1024)};
  for (const char* op : {RT_OP_MLA_MIXER, RT_OP_MLA_ATTENTION}) {
    add_as(op, "_absorbed", RT_PHASE_DECODE, attention);
    add_as(op, "_expanded", RT_PHASE_PREFILL, attention);
  }
  add_as(RT_OP_LATENT_NORM, "", RT_PHASE_DECODE | RT_PHASE_PREFILL, {});
}

void SupportsLatent(const plugin::ProblemView& problem, rt_verdict* verdict) {
  const int64_t in = problem.Get(RT_COL_IN_DTYPE);
  if (problem.Get(RT_COL_OUT_DTYPE) != in) return plugin::Refuse(verdict, RT_COL_OUT_DTYPE, "must equal in_dtype");
  if (problem.Find(RT_COL_KV_DTYPE).value_or(in) != in) return plugin::Refuse(verdict, RT_COL_KV_DTYPE, "latent rows are kept in the dtype of the activations");
  if (problem.Find(RT_COL_WEIGHT_DTYPE).value_or(in) != in) return plugin::Refuse(verdict, RT_COL_WEIGHT_DTYPE, "must equal in_dtype");
  if (problem.attrs<rt_attrs_mla>() == nullptr) return plugin::Refuse(verdict, 0, "attributes are missing");
}

Result<std::unique_ptr<plugin::Plan>> CreateLatentPlan(const rt_plan_desc& desc, const plugin::RowSpec& row, kernels::Isa isa, const StepView& view, const Parallel& parallel) {
  const plugin::ProblemView problem(*desc.problem);
  const auto* attrs = problem.attrs<rt_attrs_mla>();
  if (attrs == nullptr) return {Code::kInvalidArgument, "rt_attrs_mla is missing"};
  const Common common = {*attrs, isa, KernelDType(problem.Get(RT_COL_IN_DTYPE)), row.phases, desc.max_tokens, static_cast<int32_t>(problem.Get(RT_COL_KV_BLOCK_SIZE)), &view, parallel};
  if (row.op == RT_OP_LATENT_NORM) return std::unique_ptr<plugin::Plan>(std::make_unique<LatentNormPlan>(common));
  return std::unique_ptr<plugin::Plan>(std::make_unique<LatentAttentionPlan>(common, row.op == RT_OP_MLA_MIXER));
}

}  // namespace rt::cpu
