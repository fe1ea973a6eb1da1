// Linear attention: the fused mixer and its pieces, over a VPANEL16 state.
#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/gated_delta/gated_delta.h"
#include "kernels/gated_rms_norm/gated_rms_norm.h"
#include "kernels/linear_mixer/linear_mixer.h"
#include "plugins/cpu/cpu_plugin.h"
#include "plugins/cpu/step_view.h"

#include <rt/plugin/op_defs.h>

#include <cstring>

namespace rt::cpu {
namespace {

using kernels::DType;
using kernels::Parallel;

class LinearBackend : public plugin::Backend {
 public:
  Status BeginStep(const rt_step_meta& meta, const rt_stream*) override {
    view_.Begin(meta);
    return Status::Ok();
  }
  const StepView& view() const { return view_; }

 private:
  StepView view_;
};

kernels::DeltaDims DimsOf(const rt_attrs_mixer& a) {
  return {static_cast<int32_t>(a.num_k_heads), static_cast<int32_t>(a.num_v_heads), static_cast<int32_t>(a.head_k_dim), static_cast<int32_t>(a.head_v_dim), static_cast<int32_t>(a.gate_width)};
}
// Gates of this phase's tokens: a and b are matrices of the whole step, a_log and dt_bias weights.
kernels::DeltaGates DecayOf(const rt_attrs_mixer& attrs, const void* a, int64_t a_stride, const void* b, int64_t b_stride, const float* a_log, const float* dt_bias) {
  const auto form = attrs.gate_form == RT_GATE_BOUNDED_SIGMOID ? kernels::GateForm::kBoundedSigmoid : kernels::GateForm::kSoftplus;
  return {a, a_stride, b, b_stride, a_log, dt_bias, attrs.beta_scale, form, attrs.gate_bound};
}
kernels::GateActivation GateOf(const rt_attrs_mixer& a) { return a.output_gate == RT_ACT_SIGMOID ? kernels::GateActivation::kSigmoid : kernels::GateActivation::kSilu; }
int32_t ChannelsOf(const rt_attrs_mixer& a) { return static_cast<int32_t>(2 * a.num_k_heads * a.head_k_dim + a.num_v_heads * a.head_v_dim); }
const float* Floats(const rt_tensor& t) { return static_cast<const float*>(DataOf(t)); }
kernels::DeltaState StateOf(const rt_cache_view& c) { return {c.base, c.unit_stride_bytes, KernelDType(c.dtype)}; }

// What every plan of this component knows.
struct Common {
  rt_attrs_mixer attrs;
  kernels::Isa isa;
  DType act;
  const StepView* view;
  Parallel parallel;
  int64_t act_bytes() const { return kernels::SizeOf(act); }
  // First row of this phase.
  void* Row(const Matrix& m, const StepView::Phase& p) const { return m.Row(p.first_token, act_bytes()); }
};

class ConvPlanBase : public plugin::Plan {
 public:
  explicit ConvPlanBase(const Common& common) : c_(common) {}
  // The convolution weight is packed [W, channels] once at load.
  Result<uint64_t> PrepackSize(uint32_t weight_idx) override { return uint64_t{weight_idx == 0 ? static_cast<uint64_t>(ChannelsOf(c_.attrs)) * c_.attrs.conv_width * 4 : 0}; }
  Status Prepack(uint32_t weight_idx, const rt_tensor& weight, void* packed) override {
    if (weight_idx != 0) return {Code::kInvalidArgument, "only weight 0 (the convolution) is packed"};
    kernels::PackCausalConv1dWeight(DataOf(weight), DType::kF32, ChannelsOf(c_.attrs), static_cast<int32_t>(c_.attrs.conv_width), static_cast<float*>(packed));
    return Status::Ok();
  }

