/* Every op of the contract: id, version, tensors, attributes, formula. C11.
 *
 * Notation: T tokens of the step, R sampled rows, H hidden width; "act" = the compute dtype (fp32 or bf16), "res" = fp32 residual
 * stream. Activations are [T, n] with dense rows and any row stride (they may be column slices of a merged product); weights are
 * dense, in the checkpoint's order. Arithmetic inside is fp32. Formulas follow the papers and reference implementations of the
 * families: RMSNorm arXiv:1910.07467, RoPE arXiv:2104.09864 (half-split form), SwiGLU arXiv:2002.05202, gated delta rule
 * arXiv:2412.06464 eq. 10, with a decay a channel arXiv:2510.26692 (Kimi Delta Attention), online softmax arXiv:1805.02867, latent
 * attention arXiv:2405.04434 section 2.1, bias-corrected grouped routing arXiv:2412.19437 section 2.1.2.
 *
 * op                inputs                             weights                      caches            outputs
 * select_ids        host_ids[T] src[T] device_ids[*]   -                            -                 ids[T]
 * embedding         ids[T]                             table[V,H] act               -                 x[T,H] res
 * rms_norm          x[T,H] res|act                     w[H] f32                     -                 y[T,H] act
 * add_rms_norm *    r[T,H] res, d[T,H] act             w[H] f32                     -                 r' (in place of r), y[T,H] act
 * add               r[T,H] res, d[T,H] act             -                            -                 r' (in place of r)
 * linear            x[T,K] act                         w[N,K] act                   -                 y[T,N] act|f32
 * silu_mul          gate[T,I] up[T,I] act              -                            -                 y[T,I] act
 * gated_mlp *       x[T,H] act                         gate[I,H] up[I,H] down[H,I]  -                 y[T,H] act
 * gather_rows       x[T,H] res|act, rows[R]            -                            -                 y[R,H] as x
 * linear_mixer *    qkv[T,C] z[T,Hv*Dv] b[T,Hv] a[T,Hv*G] conv[C,1,W] f32, A_log[Hv] f32, dt_bias[Hv*G] f32, norm[Dv] f32
 *                                                                                   conv, recurrent   y[T,Hv*Dv] act
 * causal_conv1d     x[T,C] act                         conv[C,1,W] f32              conv              u[T,C] act
 * gated_delta_rule  u[T,C] b[T,Hv] a[T,Hv*G] act       A_log[Hv] dt_bias[Hv*G] f32  recurrent         o[T,Hv*Dv] act
 * gated_rms_norm    o[T,Hv*Dv] z[T,Hv*Dv] act          norm[Dv] f32                 -                 y[T,Hv*Dv] act
 * attention_mixer * q[T,Nq*(1 or 2)*D] k[T,Nkv*D] v[T,Nkv*D] act  q_norm[D] k_norm[D] f32 (optional)
 *                                                                                   key, value        y[T,Nq*D] act
 * qk_norm_rope      q[T,Nq*(1 or 2)*D] k[T,Nkv*D] act  q_norm[D] k_norm[D] f32      -                 q'[T,Nq*D] k'[T,Nkv*D] gate[T,Nq*D] (optional)
 * paged_attention   q'[T,Nq*D] k'[T,Nkv*D] v[T,Nkv*D]  -                            key, value        o[T,Nq*D] act
 * sigmoid_gate      o[T,n] gate[T,n] act               -                            -                 y[T,n] act
 * mla_mixer *       q[T,N*(Dn+De)] kv_a[T,L+De] act    kv_norm[L] f32, kv_b[N*(Dn+Dv),L]  latent       y[T,N*Dv] act
 * latent_norm       kv_a[T,L+De] act                   kv_norm[L] f32               -                 c[T,L+De] act
 * mla_attention     q[T,N*(Dn+De)] c[T,L+De] act       kv_b[N*(Dn+Dv),L] act        latent            y[T,N*Dv] act
 * moe_block *       x[T,H] act                         router[E,H] f32, gate[E*I,H] up[E*I,H] down[E*H,I] act, bias[E] f32 (optional),
 *                                                      shared_gate[Is,H] shared_up[Is,H] shared_down[H,Is] act (optional, all or none)
 *                                                                                   -                 y[T,H] act
 * moe_router        x[T,H] act                         router[E,H] f32, bias[E] f32 (optional)
 *                                                                                   -                 ids[T,K] i32, w[T,K] f32
 * moe_experts       x[T,H] act, ids[T,K] i32, w[T,K] f32, shared[T,H] act (optional)
 *                                                      gate[E*I,H] up[E*I,H] down[E*H,I] act  -       y[T,H] act
 * sample            see RT_SAMPLE_* below              -                            -                 see below
 *
 * (*) composite: a row may claim it per phase; otherwise its decomposition (plugin_sdk/ops/decomposition.cc) is planned.
 *
 * Formulas. rms_norm: y = x * rsqrt(mean(x^2) + eps) * (offset + w). gated_rms_norm, per head: y = norm(o) * w * act(z).
 * causal_conv1d: u_t[c] = silu(sum_j w[c,j] x_{t-(W-1)+j}[c]); the cache keeps the last W-1 inputs. gated_delta_rule, per value head
 * h with key head h/(Hv/Hk): u = a + dt_bias, g = -exp(A_log) softplus(u) or, bounded, g = gate_bound sigmoid(exp(A_log) u),
 * beta = beta_scale sigmoid(b), q = l2norm(q) Dk^-1/2, k = l2norm(k), l2norm(x) = x rsqrt(sum x^2 + l2_eps); S <- diag(exp(g)) S;
 * e = beta (v - S^T k); S <- S + k e^T; o = S^T q. G = gate_width: one g a head and token (1), or one a key channel (Dk).
 * State and gates fp32; the stored state is rounded once per execute and (sequence, head). attention_mixer: q rows per head are
 * D of q, then D of gate when output_gate is set; q, k normalised per head, then rotated; causal softmax(q k^T scale) v over the
 * paged cache including this step's tokens; y = o * sigmoid(gate). */
