#include "models/gdn/gdn_program.h"

#include <cmath>

namespace rt::models::gdn {
namespace {

using plugin::ProgramBuilder;
using Id = ProgramBuilder::Id;
constexpr int64_t T = RT_DIM_TOKENS, R = RT_DIM_ROWS;

class Emitter {
 public:
  Emitter(const Arch& arch, const Sizes& sizes, std::string prefix, ProgramBuilder* b) : arch_(arch), s_(sizes), prefix_(std::move(prefix)), b_(*b) {}

  void Run() {
    b_.Info({0, static_cast<int32_t>(s_.vocab_size), static_cast<int32_t>(s_.hidden_size), static_cast<int32_t>(s_.num_layers), static_cast<int32_t>(s_.max_context), 0});
    for (const std::string& glob : arch_.skip) b_.Skip(glob);
    b_.Note("architecture " + arch_.name + ", tensor prefix \"" + prefix_ + "\", rope_theta " + std::to_string(s_.rope_theta) + " from " + s_.rope_source +
            ", rotary_dim " + std::to_string(s_.rotary_dim) + (s_.tied ? ", tied embeddings" : ""));
    embed_ = b_.Weight(TensorName(arch_.embed, prefix_), {s_.vocab_size, s_.hidden_size});
    x_ = b_.Value("x", T, s_.hidden_size, RT_VALUE_F32);
    b_.Op(RT_OP_EMBEDDING, "embed_tokens", {b_.Input(RT_INPUT_TOKEN_IDS)}, {embed_}, {x_});
    for (int64_t i = 0; i < s_.num_layers; ++i) Layer(i);
    Head();
  }

 private:
  std::string Name(int64_t layer, const std::string& suffix) const { return TensorName(arch_.layer, prefix_, layer) + suffix; }
  static std::string Label(int64_t layer, const char* part) { return "layers." + std::to_string(layer) + "." + part; }

  Id Linear(const std::string& label, Id x, const std::string& tensor, int64_t out_features, int64_t in_features) {
    const Id y = b_.Value(label, T, out_features);
    b_.Op(RT_OP_LINEAR, label, {x}, {b_.Weight(tensor, {out_features, in_features})}, {y});
    return y;
  }

  // Adds the pending sublayer output to the residual and normalises it.
  Id Norm(const std::string& label, const std::string& tensor) {
    const rt_attrs_norm attrs = {sizeof attrs, s_.norm_eps, arch_.norm_weight_offset, 0};
    const Id w = b_.Weight(tensor, {s_.hidden_size}, {RT_WEIGHT_F32, 0, RT_INIT_NORM, arch_.norm_weight_offset});
    const Id h = b_.Value(label, T, s_.hidden_size);
    if (delta_ == RT_NO_ID) {
      b_.Op(RT_OP_RMS_NORM, label, {x_}, {w}, {h}, {}, attrs);
    } else {
      b_.Op(RT_OP_ADD_RMS_NORM, label, {x_, delta_}, {w}, {x_, h}, {}, attrs);
    }
    return h;
  }

  void Layer(int64_t i) {
    const Id h = Norm(Label(i, "input_norm"), Name(i, arch_.input_norm));
    if (i > 0) b_.Output(RT_OUTPUT_HIDDEN, static_cast<uint32_t>(i - 1), x_);
    delta_ = s_.layer_types[static_cast<size_t>(i)] == "full_attention" ? Attention(i, h) : LinearAttention(i, h);
    const Id m = Norm(Label(i, "post_norm"), Name(i, arch_.post_norm));
    delta_ = b_.Value(Label(i, "mlp"), T, s_.hidden_size);
    b_.Op(RT_OP_GATED_MLP, Label(i, "mlp"), {m},
          {b_.Weight(Name(i, arch_.mlp.gate), {s_.intermediate_size, s_.hidden_size}), b_.Weight(Name(i, arch_.mlp.up), {s_.intermediate_size, s_.hidden_size}),
           b_.Weight(Name(i, arch_.mlp.down), {s_.hidden_size, s_.intermediate_size})},
          {delta_});
  }

