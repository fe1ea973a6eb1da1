#include "runtime/negotiation/negotiation.h"

#include <rt/plugin/model.hpp>
#include <rt/plugin/op_defs.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace rt {
namespace {

using plugin::Any;
using plugin::MultipleOf;
using plugin::OneOf;
using plugin::Range;
using plugin::RowSpec;

// A provider that only has rows; plans are never made here.
class FakeProvider : public plugin::BackendProvider {
 public:
  const plugin::RowTable& rows() const override { return rows_; }
  void Supports(uint32_t row_idx, const plugin::ProblemView& problem, rt_verdict* verdict) const override {
    if (rows_.spec(row_idx).kernel == "picky" && problem.Get(RT_COL_HEAD_V_DIM) > 64) plugin::Refuse(verdict, RT_COL_HEAD_V_DIM, "scratch holds 64, asked 128");
  }
  Result<std::unique_ptr<plugin::Plan>> CreatePlan(const rt_plan_desc&) override { return {Code::kUnsupported, "rows only"}; }
  Result<std::unique_ptr<plugin::Backend>> CreateBackend(const rt_backend_desc&) override { return {Code::kUnsupported, "rows only"}; }
  void Add(RowSpec spec) { rows_.Add(std::move(spec)); }
  void Freeze() { rows_.Freeze(); }

 private:
  plugin::RowTable rows_;
};

plugin::BackendProvider& Backend(rt_plugin_ctx* ctx) { return *reinterpret_cast<FakeProvider*>(ctx); }
plugin::OpProvider& Ops(rt_plugin_ctx* ctx) { return *reinterpret_cast<FakeProvider*>(ctx); }

std::vector<plugin::Constraint> MixerColumns(std::vector<int64_t> state_dtypes, int64_t layout) {
  return {OneOf(RT_COL_IN_DTYPE, {RT_DTYPE_BF16, RT_DTYPE_F32}), Any(RT_COL_OUT_DTYPE), OneOf(RT_COL_STATE_DTYPE, std::move(state_dtypes)), Any(RT_COL_CONV_DTYPE), OneOf(RT_COL_STATE_LAYOUT, {layout}),
          MultipleOf(RT_COL_HEAD_K_DIM, 8), Range(RT_COL_HEAD_V_DIM, 1, 256), Any(RT_COL_NUM_K_HEADS), Any(RT_COL_NUM_V_HEADS), Any(RT_COL_HEAD_RATIO), Any(RT_COL_GATE_FORM), Any(RT_COL_GATE_WIDTH), Any(RT_COL_GATE_BOUND_MILLI),
          Any(RT_COL_BETA_SCALE_MILLI), Any(RT_COL_CONV_WIDTH), Any(RT_COL_OUTPUT_GATE), Any(RT_COL_WIDTH)};
}

// One recurrent layer and one dense layer.
struct World {
  FakeProvider ops, linear;
  std::vector<KernelProvider> providers;
  NegotiationPolicy policy;

  void Row(FakeProvider& to, const char* op, uint32_t phases, const char* kernel, int score, std::vector<plugin::Constraint> constraints, uint32_t unavailable = 0, const char* why = "") {
    RowSpec spec;
    spec.op = op;
    spec.phases = phases;
    spec.kernel = kernel;
    spec.score = score;
    spec.constraints = std::move(constraints);
    spec.unavailable = unavailable;
    spec.unavailable_reason = why;
    to.Add(spec);
  }

  World() {
    const auto all = [](std::initializer_list<uint32_t> columns) {
      std::vector<plugin::Constraint> list;
      for (uint32_t c : columns) list.push_back(Any(c));
      return list;
    };
    Row(ops, RT_OP_EMBEDDING, RT_PHASE_ALL, "embed", 200, all({RT_COL_WEIGHT_DTYPE, RT_COL_OUT_DTYPE, RT_COL_WIDTH}));
    Row(ops, RT_OP_RMS_NORM, RT_PHASE_ALL, "norm", 200, all({RT_COL_IN_DTYPE, RT_COL_OUT_DTYPE, RT_COL_WIDTH, RT_COL_WEIGHT_OFFSET_MILLI}));
    Row(ops, RT_OP_LINEAR, RT_PHASE_ALL, "gemm", 200, all({RT_COL_IN_DTYPE, RT_COL_WEIGHT_DTYPE, RT_COL_OUT_DTYPE, RT_COL_IN_FEATURES, RT_COL_OUT_FEATURES}));
    Row(ops, RT_OP_SILU_MUL, RT_PHASE_ALL, "silu", 200, all({RT_COL_IN_DTYPE, RT_COL_OUT_DTYPE, RT_COL_WIDTH}));
    Row(ops, RT_OP_GATHER_ROWS, RT_PHASE_ALL, "gather", 200, all({RT_COL_IN_DTYPE, RT_COL_OUT_DTYPE, RT_COL_WIDTH}));
    Row(ops, RT_OP_ADD, RT_PHASE_ALL, "add", 200, all({RT_COL_IN_DTYPE, RT_COL_OUT_DTYPE, RT_COL_WIDTH}));
  }

