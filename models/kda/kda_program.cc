#include "models/kda/kda_program.h"

#include <algorithm>
#include <cmath>

namespace rt::models::kda {
namespace {

using plugin::ProgramBuilder;

class Emitter : public DecoderEmitter {
 public:
  Emitter(const Arch& arch, const Sizes& sizes, std::string prefix, ProgramBuilder* b) : DecoderEmitter(arch, sizes, std::move(prefix), b), arch_(arch), s_(sizes) {}

  void SkipDraftLayers() {
    for (int64_t i = 0; i < s_.num_draft_layers; ++i) b_.Skip(Name(s_.num_layers + i, "*"));
  }

 private:
  Id Mixer(int64_t i, Id h) override { return IsLinearAttention(i) ? LinearAttention(i, h) : LatentAttention(i, h); }
  Id FeedForward(int64_t i, Id h) override { return s_.is_sparse[static_cast<size_t>(i)] ? Experts(i, h) : DenseMlp(i, h); }

  // W_b W_a x: a projection in two factors, nothing between them.
  Id LowRank(int64_t i, const char* part, Id h, const std::string& a, const std::string& b, int64_t rank, int64_t out_features) {
    const Id inner = Linear(Label(i, std::string(part) + "_a_proj"), h, Name(i, a), rank, s_.hidden_size);
    return Linear(Label(i, std::string(part) + "_b_proj"), inner, Name(i, b), out_features, rank);
  }

  Id LinearAttention(int64_t i, Id h) {
    const int64_t width = s_.num_heads * s_.head_dim;
    const auto& names = arch_.linear;
    const Id qkv = StackedLinear(Label(i, "qkv_proj"), h, {Name(i, names.q), Name(i, names.k), Name(i, names.v)}, width, s_.hidden_size);
    const Id f = LowRank(i, "f", h, names.f_a, names.f_b, s_.head_dim, width), g = LowRank(i, "g", h, names.g_a, names.g_b, s_.head_dim, width);
    const Id beta = Linear(Label(i, "b_proj"), h, Name(i, names.b), s_.num_heads, s_.hidden_size);
    rt_attrs_mixer attrs = {};
    attrs.struct_size = sizeof attrs;
    attrs.num_k_heads = attrs.num_v_heads = static_cast<uint32_t>(s_.num_heads);
    attrs.head_k_dim = attrs.head_v_dim = attrs.gate_width = static_cast<uint32_t>(s_.head_dim);
    attrs.conv_width = static_cast<uint32_t>(s_.conv_width);
    attrs.gate_form = s_.gate_form;
    attrs.gate_bound = static_cast<float>(s_.gate_bound);
    attrs.output_gate = RT_ACT_SIGMOID;
    attrs.beta_scale = 1;
    attrs.l2_eps = arch_.l2_norm_eps;
    attrs.norm_eps = s_.norm_eps;
    const Id y = LinearMixer(i, attrs, qkv, g, beta, f,
                             {{Name(i, names.q_conv), Name(i, names.k_conv), Name(i, names.v_conv)}, Name(i, names.a_log), Name(i, names.dt_bias), Name(i, names.norm),
                              RT_WEIGHT_CHECK_FINITE | RT_WEIGHT_ANY_SHAPE});
    return Linear(Label(i, "o_proj"), y, Name(i, names.out), s_.hidden_size, width);
  }

  Id Queries(int64_t i, Id h, int64_t width) {
    const auto& names = arch_.latent;
    if (s_.q_rank == 0) return Linear(Label(i, "q_proj"), h, Name(i, names.q), width, s_.hidden_size);
    const Id low = Linear(Label(i, "q_a_proj"), h, Name(i, names.q_a), s_.q_rank, s_.hidden_size);
    const Id normed = RmsNorm(Label(i, "q_a_norm"), low, Name(i, names.q_a_norm), s_.q_rank, arch_.latent_norm_eps);
    return Linear(Label(i, "q_b_proj"), normed, Name(i, names.q_b), width, s_.q_rank);
  }

  Id LatentAttention(int64_t i, Id h) {
    const auto& names = arch_.latent;
    const int64_t q_dim = s_.qk_nope_dim + s_.qk_shared_dim, row = s_.latent_dim + s_.qk_shared_dim, out_width = s_.num_q_heads * s_.v_dim;
    const Id q = Queries(i, h, s_.num_q_heads * q_dim);
    const Id kv_a = Linear(Label(i, "kv_a_proj"), h, Name(i, names.kv_a), row, s_.hidden_size);
    const Id kv_norm = NormWeight(Name(i, names.kv_a_norm), s_.latent_dim);
    const Id kv_b = b_.Weight(Name(i, names.kv_b), {s_.num_q_heads * (s_.qk_nope_dim + s_.v_dim), s_.latent_dim});
    const Id cache = TokenCache(i, RT_CACHE_LATENT, "latent", {row});
    rt_attrs_mla attrs = {};
    attrs.struct_size = sizeof attrs;
    attrs.num_heads = static_cast<uint32_t>(s_.num_q_heads);
    attrs.latent_dim = static_cast<uint32_t>(s_.latent_dim);
    attrs.qk_nope_dim = static_cast<uint32_t>(s_.qk_nope_dim);
    attrs.qk_shared_dim = static_cast<uint32_t>(s_.qk_shared_dim);
    attrs.v_dim = static_cast<uint32_t>(s_.v_dim);
    attrs.norm_eps = arch_.latent_norm_eps;
    attrs.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(q_dim)));
    const Id y = b_.Value(Label(i, "self_attn"), kTokens, out_width);
    b_.Op(RT_OP_MLA_MIXER, Label(i, "self_attn"), {q, kv_a}, {kv_norm, kv_b}, {y}, {cache}, attrs);
    return Linear(Label(i, "o_proj"), y, Name(i, names.out), s_.hidden_size, out_width);
  }

