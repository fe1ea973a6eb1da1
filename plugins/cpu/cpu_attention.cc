// The attention component: its backend, and gated attention over the paged cache.
#include "plugins/cpu/cpu_attention.h"
#include "kernels/attention/attention.h"

#include <rt/plugin/op_defs.h>

#include <deque>

namespace rt::cpu {
namespace {

using kernels::DType;
using kernels::Parallel;

class AttentionBackend : public AttentionStep {
 public:
  AttentionBackend(int32_t max_tokens, const Parallel& parallel) : max_tokens_(max_tokens), parallel_(parallel) {}

  // cos and sin of every position, computed once a step for all layers with these settings. Stable address.
  const float* RotaryTable(int32_t rotary_dim, double theta) {
    if (rotary_dim == 0) return nullptr;
    for (const Rotary& r : rotary_) {
      if (r.dim == rotary_dim && r.theta == theta) return r.table.data();
    }
    rotary_.push_back({rotary_dim, theta, std::vector<float>(static_cast<size_t>(max_tokens_) * static_cast<size_t>(rotary_dim))});
    return rotary_.back().table.data();
  }

  Status BeginStep(const rt_step_meta& meta, const rt_stream*) override {
    if (meta.num_tokens > max_tokens_) return {Code::kInvalidArgument, "step of " + std::to_string(meta.num_tokens) + " tokens, expected at most " + std::to_string(max_tokens_)};
    view_.Begin(meta);
    for (Rotary& r : rotary_) RT_RETURN_IF_ERROR(FromKernel(kernels::RotaryTable(meta.num_tokens, meta.positions, r.dim, r.theta, r.table.data(), parallel_), "rotary table"));
    return Status::Ok();
  }
 private:
  struct Rotary {
    int32_t dim;
    double theta;
    std::vector<float> table;  // [max_tokens, dim]
  };
  int32_t max_tokens_;
  Parallel parallel_;
  std::deque<Rotary> rotary_;
};

class AttentionPlan : public plugin::Plan {
 public:
  AttentionPlan(const rt_attrs_attention& attrs, kernels::Isa isa, DType act, int32_t block_size, int32_t max_sequences, AttentionBackend* backend, const Parallel& parallel)
      : block_size_(block_size), max_sequences_(max_sequences), backend_(backend), parallel_(parallel), rotary_(backend->RotaryTable(static_cast<int32_t>(attrs.rotary_dim), attrs.rope_theta)) {
    const auto& table = isa == kernels::Isa::kAvx512Bf16 ? kernels::AttentionAvx512Bf16() : kernels::AttentionAvx2();
    fn_ = act == DType::kF32 ? table.f32 : table.bf16;
    shape_.num_q_heads = static_cast<int32_t>(attrs.num_q_heads);
    shape_.num_kv_heads = static_cast<int32_t>(attrs.num_kv_heads);
    shape_.head_dim = static_cast<int32_t>(attrs.head_dim);
    shape_.rotary_dim = static_cast<int32_t>(attrs.rotary_dim);
    shape_.output_gate = attrs.output_gate == RT_ACT_SIGMOID;
    shape_.scale = attrs.scale;
    shape_.norm_weight_offset = attrs.norm_weight_offset;
    shape_.norm_eps = attrs.norm_eps;
  }
  uint64_t workspace_bytes() const override { return kernels::AttentionWorkspaceBytes(shape_, max_sequences_, parallel_.num_threads); }
  Status Execute(const rt_exec_args& a) override {
    const StepView::Phase& phase = backend_->view().phase(a.phase);
    if (phase.num_tokens == 0) return Status::Ok();
    const Matrix q = MatrixOf(*a.inputs[0]), k = MatrixOf(*a.inputs[1]), v = MatrixOf(*a.inputs[2]), y = MatrixOf(*a.outputs[0]);
    kernels::AttentionArgs args = {};
    args.shape = shape_;
    args.shape.q_norm = Norm(a, 0);
    args.shape.k_norm = Norm(a, 1);
    PlaceSequences(backend_->view().meta(), phase, &args);
    args.q = q.data;
    args.q_stride = q.stride;
    args.k = k.data;
    args.k_stride = k.stride;
    args.v = v.data;
    args.v_stride = v.stride;
    args.rotary = rotary_;
    args.out = y.data;
    args.out_stride = y.stride;
    args.key_base = a.caches[0]->base;
    args.key_block_stride_bytes = a.caches[0]->unit_stride_bytes;
    args.value_base = a.caches[1]->base;
    args.value_block_stride_bytes = a.caches[1]->unit_stride_bytes;
    args.block_size = block_size_;
    args.workspace = a.workspace;
    return FromKernel(fn_(args, parallel_), RT_OP_ATTENTION_MIXER);
  }

 private:
  static const float* Norm(const rt_exec_args& a, uint32_t i) { return i < a.num_weights && a.weights[i] != nullptr ? static_cast<const float*>(DataOf(*a.weights[i])) : nullptr; }