#ifndef RT_PLUGIN_OP_DEFS_H_
#define RT_PLUGIN_OP_DEFS_H_

#include <rt/plugin/caps.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RT_OP_SELECT_IDS "select_ids"
#define RT_OP_EMBEDDING "embedding"
#define RT_OP_RMS_NORM "rms_norm"
#define RT_OP_ADD_RMS_NORM "add_rms_norm"
#define RT_OP_ADD "add"
#define RT_OP_LINEAR "linear"
#define RT_OP_SILU_MUL "silu_mul"
#define RT_OP_GATED_MLP "gated_mlp"
#define RT_OP_GATHER_ROWS "gather_rows"
#define RT_OP_LINEAR_MIXER "linear_mixer"
#define RT_OP_CAUSAL_CONV1D "causal_conv1d"
#define RT_OP_GATED_DELTA_RULE "gated_delta_rule"
#define RT_OP_GATED_RMS_NORM "gated_rms_norm"
#define RT_OP_ATTENTION_MIXER "attention_mixer"
#define RT_OP_QK_NORM_ROPE "qk_norm_rope"
#define RT_OP_PAGED_ATTENTION "paged_attention"
#define RT_OP_SIGMOID_GATE "sigmoid_gate"
#define RT_OP_MLA_MIXER "mla_mixer"
#define RT_OP_LATENT_NORM "latent_norm"
#define RT_OP_MLA_ATTENTION "mla_attention"
#define RT_OP_MOE_BLOCK "moe_block"
#define RT_OP_MOE_ROUTER "moe_router"
#define RT_OP_MOE_EXPERTS "moe_experts"
#define RT_OP_SAMPLE "sample"

/* Attributes of ops that need none. */
typedef struct rt_attrs_none {
  uint32_t struct_size;
  uint32_t reserved0;
} rt_attrs_none;
RT_STATIC_ASSERT(sizeof(rt_attrs_none) == 8, "rt_attrs_none layout");

/* rms_norm, add_rms_norm */
typedef struct rt_attrs_norm {
  uint32_t struct_size;
  float eps;
  float weight_offset; /* 0: factor w; 1: factor 1 + w */
  uint32_t reserved0;
} rt_attrs_norm;
RT_STATIC_ASSERT(sizeof(rt_attrs_norm) == 16, "rt_attrs_norm layout");

/* linear_mixer and its pieces. C = 2 Hk Dk + Hv Dv channels in the order q, k, v. */
typedef struct rt_attrs_mixer {
  uint32_t struct_size;
  uint32_t num_k_heads, num_v_heads; /* Hk, Hv; Hv is a multiple of Hk */
  uint32_t head_k_dim, head_v_dim;   /* Dk, Dv */
  uint32_t conv_width;               /* W */
  uint32_t gate_form;                /* RT_GATE_* */
  uint32_t gate_width;               /* G: 1 = scalar, head_k_dim = one decay a key channel */
  uint32_t output_gate;              /* RT_ACT_SILU or RT_ACT_SIGMOID */
  float gate_bound;                  /* RT_GATE_BOUNDED_SIGMOID: lower bound of g; else 0 */
  float beta_scale;
  float l2_eps;
  float norm_eps;
  uint32_t reserved0;
} rt_attrs_mixer;
RT_STATIC_ASSERT(sizeof(rt_attrs_mixer) == 56, "rt_attrs_mixer layout");

/* attention_mixer and its pieces. */
typedef struct rt_attrs_attention {
  uint32_t struct_size;
  uint32_t num_q_heads, num_kv_heads, head_dim;
  uint32_t rotary_dim;  /* 0 = none; half-split rotation of the first rotary_dim dims */
  uint32_t qk_norm;     /* RT_QK_NORM_* */
  uint32_t output_gate; /* RT_ACT_NONE or RT_ACT_SIGMOID; the gate is interleaved with q per head */
  float norm_eps;
  float norm_weight_offset;
  float scale;          /* of q k^T */
  double rope_theta;    /* inv_freq_i = theta^(-2i/rotary_dim) */
} rt_attrs_attention;
RT_STATIC_ASSERT(sizeof(rt_attrs_attention) == 48, "rt_attrs_attention layout");

