// Dense, row-wise and routing ops.
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#ifdef RT_HAVE_ONEDNN
#include "kernels/gemm/onednn_gemm.h"
#endif
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/sampling/sampling.h"
#include "plugins/cpu/cpu_moe.h"
#include "plugins/cpu/cpu_plugin.h"

#include <rt/plugin/op_defs.h>

#include <algorithm>
#include <functional>

namespace rt::cpu {
namespace {

using kernels::DType;
using kernels::Parallel;

// A plan is a function over the arguments plus its workspace need; these ops build nothing after creation.
class FunctionPlan : public plugin::Plan {
 public:
  using Body = std::function<Status(const rt_exec_args&)>;
  FunctionPlan(Body body, uint64_t workspace) : body_(std::move(body)), workspace_(workspace) {}
  uint64_t workspace_bytes() const override { return workspace_; }
  Status Execute(const rt_exec_args& args) override { return body_(args); }

 private:
  Body body_;
  uint64_t workspace_;
};

#ifdef RT_HAVE_ONEDNN
// oneDNN for more rows than our own streaming kernel serves best; every primitive is made with the plan.
class OneDnnLinearPlan : public plugin::Plan {
 public:
  static constexpr int64_t kOwnRows = 16;

  static Result<std::unique_ptr<plugin::Plan>> Make(kernels::GemmFn own, kernels::Isa isa, const plugin::ProblemView& p, int32_t max_tokens, const Parallel& parallel) {
    kernels::OneDnnGemm::Options options;
    options.n = p.Get(RT_COL_OUT_FEATURES);
    options.k = p.Get(RT_COL_IN_FEATURES);
    options.dtype = KernelDType(p.Get(RT_COL_IN_DTYPE));
    options.isa = isa;
    options.num_threads = parallel.num_threads;
    for (int64_t m = 2 * kOwnRows; m < 2 * int64_t{max_tokens} && m <= 512; m *= 2) options.m_buckets.push_back(m);
    if (options.m_buckets.empty()) options.m_buckets = {2 * kOwnRows};
    const int64_t before = kernels::OneDnnGemm::num_primitives_created();
    std::string why;
    auto gemm = kernels::OneDnnGemm::Create(options, &why);
    if (gemm == nullptr) return {Code::kUnsupported, "oneDNN: " + why};
    auto plan = std::make_unique<OneDnnLinearPlan>();
    plan->own_ = own;
    plan->gemm_ = std::move(gemm);
    plan->out_ = KernelDType(p.Get(RT_COL_OUT_DTYPE));
    plan->parallel_ = parallel;
    plan->num_builds_ = static_cast<uint64_t>(kernels::OneDnnGemm::num_primitives_created() - before);
    return std::unique_ptr<plugin::Plan>(std::move(plan));
  }
  uint64_t workspace_bytes() const override { return std::max<uint64_t>(gemm_->workspace_bytes(), kernels::GemmWorkspaceBytes(parallel_.num_threads)); }
  uint64_t num_builds() const override { return num_builds_; }
  Status Execute(const rt_exec_args& a) override {
    const Matrix x = MatrixOf(*a.inputs[0]), y = MatrixOf(*a.outputs[0]);
    const kernels::GemmArgs args = {x.rows, y.columns, x.columns, x.data, x.stride, DataOf(*a.weights[0]), y.data, y.stride, false, a.workspace};
    return FromKernel(x.rows <= kOwnRows ? own_(args, parallel_) : gemm_->Run(args, out_, parallel_), RT_OP_LINEAR);
  }

 private:
  kernels::GemmFn own_ = nullptr;
  std::unique_ptr<kernels::OneDnnGemm> gemm_;
  DType out_ = DType::kF32;
  Parallel parallel_;
  uint64_t num_builds_ = 0;
};
#endif

class Ops : public plugin::OpProvider {
 public:
  Ops(const std::vector<Level>& levels, const Parallel& parallel) : parallel_(parallel) {
    for (const Level& level : levels) AddLevel(level);
    AddPlain();
    rows_.Freeze();
  }

  const plugin::RowTable& rows() const override { return rows_; }

