// An architecture file of this family, and the sizes of one checkpoint.
#pragma once

#include "models/common/decoder.h"

#include <string>

namespace rt::models::gdn {

struct Arch : DecoderArch {
  struct {
    std::string qkv, z, b, a, conv, a_log, dt_bias, norm, out;
  } linear;
  struct {
    std::string q, k, v, o, q_norm, k_norm;
  } attention;
  MlpNames mlp;
  float beta_scale = 1;
  uint32_t linear_output_gate = RT_ACT_SILU;
  uint32_t attention_output_gate = RT_ACT_NONE;
  int64_t full_attention_interval = 4;
  double partial_rotary_factor = 1;
  float l2_norm_eps = 1e-6f;
};

struct Sizes : DecoderSizes {
  int64_t num_q_heads, num_kv_heads, head_dim, rotary_dim;
  int64_t num_k_heads, num_v_heads, head_k_dim, head_v_dim, conv_width;
  double rope_theta = 10000;
  std::string rope_source;
};

Result<Arch> ParseArch(std::string_view arch_json);
Result<Sizes> ParseSizes(const Arch& arch, std::string_view config_json);

}  // namespace rt::models::gdn
