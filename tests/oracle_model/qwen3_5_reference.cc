#include "tests/oracle_model/qwen3_5_reference.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <numeric>
#include <stdexcept>

namespace rt::testing {
namespace {

using oracle::Values;
using oracle::View;

std::vector<bool> LayerKinds(const nlohmann::json& text) {
  std::vector<bool> is_linear;
  if (text.contains("layer_types")) {
    for (const auto& type : text.at("layer_types")) is_linear.push_back(type == "linear_attention");
    return is_linear;
  }
  const int64_t interval = text.value("full_attention_interval", int64_t{4});
  for (int64_t i = 1; i <= text.at("num_hidden_layers").get<int64_t>(); ++i)
    is_linear.push_back(i % interval != 0);
  return is_linear;
}

// The prefix under which a checkpoint keeps the text model.
std::string FindPrefix(const TensorFiles& files) {
  for (const char* prefix : {"model.language_model.", "language_model.", "model."}) {
    if (files.Has(std::string(prefix) + "embed_tokens.weight")) return prefix;
  }
  throw std::runtime_error("embed_tokens.weight: not found under any known prefix");
}

void ReadAttention(const TensorFiles& files, const std::string& prefix, const Qwen35Config& c,
                   Qwen35Layer& layer) {
  const oracle::AttentionShape& heads = c.attention.heads;
  const int64_t hidden = c.hidden_size, q = heads.num_q_heads * heads.head_dim,
                kv = heads.num_kv_heads * heads.head_dim;
  layer.q_proj = files.Read(prefix + "q_proj.weight", {2 * q, hidden});
  layer.k_proj = files.Read(prefix + "k_proj.weight", {kv, hidden});
  layer.v_proj = files.Read(prefix + "v_proj.weight", {kv, hidden});
  layer.o_proj = files.Read(prefix + "o_proj.weight", {hidden, q});
  layer.q_norm = files.Read(prefix + "q_norm.weight", {heads.head_dim});
  layer.k_norm = files.Read(prefix + "k_norm.weight", {heads.head_dim});
}

void ReadMixer(const TensorFiles& files, const std::string& prefix, const Qwen35Config& c,
               Qwen35Layer& layer) {
  const oracle::DeltaShape& s = c.mixer.shape;
  const int64_t hidden = c.hidden_size, channels = c.mixer.ConvChannels(),
                values = s.num_v_heads * s.head_v_dim;
  layer.in_qkv = files.Read(prefix + "in_proj_qkv.weight", {channels, hidden});
  layer.in_z = files.Read(prefix + "in_proj_z.weight", {values, hidden});
  layer.in_a = files.Read(prefix + "in_proj_a.weight", {s.num_v_heads, hidden});
  layer.in_b = files.Read(prefix + "in_proj_b.weight", {s.num_v_heads, hidden});
  layer.mixer = {files.Read(prefix + "conv1d.weight", {channels, 1, c.mixer.num_taps}),
                 files.Read(prefix + "A_log", {s.num_v_heads}),
                 files.Read(prefix + "dt_bias", {s.num_v_heads}),
                 files.Read(prefix + "norm.weight", {s.head_v_dim})};
  layer.out_proj = files.Read(prefix + "out_proj.weight", {hidden, values});
}

Qwen35Layer ReadLayer(const TensorFiles& files, const std::string& prefix, const Qwen35Config& c,
                      bool is_linear) {
  Qwen35Layer layer;
  layer.mlp = ReadMlp(files, prefix + "mlp.", c.hidden_size, c.intermediate_size);
  if (is_linear) {
    ReadMixer(files, prefix + "linear_attn.", c, layer);
  } else {
    ReadAttention(files, prefix + "self_attn.", c, layer);
  }
  return layer;
}

// The decomposition of gated attention.
Values AttentionInParts(const oracle::GatedAttentionParams& p, View q_gate, View k, View v, View q_norm,
                        View k_norm, std::span<const int64_t> positions, oracle::KeyValueCache& cache) {
  const int64_t num_tokens = static_cast<int64_t>(positions.size()), dim = p.heads.head_dim;
  const oracle::QueryGate split = oracle::SplitQueryGate(p.heads, q_gate);
  auto norm_rotate = [&](View x, int64_t heads, View weight) {
    const Values normed = oracle::RmsNorm({num_tokens * heads, dim}, p.qk_norm, x, weight);
    return oracle::Rotary({num_tokens, heads, dim, p.rotary_dim}, p.rope_theta, normed, positions);
  };
  const Values rotated = norm_rotate(k, p.heads.num_kv_heads, k_norm);
  cache.k.insert(cache.k.end(), rotated.begin(), rotated.end());
  cache.v.insert(cache.v.end(), v.begin(), v.end());
  const Values q = norm_rotate(split.q, p.heads.num_q_heads, q_norm);
  return oracle::SigmoidGate(oracle::CausalAttention(p.heads, q, cache.k, cache.v), split.gate);
}

}  // namespace

Qwen35Config Qwen35Config::Load(const std::filesystem::path& folder) {
  std::ifstream in(folder / "config.json");
  const nlohmann::json outer = nlohmann::json::parse(in);
  const nlohmann::json& text = outer.contains("text_config") ? outer.at("text_config") : outer;
  const nlohmann::json& rope = text.contains("rope_parameters") ? text.at("rope_parameters") : text;
  const double eps = text.at("rms_norm_eps");
  Qwen35Config c;
  c.vocab_size = text.at("vocab_size");
  c.hidden_size = text.at("hidden_size");
  c.intermediate_size = text.at("intermediate_size");
  c.tie_word_embeddings = outer.value("tie_word_embeddings", text.value("tie_word_embeddings", false));
  c.norm = {.eps = eps, .weight_offset = 1.0};
  c.is_linear = LayerKinds(text);
  c.attention.heads = {text.at("num_attention_heads"), text.at("num_key_value_heads"), text.at("head_dim")};
  const double rotary_fraction = rope.value("partial_rotary_factor", 0.25);
  c.attention.rotary_dim =
      static_cast<int64_t>(static_cast<double>(c.attention.heads.head_dim) * rotary_fraction);
  c.attention.rope_theta = rope.at("rope_theta");
  c.attention.qk_norm = c.norm;
  c.mixer.shape = {0, text.at("linear_num_key_heads"), text.at("linear_num_value_heads"),
                   text.at("linear_key_head_dim"), text.at("linear_value_head_dim")};
  c.mixer.num_taps = text.at("linear_conv_kernel_dim");
  c.mixer.norm_eps = eps;
  return c;
}

Qwen35Reference::Qwen35Reference(const std::filesystem::path& folder)
    : Qwen35Reference(Qwen35Config::Load(folder), TensorFiles(folder)) {}

Qwen35Reference::Qwen35Reference(const Qwen35Config& config, const TensorFiles& files)
    : ModelReference(config, files, FindPrefix(files)), config_(config) {
  const std::string prefix = FindPrefix(files);
  for (std::size_t i = 0; i < config_.is_linear.size(); ++i)
    layers_.push_back(ReadLayer(files, LayerPrefix(prefix, i), config_, config_.is_linear[i]));
}

Values Qwen35Reference::Attend(const Qwen35Layer& layer, View x, ModelState::Layer& state,
                               int64_t first_position, Form form) const {
  const int64_t num_tokens = static_cast<int64_t>(x.size()) / config_.hidden_size;
  std::vector<int64_t> positions(num_tokens);
  std::iota(positions.begin(), positions.end(), first_position);
  const auto attention = form == Form::kComposite ? oracle::GatedAttention : AttentionInParts;
  const Values o =
      attention(config_.attention, Project(x, layer.q_proj, num_tokens), Project(x, layer.k_proj, num_tokens),
                Project(x, layer.v_proj, num_tokens), layer.q_norm, layer.k_norm, positions, state.attention);
  return Project(o, layer.o_proj, num_tokens);
}

Values Qwen35Reference::MixLinear(const Qwen35Layer& layer, View x, ModelState::Layer& state,
                                  Form form) const {
  const int64_t num_tokens = static_cast<int64_t>(x.size()) / config_.hidden_size;
  const Values qkv = Project(x, layer.in_qkv, num_tokens), z = Project(x, layer.in_z, num_tokens);
  const Values a = Project(x, layer.in_a, num_tokens), b = Project(x, layer.in_b, num_tokens);
  const Values y = LinearMixer(config_.mixer, num_tokens, layer.mixer, {qkv, z, a, b}, state.linear, form);
  return Project(y, layer.out_proj, num_tokens);
}

Values Qwen35Reference::Mix(std::size_t layer, View x, ModelState::Layer& state, int64_t first_position,
                            Form form) const {
  return config_.is_linear[layer] ? MixLinear(layers_[layer], x, state, form)
                                  : Attend(layers_[layer], x, state, first_position, form);
}

Values Qwen35Reference::FeedForward(std::size_t layer, View x, Form form) const {
  return Mlp(layers_[layer].mlp, x, config_.hidden_size, form);
}

}  // namespace rt::testing