  void Supports(uint32_t row_idx, const plugin::ProblemView& problem, rt_verdict* verdict) const override {
    const std::string& op = rows_.spec(row_idx).op;
    const int64_t in = problem.Get(RT_COL_IN_DTYPE), out = problem.Get(RT_COL_OUT_DTYPE), weight = problem.Get(RT_COL_WEIGHT_DTYPE);
    if (op == RT_OP_LINEAR) {
      if (weight != in) return plugin::Refuse(verdict, RT_COL_WEIGHT_DTYPE, "weights must have the dtype of the activations");
      if (in == RT_DTYPE_F32 && out != RT_DTYPE_F32) return plugin::Refuse(verdict, RT_COL_OUT_DTYPE, "float32 products are written as float32");
    } else if ((op == RT_OP_SILU_MUL || op == RT_OP_GATHER_ROWS) && in != out) {
      return plugin::Refuse(verdict, RT_COL_OUT_DTYPE, "must equal in_dtype");
    } else if (op == RT_OP_MOE_EXPERTS) {
      MoeExpertsSupports(problem, verdict);
    } else if (op == RT_OP_RMS_NORM || op == RT_OP_ADD_RMS_NORM) {
      const auto& kernels = kernels::RmsNormAvx2();
      const bool found = op == RT_OP_RMS_NORM ? FindRmsNorm(kernels, KernelDType(in), KernelDType(out)) != nullptr : FindAddRmsNorm(kernels, KernelDType(in), KernelDType(out)) != nullptr;
      if (!found) return plugin::Refuse(verdict, RT_COL_OUT_DTYPE, "no kernel for this pair of dtypes");
    }
  }

  Result<std::unique_ptr<plugin::Plan>> CreatePlan(const rt_plan_desc& desc) override {
    const Entry& entry = entries_[desc.row_idx];
    return entry.make(*this, entry.isa, plugin::ProblemView(*desc.problem), desc);
  }

 private:
  using Made = Result<std::unique_ptr<plugin::Plan>>;
  using Maker = Made (*)(const Ops&, kernels::Isa, const plugin::ProblemView&, const rt_plan_desc&);
  struct Entry {
    kernels::Isa isa;
    Maker make;
  };

  static Made Plan(FunctionPlan::Body body, uint64_t workspace = 0) { return std::unique_ptr<plugin::Plan>(std::make_unique<FunctionPlan>(std::move(body), workspace)); }

  static constexpr uint32_t kExact = RT_ROW_RUN_DETERMINISTIC | RT_ROW_BATCH_INVARIANT | RT_ROW_NAN_SAFE_PADDING;

  void Add(const char* op, const Level* level, Maker make, std::vector<plugin::Constraint> constraints, const char* suffix = "", int32_t score_change = 0, uint32_t guarantees = kExact) {
    plugin::RowSpec spec;
    spec.op = op;
    spec.kernel = std::string(op) + suffix + "." + (level == nullptr ? "portable" : level->name);
    spec.score = (level == nullptr ? 250 : level->score) + score_change;
    spec.guarantees = guarantees;
    spec.constraints = std::move(constraints);
    if (level != nullptr) {
      spec.unavailable = level->unavailable;
      spec.unavailable_reason = level->reason;
    }
    rows_.Add(std::move(spec));
    entries_.push_back({level == nullptr ? kernels::Isa::kAvx2 : level->isa, make});
  }

  void AddLevel(const Level& level) {
    using plugin::Any;
    using plugin::OneOf;
    const auto acts = [](uint32_t column) { return OneOf(column, ActDTypes()); };
    Add(RT_OP_EMBEDDING, &level, Embedding, {acts(RT_COL_WEIGHT_DTYPE), OneOf(RT_COL_OUT_DTYPE, {RT_DTYPE_F32}), Any(RT_COL_WIDTH)});
    const std::vector<plugin::Constraint> norm = {acts(RT_COL_IN_DTYPE), acts(RT_COL_OUT_DTYPE), Any(RT_COL_WIDTH), OneOf(RT_COL_WEIGHT_OFFSET_MILLI, {0, 1000})};
    Add(RT_OP_RMS_NORM, &level, RmsNorm, norm);
    Add(RT_OP_ADD_RMS_NORM, &level, AddRmsNorm, norm);
    const std::vector<plugin::Constraint> linear = {acts(RT_COL_IN_DTYPE), acts(RT_COL_WEIGHT_DTYPE), acts(RT_COL_OUT_DTYPE), Any(RT_COL_IN_FEATURES), Any(RT_COL_OUT_FEATURES)};
    Add(RT_OP_LINEAR, &level, Linear, linear);
#ifdef RT_HAVE_ONEDNN
    // Ranks below our own kernel, which measures faster here and takes every batch size in one order of operations
    // (kernels/gemm/README.md); a pin selects it. One instruction set a process, hence one level.
    if (level.isa == kernels::Isa::kAvx512Bf16) Add(RT_OP_LINEAR, &level, OneDnnLinear, linear, "_onednn", -10, RT_ROW_RUN_DETERMINISTIC | RT_ROW_NAN_SAFE_PADDING);
#endif
    Add(RT_OP_SAMPLE, &level, Sample, {OneOf(RT_COL_IN_DTYPE, {RT_DTYPE_F32}), Any(RT_COL_VOCAB_SIZE)});
    Add(RT_OP_ADD, &level, ResidualAdd, {acts(RT_COL_IN_DTYPE), OneOf(RT_COL_OUT_DTYPE, {RT_DTYPE_F32}), Any(RT_COL_WIDTH)});
    Add(RT_OP_SILU_MUL, &level, SiluMul, {acts(RT_COL_IN_DTYPE), acts(RT_COL_OUT_DTYPE), Any(RT_COL_WIDTH)});
    Add(RT_OP_MOE_ROUTER, &level, MoeRouter, MoeRouterConstraints());
    Add(RT_OP_MOE_EXPERTS, &level, MoeExperts, MoeExpertsConstraints());
  }