  Id LinearAttention(int64_t i, Id h) {
    const int64_t values = s_.num_v_heads * s_.head_v_dim, channels = 2 * s_.num_k_heads * s_.head_k_dim + values;
    const Id qkv = Linear(Label(i, "in_proj_qkv"), h, Name(i, arch_.linear.qkv), channels, s_.hidden_size);
    const Id z = Linear(Label(i, "in_proj_z"), h, Name(i, arch_.linear.z), values, s_.hidden_size);
    const Id b = Linear(Label(i, "in_proj_b"), h, Name(i, arch_.linear.b), s_.num_v_heads, s_.hidden_size);
    const Id a = Linear(Label(i, "in_proj_a"), h, Name(i, arch_.linear.a), s_.num_v_heads, s_.hidden_size);
    const Id conv_w = b_.Weight(Name(i, arch_.linear.conv), {channels, 1, s_.conv_width}, {RT_WEIGHT_F32, 0, RT_INIT_CONV, 0});
    const Id a_log = b_.Weight(Name(i, arch_.linear.a_log), {s_.num_v_heads}, {RT_WEIGHT_F32, RT_WEIGHT_CHECK_FINITE, RT_INIT_A_LOG, 0});
    const Id dt_bias = b_.Weight(Name(i, arch_.linear.dt_bias), {s_.num_v_heads}, {RT_WEIGHT_F32, RT_WEIGHT_CHECK_FINITE, RT_INIT_DT_BIAS, 0});
    const Id norm = b_.Weight(Name(i, arch_.linear.norm), {s_.head_v_dim}, {RT_WEIGHT_F32, 0, RT_INIT_NORM, 0});

    rt_cache_desc conv = {}, state = {};
    conv.role = RT_CACHE_CONV;
    state.role = RT_CACHE_RECURRENT;
    conv.extent = state.extent = RT_CACHE_PER_SEQUENCE;
    conv.rollback = state.rollback = RT_ROLLBACK_SNAPSHOT;
    conv.layer = state.layer = static_cast<uint32_t>(i);
    conv.dtype_set = 1u << RT_DTYPE_F32 | 1u << RT_DTYPE_BF16;
    state.dtype_set = 1u << RT_DTYPE_F32 | 1u << RT_DTYPE_BF16 | 1u << RT_DTYPE_F16;
    state.default_dtype = s_.state_dtype;
    const Id conv_cache = b_.Cache(conv, Label(i, "conv_state"), {s_.conv_width - 1, channels});
    const Id state_cache = b_.Cache(state, Label(i, "recurrent_state"), {s_.num_v_heads, s_.head_k_dim, s_.head_v_dim});

    rt_attrs_mixer attrs = {};
    attrs.struct_size = sizeof attrs;
    attrs.num_k_heads = static_cast<uint32_t>(s_.num_k_heads);
    attrs.num_v_heads = static_cast<uint32_t>(s_.num_v_heads);
    attrs.head_k_dim = static_cast<uint32_t>(s_.head_k_dim);
    attrs.head_v_dim = static_cast<uint32_t>(s_.head_v_dim);
    attrs.conv_width = static_cast<uint32_t>(s_.conv_width);
    attrs.gate_form = RT_GATE_SOFTPLUS_DECAY;
    attrs.gate_width = 1;
    attrs.output_gate = arch_.linear_output_gate;
    attrs.beta_scale = arch_.beta_scale;
    attrs.l2_eps = arch_.l2_norm_eps;
    attrs.norm_eps = s_.norm_eps;
    const Id y = b_.Value(Label(i, "linear_attn"), T, values);
    b_.Op(RT_OP_LINEAR_MIXER, Label(i, "linear_attn"), {qkv, z, b, a}, {conv_w, a_log, dt_bias, norm}, {y}, {conv_cache, state_cache}, attrs);
    return Linear(Label(i, "out_proj"), y, Name(i, arch_.linear.out), s_.hidden_size, values);
  }

