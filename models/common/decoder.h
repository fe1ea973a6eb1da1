// What the programs of decoder-only models share: the frame around the layers, and the emission of the ops that more than one family
// uses. A family derives from DecoderEmitter and adds its mixers and its feed-forward part.
#pragma once

#include "models/common/config.h"

#include <rt/plugin/model.hpp>
#include <rt/plugin/op_defs.h>

#include <string>
#include <string_view>
#include <vector>

namespace rt::models {

// The part of an architecture file that every family has.
struct DecoderArch {
  std::string name;
  std::vector<std::string> architectures, model_types;
  std::string text_config;  // where published checkpoints nest the text model; empty: nowhere
  std::vector<std::string> prefixes, skip;
  std::string embed, final_norm, lm_head, layer, input_norm, post_norm;
  float norm_weight_offset = 0;
};

// The part of a checkpoint's sizes that every family has.
struct DecoderSizes {
  int64_t vocab_size, hidden_size, intermediate_size, num_layers, max_context;
  float norm_eps = 1e-6f;
  bool tied = false;
  uint32_t state_dtype = RT_DTYPE_F32;   // the checkpoint's mamba_ssm_dtype
  std::vector<std::string> layer_types;  // "linear_attention" or "full_attention"; the family fills it
};

struct MlpNames {
  std::string gate, up, down;
};

// The file's own keys, and under `tensors` the shared ones beside the family's. `variations` is the family's.
void ReadDecoderArch(const ConfigReader& root, std::initializer_list<std::string_view> family_tensors, DecoderArch* arch);
MlpNames ReadMlpNames(const ConfigReader& names);

// All but layer_types. Refuses by name what no family serves: quantized weights and other activations than SiLU.
void ReadDecoderSizes(const ConfigReader& outer, const ConfigReader& text, DecoderSizes* sizes);

// The prefix under which the checkpoint holds the token embedding; with random weights the last.
Result<std::string> FindPrefix(const DecoderArch& arch, bool random_weights, const plugin::ProgramBuilder& b);

// Tensors of one linear attention layer beside its projections.
struct LinearMixerTensors {
  std::vector<std::string> conv;  // one tensor, or q, k and v each
  std::string a_log, dt_bias, norm;
  uint32_t gate_flags = RT_WEIGHT_CHECK_FINITE;  // of A_log and dt_bias
};

// Layers as in the published models: x += mixer(norm(x)); x += feed_forward(norm(x)); final norm; logits. Residual adds are fused into
// the following norm (add_rms_norm), so the residual of layer N is complete after the first op of layer N+1.
class DecoderEmitter {
 public:
  using Id = plugin::ProgramBuilder::Id;

  DecoderEmitter(const DecoderArch& arch, const DecoderSizes& sizes, std::string prefix, plugin::ProgramBuilder* b)
      : b_(*b), names_(arch), sizes_(sizes), prefix_(std::move(prefix)) {}
  virtual ~DecoderEmitter() = default;

  // The whole program; `note` goes on in the line of the start-up report. Errors are latched by the builder.
  void Run(const std::string& note);

 protected:
  static constexpr int64_t kTokens = RT_DIM_TOKENS;

  // x [T, hidden], normalised -> the sublayer's output [T, hidden].
  virtual Id Mixer(int64_t layer, Id x) = 0;
  virtual Id FeedForward(int64_t layer, Id x) = 0;

  bool IsLinearAttention(int64_t layer) const { return sizes_.layer_types[static_cast<size_t>(layer)] == "linear_attention"; }
  std::string Name(int64_t layer, const std::string& suffix) const { return TensorName(names_.layer, prefix_, layer) + suffix; }
  static std::string Label(int64_t layer, std::string_view part) { return "layers." + std::to_string(layer) + "." + std::string(part); }

  Id Linear(const std::string& label, Id x, const std::string& tensor, int64_t out_features, int64_t in_features);
  // One product over tensors that lie apart in the checkpoint, `rows_each` output features each.
  Id StackedLinear(const std::string& label, Id x, const std::vector<std::string>& tensors, int64_t rows_each, int64_t in_features);
  Id RmsNorm(const std::string& label, Id x, const std::string& tensor, int64_t width, float eps);
  // Weight and options of a norm's factor (weight_offset + w).
  Id NormWeight(const std::string& tensor, int64_t width);
  Id GatedMlp(const std::string& label, Id x, const MlpNames& tensors);

  // linear_mixer with its weights and its two caches. `a` is [T, Hv * gate_width].
  Id LinearMixer(int64_t layer, const rt_attrs_mixer& attrs, Id qkv, Id z, Id b, Id a, const LinearMixerTensors& tensors);
  // A cache that grows with the tokens and gives them back by truncation, in the compute dtype.
  Id TokenCache(int64_t layer, uint32_t role, const char* part, std::initializer_list<int64_t> dims);

  plugin::ProgramBuilder& b_;

 private:
  void Layer(int64_t layer);
  void Head();
  // Adds the pending sublayer output to the residual and normalises it.
  Id ResidualNorm(const std::string& label, const std::string& tensor);
  Id ConvWeight(const LinearMixerTensors& tensors, int64_t channels, const rt_attrs_mixer& attrs);

  const DecoderArch& names_;
  const DecoderSizes& sizes_;
  std::string prefix_;
  Id x_ = RT_NO_ID, embed_ = RT_NO_ID;
  Id delta_ = RT_NO_ID;  // sublayer output not yet added to the residual
};

}  // namespace rt::models