  void AddPlain() {
    Add(RT_OP_GATHER_ROWS, nullptr, GatherRows, {plugin::OneOf(RT_COL_IN_DTYPE, ActDTypes()), plugin::OneOf(RT_COL_OUT_DTYPE, ActDTypes()), plugin::Any(RT_COL_WIDTH)});
    Add(RT_OP_SELECT_IDS, nullptr, SelectIds, {});
  }

  static const kernels::ElementwiseKernels& Elementwise(kernels::Isa isa) { return isa == kernels::Isa::kAvx512Bf16 ? kernels::ElementwiseAvx512Bf16() : kernels::ElementwiseAvx2(); }
  static const kernels::RmsNormKernels& Norms(kernels::Isa isa) { return isa == kernels::Isa::kAvx512Bf16 ? kernels::RmsNormAvx512Bf16() : kernels::RmsNormAvx2(); }

  static Made Embedding(const Ops& self, kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc&) {
    const auto fn = KernelDType(p.Get(RT_COL_WEIGHT_DTYPE)) == DType::kF32 ? Elementwise(isa).embedding_f32 : Elementwise(isa).embedding_bf16;
    return Plan([fn, parallel = self.parallel_](const rt_exec_args& a) {
      const Matrix out = MatrixOf(*a.outputs[0]);
      const rt_tensor& table = *a.weights[0];
      return FromKernel(fn({out.rows, table.shape[0], out.columns, static_cast<const int32_t*>(DataOf(*a.inputs[0])), DataOf(table), out.as<float>(), out.stride}, parallel), RT_OP_EMBEDDING);
    });
  }

  static Made RmsNorm(const Ops& self, kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc&) {
    const auto* attrs = p.attrs<rt_attrs_norm>();
    if (attrs == nullptr) return {Code::kInvalidArgument, "rms_norm: attributes are missing"};
    const auto fn = FindRmsNorm(Norms(isa), KernelDType(p.Get(RT_COL_IN_DTYPE)), KernelDType(p.Get(RT_COL_OUT_DTYPE)));
    return Plan([fn, attrs = *attrs, parallel = self.parallel_](const rt_exec_args& a) {
      const Matrix x = MatrixOf(*a.inputs[0]), y = MatrixOf(*a.outputs[0]);
      return FromKernel(fn({x.rows, x.columns, x.data, x.stride, static_cast<const float*>(DataOf(*a.weights[0])), attrs.weight_offset, attrs.eps, y.data, y.stride}, parallel), RT_OP_RMS_NORM);
    });
  }

  static Made AddRmsNorm(const Ops& self, kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc&) {
    const auto* attrs = p.attrs<rt_attrs_norm>();
    if (attrs == nullptr) return {Code::kInvalidArgument, "add_rms_norm: attributes are missing"};
    const auto fn = FindAddRmsNorm(Norms(isa), KernelDType(p.Get(RT_COL_IN_DTYPE)), KernelDType(p.Get(RT_COL_OUT_DTYPE)));
    return Plan([fn, attrs = *attrs, parallel = self.parallel_](const rt_exec_args& a) {
      const Matrix r = MatrixOf(*a.inputs[0]), d = MatrixOf(*a.inputs[1]), y = MatrixOf(*a.outputs[1]);
      return FromKernel(fn({r.rows, r.columns, r.as<float>(), r.stride, d.data, d.stride, static_cast<const float*>(DataOf(*a.weights[0])), attrs.weight_offset, attrs.eps, y.data, y.stride}, parallel),
                        RT_OP_ADD_RMS_NORM);
    });
  }