  Id Attention(int64_t i, Id h) {
    const int64_t q_width = s_.num_q_heads * s_.head_dim, kv_width = s_.num_kv_heads * s_.head_dim;
    const int64_t gates = arch_.attention_output_gate == RT_ACT_NONE ? 1 : 2;
    const Id q = Linear(Label(i, "q_proj"), h, Name(i, arch_.attention.q), q_width * gates, s_.hidden_size);
    const Id k = Linear(Label(i, "k_proj"), h, Name(i, arch_.attention.k), kv_width, s_.hidden_size);
    const Id v = Linear(Label(i, "v_proj"), h, Name(i, arch_.attention.v), kv_width, s_.hidden_size);
    const ProgramBuilder::WeightOptions norm = {RT_WEIGHT_F32, 0, RT_INIT_NORM, arch_.norm_weight_offset};
    const Id q_norm = b_.Weight(Name(i, arch_.attention.q_norm), {s_.head_dim}, norm);
    const Id k_norm = b_.Weight(Name(i, arch_.attention.k_norm), {s_.head_dim}, norm);

    rt_cache_desc cache = {};
    cache.extent = RT_CACHE_PER_TOKENS;
    cache.rollback = RT_ROLLBACK_TRUNCATE;
    cache.layer = static_cast<uint32_t>(i);
    cache.dtype_set = 1u << RT_DTYPE_F32 | 1u << RT_DTYPE_BF16;
    cache.role = RT_CACHE_KEY;
    const Id key = b_.Cache(cache, Label(i, "key"), {s_.num_kv_heads, s_.head_dim});
    cache.role = RT_CACHE_VALUE;
    const Id value = b_.Cache(cache, Label(i, "value"), {s_.num_kv_heads, s_.head_dim});

    rt_attrs_attention attrs = {};
    attrs.struct_size = sizeof attrs;
    attrs.num_q_heads = static_cast<uint32_t>(s_.num_q_heads);
    attrs.num_kv_heads = static_cast<uint32_t>(s_.num_kv_heads);
    attrs.head_dim = static_cast<uint32_t>(s_.head_dim);
    attrs.rotary_dim = static_cast<uint32_t>(s_.rotary_dim);
    attrs.qk_norm = RT_QK_NORM_PER_HEAD;
    attrs.output_gate = arch_.attention_output_gate;
    attrs.norm_eps = s_.norm_eps;
    attrs.norm_weight_offset = arch_.norm_weight_offset;
    attrs.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(s_.head_dim)));
    attrs.rope_theta = s_.rope_theta;
    const Id y = b_.Value(Label(i, "self_attn"), T, q_width);
    b_.Op(RT_OP_ATTENTION_MIXER, Label(i, "self_attn"), {q, k, v}, {q_norm, k_norm}, {y}, {key, value}, attrs);
    return Linear(Label(i, "o_proj"), y, Name(i, arch_.attention.o), s_.hidden_size, q_width);
  }

  void Head() {
    const Id h = Norm("norm", TensorName(arch_.final_norm, prefix_));
    b_.Output(RT_OUTPUT_HIDDEN, static_cast<uint32_t>(s_.num_layers - 1), x_);
    const Id last = b_.Value("last", R, s_.hidden_size), logits = b_.Value("logits", R, s_.vocab_size, RT_VALUE_F32);
    b_.Op(RT_OP_GATHER_ROWS, "sampled_rows", {h, b_.Input(RT_INPUT_SAMPLED_ROWS)}, {}, {last});
    const Id head = s_.tied ? embed_ : b_.Weight(TensorName(arch_.lm_head, prefix_), {s_.vocab_size, s_.hidden_size});
    b_.Op(RT_OP_LINEAR, "lm_head", {last}, {head}, {logits});
    b_.Output(RT_OUTPUT_LOGITS, 0, logits);
  }

  const Arch& arch_;
  const Sizes& s_;
  std::string prefix_;
  ProgramBuilder& b_;
  Id x_ = RT_NO_ID, embed_ = RT_NO_ID;
  Id delta_ = RT_NO_ID;  // sublayer output not yet added to the residual
};

}  // namespace

Status BuildProgram(const Arch& arch, const Sizes& sizes, bool random_weights, ProgramBuilder* b) {
  std::string prefix = arch.prefixes.back();
  bool found = random_weights;
  for (const std::string& p : arch.prefixes) {
    if (found) break;
    if (b->HasTensor(TensorName(arch.embed, p))) {
      prefix = p;
      found = true;
    }
  }
  if (!found) {
    std::string tried;
    for (const std::string& p : arch.prefixes) tried += (tried.empty() ? "" : ", ") + TensorName(arch.embed, p);
    return {Code::kNotFound, "the checkpoint has no token embedding; looked for " + tried};
  }
  Emitter(arch, sizes, prefix, b).Run();
  return b->status();
}

}  // namespace rt::models::gdn