  Id DenseMlp(int64_t i, Id h) {
    const auto found = std::find_if(arch_.mlp_prefixes.begin(), arch_.mlp_prefixes.end(), [&](const std::string& p) { return b_.HasTensor(Name(i, p + arch_.mlp.gate)); });
    const std::string& prefix = found == arch_.mlp_prefixes.end() ? arch_.mlp_prefixes.front() : *found;
    return GatedMlp(Label(i, "mlp"), h, {Name(i, prefix + arch_.mlp.gate), Name(i, prefix + arch_.mlp.up), Name(i, prefix + arch_.mlp.down)});
  }

  // One matrix of all experts, expert after expert: [E * rows, columns].
  Id ExpertWeight(int64_t i, const std::string& pattern, int64_t rows, int64_t columns) {
    std::vector<ProgramBuilder::WeightPart> parts;
    for (int64_t e = 0; e < s_.num_experts; ++e) parts.push_back({Name(i, ExpertName(pattern, std::to_string(e))), rows});
    ProgramBuilder::WeightOptions options;
    options.parts = parts;
    return b_.Weight(Name(i, ExpertName(pattern, "*")), {s_.num_experts * rows, columns}, options);
  }

  Id Experts(int64_t i, Id h) {
    const auto& names = arch_.experts;
    const int64_t hidden = s_.hidden_size, inner = s_.expert_width, shared = s_.num_shared_experts * inner;
    ProgramBuilder::WeightOptions f32;
    f32.dtype = RT_WEIGHT_F32;
    const Id router = b_.Weight(Name(i, names.router), {s_.num_experts, hidden}, f32), bias = b_.Weight(Name(i, names.bias), {s_.num_experts}, f32);
    const Id gate = ExpertWeight(i, names.gate, inner, hidden), up = ExpertWeight(i, names.up, inner, hidden), down = ExpertWeight(i, names.down, hidden, inner);
    Id shared_gate = RT_NO_ID, shared_up = RT_NO_ID, shared_down = RT_NO_ID;
    if (shared > 0) {
      shared_gate = b_.Weight(Name(i, names.shared.gate), {shared, hidden});
      shared_up = b_.Weight(Name(i, names.shared.up), {shared, hidden});
      shared_down = b_.Weight(Name(i, names.shared.down), {hidden, shared});
    }
    rt_attrs_moe attrs = {};
    attrs.struct_size = sizeof attrs;
    attrs.num_experts = static_cast<uint32_t>(s_.num_experts);
    attrs.experts_per_token = static_cast<uint32_t>(s_.experts_per_token);
    attrs.num_groups = static_cast<uint32_t>(s_.num_groups);
    attrs.topk_groups = static_cast<uint32_t>(s_.topk_groups);
    attrs.router_score = s_.router_score;
    attrs.renormalize = s_.renormalize ? 1 : 0;
    attrs.routed_scale = static_cast<float>(s_.routed_scale);
    const Id y = b_.Value(Label(i, "moe"), kTokens, hidden);
    b_.Op(RT_OP_MOE_BLOCK, Label(i, "moe"), {h}, {router, gate, up, down, bias, shared_gate, shared_up, shared_down}, {y}, {}, attrs);
    return y;
  }

  const Arch& arch_;
  const Sizes& s_;
};

// What the start-up report says of the choices that the config left open.
std::string Summary(const Sizes& s) {
  const auto count = [](int64_t n, const char* what) { return std::to_string(n) + " " + what; };
  const auto linear = std::count(s.layer_types.begin(), s.layer_types.end(), "linear_attention");
  const auto sparse = std::count(s.is_sparse.begin(), s.is_sparse.end(), true);
  std::string text = count(linear, "linear and ") + count(s.num_layers - linear, "latent attention layers, ");
  text += s.gate_form == RT_GATE_BOUNDED_SIGMOID ? "decay bounded at " + std::to_string(s.gate_bound) : "decay unbounded";
  if (sparse > 0) {
    text += ", " + count(sparse, "layers of ") + count(s.num_experts, "experts, ") + count(s.experts_per_token, "a token, ") + count(s.num_shared_experts, "shared");
  }
  return text;
}

}  // namespace

Status BuildProgram(const Arch& arch, const Sizes& sizes, bool random_weights, ProgramBuilder* b) {
  RT_ASSIGN_OR_RETURN(const std::string prefix, FindPrefix(arch, random_weights, *b));
  Emitter emitter(arch, sizes, prefix, b);
  emitter.SkipDraftLayers();
  emitter.Run(Summary(sizes));
  return b->status();
}

}  // namespace rt::models::kda