  Result<NegotiationResult> Run() {
    ops.Freeze();
    linear.Freeze();
    providers = {{"alpha", "ops", RT_KIND_OPS, reinterpret_cast<rt_plugin_ctx*>(&ops), &plugin::OpApi<Ops>::table, nullptr},
                 {"beta", "linear", RT_KIND_LINEAR_ATTENTION, reinterpret_cast<rt_plugin_ctx*>(&linear), plugin::BackendApi<Backend>::table.ops, &plugin::BackendApi<Backend>::table}};
    program = Build();
    return Negotiate(&program, RT_DTYPE_BF16, providers, policy, {1, 0});
  }

  static Program Build() {
    constexpr int64_t T = RT_DIM_TOKENS, R = RT_DIM_ROWS;
    ProgramRecorder recorder([](std::string_view) { return true; });
    plugin::ProgramBuilder b(recorder.table());
    const rt_attrs_mixer mixer = {sizeof mixer, 1, 2, 128, 128, 4, RT_GATE_SOFTPLUS_DECAY, 1, RT_ACT_SILU, 0, 1, 1e-6f, 1e-6f, 0};
    const auto x = b.Value("x", T, 16, RT_VALUE_F32), h = b.Value("h", T, 16), qkv = b.Value("qkv", T, 512), z = b.Value("z", T, 256), bb = b.Value("b", T, 2), a = b.Value("a", T, 2), y = b.Value("y", T, 256);
    const auto d = b.Value("d", T, 16), m = b.Value("m", T, 16), last = b.Value("last", R, 16, RT_VALUE_F32), act = b.Value("act", R, 16), logits = b.Value("logits", R, 32, RT_VALUE_F32);
    const rt_attrs_norm norm = {sizeof norm, 1e-6f, 1, 0};
    const auto table = b.Weight("embed", {32, 16});
    b.Op(RT_OP_EMBEDDING, "embed", {b.Input(RT_INPUT_TOKEN_IDS)}, {table}, {x});
    b.Op(RT_OP_RMS_NORM, "norm", {x}, {b.Weight("n", {16}, {RT_WEIGHT_F32})}, {h}, {}, norm);
    b.Op(RT_OP_LINEAR, "qkv", {h}, {b.Weight("wqkv", {512, 16})}, {qkv});
    b.Op(RT_OP_LINEAR, "z", {h}, {b.Weight("wz", {256, 16})}, {z});
    b.Op(RT_OP_LINEAR, "b", {h}, {b.Weight("wb", {2, 16})}, {bb});
    b.Op(RT_OP_LINEAR, "a", {h}, {b.Weight("wa", {2, 16})}, {a});
    rt_cache_desc conv = {}, state = {};
    conv.role = RT_CACHE_CONV;
    state.role = RT_CACHE_RECURRENT;
    conv.extent = state.extent = RT_CACHE_PER_SEQUENCE;
    conv.dtype_set = state.dtype_set = 1u << RT_DTYPE_F32 | 1u << RT_DTYPE_BF16;
    state.default_dtype = RT_DTYPE_F32;
    b.Op(RT_OP_LINEAR_MIXER, "layers.0", {qkv, z, bb, a}, {b.Weight("conv", {512, 1, 4}, {RT_WEIGHT_F32}), b.Weight("A", {2}, {RT_WEIGHT_F32}), b.Weight("dt", {2}, {RT_WEIGHT_F32}), b.Weight("g", {128}, {RT_WEIGHT_F32})}, {y},
         {b.Cache(conv, "conv", {3, 512}), b.Cache(state, "state", {2, 128, 128})}, mixer);
    b.Op(RT_OP_LINEAR, "out", {y}, {b.Weight("wo", {16, 256})}, {d});
    b.Op(RT_OP_ADD, "add", {x, d}, {}, {x});
    b.Op(RT_OP_GATED_MLP, "mlp", {h}, {b.Weight("wg", {24, 16}), b.Weight("wu", {24, 16}), b.Weight("wd", {16, 24})}, {m});
    b.Op(RT_OP_ADD, "add2", {x, m}, {}, {x});
    b.Op(RT_OP_GATHER_ROWS, "gather", {x, b.Input(RT_INPUT_SAMPLED_ROWS)}, {}, {last});
    b.Op(RT_OP_RMS_NORM, "final", {last}, {b.Weight("f", {16}, {RT_WEIGHT_F32})}, {act}, {}, norm);
    b.Op(RT_OP_LINEAR, "lm_head", {act}, {table}, {logits});
    b.Output(RT_OUTPUT_LOGITS, 0, logits);
    b.Info({0, 32, 16, 1, 128, 0});
    EXPECT_TRUE(b.status().ok()) << b.status().ToString();
    auto program = recorder.Finish();
    EXPECT_TRUE(program.ok()) << program.status().ToString();
    return std::move(program).value();
  }

