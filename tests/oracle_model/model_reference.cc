#include "tests/oracle_model/model_reference.h"

#include "tests/oracle_model/kimi_linear_reference.h"
#include "tests/oracle_model/qwen3_5_reference.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <stdexcept>

namespace rt::testing {
namespace {

using oracle::Values;
using oracle::View;

constexpr int64_t kChunkSize = 64;  // that of the published references

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

}  // namespace

MlpWeights ReadMlp(const TensorFiles& files, const std::string& prefix, int64_t hidden, int64_t inner) {
  return {files.Read(prefix + "gate_proj.weight", {inner, hidden}),
          files.Read(prefix + "up_proj.weight", {inner, hidden}),
          files.Read(prefix + "down_proj.weight", {hidden, inner})};
}

Values Mlp(const MlpWeights& w, View x, int64_t hidden, Form form) {
  const int64_t num_tokens = static_cast<int64_t>(x.size()) / hidden,
                inner = static_cast<int64_t>(w.gate.size()) / hidden;
  if (form == Form::kComposite) return oracle::GatedMlp({num_tokens, hidden, inner}, x, w.gate, w.up, w.down);
  const Values gate = Project(x, w.gate, num_tokens), up = Project(x, w.up, num_tokens);
  return Project(oracle::SiluMul(gate, up), w.down, num_tokens);
}

Values Project(View x, const Values& weight, int64_t num_tokens) {
  if (num_tokens == 0) return {};
  const int64_t in = static_cast<int64_t>(x.size()) / num_tokens;
  return oracle::Linear({num_tokens, in, static_cast<int64_t>(weight.size()) / in}, x, weight);
}

Values LinearMixer(oracle::LinearMixerParams params, int64_t num_tokens, const MixerWeights& w,
                   const oracle::LinearMixerInputs& inputs, oracle::LinearMixerState& state, Form form) {
  params.shape.num_tokens = num_tokens;
  const auto mixer = form == Form::kComposite ? oracle::LinearMixer : MixerInParts;
  return mixer(params, {w.conv, w.a_log, w.dt_bias, w.norm}, inputs, state);
}

ModelReference::ModelReference(const DecoderConfig& config, const TensorFiles& files,
                               const std::string& prefix)
    : decoder_(config) {
  const std::vector<int64_t> vocab_by_hidden{config.vocab_size, config.hidden_size};
  embedding_ = files.Read(prefix + "embed_tokens.weight", vocab_by_hidden);
  final_norm_ = files.Read(prefix + "norm.weight", {config.hidden_size});
  if (!config.tie_word_embeddings) lm_head_ = files.Read("lm_head.weight", vocab_by_hidden);
  for (std::size_t i = 0; i < config.is_linear.size(); ++i) {
    const std::string layer = LayerPrefix(prefix, i);
    norms_.push_back({files.Read(layer + "input_layernorm.weight", {config.hidden_size}),
                      files.Read(layer + "post_attention_layernorm.weight", {config.hidden_size})});
  }
}

ModelState ModelReference::NewState() const {
  ModelState state;
  for (const bool is_linear : decoder_.is_linear) {
    state.layers.emplace_back();
    if (is_linear) state.layers.back().linear = oracle::LinearMixerState::Zero(decoder_.mixer);
  }
  return state;
}

ModelOutput ModelReference::Forward(const std::vector<int32_t>& ids, ModelState& state, Form form) const {
  const DecoderConfig& c = decoder_;
  const int64_t num_tokens = static_cast<int64_t>(ids.size());
  const oracle::NormShape rows{num_tokens, c.hidden_size};
  ModelOutput out;
  Values residual = oracle::Embedding({c.vocab_size, c.hidden_size}, ids, embedding_);
  for (std::size_t i = 0; i < norms_.size(); ++i) {
    const Values x = oracle::RmsNorm(rows, c.norm, residual, norms_[i].input);
    const Values mixed = Mix(i, x, state.layers[i], state.num_tokens, form);
    const Values normed = oracle::AddRmsNorm(rows, c.norm, residual, mixed, norms_[i].post);
    residual = oracle::Add(residual, FeedForward(i, normed, form));
    out.hidden.push_back(residual);
  }
  const Values final = oracle::RmsNorm(rows, c.norm, residual, final_norm_);
  out.logits = Project(final, c.tie_word_embeddings ? embedding_ : lm_head_, num_tokens);
  state.num_tokens += num_tokens;
  return out;
}

std::unique_ptr<ModelReference> LoadReference(const std::filesystem::path& folder) {
  std::ifstream in(folder / "config.json");
  const std::string type = nlohmann::json::parse(in).at("model_type");
  if (type == "qwen3_5" || type == "qwen3_5_text") return std::make_unique<Qwen35Reference>(folder);
  if (type == "kimi_linear") return std::make_unique<KimiLinearReference>(folder);
  throw std::runtime_error(folder.string() + ": no reference for model_type " + type);
}

}  // namespace rt::testing