 protected:
  Common c_;
};

class MixerPlan : public ConvPlanBase {
 public:
  explicit MixerPlan(const Common& common) : ConvPlanBase(common) {
    const auto& table = c_.isa == kernels::Isa::kAvx512Bf16 ? kernels::LinearMixerAvx512Bf16() : kernels::LinearMixerAvx2();
    fn_ = c_.act == DType::kF32 ? table.f32 : table.bf16;
  }
  uint64_t workspace_bytes() const override { return kernels::LinearMixerWorkspaceBytes(DimsOf(c_.attrs), c_.parallel.num_threads); }
  Status Execute(const rt_exec_args& a) override {
    const StepView::Phase& phase = c_.view->phase(a.phase);
    if (phase.num_tokens == 0) return Status::Ok();
    const Matrix qkv = MatrixOf(*a.inputs[0]), z = MatrixOf(*a.inputs[1]), b = MatrixOf(*a.inputs[2]), g = MatrixOf(*a.inputs[3]), y = MatrixOf(*a.outputs[0]);
    const int64_t key_bytes = static_cast<int64_t>(c_.attrs.num_k_heads) * c_.attrs.head_k_dim * c_.act_bytes();
    char* q = static_cast<char*>(c_.Row(qkv, phase));
    kernels::LinearMixerParams p = {};
    p.q = q;
    p.k = q + key_bytes;
    p.v = q + 2 * key_bytes;
    p.q_stride = p.k_stride = p.v_stride = qkv.stride;
    p.z = c_.Row(z, phase);
    p.z_stride = z.stride;
    p.gates = DecayOf(c_.attrs, c_.Row(g, phase), g.stride, c_.Row(b, phase), b.stride, Floats(*a.weights[1]), Floats(*a.weights[2]));
    p.conv_weight = Floats(*a.weights[0]);
    p.conv_width = static_cast<int32_t>(c_.attrs.conv_width);
    p.conv_state = a.caches[0]->base;
    p.conv_state_slot_stride_bytes = a.caches[0]->unit_stride_bytes;
    p.state = StateOf(*a.caches[1]);
    p.norm_weight = Floats(*a.weights[3]);
    p.norm_eps = c_.attrs.norm_eps;
    p.l2_eps = c_.attrs.l2_eps;
    p.gate_activation = GateOf(c_.attrs);
    p.out = c_.Row(y, phase);
    p.out_stride = y.stride;
    p.batch = c_.view->Batch(phase);
    p.dims = DimsOf(c_.attrs);
    p.workspace = a.workspace;
    return FromKernel(fn_(p, c_.parallel), RT_OP_LINEAR_MIXER);
  }

 private:
  kernels::LinearMixerFn fn_;
};

class ConvPlan : public ConvPlanBase {
 public:
  explicit ConvPlan(const Common& common) : ConvPlanBase(common) {
    const auto& table = c_.isa == kernels::Isa::kAvx512Bf16 ? kernels::CausalConv1dAvx512Bf16() : kernels::CausalConv1dAvx2();
    fn_ = c_.act == DType::kF32 ? table.f32 : table.bf16;
  }
  Status Execute(const rt_exec_args& a) override {
    const StepView::Phase& phase = c_.view->phase(a.phase);
    if (phase.num_tokens == 0) return Status::Ok();
    const Matrix x = MatrixOf(*a.inputs[0]), u = MatrixOf(*a.outputs[0]);
    return FromKernel(fn_({c_.Row(x, phase), x.stride, Floats(*a.weights[0]), c_.Row(u, phase), u.stride, a.caches[0]->base, a.caches[0]->unit_stride_bytes, c_.view->Batch(phase), ChannelsOf(c_.attrs),
                           static_cast<int32_t>(c_.attrs.conv_width)},
                          c_.parallel),
                      RT_OP_CAUSAL_CONV1D);
  }