  Program program;
};

void AddFused(World& w, const char* kernel, int score, std::vector<int64_t> states = {RT_DTYPE_F32}, uint32_t phases = RT_PHASE_DECODE | RT_PHASE_PREFILL, int64_t layout = RT_STATE_LAYOUT_VPANEL16) {
  w.Row(w.linear, RT_OP_LINEAR_MIXER, phases, kernel, score, MixerColumns(std::move(states), layout));
}
void AddPieces(World& w, const char* prefix, int score, int64_t layout = RT_STATE_LAYOUT_VPANEL16) {
  for (const char* op : {RT_OP_CAUSAL_CONV1D, RT_OP_GATED_DELTA_RULE, RT_OP_GATED_RMS_NORM}) {
    w.Row(w.linear, op, RT_PHASE_DECODE | RT_PHASE_PREFILL, (std::string(prefix) + "." + op).c_str(), score, MixerColumns({RT_DTYPE_F32}, layout));
  }
}

const Decision& Find(const NegotiationResult& r, const std::string& op, uint32_t phase) {
  for (const Decision& d : r.decisions) {
    if (d.op == op && d.phase == phase) return d;
  }
  static const Decision none;
  return none;
}
std::string ChosenKernel(const Decision& d) { return d.chosen < 0 ? "-" : d.candidates[static_cast<size_t>(d.chosen)].kernel; }

TEST(Negotiation, HighestScoreWinsAndEveryLoserHasAReason) {
  World w;
  AddFused(w, "slow", 200);
  AddFused(w, "fast", 300);
  AddFused(w, "narrow", 400, {RT_DTYPE_BF16});
  const auto r = w.Run();
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  const Decision& d = Find(*r, RT_OP_LINEAR_MIXER, RT_PHASE_DECODE);
  EXPECT_EQ(ChosenKernel(d), "fast");
  ASSERT_EQ(d.candidates.size(), 3u);
  EXPECT_EQ(d.candidates[0].kernel, "narrow");
  EXPECT_EQ(d.candidates[0].reasons, std::vector<std::string>{"state_dtype: supports bfloat16, asked float32"});
  EXPECT_EQ(d.candidates[2].verdict, Verdict::kEligible);
}

TEST(Negotiation, MergedProductsAreOneProblem) {
  World w;
  AddFused(w, "fused", 300);
  const auto r = w.Run();
  ASSERT_TRUE(r.ok());
  int products = 0;
  for (const Stage& s : r->stages) products += s.op.op == RT_OP_LINEAR;
  EXPECT_EQ(products, 4);  // (qkv z b a gate up), out, down, lm_head
}

TEST(Negotiation, UnclaimedCompositesRunAsPiecesWithoutBeingADowngrade) {
  World w;
  AddPieces(w, "p", 200);
  w.policy.strict = true;
  const auto r = w.Run();
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_TRUE(Find(*r, RT_OP_LINEAR_MIXER, RT_PHASE_PREFILL).decomposed);
  EXPECT_EQ(ChosenKernel(Find(*r, RT_OP_GATED_DELTA_RULE, RT_PHASE_DECODE)), std::string("p.") + RT_OP_GATED_DELTA_RULE);
  EXPECT_TRUE(Find(*r, RT_OP_GATED_MLP, RT_PHASE_ALL).decomposed);
}

TEST(Negotiation, RefusedFusedRowIsADowngradeAndAnErrorUnderStrict) {
  for (const bool strict : {false, true}) {
    World w;
    AddFused(w, "picky", 400);
    AddPieces(w, "p", 200);
    w.policy.strict = strict;
    const auto r = w.Run();
    EXPECT_EQ(r.ok(), !strict);
    if (strict) {
      EXPECT_NE(r.status().message().find("negotiation.strict: linear_mixer/decode: runs as its pieces because the fused rows refused: picky (beta): refused, head_v_dim: scratch holds 64, asked 128"), std::string::npos) << r.status().message();
    } else {
      ASSERT_EQ(r->findings.size(), 2u);  // decode and prefill
      EXPECT_TRUE(r->findings[0].downgrade);
    }
  }
}

TEST(Negotiation, PhasesMayDifferButAgreeOnTheStateLayout) {
  World w;
  AddFused(w, "decode_vk", 400, {RT_DTYPE_F32}, RT_PHASE_DECODE, RT_STATE_LAYOUT_VK);
  AddFused(w, "prefill_panel", 400, {RT_DTYPE_F32}, RT_PHASE_PREFILL);
  AddFused(w, "both_panel", 210);
  const auto r = w.Run();
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_EQ(ChosenKernel(Find(*r, RT_OP_LINEAR_MIXER, RT_PHASE_DECODE)), "both_panel");
  EXPECT_EQ(ChosenKernel(Find(*r, RT_OP_LINEAR_MIXER, RT_PHASE_PREFILL)), "prefill_panel");
  EXPECT_EQ(r->caches[1].layout, static_cast<uint32_t>(RT_STATE_LAYOUT_VPANEL16));
}

TEST(Negotiation, StateDtypeIsRequestAndContractAndKernels) {
  {
    World w;
    AddFused(w, "fused", 300, {RT_DTYPE_F32, RT_DTYPE_BF16});
    w.policy.state_dtype = RT_DTYPE_BF16;
    const auto r = w.Run();
    ASSERT_TRUE(r.ok()) << r.status().ToString();
    EXPECT_EQ(r->caches[1].chosen, static_cast<uint32_t>(RT_DTYPE_BF16));
    EXPECT_EQ(r->caches[1].decided_by, "user");
  }
  {
    World w;
    AddFused(w, "fused", 300, {RT_DTYPE_F32, RT_DTYPE_BF16, RT_DTYPE_F16});
    w.policy.state_dtype = RT_DTYPE_F16;
    EXPECT_EQ(w.Run().status().message(), "recurrent_state dtype float16 (user): the model allows {float32, bfloat16}");
  }
  {
    World w;
    AddFused(w, "fused", 300);
    w.policy.state_dtype = RT_DTYPE_BF16;
    EXPECT_EQ(w.Run().status().message(), "recurrent_state dtype bfloat16 (user): the loaded kernels store {float32}");
  }
  {
    World w;
    AddFused(w, "fused", 300);
    w.policy.state_dtype = RT_DTYPE_BF16;
    w.policy.allow_fallback = true;
    const auto r = w.Run();
    ASSERT_TRUE(r.ok());
    EXPECT_EQ(r->caches[1].decided_by, "fallback");
    ASSERT_EQ(r->findings.size(), 1u);
    EXPECT_TRUE(r->findings[0].downgrade);
  }
}

TEST(Negotiation, UnmetPinIsAnErrorThatShowsEveryCandidate) {
  World w;
  AddFused(w, "fused", 300);
  AddFused(w, "narrow", 400, {RT_DTYPE_BF16});
  w.policy.pins["linear_mixer.decode"] = "narrow";
  const std::string text = w.Run().status().message();
  EXPECT_NE(text.find("no kernel can run linear_mixer/decode as the configuration asks (narrow)"), std::string::npos) << text;
  EXPECT_NE(text.find("state_dtype: supports bfloat16, asked float32"), std::string::npos) << text;
  EXPECT_NE(text.find("fused (beta): not requested, the configuration asks for narrow"), std::string::npos) << text;
}

TEST(Negotiation, PiecesDoNotHideAnUnmetPinOfTheComposite) {
  World w;
  AddFused(w, "fused", 300);
  AddPieces(w, "piece", 200);
  w.policy.pins["linear_mixer"] = "nobody";
  const auto result = w.Run();
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("as the configuration asks (nobody)"), std::string::npos) << result.status().message();
}

