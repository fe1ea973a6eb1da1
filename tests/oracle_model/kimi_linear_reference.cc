#include "tests/oracle_model/kimi_linear_reference.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <stdexcept>

namespace rt::testing {
namespace {

using nlohmann::json;
using oracle::Values;
using oracle::View;

// Class default of the checkpoint's own code for the norms inside latent attention.
constexpr double kLatentNormEps = 1e-6;

// Per layer, whether `key` lists it as `kind`; empty when there is no list.
std::vector<bool> Listed(const json& config, const char* key, const char* kind) {
  std::vector<bool> found;
  if (config.contains(key)) {
    for (const auto& entry : config.at(key)) found.push_back(entry == kind);
  }
  return found;
}

std::vector<bool> LinearLayers(const json& config) {
  std::vector<bool> linear = Listed(config, "layer_types", "linear_attention");
  if (!linear.empty()) return linear;
  linear.assign(config.at("num_hidden_layers").get<std::size_t>(), false);
  for (const int64_t layer : config.at("linear_attn_config").at("kda_layers"))
    linear.at(static_cast<std::size_t>(layer - 1)) = true;  // the lists count from one
  return linear;
}

std::vector<bool> SparseLayers(const json& config) {
  std::vector<bool> sparse = Listed(config, "mlp_layer_types", "sparse");
  if (!sparse.empty()) return sparse;
  const int64_t first = config.value("first_k_dense_replace", int64_t{1}),
                every = config.value("moe_layer_freq", int64_t{1});
  for (int64_t i = 0; i < config.at("num_hidden_layers").get<int64_t>(); ++i)
    sparse.push_back(i >= first && i % every == 0);
  return sparse;
}

oracle::LinearMixerParams Mixer(const json& config, double eps) {
  const bool nested = config.contains("linear_attn_config");
  const json& c = nested ? config.at("linear_attn_config") : config;
  const int64_t heads = c.at(nested ? "num_heads" : "linear_num_heads"),
                dim = c.at(nested ? "head_dim" : "linear_head_dim");
  oracle::LinearMixerParams mixer;
  mixer.shape = {0, heads, heads, dim, dim, dim};
  mixer.num_taps = c.at(nested ? "short_conv_kernel_size" : "linear_conv_kernel_dim");
  mixer.norm_eps = eps;
  mixer.norm_gate = oracle::NormGate::kSigmoid;
  return mixer;
}

oracle::RouterParams Router(const json& config) {
  oracle::RouterParams router;
  router.num_experts = config.at("num_experts");
  router.experts_per_token = config.at("num_experts_per_token");
  router.num_groups = config.value("num_expert_group", int64_t{1});
  router.topk_groups = config.value("topk_group", int64_t{1});
  if (config.value("moe_router_activation_func", "sigmoid") == "softmax")
    router.score = oracle::RouterScore::kSoftmax;
  router.renormalize = config.at("moe_renormalize");
  router.routed_scale = config.at("routed_scaling_factor");
  return router;
}

// Tensors one after another: stacked along their first dimension.
Values Stacked(const TensorFiles& files, const std::vector<std::string>& names, std::vector<int64_t> shape) {
  Values all;
  for (const std::string& name : names) {
    const Values one = files.Read(name, shape);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

// A tensor of `size` elements in whatever shape it is stored.
Values AnyShape(const TensorFiles& files, const std::string& name, int64_t size) {
  Values values = files.Read(name).values;
  if (static_cast<int64_t>(values.size()) != size)
    throw std::runtime_error(name + ": wrong number of elements");
  return values;
}

void ReadLinear(const TensorFiles& files, const std::string& p, const KimiLinearConfig& c,
                KimiLinearLayer& layer) {
  const oracle::DeltaShape& s = c.mixer.shape;
  const int64_t hidden = c.hidden_size, dim = s.head_k_dim, width = s.num_k_heads * dim;
  layer.qkv =
      Stacked(files, {p + "q_proj.weight", p + "k_proj.weight", p + "v_proj.weight"}, {width, hidden});
  layer.f_a = files.Read(p + "f_a_proj.weight", {dim, hidden});
  layer.f_b = files.Read(p + "f_b_proj.weight", {width, dim});
  layer.g_a = files.Read(p + "g_a_proj.weight", {dim, hidden});
  layer.g_b = files.Read(p + "g_b_proj.weight", {width, dim});
  layer.b = files.Read(p + "b_proj.weight", {s.num_k_heads, hidden});
  const std::vector<std::string> streams = {p + "q_conv1d.weight", p + "k_conv1d.weight",
                                            p + "v_conv1d.weight"};
  layer.mixer = {Stacked(files, streams, {width, 1, c.mixer.num_taps}),
                 AnyShape(files, p + "A_log", s.num_k_heads), AnyShape(files, p + "dt_bias", width),
                 files.Read(p + "o_norm.weight", {dim})};
  layer.out = files.Read(p + "o_proj.weight", {hidden, width});
}

void ReadLatent(const TensorFiles& files, const std::string& p, const KimiLinearConfig& c,
                KimiLinearLayer& layer) {
  const oracle::LatentShape& s = c.latent;
  const int64_t hidden = c.hidden_size;
  if (c.q_rank == 0) {
    layer.q = files.Read(p + "q_proj.weight", {s.q_width(), hidden});
  } else {
    layer.q_a = files.Read(p + "q_a_proj.weight", {c.q_rank, hidden});
    layer.q_a_norm = files.Read(p + "q_a_layernorm.weight", {c.q_rank});
    layer.q_b = files.Read(p + "q_b_proj.weight", {s.q_width(), c.q_rank});
  }
  layer.kv_a = files.Read(p + "kv_a_proj_with_mqa.weight", {s.row(), hidden});
  layer.kv_a_norm = files.Read(p + "kv_a_layernorm.weight", {s.latent_dim});
  layer.kv_b = files.Read(p + "kv_b_proj.weight", {s.num_heads * (s.qk_nope_dim + s.v_dim), s.latent_dim});
  layer.out = files.Read(p + "o_proj.weight", {hidden, s.out_width()});
}

void ReadExperts(const TensorFiles& files, const std::string& p, const KimiLinearConfig& c,
                 KimiLinearLayer& layer) {
  const int64_t hidden = c.hidden_size, inner = c.expert_width;
  layer.router = files.Read(p + "gate.weight", {c.router.num_experts, hidden});
  layer.bias = files.Read(p + "gate.e_score_correction_bias", {c.router.num_experts});
  const auto names = [&](const char* matrix) {
    std::vector<std::string> all;
    for (int64_t e = 0; e < c.router.num_experts; ++e)
      all.push_back(p + "experts." + std::to_string(e) + "." + matrix + ".weight");
    return all;
  };
  layer.experts = {Stacked(files, names("w1"), {inner, hidden}), Stacked(files, names("w3"), {inner, hidden}),
                   Stacked(files, names("w2"), {hidden, inner})};
  if (c.num_shared_experts > 0)
    layer.mlp = ReadMlp(files, p + "shared_experts.", hidden, c.num_shared_experts * inner);
}

KimiLinearLayer ReadLayer(const TensorFiles& files, const std::string& prefix, const KimiLinearConfig& c,
                          std::size_t i) {
  KimiLinearLayer layer;
  c.is_linear[i] ? ReadLinear(files, prefix + "self_attn.", c, layer)
                 : ReadLatent(files, prefix + "self_attn.", c, layer);
  if (c.is_sparse[i]) {
    ReadExperts(files, prefix + "block_sparse_moe.", c, layer);
  } else {
    // As published, or as transformers writes it.
    const bool published = files.Has(prefix + "mlp.gate_proj.weight");
    layer.mlp = ReadMlp(files, prefix + (published ? "mlp." : "block_sparse_moe."), c.hidden_size,
                        c.intermediate_size);
  }
  return layer;
}

// The chosen experts' weighted sum, expert by expert over the tokens that chose it; oracle::Experts goes
// token by token.
Values ExpertByExpert(const oracle::ExpertsShape& s, View x, const oracle::Routing& routing,
                      const MlpWeights& experts) {
  Values y(x.size(), 0.0);
  const auto matrix = static_cast<std::size_t>(s.hidden_size * s.intermediate_size);
  for (int64_t e = 0; e < s.num_experts; ++e) {
    const auto part = [&](const Values& all) {
      const auto first = all.begin() + e * static_cast<int64_t>(matrix);
      return Values(first, first + static_cast<int64_t>(matrix));
    };
    const MlpWeights expert = {part(experts.gate), part(experts.up), part(experts.down)};
    for (std::size_t choice = 0; choice < routing.ids.size(); ++choice) {
      if (routing.ids[choice] != e) continue;
      const std::size_t row =
          choice / static_cast<std::size_t>(s.experts_per_token) * static_cast<std::size_t>(s.hidden_size);
      const Values out =
          Mlp(expert, x.subspan(row, static_cast<std::size_t>(s.hidden_size)), s.hidden_size, Form::kParts);
      for (std::size_t i = 0; i < out.size(); ++i) y[row + i] += routing.weights[choice] * out[i];
    }
  }
  return y;
}

}  // namespace

KimiLinearConfig KimiLinearConfig::Load(const std::filesystem::path& folder) {
  std::ifstream in(folder / "config.json");
  const json config = json::parse(in);
  const double eps = config.at("rms_norm_eps");
  KimiLinearConfig c;
  c.vocab_size = config.at("vocab_size");
  c.hidden_size = config.at("hidden_size");
  c.intermediate_size = config.at("intermediate_size");
  c.tie_word_embeddings = config.value("tie_word_embeddings", false);
  c.norm = {.eps = eps, .weight_offset = 0.0};
  c.is_linear = LinearLayers(config);
  c.mixer = Mixer(config, eps);
  const json rank = config.value("q_lora_rank", json());
  c.q_rank = rank.is_null() ? 0 : rank.get<int64_t>();
  c.latent = {config.at("num_attention_heads"), config.at("kv_lora_rank"), config.at("qk_nope_head_dim"),
              config.at("qk_rope_head_dim"),    config.at("v_head_dim"),   0};
  c.latent.scale = 1.0 / std::sqrt(static_cast<double>(c.latent.qk_nope_dim + c.latent.qk_shared_dim));
  c.router = Router(config);
  c.expert_width = config.at("moe_intermediate_size");
  c.num_shared_experts = config.at("num_shared_experts");
  c.is_sparse = SparseLayers(config);
  return c;
}

KimiLinearReference::KimiLinearReference(const std::filesystem::path& folder)
    : KimiLinearReference(KimiLinearConfig::Load(folder), TensorFiles(folder)) {}

KimiLinearReference::KimiLinearReference(const KimiLinearConfig& config, const TensorFiles& files)
    : ModelReference(config, files, "model."), config_(config) {
  for (std::size_t i = 0; i < config_.is_linear.size(); ++i)
    layers_.push_back(ReadLayer(files, LayerPrefix("model.", i), config_, i));
}

Values KimiLinearReference::MixLinear(const KimiLinearLayer& layer, View x, ModelState::Layer& state,
                                      Form form) const {
  const int64_t num_tokens = static_cast<int64_t>(x.size()) / config_.hidden_size;
  const Values qkv = Project(x, layer.qkv, num_tokens), beta = Project(x, layer.b, num_tokens);
  const Values decay = Project(Project(x, layer.f_a, num_tokens), layer.f_b, num_tokens);
  const Values gate = Project(Project(x, layer.g_a, num_tokens), layer.g_b, num_tokens);
  const Values y =
      LinearMixer(config_.mixer, num_tokens, layer.mixer, {qkv, gate, decay, beta}, state.linear, form);
  return Project(y, layer.out, num_tokens);
}

// Keys and values expanded, or absorbed into query and output.
Values KimiLinearReference::Attend(const KimiLinearLayer& layer, View x, ModelState::Layer& state,
                                   Form form) const {
  const int64_t num_tokens = static_cast<int64_t>(x.size()) / config_.hidden_size;
  Values q;
  if (config_.q_rank == 0) {
    q = Project(x, layer.q, num_tokens);
  } else {
    const Values low = Project(x, layer.q_a, num_tokens);
    q = Project(oracle::RmsNorm({num_tokens, config_.q_rank}, {kLatentNormEps, 0.0}, low, layer.q_a_norm),
                layer.q_b, num_tokens);
  }
  const Values rows =
      oracle::LatentNorm(config_.latent, kLatentNormEps, Project(x, layer.kv_a, num_tokens), layer.kv_a_norm);
  state.latent.insert(state.latent.end(), rows.begin(), rows.end());
  const auto attention =
      form == Form::kComposite ? oracle::ExpandedLatentAttention : oracle::AbsorbedLatentAttention;
  return Project(attention(config_.latent, q, state.latent, layer.kv_b), layer.out, num_tokens);
}

Values KimiLinearReference::Mix(std::size_t layer, View x, ModelState::Layer& state, int64_t,
                                Form form) const {
  return config_.is_linear[layer] ? MixLinear(layers_[layer], x, state, form)
                                  : Attend(layers_[layer], x, state, form);
}

Values KimiLinearReference::Experts(const KimiLinearLayer& layer, View x, Form form) const {
  const oracle::Routing routing =
      oracle::Route(config_.router, config_.hidden_size, x, layer.router, layer.bias);
  const oracle::ExpertsShape shape{config_.router.num_experts, config_.router.experts_per_token,
                                   config_.hidden_size, config_.expert_width};
  if (form == Form::kParts) return ExpertByExpert(shape, x, routing, layer.experts);
  const Values ids(routing.ids.begin(), routing.ids.end());
  return oracle::Experts(shape, x, ids, routing.weights, layer.experts.gate, layer.experts.up,
                         layer.experts.down);
}

Values KimiLinearReference::FeedForward(std::size_t i, View x, Form form) const {
  const KimiLinearLayer& layer = layers_[i];
  if (!config_.is_sparse[i]) return Mlp(layer.mlp, x, config_.hidden_size, form);
  const Values routed = Experts(layer, x, form);
  return config_.num_shared_experts == 0 ? routed
                                         : oracle::Add(routed, Mlp(layer.mlp, x, config_.hidden_size, form));
}

}  // namespace rt::testing
