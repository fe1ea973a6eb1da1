// A Kimi-Linear model: Kimi Delta Attention and latent attention layers without rotation, a dense first
// layer, then mixtures of experts. Formulas: arXiv:2510.26692, arXiv:2405.04434 section 2.1, arXiv:2412.19437
// section 2.1.2.
#pragma once

#include "plugin_sdk/oracle/latent_attention.h"
#include "plugin_sdk/oracle/moe.h"
#include "tests/oracle_model/model_reference.h"

namespace rt::testing {

struct KimiLinearConfig : DecoderConfig {
  oracle::LatentShape latent;
  int64_t q_rank;  // 0: one full-rank query projection
  oracle::RouterParams router;
  int64_t expert_width, num_shared_experts;
  std::vector<bool> is_sparse;  // per layer

  // config.json as published or as transformers writes it. Throws std::exception on a missing field.
  static KimiLinearConfig Load(const std::filesystem::path& folder);
};

// Matrices [out, in] as stored, those of the experts one after another.
struct KimiLinearLayer {
  oracle::Values qkv, f_a, f_b, g_a, g_b, b;                    // Kimi Delta Attention only
  MixerWeights mixer;                                           // Kimi Delta Attention only
  oracle::Values q, q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b;  // latent attention only; q or q_a, q_b
  oracle::Values out;
  MlpWeights mlp;  // of a dense layer, or the shared experts
  oracle::Values router, bias;
  MlpWeights experts;
};

class KimiLinearReference : public ModelReference {
 public:
  explicit KimiLinearReference(const std::filesystem::path& folder);

 private:
  KimiLinearReference(const KimiLinearConfig& config, const TensorFiles& files);
  oracle::Values Mix(std::size_t layer, oracle::View x, ModelState::Layer& state, int64_t first_position,
                     Form form) const override;
  oracle::Values FeedForward(std::size_t layer, oracle::View x, Form form) const override;
  oracle::Values MixLinear(const KimiLinearLayer& layer, oracle::View x, ModelState::Layer& state,
                           Form form) const;
  oracle::Values Attend(const KimiLinearLayer& layer, oracle::View x, ModelState::Layer& state,
                        Form form) const;
  oracle::Values Experts(const KimiLinearLayer& layer, oracle::View x, Form form) const;

  KimiLinearConfig config_;
  std::vector<KimiLinearLayer> layers_;
};

}  // namespace rt::testing
