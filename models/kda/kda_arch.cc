#include "models/kda/kda_arch.h"

#include <algorithm>

namespace rt::models::kda {
namespace {

void ReadTensors(const ConfigReader& t, Arch* arch) {
  const ConfigReader l = t.Object("linear_attention");
  l.OnlyKeys({"q", "k", "v", "q_conv", "k_conv", "v_conv", "f_a", "f_b", "g_a", "g_b", "b", "a_log", "dt_bias", "norm", "out"});
  arch->linear = {l.Text("q"),   l.Text("k"),   l.Text("v"),   l.Text("q_conv"), l.Text("k_conv"), l.Text("v_conv"),  l.Text("f_a"), l.Text("f_b"),
                  l.Text("g_a"), l.Text("g_b"), l.Text("b"),   l.Text("a_log"),  l.Text("dt_bias"), l.Text("norm"),   l.Text("out")};
  const ConfigReader a = t.Object("latent_attention");
  a.OnlyKeys({"q", "q_a", "q_a_norm", "q_b", "kv_a", "kv_a_norm", "kv_b", "out"});
  arch->latent = {a.Text("q"), a.Text("q_a"), a.Text("q_a_norm"), a.Text("q_b"), a.Text("kv_a"), a.Text("kv_a_norm"), a.Text("kv_b"), a.Text("out")};
  const ConfigReader m = t.Object("mlp");
  m.OnlyKeys({"prefixes", "gate", "up", "down"});
  arch->mlp_prefixes = m.Texts("prefixes");
  if (arch->mlp_prefixes.empty()) m.Fail("prefixes", "expected at least one prefix");
  arch->mlp = ReadMlpNames(m);
  const ConfigReader e = t.Object("experts");
  e.OnlyKeys({"router", "bias", "gate", "up", "down", "shared_gate", "shared_up", "shared_down"});
  arch->experts = {e.Text("router"), e.Text("bias"), e.Text("gate"), e.Text("up"), e.Text("down"), {e.Text("shared_gate"), e.Text("shared_up"), e.Text("shared_down")}};
  for (const char* key : {"gate", "up", "down"}) {
    if (e.Text(key).find("{e}") == std::string::npos) e.Fail(key, "expected {e} where the expert's number stands");
  }
}

void ReadVariations(const ConfigReader& v, Arch* arch) {
  v.OnlyKeys({"full_attention_interval", "first_k_dense_replace", "latent_norm_eps", "l2_norm_eps"});
  arch->full_attention_interval = v.Int("full_attention_interval", 4);
  arch->first_k_dense_replace = v.Int("first_k_dense_replace", 1, 0);
  arch->latent_norm_eps = static_cast<float>(v.Real("latent_norm_eps", 1e-6));
  arch->l2_norm_eps = static_cast<float>(v.Real("l2_norm_eps", 1e-6));
}

// What this architecture does not do is refused by name instead of being computed wrong. The larger relative that shares the model type
// is told apart by these fields.
void RefuseUnserved(const ConfigReader& c) {
  if (!c.Bool("mla_use_nope", true)) c.Fail("mla_use_nope", "expected true, found false: rotated latent attention is not served");
  if (c.Bool("attention_bias", false)) c.Fail("attention_bias", "expected false, found true");
  if (c.Bool("mla_use_output_gate", false)) c.Fail("mla_use_output_gate", "expected false, found true");
  for (const char* key : {"attn_res_block_size", "routed_expert_hidden_size", "swiglu_limit"}) {
    if (c.Has(key)) c.Fail(key, "expected nothing: not part of this architecture");
  }
  if (c.Object("linear_attn_config").Bool("use_full_rank_gate", false)) {
    c.Object("linear_attn_config").Fail("use_full_rank_gate", "expected false, found true");
  }
}

// Every layer must be in exactly one of two 1-based lists.
std::vector<std::string> ListedLayerTypes(const ConfigReader& lists, int64_t num_layers) {
  std::vector<std::string> types(static_cast<size_t>(num_layers));
  for (const auto& [key, type] : {std::pair("kda_layers", "linear_attention"), std::pair("full_attn_layers", "full_attention")}) {
    for (const int64_t layer : lists.Ints(key)) {
      if (layer < 1 || layer > num_layers) {
        lists.Fail(key, "expected layers from 1 to " + std::to_string(num_layers) + " (num_hidden_layers), found " + std::to_string(layer));
        continue;
      }
      std::string& entry = types[static_cast<size_t>(layer - 1)];
      if (!entry.empty()) lists.Fail(key, "layer " + std::to_string(layer) + " is listed twice in kda_layers and full_attn_layers");
      entry = type;
    }
  }
  const auto missing = std::find(types.begin(), types.end(), "");
  if (missing != types.end()) lists.Fail("kda_layers", "layer " + std::to_string(missing - types.begin() + 1) + " is neither here nor in full_attn_layers");
  return types;
}

void ReadLinearAttention(const Arch& arch, const ConfigReader& c, Sizes* s) {
  const bool nested = c.Has("linear_attn_config");
  const ConfigReader l = nested ? c.Object("linear_attn_config") : c;
  s->num_heads = l.Int(nested ? "num_heads" : "linear_num_heads");
  s->head_dim = l.Int(nested ? "head_dim" : "linear_head_dim");
  s->conv_width = l.Int(nested ? "short_conv_kernel_size" : "linear_conv_kernel_dim", 4, 2);
  l.Product("heads * head_dim of linear attention", s->num_heads, s->head_dim);
  const std::string_view bound = nested && l.Has("gate_lower_bound") ? "gate_lower_bound" : c.AnyOf({"gate_lower_bound", "linear_lower_bound"});
  const ConfigReader& where = nested && l.Has("gate_lower_bound") ? l : c;
  if (where.Has(bound)) {
    s->gate_form = RT_GATE_BOUNDED_SIGMOID;
    s->gate_bound = where.Real(bound);
    if (s->gate_bound >= 0 || s->gate_bound < -5) where.Fail(bound, "expected from -5 to below 0, found " + std::to_string(s->gate_bound));
  }
  const bool listed = nested && !c.Has("layer_types") && (l.Has("kda_layers") || l.Has("full_attn_layers"));
  s->layer_types = listed ? ListedLayerTypes(l, s->num_layers) : LayerTypes(c, s->num_layers, arch.full_attention_interval);
}

void ReadLatentAttention(const ConfigReader& c, Sizes* s) {
  s->num_q_heads = c.Int("num_attention_heads");
  if (c.Int("num_key_value_heads", s->num_q_heads) != s->num_q_heads) {
    c.Fail("num_key_value_heads", "expected num_attention_heads = " + std::to_string(s->num_q_heads) + ", found " + std::to_string(c.Int("num_key_value_heads")));
  }
  s->q_rank = c.Int("q_lora_rank", 0, 1);
  s->latent_dim = c.Int("kv_lora_rank");
  s->qk_nope_dim = c.Int("qk_nope_head_dim");
  s->qk_shared_dim = c.Int("qk_rope_head_dim", std::nullopt, 0);
  s->v_dim = c.Int("v_head_dim");
  if (c.Has("qk_head_dim") && c.Int("qk_head_dim") != s->qk_nope_dim + s->qk_shared_dim) {
    c.Fail("qk_head_dim", "expected qk_nope_head_dim + qk_rope_head_dim = " + std::to_string(s->qk_nope_dim + s->qk_shared_dim) + ", found " + std::to_string(c.Int("qk_head_dim")));
  }
  c.Product("num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)", s->num_q_heads, s->qk_nope_dim + s->qk_shared_dim);
  c.Product("num_attention_heads * (qk_nope_head_dim + v_head_dim)", s->num_q_heads, s->qk_nope_dim + s->v_dim);
}

void ReadRouter(const ConfigReader& c, Sizes* s) {
  s->experts_per_token = c.Int(c.AnyOf({"num_experts_per_token", "num_experts_per_tok"}), std::nullopt, 1, s->num_experts);
  if (c.Bool("use_grouped_topk", true)) {
    const std::string_view groups = c.AnyOf({"num_expert_group", "n_group"});
    s->num_groups = c.Int(groups, 1, 1, s->num_experts);
    s->topk_groups = c.Int("topk_group", 1, 1, s->num_groups);
    if (s->num_experts % s->num_groups != 0) c.Fail(groups, "expected a divisor of " + std::to_string(s->num_experts) + " experts, found " + std::to_string(s->num_groups));
    const int64_t reachable = s->topk_groups * (s->num_experts / s->num_groups);
    if (reachable < s->experts_per_token) {
      c.Fail("topk_group", std::to_string(s->topk_groups) + " groups hold " + std::to_string(reachable) + " experts, fewer than the " + std::to_string(s->experts_per_token) + " of a token");
    }
  }
  const std::string score = c.Text("moe_router_activation_func", "sigmoid");
  if (score != "sigmoid" && score != "softmax") c.Fail("moe_router_activation_func", "expected sigmoid or softmax, found " + score);
  s->router_score = score == "softmax" ? RT_ROUTER_SOFTMAX : RT_ROUTER_SIGMOID;
  s->renormalize = c.Bool(c.AnyOf({"moe_renormalize", "norm_topk_prob"}), true);
  s->routed_scale = c.Real("routed_scaling_factor", 1);
}

// Which layers are mixtures of experts: mlp_layer_types where listed, else from first_k_dense_replace on every moe_layer_freq-th.
std::vector<bool> SparseLayers(const Arch& arch, const ConfigReader& c, int64_t num_layers) {
  std::vector<bool> sparse;
  const std::vector<std::string> types = c.Texts("mlp_layer_types");
  if (!types.empty() && static_cast<int64_t>(types.size()) != num_layers) {
    c.Fail("mlp_layer_types", "expected " + std::to_string(num_layers) + " entries (num_hidden_layers), found " + std::to_string(types.size()));
  }
  for (const std::string& type : types) {
    if (type != "dense" && type != "sparse") c.Fail("mlp_layer_types", "expected dense or sparse, found " + type);
    sparse.push_back(type == "sparse");
  }
  if (!types.empty()) return sparse;
  const int64_t first = c.Int("first_k_dense_replace", arch.first_k_dense_replace, 0), every = c.Int("moe_layer_freq", 1);
  for (int64_t i = 0; i < num_layers; ++i) sparse.push_back(i >= first && i % every == 0);
  return sparse;
}

void ReadExperts(const Arch& arch, const ConfigReader& c, Sizes* s) {
  // Of all layers together; ten times the largest published model. Bounds what a config makes us allocate: one name an expert and matrix.
  const int64_t max_experts = std::max<int64_t>(1, (1 << 20) / s->num_layers);
  s->is_sparse.assign(static_cast<size_t>(s->num_layers), false);
  const std::string_view experts = c.AnyOf({"num_experts", "n_routed_experts"});
  s->num_experts = c.Int(experts, 0, 0, max_experts);
  if (s->num_experts == 0) {
    if (c.Has("mlp_layer_types") && SparseLayers(arch, c, s->num_layers) != s->is_sparse) c.Fail(experts, "expected > 0: mlp_layer_types names sparse layers");
    return;
  }
  s->is_sparse = SparseLayers(arch, c, s->num_layers);
  s->expert_width = c.Int("moe_intermediate_size");
  s->num_shared_experts = c.Int(c.AnyOf({"num_shared_experts", "n_shared_experts"}), 0, 0);
  c.Product("num_shared_experts * moe_intermediate_size", s->num_shared_experts, s->expert_width);
  ReadRouter(c, s);
}

void ReadSizes(const Arch& arch, const ConfigReader& outer, const ConfigReader& c, Sizes* s) {
  RefuseUnserved(c);
  ReadDecoderSizes(outer, c, s);
  ReadLinearAttention(arch, c, s);
  ReadLatentAttention(c, s);
  ReadExperts(arch, c, s);
  s->num_draft_layers = c.Int("num_nextn_predict_layers", 0, 0, 64);
}

}  // namespace

Result<Arch> ParseArch(std::string_view arch_json) {
  RT_ASSIGN_OR_RETURN(const json root, ParseObject(arch_json, "architecture file"));
  Status status;
  Arch arch;
  const ConfigReader r(root, "arch", &status);
  ReadDecoderArch(r, {"linear_attention", "latent_attention", "mlp", "experts"}, &arch);
  ReadTensors(r.Object("tensors"), &arch);
  ReadVariations(r.Object("variations"), &arch);
  if (!status.ok()) return status;
  return arch;
}

Result<Sizes> ParseSizes(const Arch& arch, std::string_view config_json) {
  Sizes sizes = {};
  RT_RETURN_IF_ERROR(ReadConfig(config_json, arch.text_config, [&](const ConfigReader& outer, const ConfigReader& text) { ReadSizes(arch, outer, text, &sizes); }));
  return sizes;
}

}  // namespace rt::models::kda
