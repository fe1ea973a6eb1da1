// A whole decoder in double precision, built from plugin_sdk/oracle alone. It proves the oracle against
// outputs of an independent implementation, and gives other tests a reference on any prompt. Each family
// derives from ModelReference and adds its mixers and its feed-forward part.
#pragma once

#include "plugin_sdk/oracle/attention.h"
#include "plugin_sdk/oracle/linear_attention.h"
#include "tests/oracle_model/tensor_files.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace rt::testing {

// Which form of each composite to run: written out, or as its parts with the delta rule in chunks of 64.
enum class Form { kComposite, kParts };

// What a sequence carries from call to call, per layer; members of the other layer kinds stay empty.
struct ModelState {
  struct Layer {
    oracle::LinearMixerState linear;
    oracle::KeyValueCache attention;
    oracle::Values latent;  // [S, latent_dim + qk_shared_dim]
  };
  std::vector<Layer> layers;
  int64_t num_tokens = 0;
};

struct ModelOutput {
  std::vector<oracle::Values> hidden;  // per layer [T, hidden_size]: the residual after it
  oracle::Values logits;               // [T, vocab_size]
};

// Sizes that every family has.
struct DecoderConfig {
  int64_t vocab_size, hidden_size, intermediate_size;
  bool tie_word_embeddings;
  oracle::NormParams norm;            // block and final norms
  std::vector<bool> is_linear;        // per layer: linear attention or full attention
  oracle::LinearMixerParams mixer{};  // shape.num_tokens is set per call
};

class ModelReference {
 public:
  virtual ~ModelReference() = default;

  int64_t vocab_size() const { return decoder_.vocab_size; }
  int64_t hidden_size() const { return decoder_.hidden_size; }
  ModelState NewState() const;

  // The next tokens of one sequence; ids [T], T >= 0. `state` is updated.
  ModelOutput Forward(const std::vector<int32_t>& ids, ModelState& state, Form form) const;

 protected:
  // Reads what lies outside the sublayers: embedding, norms and head, below `prefix`.
  ModelReference(const DecoderConfig& config, const TensorFiles& files, const std::string& prefix);

  // A sublayer of one layer on normalised x [T, hidden] -> [T, hidden].
  virtual oracle::Values Mix(std::size_t layer, oracle::View x, ModelState::Layer& state,
                             int64_t first_position, Form form) const = 0;
  virtual oracle::Values FeedForward(std::size_t layer, oracle::View x, Form form) const = 0;

  static std::string LayerPrefix(const std::string& prefix, std::size_t layer) {
    return prefix + "layers." + std::to_string(layer) + ".";
  }

 private:
  struct Norms {
    oracle::Values input, post;  // [hidden]
  };
  DecoderConfig decoder_;
  oracle::Values embedding_;  // [vocab, hidden]
  oracle::Values final_norm_;
  oracle::Values lm_head_;  // [vocab, hidden]; empty if tied
  std::vector<Norms> norms_;
};

// The family is that of model_type in config.json. Throws std::exception on a model without reference.
std::unique_ptr<ModelReference> LoadReference(const std::filesystem::path& folder);

// ---- pieces that families share ----

// SwiGLU matrices, [inner, hidden], [inner, hidden], [hidden, inner].
struct MlpWeights {
  oracle::Values gate, up, down;
};
MlpWeights ReadMlp(const TensorFiles& files, const std::string& prefix, int64_t hidden, int64_t inner);
oracle::Values Mlp(const MlpWeights& weights, oracle::View x, int64_t hidden, Form form);

// x [T, in] times weight [out, in]; both widths from the sizes.
oracle::Values Project(oracle::View x, const oracle::Values& weight, int64_t num_tokens);

// Weights of one linear attention layer after its input projections.
struct MixerWeights {
  oracle::Values conv, a_log, dt_bias, norm;
};
oracle::Values LinearMixer(oracle::LinearMixerParams params, int64_t num_tokens, const MixerWeights& weights,
                           const oracle::LinearMixerInputs& inputs, oracle::LinearMixerState& state,
                           Form form);

}  // namespace rt::testing