 private:
  kernels::CausalConv1dFn fn_;
};

class DeltaPlan : public plugin::Plan {
 public:
  explicit DeltaPlan(const Common& common) : c_(common), table_(c_.isa == kernels::Isa::kAvx512Bf16 ? kernels::GatedDeltaAvx512Bf16() : kernels::GatedDeltaAvx2()) {}
  uint64_t workspace_bytes() const override { return kernels::GatedDeltaWorkspaceBytes(DimsOf(c_.attrs), c_.parallel.num_threads); }
  Status Execute(const rt_exec_args& a) override {
    const StepView::Phase& phase = c_.view->phase(a.phase);
    if (phase.num_tokens == 0) return Status::Ok();
    const bool f32 = c_.act == DType::kF32, chunked = a.phase == RT_PHASE_PREFILL;
    const auto fn = chunked ? (f32 ? table_.chunked_f32 : table_.chunked_bf16) : (f32 ? table_.recurrent_f32 : table_.recurrent_bf16);
    const Matrix u = MatrixOf(*a.inputs[0]), b = MatrixOf(*a.inputs[1]), g = MatrixOf(*a.inputs[2]), o = MatrixOf(*a.outputs[0]);
    const int64_t key_bytes = static_cast<int64_t>(c_.attrs.num_k_heads) * c_.attrs.head_k_dim * c_.act_bytes();
    const char* q = static_cast<const char*>(c_.Row(u, phase));
    kernels::GatedDeltaParams p = {};
    p.q = q;
    p.k = q + key_bytes;
    p.v = q + 2 * key_bytes;
    p.q_stride = p.k_stride = p.v_stride = u.stride;
    p.gates = DecayOf(c_.attrs, c_.Row(g, phase), g.stride, c_.Row(b, phase), b.stride, Floats(*a.weights[0]), Floats(*a.weights[1]));
    p.out = c_.Row(o, phase);
    p.out_stride = o.stride;
    p.state = StateOf(*a.caches[0]);
    p.batch = c_.view->Batch(phase);
    p.dims = DimsOf(c_.attrs);
    p.l2_eps = c_.attrs.l2_eps;
    p.workspace = a.workspace;
    return FromKernel(fn(p, c_.parallel), RT_OP_GATED_DELTA_RULE);
  }

 private:
  Common c_;
  const kernels::GatedDeltaKernels& table_;
};

class GatedNormPlan : public plugin::Plan {
 public:
  explicit GatedNormPlan(const Common& common) : c_(common) {
    const auto& table = c_.isa == kernels::Isa::kAvx512Bf16 ? kernels::GatedRmsNormAvx512Bf16() : kernels::GatedRmsNormAvx2();
    fn_ = c_.act == DType::kF32 ? table.f32 : table.bf16;
  }
  Status Execute(const rt_exec_args& a) override {
    const StepView::Phase& phase = c_.view->phase(a.phase);
    if (phase.num_tokens == 0) return Status::Ok();
    const Matrix o = MatrixOf(*a.inputs[0]), z = MatrixOf(*a.inputs[1]), y = MatrixOf(*a.outputs[0]);
    RT_RETURN_IF_ERROR(FromKernel(fn_({c_.Row(o, phase), o.stride, c_.Row(z, phase), z.stride, Floats(*a.weights[0]), c_.Row(y, phase), y.stride, phase.num_tokens, static_cast<int32_t>(c_.attrs.num_v_heads),
                                       static_cast<int32_t>(c_.attrs.head_v_dim), c_.attrs.norm_eps, GateOf(c_.attrs)},
                                      c_.parallel),
                                  RT_OP_GATED_RMS_NORM));
    return Status::Ok();
  }

 private:
  Common c_;
  kernels::GatedRmsNormFn fn_;
};

class LinearAttention : public plugin::BackendProvider {
 public:
  LinearAttention(const std::vector<Level>& levels, const Parallel& parallel) : parallel_(parallel) {
    for (const Level& level : levels) AddLevel(level);
    rows_.Freeze();
  }
  const plugin::RowTable& rows() const override { return rows_; }

  void Supports(uint32_t row_idx, const plugin::ProblemView& problem, rt_verdict* verdict) const override {
    const int64_t in = problem.Get(RT_COL_IN_DTYPE);
    if (problem.Get(RT_COL_OUT_DTYPE) != in) return plugin::Refuse(verdict, RT_COL_OUT_DTYPE, "must equal in_dtype");
    if (problem.Find(RT_COL_CONV_DTYPE).value_or(in) != in) return plugin::Refuse(verdict, RT_COL_CONV_DTYPE, "the window is kept in the dtype of the activations");
    if (problem.attrs<rt_attrs_mixer>() == nullptr) return plugin::Refuse(verdict, 0, "attributes are missing");
    const int64_t width = problem.Find(RT_COL_GATE_WIDTH).value_or(1), key_dim = problem.Find(RT_COL_HEAD_K_DIM).value_or(width);
    if (width != 1 && width != key_dim) return plugin::Refuse(verdict, RT_COL_GATE_WIDTH, "one decay a head or one a key channel: expected 1 or head_k_dim");
    (void)row_idx;
  }

