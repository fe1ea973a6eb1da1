// A whole Qwen3.5 dense text model in double precision, built from plugin_sdk/oracle alone. It proves the
// oracle against outputs of an independent implementation, and gives other tests a reference on any prompt.
#pragma once

#include "plugin_sdk/oracle/attention.h"
#include "plugin_sdk/oracle/linear_attention.h"

#include <filesystem>
#include <optional>
#include <vector>

namespace rt::testing {

struct Qwen35Config {
  int64_t vocab_size, hidden_size, intermediate_size;
  bool tie_word_embeddings;
  oracle::NormParams norm;      // block and final norms
  std::vector<bool> is_linear;  // per layer: Gated DeltaNet or full attention
  oracle::GatedAttentionParams attention;
  oracle::LinearMixerParams mixer;  // shape.num_tokens is set per call

  // config.json of a model folder, flat or with text_config. Throws std::exception on a missing field.
  static Qwen35Config Load(const std::filesystem::path& folder);
};

// Matrices [out, in] as stored.
struct Qwen35Layer {
  oracle::Values input_norm, post_norm;                                           // [hidden]
  oracle::Values gate_proj, up_proj, down_proj;                                   // SwiGLU
  oracle::Values q_proj, k_proj, v_proj, o_proj, q_norm, k_norm;                  // full attention only
  oracle::Values in_qkv, in_z, in_a, in_b, conv, a_log, dt_bias, norm, out_proj;  // Gated DeltaNet only
};

// What a sequence carries from call to call, per layer; the member of the other layer kind stays empty.
struct Qwen35State {
  struct Layer {
    oracle::LinearMixerState linear;
    oracle::KeyValueCache attention;
  };
  std::vector<Layer> layers;
  int64_t num_tokens = 0;
};

struct Qwen35Output {
  std::vector<oracle::Values> hidden;  // per layer [T, hidden_size]: the residual after it
  oracle::Values logits;               // [T, vocab_size]
};

// Which form of each composite to run: written out, or as its parts with the delta rule in chunks of 64.
enum class Form { kComposite, kParts };

class Qwen35Reference {
 public:
  explicit Qwen35Reference(const std::filesystem::path& folder);

  const Qwen35Config& config() const { return config_; }
  Qwen35State NewState() const;

  // The next tokens of one sequence; ids [T], T >= 0. `state` is updated.
  Qwen35Output Forward(const std::vector<int32_t>& ids, Qwen35State& state, Form form) const;

 private:
  oracle::Values Attend(const Qwen35Layer& layer, oracle::View x, Qwen35State::Layer& state,
                        int64_t first_position, Form form) const;
  oracle::Values Mix(const Qwen35Layer& layer, oracle::View x, Qwen35State::Layer& state, Form form) const;

  Qwen35Config config_;
  oracle::Values embedding_;  // [vocab, hidden]
  oracle::Values final_norm_;
  oracle::Values lm_head_;  // [vocab, hidden]; empty if tied
  std::vector<Qwen35Layer> layers_;
};

}  // namespace rt::testing
