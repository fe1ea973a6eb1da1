// An architecture file of this family, and the sizes of one checkpoint.
#pragma once

#include "models/common/config.h"

#include <rt/plugin/op_defs.h>

#include <string>
#include <vector>

namespace rt::models::gdn {

struct Arch {
  std::string name;
  std::vector<std::string> architectures, model_types;
  std::string text_config;
  std::vector<std::string> prefixes, skip;
  std::string embed, final_norm, lm_head, layer, input_norm, post_norm;
  struct {
    std::string qkv, z, b, a, conv, a_log, dt_bias, norm, out;
  } linear;
  struct {
    std::string q, k, v, o, q_norm, k_norm;
  } attention;
  struct {
    std::string gate, up, down;
  } mlp;
  float norm_weight_offset = 0;
  float beta_scale = 1;
  uint32_t linear_output_gate = RT_ACT_SILU;
  uint32_t attention_output_gate = RT_ACT_NONE;
  int64_t full_attention_interval = 4;
  double partial_rotary_factor = 1;
  float l2_norm_eps = 1e-6f;
};

struct Sizes {
  int64_t vocab_size, hidden_size, intermediate_size, num_layers, max_context;
  int64_t num_q_heads, num_kv_heads, head_dim, rotary_dim;
  int64_t num_k_heads, num_v_heads, head_k_dim, head_v_dim, conv_width;
  double rope_theta = 10000;
  float norm_eps = 1e-6f;
  bool tied = false;
  uint32_t state_dtype = RT_DTYPE_F32;  // the checkpoint's mamba_ssm_dtype
  std::vector<std::string> layer_types;
  std::string rope_source;
};

Result<Arch> ParseArch(std::string_view arch_json);
Result<Sizes> ParseSizes(const Arch& arch, std::string_view config_json);

}  // namespace rt::models::gdn
