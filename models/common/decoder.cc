#include "models/common/decoder.h"

namespace rt::models {
namespace {

using plugin::ProgramBuilder;
using Id = ProgramBuilder::Id;

uint32_t StateDType(const ConfigReader& config) {
  const std::string name = config.Text("mamba_ssm_dtype", "float32");
  if (name == "float32") return RT_DTYPE_F32;
  if (name == "bfloat16") return RT_DTYPE_BF16;
  if (name == "float16") return RT_DTYPE_F16;
  config.Fail("mamba_ssm_dtype", "expected float32, bfloat16 or float16, found " + name);
  return RT_DTYPE_F32;
}

// "a + b": how a weight of several tensors is called in reports.
std::string Joined(const std::vector<std::string>& tensors) {
  std::string name;
  for (const std::string& tensor : tensors) name += (name.empty() ? "" : " + ") + tensor;
  return name;
}

std::vector<ProgramBuilder::WeightPart> Parts(const std::vector<std::string>& tensors, int64_t rows_each) {
  std::vector<ProgramBuilder::WeightPart> parts;
  for (const std::string& tensor : tensors) parts.push_back({tensor, rows_each});
  return parts;
}

}  // namespace

void ReadDecoderArch(const ConfigReader& root, std::initializer_list<std::string_view> family_tensors, DecoderArch* arch) {
  root.OnlyKeys({"name", "plugin", "architectures", "model_types", "text_config", "tensors", "skip", "variations"});
  arch->name = root.Text("name");
  arch->architectures = root.Texts("architectures");
  arch->model_types = root.Texts("model_types");
  arch->text_config = root.Text("text_config", "");
  arch->skip = root.Texts("skip");
  const ConfigReader t = root.Object("tensors");
  t.OnlyKeys({"prefixes", "embed", "final_norm", "lm_head", "layer", "input_norm", "post_norm"}, family_tensors);
  arch->prefixes = t.Texts("prefixes");
  if (arch->prefixes.empty()) t.Fail("prefixes", "expected at least one prefix");
  arch->embed = t.Text("embed");
  arch->final_norm = t.Text("final_norm");
  arch->lm_head = t.Text("lm_head");
  arch->layer = t.Text("layer");
  arch->input_norm = t.Text("input_norm");
  arch->post_norm = t.Text("post_norm");
}

MlpNames ReadMlpNames(const ConfigReader& names) { return {names.Text("gate"), names.Text("up"), names.Text("down")}; }

void ReadDecoderSizes(const ConfigReader& outer, const ConfigReader& text, DecoderSizes* sizes) {
  constexpr int64_t kMaxLayers = 4096;  // no published model has a tenth of it; bounds what a config makes us allocate
  for (const ConfigReader* c : {&outer, &text}) {
    if (c->Has("quantization_config")) c->Fail("quantization_config", "quantized checkpoints are not served yet");
  }
  const std::string act = text.Text("hidden_act", "silu");
  if (act != "silu") text.Fail("hidden_act", "expected silu, found " + act);
  sizes->vocab_size = text.Int("vocab_size");
  sizes->hidden_size = text.Int("hidden_size");
  sizes->intermediate_size = text.Int("intermediate_size");
  sizes->num_layers = text.Int("num_hidden_layers", std::nullopt, 1, kMaxLayers);
  sizes->max_context = text.Int(text.AnyOf({"max_position_embeddings", "model_max_length"}), 32768);
  sizes->norm_eps = static_cast<float>(text.Real("rms_norm_eps", 1e-6));
  sizes->state_dtype = StateDType(text);
  sizes->tied = outer.Has("tie_word_embeddings") ? outer.Bool("tie_word_embeddings", false) : text.Bool("tie_word_embeddings", false);
}

Result<std::string> FindPrefix(const DecoderArch& arch, bool random_weights, const ProgramBuilder& b) {
  if (random_weights) return arch.prefixes.back();
  std::string tried;
  for (const std::string& prefix : arch.prefixes) {
    const std::string embed = TensorName(arch.embed, prefix);
    if (b.HasTensor(embed)) return prefix;
    tried += (tried.empty() ? "" : ", ") + embed;
  }
  return {Code::kNotFound, "the checkpoint has no token embedding; looked for " + tried};
}

void DecoderEmitter::Run(const std::string& note) {
  const DecoderSizes& s = sizes_;
  b_.Info({0, static_cast<int32_t>(s.vocab_size), static_cast<int32_t>(s.hidden_size), static_cast<int32_t>(s.num_layers), static_cast<int32_t>(s.max_context), 0});
  for (const std::string& glob : names_.skip) b_.Skip(TensorName(glob, prefix_));
  b_.Note("architecture " + names_.name + ", tensor prefix \"" + prefix_ + "\", " + note + (s.tied ? ", tied embeddings" : ""));
  embed_ = b_.Weight(TensorName(names_.embed, prefix_), {s.vocab_size, s.hidden_size});
  x_ = b_.Value("x", kTokens, s.hidden_size, RT_VALUE_F32);
  b_.Op(RT_OP_EMBEDDING, "embed_tokens", {b_.Input(RT_INPUT_TOKEN_IDS)}, {embed_}, {x_});
  for (int64_t i = 0; i < s.num_layers && b_.status().ok(); ++i) Layer(i);
  Head();
}

void DecoderEmitter::Layer(int64_t i) {
  const Id h = ResidualNorm(Label(i, "input_norm"), Name(i, names_.input_norm));
  if (i > 0) b_.Output(RT_OUTPUT_HIDDEN, static_cast<uint32_t>(i - 1), x_);
  delta_ = Mixer(i, h);
  const Id m = ResidualNorm(Label(i, "post_norm"), Name(i, names_.post_norm));
  delta_ = FeedForward(i, m);
}

void DecoderEmitter::Head() {
  const Id h = ResidualNorm("norm", TensorName(names_.final_norm, prefix_));
  b_.Output(RT_OUTPUT_HIDDEN, static_cast<uint32_t>(sizes_.num_layers - 1), x_);
  const Id last = b_.Value("last", RT_DIM_ROWS, sizes_.hidden_size), logits = b_.Value("logits", RT_DIM_ROWS, sizes_.vocab_size, RT_VALUE_F32);
  b_.Op(RT_OP_GATHER_ROWS, "sampled_rows", {h, b_.Input(RT_INPUT_SAMPLED_ROWS)}, {}, {last});
  const Id head = sizes_.tied ? embed_ : b_.Weight(TensorName(names_.lm_head, prefix_), {sizes_.vocab_size, sizes_.hidden_size});
  b_.Op(RT_OP_LINEAR, "lm_head", {last}, {head}, {logits});
  b_.Output(RT_OUTPUT_LOGITS, 0, logits);
}

Id DecoderEmitter::NormWeight(const std::string& tensor, int64_t width) {
  return b_.Weight(tensor, {width}, {RT_WEIGHT_F32, 0, RT_INIT_NORM, names_.norm_weight_offset});
}

Id DecoderEmitter::ResidualNorm(const std::string& label, const std::string& tensor) {
  if (delta_ == RT_NO_ID) return RmsNorm(label, x_, tensor, sizes_.hidden_size, sizes_.norm_eps);
  const rt_attrs_norm attrs = {sizeof attrs, sizes_.norm_eps, names_.norm_weight_offset, 0};
  const Id w = NormWeight(tensor, sizes_.hidden_size), h = b_.Value(label, kTokens, sizes_.hidden_size);
  b_.Op(RT_OP_ADD_RMS_NORM, label, {x_, delta_}, {w}, {x_, h}, {}, attrs);
  return h;
}

Id DecoderEmitter::RmsNorm(const std::string& label, Id x, const std::string& tensor, int64_t width, float eps) {
  const rt_attrs_norm attrs = {sizeof attrs, eps, names_.norm_weight_offset, 0};
  const Id w = NormWeight(tensor, width), y = b_.Value(label, kTokens, width);
  b_.Op(RT_OP_RMS_NORM, label, {x}, {w}, {y}, {}, attrs);
  return y;
}

Id DecoderEmitter::Linear(const std::string& label, Id x, const std::string& tensor, int64_t out_features, int64_t in_features) {
  const Id y = b_.Value(label, kTokens, out_features);
  b_.Op(RT_OP_LINEAR, label, {x}, {b_.Weight(tensor, {out_features, in_features})}, {y});
  return y;
}

Id DecoderEmitter::StackedLinear(const std::string& label, Id x, const std::vector<std::string>& tensors, int64_t rows_each, int64_t in_features) {
  const std::vector<ProgramBuilder::WeightPart> parts = Parts(tensors, rows_each);
  const int64_t out_features = rows_each * static_cast<int64_t>(tensors.size());
  ProgramBuilder::WeightOptions options;
  options.parts = parts;
  const Id y = b_.Value(label, kTokens, out_features);
  b_.Op(RT_OP_LINEAR, label, {x}, {b_.Weight(Joined(tensors), {out_features, in_features}, options)}, {y});
  return y;
}

Id DecoderEmitter::GatedMlp(const std::string& label, Id x, const MlpNames& tensors) {
  const int64_t inner = sizes_.intermediate_size, hidden = sizes_.hidden_size;
  const Id y = b_.Value(label, kTokens, hidden);
  b_.Op(RT_OP_GATED_MLP, label, {x}, {b_.Weight(tensors.gate, {inner, hidden}), b_.Weight(tensors.up, {inner, hidden}), b_.Weight(tensors.down, {hidden, inner})}, {y});
  return y;
}

Id DecoderEmitter::ConvWeight(const LinearMixerTensors& tensors, int64_t channels, const rt_attrs_mixer& attrs) {
  ProgramBuilder::WeightOptions options = {RT_WEIGHT_F32, 0, RT_INIT_CONV, 0};
  const std::vector<ProgramBuilder::WeightPart> parts = tensors.conv.size() == 1 ? std::vector<ProgramBuilder::WeightPart>()
      : std::vector<ProgramBuilder::WeightPart>{{tensors.conv[0], int64_t{attrs.num_k_heads} * attrs.head_k_dim},
                                                {tensors.conv[1], int64_t{attrs.num_k_heads} * attrs.head_k_dim},
                                                {tensors.conv[2], int64_t{attrs.num_v_heads} * attrs.head_v_dim}};
  options.parts = parts;
  return b_.Weight(Joined(tensors.conv), {channels, 1, attrs.conv_width}, options);
}

Id DecoderEmitter::LinearMixer(int64_t i, const rt_attrs_mixer& attrs, Id qkv, Id z, Id b, Id a, const LinearMixerTensors& tensors) {
  const int64_t heads = attrs.num_v_heads, values = heads * attrs.head_v_dim, channels = 2 * int64_t{attrs.num_k_heads} * attrs.head_k_dim + values;
  const Id conv_w = ConvWeight(tensors, channels, attrs);
  const Id a_log = b_.Weight(tensors.a_log, {heads}, {RT_WEIGHT_F32, tensors.gate_flags, RT_INIT_A_LOG, 0});
  const Id dt_bias = b_.Weight(tensors.dt_bias, {heads * attrs.gate_width}, {RT_WEIGHT_F32, tensors.gate_flags, RT_INIT_DT_BIAS, 0, attrs.gate_width});
  const Id norm = b_.Weight(tensors.norm, {attrs.head_v_dim}, {RT_WEIGHT_F32, 0, RT_INIT_NORM, 0});

  rt_cache_desc conv = {}, state = {};
  conv.role = RT_CACHE_CONV;
  state.role = RT_CACHE_RECURRENT;
  conv.extent = state.extent = RT_CACHE_PER_SEQUENCE;
  conv.rollback = state.rollback = RT_ROLLBACK_SNAPSHOT;
  conv.layer = state.layer = static_cast<uint32_t>(i);
  conv.dtype_set = 1u << RT_DTYPE_F32 | 1u << RT_DTYPE_BF16;
  state.dtype_set = 1u << RT_DTYPE_F32 | 1u << RT_DTYPE_BF16 | 1u << RT_DTYPE_F16;
  state.default_dtype = sizes_.state_dtype;
  const Id conv_cache = b_.Cache(conv, Label(i, "conv_state"), {int64_t{attrs.conv_width} - 1, channels});
  const Id state_cache = b_.Cache(state, Label(i, "recurrent_state"), {heads, attrs.head_k_dim, attrs.head_v_dim});

  const Id y = b_.Value(Label(i, "linear_attn"), kTokens, values);
  b_.Op(RT_OP_LINEAR_MIXER, Label(i, "linear_attn"), {qkv, z, b, a}, {conv_w, a_log, dt_bias, norm}, {y}, {conv_cache, state_cache}, attrs);
  return y;
}

Id DecoderEmitter::TokenCache(int64_t i, uint32_t role, const char* part, std::initializer_list<int64_t> dims) {
  rt_cache_desc cache = {};
  cache.role = role;
  cache.extent = RT_CACHE_PER_TOKENS;
  cache.rollback = RT_ROLLBACK_TRUNCATE;
  cache.layer = static_cast<uint32_t>(i);
  cache.dtype_set = 1u << RT_DTYPE_F32 | 1u << RT_DTYPE_BF16;
  return b_.Cache(cache, Label(i, part), dims);
}

}  // namespace rt::models