  Result<std::unique_ptr<plugin::Plan>> CreatePlan(const rt_plan_desc& desc) override {
    const plugin::ProblemView problem(*desc.problem);
    const auto* attrs = problem.attrs<rt_attrs_mixer>();
    if (attrs == nullptr) return {Code::kInvalidArgument, "rt_attrs_mixer is missing"};
    if (desc.backend == nullptr) return {Code::kInvalidArgument, "a linear-attention plan needs its backend"};
    const auto* backend = static_cast<const LinearBackend*>(reinterpret_cast<plugin::Backend*>(desc.backend));
    const Common common = {*attrs, isas_[desc.row_idx], KernelDType(problem.Get(RT_COL_IN_DTYPE)), &backend->view(), parallel_};
    const std::string& op = rows_.spec(desc.row_idx).op;
    if (op == RT_OP_LINEAR_MIXER) return std::unique_ptr<plugin::Plan>(std::make_unique<MixerPlan>(common));
    if (op == RT_OP_CAUSAL_CONV1D) return std::unique_ptr<plugin::Plan>(std::make_unique<ConvPlan>(common));
    if (op == RT_OP_GATED_DELTA_RULE) return std::unique_ptr<plugin::Plan>(std::make_unique<DeltaPlan>(common));
    return std::unique_ptr<plugin::Plan>(std::make_unique<GatedNormPlan>(common));
  }

  Result<std::unique_ptr<plugin::Backend>> CreateBackend(const rt_backend_desc&) override { return std::unique_ptr<plugin::Backend>(std::make_unique<LinearBackend>()); }

  Status ExportState(const rt_cache_view& view, const rt_problem& problem, int32_t slot, float* out) override {
    return Convert(view, problem, slot, [&](char* panel, int64_t lane, DType dtype, int64_t index) { out[index] = Load(panel, lane, dtype); });
  }
  Status ImportState(const rt_cache_view& view, const rt_problem& problem, int32_t slot, const float* in) override {
    return Convert(view, problem, slot, [&](char* panel, int64_t lane, DType dtype, int64_t index) { Store(panel, lane, dtype, index < 0 ? 0.0f : in[index]); });
  }

 private:
  static float Load(const char* base, int64_t i, DType dtype) {
    if (dtype == DType::kF32) return reinterpret_cast<const float*>(base)[i];
    if (dtype == DType::kBf16) return kernels::ToFloat(reinterpret_cast<const kernels::bf16*>(base)[i]);
    return kernels::ToFloat(reinterpret_cast<const kernels::f16*>(base)[i]);
  }
  static void Store(char* base, int64_t i, DType dtype, float value) {
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(base)[i] = value;
    } else if (dtype == DType::kBf16) {
      reinterpret_cast<kernels::bf16*>(base)[i] = kernels::FromFloat<kernels::bf16>(value);
    } else {
      reinterpret_cast<kernels::f16*>(base)[i] = kernels::FromFloat<kernels::f16>(value);
    }
  }

  // Visits every lane of [Hv][ceil(Dv/16)][Dk][16]; index of the element in [Hv, Dk, Dv], -1 for tail lanes (import only).
  template <typename F>
  Status Convert(const rt_cache_view& view, const rt_problem& problem, int32_t slot, F&& visit) {
    const auto* a = plugin::ProblemView(problem).attrs<rt_attrs_mixer>();
    if (a == nullptr || view.layout != RT_STATE_LAYOUT_VPANEL16) return {Code::kInvalidArgument, "expected a VPANEL16 state and rt_attrs_mixer"};
    const DType dtype = KernelDType(view.dtype);
    const int64_t dk = a->head_k_dim, dv = a->head_v_dim, panels = (dv + 15) / 16;
    char* base = static_cast<char*>(view.base) + slot * view.unit_stride_bytes;
    for (int64_t h = 0; h < a->num_v_heads; ++h) {
      for (int64_t p = 0; p < panels; ++p) {
        for (int64_t i = 0; i < dk; ++i) {
          for (int64_t lane = 0; lane < 16 && p * 16 + lane < dv; ++lane) visit(base, ((h * panels + p) * dk + i) * 16 + lane, dtype, (h * dk + i) * dv + p * 16 + lane);
        }
      }
    }
    return Status::Ok();
  }

