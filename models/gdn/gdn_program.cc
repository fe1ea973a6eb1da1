#include "models/gdn/gdn_program.h"

#include <cmath>

namespace rt::models::gdn {
namespace {

class Emitter : public DecoderEmitter {
 public:
  Emitter(const Arch& arch, const Sizes& sizes, std::string prefix, plugin::ProgramBuilder* b) : DecoderEmitter(arch, sizes, std::move(prefix), b), arch_(arch), s_(sizes) {}

 private:
  Id Mixer(int64_t i, Id h) override { return IsLinearAttention(i) ? LinearAttention(i, h) : Attention(i, h); }

  Id FeedForward(int64_t i, Id h) override { return GatedMlp(Label(i, "mlp"), h, {Name(i, arch_.mlp.gate), Name(i, arch_.mlp.up), Name(i, arch_.mlp.down)}); }

  Id LinearAttention(int64_t i, Id h) {
    const int64_t values = s_.num_v_heads * s_.head_v_dim, channels = 2 * s_.num_k_heads * s_.head_k_dim + values;
    const Id qkv = Linear(Label(i, "in_proj_qkv"), h, Name(i, arch_.linear.qkv), channels, s_.hidden_size);
    const Id z = Linear(Label(i, "in_proj_z"), h, Name(i, arch_.linear.z), values, s_.hidden_size);
    const Id b = Linear(Label(i, "in_proj_b"), h, Name(i, arch_.linear.b), s_.num_v_heads, s_.hidden_size);
    const Id a = Linear(Label(i, "in_proj_a"), h, Name(i, arch_.linear.a), s_.num_v_heads, s_.hidden_size);
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
    const Id y = LinearMixer(i, attrs, qkv, z, b, a,
                             {{Name(i, arch_.linear.conv)}, Name(i, arch_.linear.a_log), Name(i, arch_.linear.dt_bias), Name(i, arch_.linear.norm)});
    return Linear(Label(i, "out_proj"), y, Name(i, arch_.linear.out), s_.hidden_size, values);
  }

  Id Attention(int64_t i, Id h) {
    const int64_t q_width = s_.num_q_heads * s_.head_dim, kv_width = s_.num_kv_heads * s_.head_dim;
    const int64_t gates = arch_.attention_output_gate == RT_ACT_NONE ? 1 : 2;
    const Id q = Linear(Label(i, "q_proj"), h, Name(i, arch_.attention.q), q_width * gates, s_.hidden_size);
    const Id k = Linear(Label(i, "k_proj"), h, Name(i, arch_.attention.k), kv_width, s_.hidden_size);
    const Id v = Linear(Label(i, "v_proj"), h, Name(i, arch_.attention.v), kv_width, s_.hidden_size);
    const Id q_norm = NormWeight(Name(i, arch_.attention.q_norm), s_.head_dim), k_norm = NormWeight(Name(i, arch_.attention.k_norm), s_.head_dim);
    const Id key = TokenCache(i, RT_CACHE_KEY, "key", {s_.num_kv_heads, s_.head_dim});
    const Id value = TokenCache(i, RT_CACHE_VALUE, "value", {s_.num_kv_heads, s_.head_dim});

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
    const Id y = b_.Value(Label(i, "self_attn"), kTokens, q_width);
    b_.Op(RT_OP_ATTENTION_MIXER, Label(i, "self_attn"), {q, k, v}, {q_norm, k_norm}, {y}, {key, value}, attrs);
    return Linear(Label(i, "o_proj"), y, Name(i, arch_.attention.o), s_.hidden_size, q_width);
  }

  const Arch& arch_;
  const Sizes& s_;
};

}  // namespace

Status BuildProgram(const Arch& arch, const Sizes& sizes, bool random_weights, plugin::ProgramBuilder* b) {
  RT_ASSIGN_OR_RETURN(const std::string prefix, FindPrefix(arch, random_weights, *b));
  Emitter(arch, sizes, prefix, b).Run("rope_theta " + std::to_string(sizes.rope_theta) + " from " + sizes.rope_source + ", rotary_dim " + std::to_string(sizes.rotary_dim));
  return b->status();
}

}  // namespace rt::models::gdn
