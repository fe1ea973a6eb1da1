#include "models/gdn/gdn_arch.h"

#include <algorithm>

namespace rt::models::gdn {
namespace {

uint32_t Gate(const ConfigReader& r, std::string_view key) {
  const std::string name = r.Text(key, "none");
  if (name == "silu") return RT_ACT_SILU;
  if (name == "sigmoid") return RT_ACT_SIGMOID;
  if (name != "none") r.Fail(key, "expected none, silu or sigmoid, found " + name);
  return RT_ACT_NONE;
}

void ReadTensors(const ConfigReader& t, Arch* arch) {
  const ConfigReader l = t.Object("linear_attention");
  l.OnlyKeys({"qkv", "z", "b", "a", "conv", "a_log", "dt_bias", "norm", "out"});
  arch->linear = {l.Text("qkv"), l.Text("z"), l.Text("b"), l.Text("a"), l.Text("conv"), l.Text("a_log"), l.Text("dt_bias"), l.Text("norm"), l.Text("out")};
  const ConfigReader a = t.Object("full_attention");
  a.OnlyKeys({"q", "k", "v", "o", "q_norm", "k_norm"});
  arch->attention = {a.Text("q"), a.Text("k"), a.Text("v"), a.Text("o"), a.Text("q_norm"), a.Text("k_norm")};
  const ConfigReader m = t.Object("mlp");
  m.OnlyKeys({"gate", "up", "down"});
  arch->mlp = ReadMlpNames(m);
}

void ReadVariations(const ConfigReader& v, Arch* arch) {
  v.OnlyKeys({"norm_weight_offset", "beta_scale", "linear_output_gate", "attention_output_gate", "full_attention_interval", "partial_rotary_factor", "l2_norm_eps"});
  arch->norm_weight_offset = static_cast<float>(v.Real("norm_weight_offset", 0));
  arch->beta_scale = static_cast<float>(v.Real("beta_scale", 1));
  arch->linear_output_gate = Gate(v, "linear_output_gate");
  if (arch->linear_output_gate == RT_ACT_NONE) v.Fail("linear_output_gate", "expected silu or sigmoid");
  arch->attention_output_gate = Gate(v, "attention_output_gate");
  if (arch->attention_output_gate == RT_ACT_SILU) v.Fail("attention_output_gate", "expected none or sigmoid, found silu");
  arch->full_attention_interval = v.Int("full_attention_interval", 4);
  arch->partial_rotary_factor = v.Real("partial_rotary_factor", 1);
  arch->l2_norm_eps = static_cast<float>(v.Real("l2_norm_eps", 1e-6));
}

// What this architecture does not do is refused by name instead of being computed wrong.
void RefuseUnserved(const ConfigReader& config) {
  if (config.Has("num_experts") && config.Int("num_experts", 0, 0) > 0) config.Fail("num_experts", "expert layers are not part of this architecture file");
  if (config.Bool("attention_bias", false)) config.Fail("attention_bias", "expected false, found true");
  if (!config.Bool("attn_output_gate", true)) config.Fail("attn_output_gate", "expected true, found false");
}

void ReadSizes(const Arch& arch, const ConfigReader& outer, const ConfigReader& c, Sizes* sizes) {
  Sizes& s = *sizes;
  RefuseUnserved(c);
  ReadDecoderSizes(outer, c, &s);
  s.num_q_heads = c.Int("num_attention_heads");
  s.num_kv_heads = c.Int("num_key_value_heads", s.num_q_heads);
  s.head_dim = c.Int("head_dim", std::max<int64_t>(1, s.hidden_size / s.num_q_heads));
  s.num_k_heads = c.Int("linear_num_key_heads");
  s.num_v_heads = c.Int("linear_num_value_heads");
  s.head_k_dim = c.Int("linear_key_head_dim");
  s.head_v_dim = c.Int("linear_value_head_dim");
  s.conv_width = c.Int("linear_conv_kernel_dim", 4);
  c.Product("num_attention_heads * head_dim", s.num_q_heads, s.head_dim);
  c.Product("num_key_value_heads * head_dim", s.num_kv_heads, s.head_dim);
  c.Product("linear_num_key_heads * linear_key_head_dim", s.num_k_heads, s.head_k_dim);
  c.Product("linear_num_value_heads * linear_value_head_dim", s.num_v_heads, s.head_v_dim);
  s.layer_types = LayerTypes(c, s.num_layers, arch.full_attention_interval);
  const RopeSettings rope = ReadRope(c, arch.partial_rotary_factor);
  s.rope_theta = rope.theta;
  s.rope_source = rope.present ? rope.source : "none (no rotary embedding)";
  // int() as the reference does: 24 * 0.25 -> 6.
  s.rotary_dim = rope.present ? static_cast<int64_t>(static_cast<double>(s.head_dim) * rope.partial_rotary_factor) : 0;
}

}  // namespace

Result<Arch> ParseArch(std::string_view arch_json) {
  RT_ASSIGN_OR_RETURN(const json root, ParseObject(arch_json, "architecture file"));
  Status status;
  Arch arch;
  const ConfigReader r(root, "arch", &status);
  ReadDecoderArch(r, {"linear_attention", "full_attention", "mlp"}, &arch);
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

}  // namespace rt::models::gdn