TEST(Negotiation, APinThatNamesAPluginIsMetByItsPieces) {
  World w;
  AddPieces(w, "piece", 200);
  w.policy.pins["linear_mixer"] = "beta";
  const auto result = w.Run();
  ASSERT_TRUE(result.ok()) << result.status().message();
  EXPECT_TRUE(Find(*result, "linear_mixer", RT_PHASE_DECODE).decomposed);
}

TEST(Negotiation, UnmetPinWithAllowIsADowngrade) {
  World w;
  AddFused(w, "fused", 300);
  AddFused(w, "narrow", 400, {RT_DTYPE_BF16});
  w.policy.pins["linear_mixer"] = "narrow";
  w.policy.allow_fallback = true;
  const auto r = w.Run();
  ASSERT_TRUE(r.ok()) << r.status().ToString();
  EXPECT_EQ(ChosenKernel(Find(*r, RT_OP_LINEAR_MIXER, RT_PHASE_DECODE)), "fused");
  EXPECT_EQ(Find(*r, RT_OP_LINEAR_MIXER, RT_PHASE_DECODE).requested, "narrow");
  EXPECT_FALSE(r->findings.empty());
}

TEST(Negotiation, DenyTakesPatternsAndSaysSo) {
  World w;
  AddFused(w, "fused.fast", 300);
  AddFused(w, "plain", 200);
  w.policy.deny = {"fused.*"};
  const auto r = w.Run();
  ASSERT_TRUE(r.ok());
  const Decision& d = Find(*r, RT_OP_LINEAR_MIXER, RT_PHASE_DECODE);
  EXPECT_EQ(ChosenKernel(d), "plain");
  EXPECT_EQ(d.candidates[0].reasons[0], "denied by negotiation.deny: fused.*");
}

