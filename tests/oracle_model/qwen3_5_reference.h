// A Qwen3.5 dense text model: Gated DeltaNet and gated attention layers, SwiGLU.
#pragma once

#include "tests/oracle_model/model_reference.h"

namespace rt::testing {

struct Qwen35Config : DecoderConfig {
  oracle::GatedAttentionParams attention;

  // config.json of a model folder, flat or with text_config. Throws std::exception on a missing field.
  static Qwen35Config Load(const std::filesystem::path& folder);
};

// Matrices [out, in] as stored.
struct Qwen35Layer {
  MlpWeights mlp;
  oracle::Values q_proj, k_proj, v_proj, o_proj, q_norm, k_norm;  // full attention only
  oracle::Values in_qkv, in_z, in_a, in_b, out_proj;              // Gated DeltaNet only
  MixerWeights mixer;                                             // Gated DeltaNet only
};

class Qwen35Reference : public ModelReference {
 public:
  explicit Qwen35Reference(const std::filesystem::path& folder);

 private:
  Qwen35Reference(const Qwen35Config& config, const TensorFiles& files);
  oracle::Values Mix(std::size_t layer, oracle::View x, ModelState::Layer& state, int64_t first_position,
                     Form form) const override;
  oracle::Values FeedForward(std::size_t layer, oracle::View x, Form form) const override;
  oracle::Values Attend(const Qwen35Layer& layer, oracle::View x, ModelState::Layer& state,
                        int64_t first_position, Form form) const;
  oracle::Values MixLinear(const Qwen35Layer& layer, oracle::View x, ModelState::Layer& state,
                           Form form) const;

  Qwen35Config config_;
  std::vector<Qwen35Layer> layers_;
};

}  // namespace rt::testing