  kernels::AttentionShape shape_ = {};
  int32_t block_size_, max_sequences_;
  AttentionBackend* backend_;
  Parallel parallel_;
  const float* rotary_;
  kernels::AttentionFn fn_;
};

class Attention : public plugin::BackendProvider {
 public:
  Attention(const std::vector<Level>& levels, const Parallel& parallel) : parallel_(parallel) {
    for (const Level& level : levels) AddLevel(level);
    rows_.Freeze();
  }
  const plugin::RowTable& rows() const override { return rows_; }

  void Supports(uint32_t, const plugin::ProblemView& problem, rt_verdict* verdict) const override {
    if (IsLatentOp(problem.op())) return SupportsLatent(problem, verdict);
    const int64_t in = problem.Get(RT_COL_IN_DTYPE);
    if (problem.Get(RT_COL_OUT_DTYPE) != in) return plugin::Refuse(verdict, RT_COL_OUT_DTYPE, "must equal in_dtype");
    if (problem.Get(RT_COL_KV_DTYPE) != in) return plugin::Refuse(verdict, RT_COL_KV_DTYPE, "keys and values are kept in the dtype of the activations");
    if (problem.attrs<rt_attrs_attention>() == nullptr) return plugin::Refuse(verdict, 0, "attributes are missing");
  }

  Result<std::unique_ptr<plugin::Plan>> CreatePlan(const rt_plan_desc& desc) override {
    const plugin::ProblemView problem(*desc.problem);
    if (desc.backend == nullptr) return {Code::kInvalidArgument, "an attention plan needs its backend"};
    auto* backend = static_cast<AttentionBackend*>(reinterpret_cast<plugin::Backend*>(desc.backend));
    if (IsLatentOp(problem.op())) return CreateLatentPlan(desc, rows_.spec(desc.row_idx), isas_[desc.row_idx], backend->view(), parallel_);
    const auto* attrs = problem.attrs<rt_attrs_attention>();
    if (attrs == nullptr) return {Code::kInvalidArgument, "rt_attrs_attention is missing"};
    return std::unique_ptr<plugin::Plan>(std::make_unique<AttentionPlan>(*attrs, isas_[desc.row_idx], KernelDType(problem.Get(RT_COL_IN_DTYPE)), static_cast<int32_t>(problem.Get(RT_COL_KV_BLOCK_SIZE)),
                                                                         desc.max_sequences, backend, parallel_));
  }
  Result<std::unique_ptr<plugin::Backend>> CreateBackend(const rt_backend_desc& desc) override {
    return std::unique_ptr<plugin::Backend>(std::make_unique<AttentionBackend>(desc.max_tokens, parallel_));
  }

 private:
  void AddLevel(const Level& level) {
    using plugin::Any;
    using plugin::OneOf;
    using plugin::Range;
    plugin::RowSpec spec;
    spec.op = RT_OP_ATTENTION_MIXER;
    spec.phases = RT_PHASE_DECODE | RT_PHASE_PREFILL;
    spec.kernel = std::string(RT_OP_ATTENTION_MIXER) + "." + level.name;
    spec.score = level.score;
    spec.guarantees = RT_ROW_RUN_DETERMINISTIC | RT_ROW_BATCH_INVARIANT | RT_ROW_NAN_SAFE_PADDING;
    spec.constraints = {OneOf(RT_COL_IN_DTYPE, ActDTypes()), OneOf(RT_COL_OUT_DTYPE, ActDTypes()), OneOf(RT_COL_KV_DTYPE, ActDTypes()), OneOf(RT_COL_KV_LAYOUT, {RT_KV_LAYOUT_HND}), Range(RT_COL_KV_BLOCK_SIZE, 1, 256),
                        Range(RT_COL_HEAD_DIM, 1, 512), Any(RT_COL_NUM_Q_HEADS), Any(RT_COL_NUM_KV_HEADS), Any(RT_COL_Q_KV_RATIO), Any(RT_COL_ROTARY_DIM), OneOf(RT_COL_QK_NORM, {RT_QK_NORM_NONE, RT_QK_NORM_PER_HEAD}),
                        OneOf(RT_COL_WEIGHT_OFFSET_MILLI, {0, 1000}), OneOf(RT_COL_OUTPUT_GATE, {RT_ACT_NONE, RT_ACT_SIGMOID})};
    spec.unavailable = level.unavailable;
    spec.unavailable_reason = level.reason;
    Add(level, std::move(spec));
    AddLatentRows(level, [&](plugin::RowSpec latent) { Add(level, std::move(latent)); });
  }
  void Add(const Level& level, plugin::RowSpec spec) {
    rows_.Add(std::move(spec));
    isas_.push_back(level.isa);
  }

  Parallel parallel_;
  plugin::RowTable rows_;
  std::vector<kernels::Isa> isas_;
};

}  // namespace

std::unique_ptr<plugin::BackendProvider> MakeAttention(const std::vector<Level>& levels, const kernels::Parallel& parallel) { return std::make_unique<Attention>(levels, parallel); }

}  // namespace rt::cpu