  static Made Linear(const Ops& self, kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc&) {
    const auto& kernels = isa == kernels::Isa::kAvx512Bf16 ? kernels::GemmAvx512Bf16() : kernels::GemmAvx2();
    const auto fn = FindGemm(kernels, KernelDType(p.Get(RT_COL_IN_DTYPE)), KernelDType(p.Get(RT_COL_WEIGHT_DTYPE)), KernelDType(p.Get(RT_COL_OUT_DTYPE)));
    if (fn == nullptr) return {Code::kUnsupported, "linear: no kernel for these dtypes"};
    return Plan(
        [fn, parallel = self.parallel_](const rt_exec_args& a) {
          const Matrix x = MatrixOf(*a.inputs[0]), y = MatrixOf(*a.outputs[0]);
          return FromKernel(fn({x.rows, y.columns, x.columns, x.data, x.stride, DataOf(*a.weights[0]), y.data, y.stride, false, a.workspace}, parallel), RT_OP_LINEAR);
        },
        kernels::GemmWorkspaceBytes(self.parallel_.num_threads));
  }

#ifdef RT_HAVE_ONEDNN
  static Made OneDnnLinear(const Ops& self, kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc& desc) {
    const auto own = FindGemm(kernels::GemmAvx512Bf16(), KernelDType(p.Get(RT_COL_IN_DTYPE)), KernelDType(p.Get(RT_COL_WEIGHT_DTYPE)), KernelDType(p.Get(RT_COL_OUT_DTYPE)));
    if (own == nullptr) return {Code::kUnsupported, "linear: no kernel for these dtypes"};
    return OneDnnLinearPlan::Make(own, isa, p, desc.max_tokens, self.parallel_);
  }
#endif

  static Made SiluMul(const Ops& self, kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc&) {
    const auto fn = KernelDType(p.Get(RT_COL_IN_DTYPE)) == DType::kF32 ? Elementwise(isa).silu_mul_f32 : Elementwise(isa).silu_mul_bf16;
    return Plan([fn, parallel = self.parallel_](const rt_exec_args& a) {
      const Matrix gate = MatrixOf(*a.inputs[0]), up = MatrixOf(*a.inputs[1]), y = MatrixOf(*a.outputs[0]);
      return FromKernel(fn({y.rows, y.columns, gate.data, gate.stride, up.data, up.stride, y.data, y.stride}, parallel), RT_OP_SILU_MUL);
    });
  }

  static Made MoeRouter(const Ops& self, kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc&) { return MakeMoeRouterPlan(isa, p, self.parallel_); }
  static Made MoeExperts(const Ops& self, kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc& desc) { return MakeMoeExpertsPlan(isa, p, desc, self.parallel_); }