TEST(Negotiation, BetterRowLostForAFixableReasonWarnsAndForHardwareInforms) {
  World w;
  AddFused(w, "plain", 200);
  w.Row(w.linear, RT_OP_LINEAR_MIXER, RT_PHASE_DECODE | RT_PHASE_PREFILL, "chip", 400, MixerColumns({RT_DTYPE_F32}, RT_STATE_LAYOUT_VPANEL16), RT_UNAVAILABLE_HARDWARE, "this CPU lacks avx1024");
  w.Row(w.linear, RT_OP_LINEAR_MIXER, RT_PHASE_PREFILL, "lib", 390, MixerColumns({RT_DTYPE_F32}, RT_STATE_LAYOUT_VPANEL16), RT_UNAVAILABLE_FIXABLE, "install libfoo");
  const auto r = w.Run();
  ASSERT_TRUE(r.ok());
  int warns = 0, infos = 0;
  for (const Finding& f : r->findings) (f.severity == Severity::kWarn ? warns : infos) += 1;
  EXPECT_EQ(warns, 1);
  EXPECT_EQ(infos, 2);
}

TEST(Negotiation, OpNobodyOffersIsNamed) {
  World w;
  EXPECT_EQ(w.Run().status().message(), "layers.0/causal_conv1d: no kernel can run causal_conv1d/decode: no loaded plugin offers causal_conv1d");
}

TEST(Negotiation, ColumnARowDoesNotSpeakOfIsRefused) {
  World w;
  auto columns = MixerColumns({RT_DTYPE_F32}, RT_STATE_LAYOUT_VPANEL16);
  columns.erase(columns.begin() + 10);  // gate_form
  w.Row(w.linear, RT_OP_LINEAR_MIXER, RT_PHASE_DECODE | RT_PHASE_PREFILL, "old", 300, columns);
  const std::string text = w.Run().status().message();
  EXPECT_NE(text.find("gate_form: the row does not speak of it (asked softplus_decay)"), std::string::npos) << text;
}

TEST(Negotiation, ReportsCarryEveryCandidate) {
  World w;
  AddFused(w, "fused", 300);
  AddFused(w, "narrow", 400, {RT_DTYPE_BF16});
  const auto r = w.Run();
  ASSERT_TRUE(r.ok());
  const auto json = nlohmann::json::parse(ReportJson(*r));
  bool found = false;
  for (const auto& d : json["decisions"]) {
    if (d["op"] != "linear_mixer" || d["phase"] != "decode") continue;
    found = true;
    EXPECT_EQ(d["chosen"]["kernel"], "fused");
    EXPECT_EQ(d["columns"]["head_k_dim"], "128");
    EXPECT_EQ(d["candidates"].size(), 2u);
  }
  EXPECT_TRUE(found);
  EXPECT_NE(ReportText(*r).find("CHOSEN"), std::string::npos);
  std::string summary;
  for (const std::string& line : SummaryLines(*r)) summary += line + "\n";
  EXPECT_NE(summary.find("linear_mixer/decode: fused of beta (requested auto; 1 ops, 1 shapes; in_dtype bfloat16, state_dtype float32 (decided by model)"), std::string::npos) << summary;
}

}  // namespace
}  // namespace rt
