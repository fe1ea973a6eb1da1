#include "tests/oracle_model/qwen3_5_reference.h"

#include "tests/oracle_model/tensor_files.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <numeric>
#include <stdexcept>

namespace rt::testing {
namespace {

using oracle::Values;
using oracle::View;

constexpr int64_t kChunkSize = 64;  // that of the published reference

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
  layer.conv = files.Read(prefix + "conv1d.weight", {channels, 1, c.mixer.num_taps});
  layer.a_log = files.Read(prefix + "A_log", {s.num_v_heads});
  layer.dt_bias = files.Read(prefix + "dt_bias", {s.num_v_heads});
  layer.norm = files.Read(prefix + "norm.weight", {s.head_v_dim});
  layer.out_proj = files.Read(prefix + "out_proj.weight", {hidden, values});
}

Qwen35Layer ReadLayer(const TensorFiles& files, const std::string& prefix, const Qwen35Config& c,
                      bool is_linear) {
  Qwen35Layer layer;
  layer.input_norm = files.Read(prefix + "input_layernorm.weight", {c.hidden_size});
  layer.post_norm = files.Read(prefix + "post_attention_layernorm.weight", {c.hidden_size});
  layer.gate_proj = files.Read(prefix + "mlp.gate_proj.weight", {c.intermediate_size, c.hidden_size});
  layer.up_proj = files.Read(prefix + "mlp.up_proj.weight", {c.intermediate_size, c.hidden_size});
  layer.down_proj = files.Read(prefix + "mlp.down_proj.weight", {c.hidden_size, c.intermediate_size});
  if (is_linear) {
    ReadMixer(files, prefix + "linear_attn.", c, layer);
  } else {
    ReadAttention(files, prefix + "self_attn.", c, layer);
  }
  return layer;
}

// x [T, in] times weight [out, in]; both widths from the sizes.
Values Project(View x, const Values& weight, int64_t num_tokens) {
  if (num_tokens == 0) return {};
  const int64_t in = static_cast<int64_t>(x.size()) / num_tokens;
  return oracle::Linear({num_tokens, in, static_cast<int64_t>(weight.size()) / in}, x, weight);
}

// Columns [first, first + count) of rows [T, width].
Values Columns(const Values& rows, int64_t width, int64_t first, int64_t count) {
  Values part;
  for (auto row = rows.begin(); row != rows.end(); row += width)
    part.insert(part.end(), row + first, row + first + count);
  return part;
}

// The decomposition of linear_mixer, delta rule in chunks.
Values MixerInParts(const oracle::LinearMixerParams& p, const oracle::LinearMixerWeights& w,
                    const oracle::LinearMixerInputs& in, oracle::LinearMixerState& state) {
  const oracle::DeltaShape& s = p.shape;
  const int64_t channels = p.ConvChannels(), key_width = s.num_k_heads * s.head_k_dim;
  const Values mixed =
      oracle::CausalConv1dSilu({s.num_tokens, channels, p.num_taps}, in.qkv, w.conv, state.conv);
  const oracle::NormShape key_rows{s.num_tokens * s.num_k_heads, s.head_k_dim};
  const double q_scale = 1.0 / std::sqrt(static_cast<double>(s.head_k_dim));
  const Values q = oracle::L2Norm(key_rows, p.l2_norm_eps, q_scale, Columns(mixed, channels, 0, key_width));
  const Values k =
      oracle::L2Norm(key_rows, p.l2_norm_eps, 1.0, Columns(mixed, channels, key_width, key_width));
  const Values v = Columns(mixed, channels, 2 * key_width, s.num_v_heads * s.head_v_dim);
  const oracle::Gates gates = oracle::ComputeGates({s.num_tokens, s.num_v_heads, s.gate_width}, p.gates, in.a,
                                                   in.b, w.a_log, w.dt_bias);
  const Values o = oracle::GatedDeltaChunked(s, kChunkSize, {q, k, v, gates.g, gates.beta}, state.recurrent);
  return oracle::GatedRmsNorm({s.num_tokens * s.num_v_heads, s.head_v_dim}, p.norm_eps, p.norm_gate, o, in.z,
                              w.norm);
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

Values MlpInParts(const Qwen35Layer& layer, View x, int64_t num_tokens) {
  const Values gate = Project(x, layer.gate_proj, num_tokens), up = Project(x, layer.up_proj, num_tokens);
  return Project(oracle::SiluMul(gate, up), layer.down_proj, num_tokens);
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

Qwen35Reference::Qwen35Reference(const std::filesystem::path& folder) : config_(Qwen35Config::Load(folder)) {
  const TensorFiles files(folder);
  const std::string prefix = FindPrefix(files);
  const std::vector<int64_t> vocab_by_hidden{config_.vocab_size, config_.hidden_size};
  embedding_ = files.Read(prefix + "embed_tokens.weight", vocab_by_hidden);
  final_norm_ = files.Read(prefix + "norm.weight", {config_.hidden_size});
  if (!config_.tie_word_embeddings) lm_head_ = files.Read("lm_head.weight", vocab_by_hidden);
  for (std::size_t i = 0; i < config_.is_linear.size(); ++i) {
    const std::string layer_prefix = prefix + "layers." + std::to_string(i) + ".";
    layers_.push_back(ReadLayer(files, layer_prefix, config_, config_.is_linear[i]));
  }
}

Qwen35State Qwen35Reference::NewState() const {
  Qwen35State state;
  for (const bool is_linear : config_.is_linear) {
    state.layers.emplace_back();
    if (is_linear) state.layers.back().linear = oracle::LinearMixerState::Zero(config_.mixer);
  }
  return state;
}

Values Qwen35Reference::Attend(const Qwen35Layer& layer, View x, Qwen35State::Layer& state,
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

Values Qwen35Reference::Mix(const Qwen35Layer& layer, View x, Qwen35State::Layer& state, Form form) const {
  const int64_t num_tokens = static_cast<int64_t>(x.size()) / config_.hidden_size;
  oracle::LinearMixerParams params = config_.mixer;
  params.shape.num_tokens = num_tokens;
  const Values qkv = Project(x, layer.in_qkv, num_tokens), z = Project(x, layer.in_z, num_tokens);
  const Values a = Project(x, layer.in_a, num_tokens), b = Project(x, layer.in_b, num_tokens);
  const auto mixer = form == Form::kComposite ? oracle::LinearMixer : MixerInParts;
  const Values y =
      mixer(params, {layer.conv, layer.a_log, layer.dt_bias, layer.norm}, {qkv, z, a, b}, state.linear);
  return Project(y, layer.out_proj, num_tokens);
}

Qwen35Output Qwen35Reference::Forward(const std::vector<int32_t>& ids, Qwen35State& state, Form form) const {
  const int64_t num_tokens = static_cast<int64_t>(ids.size());
  const oracle::NormShape rows{num_tokens, config_.hidden_size};
  const oracle::MlpShape mlp_shape{num_tokens, config_.hidden_size, config_.intermediate_size};
  Qwen35Output out;
  Values residual = oracle::Embedding({config_.vocab_size, config_.hidden_size}, ids, embedding_);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const Qwen35Layer& layer = layers_[i];
    const Values x = oracle::RmsNorm(rows, config_.norm, residual, layer.input_norm);
    const Values mixed = config_.is_linear[i] ? Mix(layer, x, state.layers[i], form)
                                              : Attend(layer, x, state.layers[i], state.num_tokens, form);
    const Values normed = oracle::AddRmsNorm(rows, config_.norm, residual, mixed, layer.post_norm);
    const Values mlp = form == Form::kComposite ? oracle::GatedMlp(mlp_shape, normed, layer.gate_proj,
                                                                   layer.up_proj, layer.down_proj)
                                                : MlpInParts(layer, normed, num_tokens);
    residual = oracle::Add(residual, mlp);
    out.hidden.push_back(residual);
  }
  const Values final = oracle::RmsNorm(rows, config_.norm, residual, final_norm_);
  out.logits = Project(final, config_.tie_word_embeddings ? embedding_ : lm_head_, num_tokens);
  state.num_tokens += num_tokens;
  return out;
}

}  // namespace rt::testing
