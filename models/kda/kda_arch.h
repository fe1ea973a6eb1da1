// An architecture file of this family, and the sizes of one checkpoint.
#pragma once

#include "models/common/decoder.h"

#include <string>
#include <vector>

namespace rt::models::kda {

struct Arch : DecoderArch {
  struct {
    std::string q, k, v, q_conv, k_conv, v_conv, f_a, f_b, g_a, g_b, b, a_log, dt_bias, norm, out;
  } linear;
  struct {
    std::string q, q_a, q_a_norm, q_b, kv_a, kv_a_norm, kv_b, out;
  } latent;
  std::vector<std::string> mlp_prefixes;  // the first under which the checkpoint holds the dense layer's gate
  MlpNames mlp;
  struct {
    std::string router, bias, gate, up, down;  // {e} in the experts' names
    MlpNames shared;
  } experts;
  int64_t full_attention_interval = 4;
  int64_t first_k_dense_replace = 1;
  float latent_norm_eps = 1e-6f;
  float l2_norm_eps = 1e-6f;
};

struct Sizes : DecoderSizes {
  // Kimi Delta Attention: as many value heads as key heads, all head_dim wide.
  int64_t num_heads, head_dim, conv_width;
  uint32_t gate_form = RT_GATE_SOFTPLUS_DECAY;
  double gate_bound = 0;  // RT_GATE_BOUNDED_SIGMOID: lower bound of the log decay
  // Latent attention; q_rank 0: one full-rank query projection.
  int64_t num_q_heads, q_rank, latent_dim, qk_nope_dim, qk_shared_dim, v_dim;
  // Mixture of experts; num_experts 0: every layer is dense.
  int64_t num_experts = 0, experts_per_token = 0, num_shared_experts = 0, num_groups = 1, topk_groups = 1, expert_width = 0;
  uint32_t router_score = RT_ROUTER_SIGMOID;
  bool renormalize = true;
  double routed_scale = 1;
  std::vector<bool> is_sparse;  // per layer: experts instead of one dense MLP
  int64_t num_draft_layers = 0;  // after the last layer in the checkpoint, outside this program
};

Result<Arch> ParseArch(std::string_view arch_json);
// Both dialects of config.json: as published (linear_attn_config with 1-based layer lists) and as transformers writes it (flat
// linear_* fields, layer_types, mlp_layer_types).
Result<Sizes> ParseSizes(const Arch& arch, std::string_view config_json);

}  // namespace rt::models::kda
