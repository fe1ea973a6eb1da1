#include "models/gdn/gdn_arch.h"

#include <algorithm>

namespace rt::models::gdn {
namespace {

Result<json> ParseObject(std::string_view text, const char* what) {
  json parsed = json::parse(text, nullptr, false);
  if (parsed.is_discarded() || !parsed.is_object()) return {Code::kInvalidArgument, std::string(what) + ": expected a JSON object"};
  return parsed;
}

uint32_t Gate(const ConfigReader& r, std::string_view key) {
  const std::string name = r.Text(key, "none");
  if (name == "silu") return RT_ACT_SILU;
  if (name == "sigmoid") return RT_ACT_SIGMOID;
  if (name != "none") r.Fail(key, "expected none, silu or sigmoid, found " + name);
  return RT_ACT_NONE;
}

void ReadTensors(const ConfigReader& t, Arch* arch) {
  t.OnlyKeys({"prefixes", "embed", "final_norm", "lm_head", "layer", "input_norm", "post_norm", "linear_attention", "full_attention", "mlp"});
  arch->prefixes = t.Texts("prefixes");
  if (arch->prefixes.empty()) t.Fail("prefixes", "expected at least one prefix");
  arch->embed = t.Text("embed");
  arch->final_norm = t.Text("final_norm");
  arch->lm_head = t.Text("lm_head");
  arch->layer = t.Text("layer");
  arch->input_norm = t.Text("input_norm");
  arch->post_norm = t.Text("post_norm");
  const ConfigReader l = t.Object("linear_attention");
  l.OnlyKeys({"qkv", "z", "b", "a", "conv", "a_log", "dt_bias", "norm", "out"});
  arch->linear = {l.Text("qkv"), l.Text("z"), l.Text("b"), l.Text("a"), l.Text("conv"), l.Text("a_log"), l.Text("dt_bias"), l.Text("norm"), l.Text("out")};
  const ConfigReader a = t.Object("full_attention");
  a.OnlyKeys({"q", "k", "v", "o", "q_norm", "k_norm"});
  arch->attention = {a.Text("q"), a.Text("k"), a.Text("v"), a.Text("o"), a.Text("q_norm"), a.Text("k_norm")};
  const ConfigReader m = t.Object("mlp");
  m.OnlyKeys({"gate", "up", "down"});
  arch->mlp = {m.Text("gate"), m.Text("up"), m.Text("down")};
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
void RefuseUnserved(const ConfigReader& outer, const ConfigReader& config) {
  for (const ConfigReader* c : {&outer, &config}) {
    if (c->Has("quantization_config")) c->Fail("quantization_config", "quantized checkpoints are not served yet");
  }
  if (config.Has("num_experts") && config.Int("num_experts", 0, 0) > 0) config.Fail("num_experts", "expert layers are not part of this architecture file");
  const std::string act = config.Text("hidden_act", "silu");
  if (act != "silu") config.Fail("hidden_act", "expected silu, found " + act);
  if (config.Bool("attention_bias", false)) config.Fail("attention_bias", "expected false, found true");
  if (!config.Bool("attn_output_gate", true)) config.Fail("attn_output_gate", "expected true, found false");
}

uint32_t StateDType(const ConfigReader& config) {
  const std::string name = config.Text("mamba_ssm_dtype", "float32");
  if (name == "float32") return RT_DTYPE_F32;
  if (name == "bfloat16") return RT_DTYPE_BF16;
  if (name == "float16") return RT_DTYPE_F16;
  config.Fail("mamba_ssm_dtype", "expected float32, bfloat16 or float16, found " + name);
  return RT_DTYPE_F32;
}

}  // namespace

Result<Arch> ParseArch(std::string_view arch_json) {
  RT_ASSIGN_OR_RETURN(const json root, ParseObject(arch_json, "architecture file"));
  Status status;
  Arch arch;
  const ConfigReader r(root, "arch", &status);
  r.OnlyKeys({"name", "plugin", "architectures", "model_types", "text_config", "tensors", "skip", "variations"});
  arch.name = r.Text("name");
  arch.architectures = r.Texts("architectures");
  arch.model_types = r.Texts("model_types");
  arch.text_config = r.Text("text_config", "");
  arch.skip = r.Texts("skip");
  ReadTensors(r.Object("tensors"), &arch);
  ReadVariations(r.Object("variations"), &arch);
  if (!status.ok()) return status;
  return arch;
}

Result<Sizes> ParseSizes(const Arch& arch, std::string_view config_json) {
  RT_ASSIGN_OR_RETURN(const json root, ParseObject(config_json, "config.json"));
  const json& text = TextConfig(root, arch.text_config);
  Status status;
  const bool nested = &text != &root;
  const ConfigReader outer(root, "config.json", &status);
  const ConfigReader c(text, nested ? "config.json." + arch.text_config : "config.json", &status);
  RefuseUnserved(outer, c);
  Sizes s = {};
  s.vocab_size = c.Int("vocab_size");
  s.hidden_size = c.Int("hidden_size");
  s.intermediate_size = c.Int("intermediate_size");
  s.num_layers = c.Int("num_hidden_layers");
  s.max_context = c.Int("max_position_embeddings", 32768);
  s.num_q_heads = c.Int("num_attention_heads");
  s.num_kv_heads = c.Int("num_key_value_heads", s.num_q_heads);
  s.head_dim = c.Int("head_dim", std::max<int64_t>(1, s.hidden_size / std::max<int64_t>(1, s.num_q_heads)));
  s.num_k_heads = c.Int("linear_num_key_heads");
  s.num_v_heads = c.Int("linear_num_value_heads");
  s.head_k_dim = c.Int("linear_key_head_dim");
  s.head_v_dim = c.Int("linear_value_head_dim");
  s.conv_width = c.Int("linear_conv_kernel_dim", 4);
  s.norm_eps = static_cast<float>(c.Real("rms_norm_eps", 1e-6));
  s.state_dtype = StateDType(c);
  s.tied = outer.Has("tie_word_embeddings") ? outer.Bool("tie_word_embeddings", false) : c.Bool("tie_word_embeddings", false);
  s.layer_types = LayerTypes(c, s.num_layers, arch.full_attention_interval);
  const RopeSettings rope = ReadRope(c, arch.partial_rotary_factor);
  s.rope_theta = rope.theta;
  s.rope_source = rope.present ? rope.source : "none (no rotary embedding)";
  // int() as the reference does: 24 * 0.25 -> 6.
  s.rotary_dim = rope.present ? static_cast<int64_t>(static_cast<double>(s.head_dim) * rope.partial_rotary_factor) : 0;
  if (!status.ok()) return status;
  return s;
}

}  // namespace rt::models::gdn