  static Made Sample(const Ops& self, kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc& desc) {
    const auto* attrs = p.attrs<rt_attrs_sample>();
    if (attrs == nullptr) return {Code::kInvalidArgument, "sample: attributes are missing"};
    const auto fn = (isa == kernels::Isa::kAvx512Bf16 ? kernels::SamplingAvx512Bf16() : kernels::SamplingAvx2()).sample;
    return Plan(
        [fn, attrs = *attrs, parallel = self.parallel_](const rt_exec_args& a) {
          const Matrix logits = MatrixOf(*a.inputs[RT_SAMPLE_LOGITS]);
          const auto in = [&]<typename T>(T, uint32_t i) { return static_cast<const T*>(DataOf(*a.inputs[i])); };
          const auto out = [&]<typename T>(T, uint32_t i) { return static_cast<T*>(DataOf(*a.outputs[i])); };
          constexpr float f = 0;
          constexpr int32_t i = 0;
          constexpr uint64_t u = 0;
          kernels::SampleArgs s = {};
          s.num_rows = static_cast<int32_t>(logits.rows);
          s.vocab_size = static_cast<int32_t>(logits.columns);
          s.vocab_limit = static_cast<int32_t>(attrs.vocab_limit);
          s.max_top = static_cast<int32_t>(attrs.max_top);
          s.logits = logits.as<float>();
          s.logits_stride = logits.stride;
          s.temperature = in(f, RT_SAMPLE_TEMPERATURE);
          s.top_k = in(i, RT_SAMPLE_TOP_K);
          s.top_p = in(f, RT_SAMPLE_TOP_P);
          s.min_p = in(f, RT_SAMPLE_MIN_P);
          s.presence = in(f, RT_SAMPLE_PRESENCE);
          s.frequency = in(f, RT_SAMPLE_FREQUENCY);
          s.repetition = in(f, RT_SAMPLE_REPETITION);
          s.seed = in(u, RT_SAMPLE_SEED);
          s.position = in(u, RT_SAMPLE_POSITION);
          s.pending_ids = in(i, RT_SAMPLE_PENDING_IDS);
          s.history_offsets = in(i, RT_SAMPLE_HISTORY_OFFSETS);
          s.history_ids = in(i, RT_SAMPLE_HISTORY_IDS);
          s.history_counts = in(i, RT_SAMPLE_HISTORY_COUNTS);
          s.history_prompt = in(uint8_t{0}, RT_SAMPLE_HISTORY_PROMPT);
          s.bias_offsets = in(i, RT_SAMPLE_BIAS_OFFSETS);
          s.bias_ids = in(i, RT_SAMPLE_BIAS_IDS);
          s.bias_values = in(f, RT_SAMPLE_BIAS_VALUES);
          s.num_top = in(i, RT_SAMPLE_NUM_TOP);
          s.ids = out(i, RT_SAMPLE_OUT_IDS);
          s.logprobs = out(f, RT_SAMPLE_OUT_LOGPROB);
          s.top_ids = out(i, RT_SAMPLE_OUT_TOP_IDS);
          s.top_logprobs = out(f, RT_SAMPLE_OUT_TOP_LOGPROBS);
          s.status = out(i, RT_SAMPLE_OUT_STATUS);
          s.workspace = a.workspace;
          return FromKernel(fn(s, parallel), RT_OP_SAMPLE);
        },
        kernels::SampleWorkspaceBytes(desc.max_rows, p.Get(RT_COL_VOCAB_SIZE), self.parallel_.num_threads));
  }

  static Made ResidualAdd(const Ops& self, kernels::Isa isa, const plugin::ProblemView& p, const rt_plan_desc&) {
    const auto fn = KernelDType(p.Get(RT_COL_IN_DTYPE)) == DType::kF32 ? Elementwise(isa).add_f32 : Elementwise(isa).add_bf16;
    return Plan([fn, parallel = self.parallel_](const rt_exec_args& a) {
      const Matrix r = MatrixOf(*a.inputs[0]), d = MatrixOf(*a.inputs[1]);
      return FromKernel(fn({r.rows, r.columns, r.as<float>(), r.stride, d.data, d.stride}, parallel), RT_OP_ADD);
    });
  }

  static Made GatherRows(const Ops& self, kernels::Isa, const plugin::ProblemView& p, const rt_plan_desc&) {
    const int64_t bytes = kernels::SizeOf(KernelDType(p.Get(RT_COL_IN_DTYPE)));
    return Plan([bytes, parallel = self.parallel_](const rt_exec_args& a) {
      const Matrix in = MatrixOf(*a.inputs[0]), out = MatrixOf(*a.outputs[0]);
      return FromKernel(kernels::GatherRows({out.rows, out.columns * bytes, static_cast<const int32_t*>(DataOf(*a.inputs[1])), in.data, in.stride * bytes, out.data, out.stride * bytes}, parallel), RT_OP_GATHER_ROWS);
    });
  }

  static Made SelectIds(const Ops&, kernels::Isa, const plugin::ProblemView&, const rt_plan_desc&) {
    return Plan([](const rt_exec_args& a) {
      const auto ids = [](const rt_tensor& t) { return static_cast<int32_t*>(DataOf(t)); };
      return FromKernel(kernels::SelectIds({a.outputs[0]->shape[0], ids(*a.inputs[1]), ids(*a.inputs[2]), ids(*a.inputs[0]), ids(*a.outputs[0])}), RT_OP_SELECT_IDS);
    });
  }

  Parallel parallel_;
  plugin::RowTable rows_;
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<plugin::OpProvider> MakeOps(const std::vector<Level>& levels, const kernels::Parallel& parallel) { return std::make_unique<Ops>(levels, parallel); }

}  // namespace rt::cpu