  void Add(const char* op, const Level& level, const char* suffix, std::vector<plugin::Constraint> constraints, uint32_t guarantees) {
    plugin::RowSpec spec;
    spec.op = op;
    spec.phases = RT_PHASE_DECODE | RT_PHASE_PREFILL;
    spec.kernel = std::string(op) + suffix + "." + level.name;
    spec.score = level.score;
    spec.guarantees = guarantees;
    spec.constraints = std::move(constraints);
    spec.unavailable = level.unavailable;
    spec.unavailable_reason = level.reason;
    rows_.Add(std::move(spec));
    isas_.push_back(level.isa);
  }

  void AddLevel(const Level& level) {
    using plugin::Any;
    using plugin::OneOf;
    using plugin::Range;
    const uint32_t exact = RT_ROW_RUN_DETERMINISTIC | RT_ROW_BATCH_INVARIANT | RT_ROW_NAN_SAFE_PADDING;
    // A narrow state is rounded once per call, so its bits depend on how the scheduler cuts a sequence.
    const uint32_t narrow = RT_ROW_RUN_DETERMINISTIC | RT_ROW_NAN_SAFE_PADDING;
    const std::vector<plugin::Constraint> acts = {OneOf(RT_COL_IN_DTYPE, ActDTypes()), OneOf(RT_COL_OUT_DTYPE, ActDTypes())};
    const auto join = [](std::vector<plugin::Constraint> a, const std::vector<plugin::Constraint>& b) {
      a.insert(a.end(), b.begin(), b.end());
      return a;
    };
    const std::vector<plugin::Constraint> heads = {Range(RT_COL_HEAD_K_DIM, 1, 512), Range(RT_COL_HEAD_V_DIM, 1, 512), Any(RT_COL_NUM_K_HEADS), Any(RT_COL_NUM_V_HEADS), Any(RT_COL_HEAD_RATIO),
                                                   OneOf(RT_COL_GATE_FORM, {RT_GATE_SOFTPLUS_DECAY, RT_GATE_BOUNDED_SIGMOID}), Any(RT_COL_GATE_WIDTH), Range(RT_COL_GATE_BOUND_MILLI, -5000, 0), Range(RT_COL_BETA_SCALE_MILLI, 1, 2000)};
    const std::vector<plugin::Constraint> conv = {OneOf(RT_COL_CONV_DTYPE, ActDTypes()), Range(RT_COL_CONV_WIDTH, kernels::kMinConvWidth, kernels::kMaxConvWidth)};
    const std::vector<plugin::Constraint> gate = {OneOf(RT_COL_OUTPUT_GATE, {RT_ACT_SILU, RT_ACT_SIGMOID})};
    for (const bool wide : {true, false}) {
      std::vector<int64_t> dtypes = {RT_DTYPE_BF16, RT_DTYPE_F16};
      if (wide) dtypes = {RT_DTYPE_F32};
      const std::vector<plugin::Constraint> state = {OneOf(RT_COL_STATE_DTYPE, dtypes), OneOf(RT_COL_STATE_LAYOUT, {RT_STATE_LAYOUT_VPANEL16})};
      const char* suffix = wide ? "" : "_narrow";
      Add(RT_OP_LINEAR_MIXER, level, suffix, join(join(join(join(acts, heads), conv), gate), state), wide ? exact : narrow);
      Add(RT_OP_GATED_DELTA_RULE, level, suffix, join(join(acts, heads), state), wide ? exact : narrow);
    }
    Add(RT_OP_CAUSAL_CONV1D, level, "", join(join(acts, conv), {Any(RT_COL_WIDTH)}), exact);
    Add(RT_OP_GATED_RMS_NORM, level, "", join(join(acts, gate), {Range(RT_COL_HEAD_V_DIM, 1, 512)}), exact);
  }

  Parallel parallel_;
  plugin::RowTable rows_;
  std::vector<kernels::Isa> isas_;
};

}  // namespace

std::unique_ptr<plugin::BackendProvider> MakeLinearAttention(const std::vector<Level>& levels, const kernels::Parallel& parallel) { return std::make_unique<LinearAttention>(levels, parallel); }

}  // namespace rt::cpu