/* mla_mixer and its pieces. */
typedef struct rt_attrs_mla {
  uint32_t struct_size;
  uint32_t num_heads;     /* N */
  uint32_t latent_dim;    /* L */
  uint32_t qk_nope_dim;   /* Dn */
  uint32_t qk_shared_dim; /* De, may be 0 */
  uint32_t v_dim;         /* Dv */
  float norm_eps;
  float scale;            /* of the score */
} rt_attrs_mla;
RT_STATIC_ASSERT(sizeof(rt_attrs_mla) == 32, "rt_attrs_mla layout");

/* moe_block and its pieces. */
typedef struct rt_attrs_moe {
  uint32_t struct_size;
  uint32_t num_experts;       /* E */
  uint32_t experts_per_token; /* K */
  uint32_t num_groups;        /* divides E; 1 = ungrouped */
  uint32_t topk_groups;       /* 1..num_groups, large enough to hold K experts */
  uint32_t router_score;      /* RT_ROUTER_* */
  uint32_t renormalize;       /* 0 or 1 */
  float routed_scale;
} rt_attrs_moe;
RT_STATIC_ASSERT(sizeof(rt_attrs_moe) == 32, "rt_attrs_moe layout");

/* sample: draws one token per row. Inputs by index; lists are CSR. Order of effects: penalties, bias, temperature, top-k, top-p,
 * min-p. Greedy (temperature 0): first maximum. Uniform number: Philox4x32-10 keyed by (seed, position), so the draw does not
 * depend on the batch. Penalties: repetition over prompt and output; presence and frequency over output; pending_ids is one more
 * output token that the lists do not hold yet (-1: none). A bias of -inf forbids a token; ids >= vocab_limit are never drawn. */
enum {
  RT_SAMPLE_LOGITS = 0,           /* [R,V] f32 */
  RT_SAMPLE_TEMPERATURE = 1,      /* [R] f32 */
  RT_SAMPLE_TOP_K = 2,            /* [R] i32, 0 = off */
  RT_SAMPLE_TOP_P = 3,            /* [R] f32, 1 = off */
  RT_SAMPLE_MIN_P = 4,            /* [R] f32, 0 = off */
  RT_SAMPLE_PRESENCE = 5,         /* [R] f32 */
  RT_SAMPLE_FREQUENCY = 6,        /* [R] f32 */
  RT_SAMPLE_REPETITION = 7,       /* [R] f32, 1 = off */
  RT_SAMPLE_SEED = 8,             /* [R] u64 */
  RT_SAMPLE_POSITION = 9,         /* [R] u64 */
  RT_SAMPLE_PENDING_IDS = 10,     /* [R] i32 */
  RT_SAMPLE_HISTORY_OFFSETS = 11, /* [R+1] i32 */
  RT_SAMPLE_HISTORY_IDS = 12,     /* [*] i32, distinct within a row */
  RT_SAMPLE_HISTORY_COUNTS = 13,  /* [*] i32 output occurrences */
  RT_SAMPLE_HISTORY_PROMPT = 14,  /* [*] u8 occurs in the prompt */
  RT_SAMPLE_BIAS_OFFSETS = 15,    /* [R+1] i32 */
  RT_SAMPLE_BIAS_IDS = 16,        /* [*] i32 */
  RT_SAMPLE_BIAS_VALUES = 17,     /* [*] f32 */
  RT_SAMPLE_NUM_TOP = 18,         /* [R] i32, 0..max_top log-probabilities wanted beside the token's own */
  RT_SAMPLE_NUM_INPUTS = 19,
};
enum {
  RT_SAMPLE_OUT_IDS = 0,          /* [R] i32 */
  RT_SAMPLE_OUT_LOGPROB = 1,      /* [R] f32, natural log, raw distribution */
  RT_SAMPLE_OUT_TOP_IDS = 2,      /* [R,max_top] i32, best first */
  RT_SAMPLE_OUT_TOP_LOGPROBS = 3, /* [R,max_top] f32 */
  RT_SAMPLE_OUT_STATUS = 4,       /* [R] i32: 0 ok, 1 NaN in the logits, 2 nothing left to draw */
  RT_SAMPLE_NUM_OUTPUTS = 5,
};
typedef struct rt_attrs_sample {
  uint32_t struct_size;
  uint32_t vocab_limit;
  uint32_t max_top;
  uint32_t reserved0;
} rt_attrs_sample;
RT_STATIC_ASSERT(sizeof(rt_attrs_sample) == 16, "rt_attrs_sample layout");

#ifdef __cplusplus
}
#endif
#endif /* RT_PLUGIN_OP_DEFS_H_ */
