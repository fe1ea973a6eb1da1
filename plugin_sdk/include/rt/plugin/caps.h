/* Capability rows, problems, verdicts: one vocabulary for negotiation, `explain` and the conformance suite. C11.
 *
 * A row is a conjunction of column constraints; the rows of a component are alternatives. A problem is a list of
 * (column, value). A column of the problem that a row does not constrain reads "not supported", so a plugin never claims a
 * dimension it has not heard of; RT_CONSTRAINT_ANY claims it on purpose. */
#ifndef RT_PLUGIN_CAPS_H_
#define RT_PLUGIN_CAPS_H_

#include <rt/plugin/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(id, NAME, "name", "meaning"): values are never reused. */
#define RT_COLUMNS(X)                                                                                       \
  X(1, IN_DTYPE, "in_dtype", "dtype of activations read (RT_DTYPE_*)")                                      \
  X(2, WEIGHT_DTYPE, "weight_dtype", "dtype of the resident matrix weight (RT_DTYPE_*)")                    \
  X(3, OUT_DTYPE, "out_dtype", "dtype of activations written (RT_DTYPE_*)")                                 \
  X(4, STATE_DTYPE, "state_dtype", "storage dtype of the recurrent state; arithmetic is fp32 (RT_DTYPE_*)") \
  X(5, CONV_DTYPE, "conv_dtype", "storage dtype of the convolution window (RT_DTYPE_*)")                    \
  X(6, KV_DTYPE, "kv_dtype", "storage dtype of keys and values (RT_DTYPE_*)")                               \
  X(7, STATE_LAYOUT, "state_layout", "order of the recurrent state (RT_STATE_LAYOUT_*)")                    \
  X(8, KV_LAYOUT, "kv_layout", "order of a KV block (RT_KV_LAYOUT_*)")                                      \
  X(9, KV_BLOCK_SIZE, "kv_block_size", "tokens of one KV block")                                            \
  X(10, HEAD_K_DIM, "head_k_dim", "key width of a recurrent head")                                          \
  X(11, HEAD_V_DIM, "head_v_dim", "value width of a recurrent head")                                        \
  X(12, NUM_K_HEADS, "num_k_heads", "key heads of a recurrent layer")                                       \
  X(13, NUM_V_HEADS, "num_v_heads", "value heads of a recurrent layer")                                     \
  X(14, HEAD_RATIO, "head_ratio", "value heads that share one key head")                                    \
  X(15, CONV_WIDTH, "conv_width", "taps of the causal convolution")                                         \
  X(16, GATE_FORM, "gate_form", "decay gate (RT_GATE_*)")                                                   \
  X(17, GATE_WIDTH, "gate_width", "decay values a head and token: 1 = scalar, head_k_dim = per channel")    \
  X(18, BETA_SCALE_MILLI, "beta_scale_milli", "beta = scale/1000 * sigmoid(b)")                             \
  X(19, OUTPUT_GATE, "output_gate", "activation of the output gate (RT_ACT_*)")                             \
  X(20, HEAD_DIM, "head_dim", "width of an attention head")                                                 \
  X(21, NUM_Q_HEADS, "num_q_heads", "query heads")                                                          \
  X(22, NUM_KV_HEADS, "num_kv_heads", "key/value heads")                                                    \
  X(23, Q_KV_RATIO, "q_kv_ratio", "query heads that share one kv head")                                     \
  X(24, ROTARY_DIM, "rotary_dim", "rotated dimensions of a head; 0 = none")                                 \
  X(25, QK_NORM, "qk_norm", "norm of queries and keys (RT_QK_NORM_*)")                                      \
  X(26, WEIGHT_OFFSET_MILLI, "weight_offset_milli", "norm factor = offset/1000 + w: 0 or 1000")             \
  X(27, IN_FEATURES, "in_features", "K of a matrix product")                                                \
  X(28, OUT_FEATURES, "out_features", "N of a matrix product")                                              \
  X(29, WIDTH, "width", "row width of a row-wise op")                                                       \
  X(30, VOCAB_SIZE, "vocab_size", "rows of the embedding, columns of the logits")                           \
  X(31, VERIFY_TOKENS, "verify_tokens", "draft tokens checked in one step; 0 = no speculation")             \
  X(32, GATE_BOUND_MILLI, "gate_bound_milli", "1000 * lower bound of the log decay; 0 = unbounded")         \
  X(33, LATENT_DIM, "latent_dim", "width of the compressed key/value row that attention caches")            \
  X(34, QK_NOPE_DIM, "qk_nope_dim", "key width of a head that is expanded from the latent row")             \
  X(35, QK_SHARED_DIM, "qk_shared_dim", "key width that all heads share, cached beside the latent row")     \
  X(36, V_DIM, "v_dim", "value width of a head that is expanded from the latent row")                       \
  X(37, NUM_EXPERTS, "num_experts", "experts of a mixture")                                                 \
  X(38, EXPERTS_PER_TOKEN, "experts_per_token", "experts chosen for a token")                               \
  X(39, NUM_EXPERT_GROUPS, "num_expert_groups", "equal runs of experts the router chooses among first")     \
  X(40, ROUTER_SCORE, "router_score", "activation of the router logits (RT_ROUTER_*)")

enum {
  RT_COL_NONE = 0,
#define RT_COLUMN_ENUM_(id, NAME, name, meaning) RT_COL_##NAME = id,
  RT_COLUMNS(RT_COLUMN_ENUM_)
#undef RT_COLUMN_ENUM_
};

enum { RT_GATE_SOFTPLUS_DECAY = 1, RT_GATE_BOUNDED_SIGMOID = 2 };
enum { RT_ACT_NONE = 0, RT_ACT_SILU = 1, RT_ACT_SIGMOID = 2 };
enum { RT_ROUTER_SIGMOID = 1, RT_ROUTER_SOFTMAX = 2 };
enum { RT_QK_NORM_NONE = 0, RT_QK_NORM_PER_HEAD = 1, RT_QK_NORM_WHOLE = 2 };

/* Phases of a step; ops without a notion of sequences use RT_PHASE_ALL. */
enum { RT_PHASE_DECODE = 1, RT_PHASE_VERIFY = 2, RT_PHASE_PREFILL = 4, RT_PHASE_ALL = 7 };

enum {
  RT_CONSTRAINT_ANY = 0,      /* every value */
  RT_CONSTRAINT_SET = 1,      /* one of values[0..num_values) */
  RT_CONSTRAINT_RANGE = 2,    /* lo <= v <= hi */
  RT_CONSTRAINT_MULTIPLE = 3, /* v > 0, v mod lo == 0, v <= hi (0: unbounded) */
};

typedef struct rt_constraint {
  uint32_t column;
  uint32_t kind;
  int64_t lo, hi;
  const int64_t* values;
  uint32_t num_values;
  uint32_t reserved0;
} rt_constraint;
RT_STATIC_ASSERT(sizeof(rt_constraint) == 40, "rt_constraint layout");

/* What a row promises; the conformance suite checks each claim. */
enum {
  RT_ROW_RUN_DETERMINISTIC = 1,  /* same inputs, same bits */
  RT_ROW_BATCH_INVARIANT = 2,    /* a row's bits do not depend on the other rows or on their number */
  RT_ROW_NAN_SAFE_PADDING = 4,   /* bytes of padding, unused cache and fresh state never reach an output */
  RT_ROW_CHECKPOINTS = 8,        /* can export states at chunk boundaries */
};

/* Why a row cannot run on this machine; decides between WARN (fixable) and INFO (hardware) when it loses. */
enum { RT_UNAVAILABLE_NONE = 0, RT_UNAVAILABLE_HARDWARE = 1, RT_UNAVAILABLE_FIXABLE = 2, RT_UNAVAILABLE_DISABLED = 3 };

typedef struct rt_row {
  uint32_t struct_size;
  uint32_t phases;      /* set of RT_PHASE_* */
  rt_str op;            /* op_defs.h */
  uint32_t op_version;
  int32_t score;        /* 100 reference, 200 generic, 300 tuned for the arch, 400 for the shape, +0..99 */
  rt_str kernel;        /* name in reports and metrics, e.g. "gated_delta.avx512_bf16" */
  const rt_constraint* constraints;
  uint32_t num_constraints;
  uint32_t constraint_stride;
  uint32_t guarantees;  /* set of RT_ROW_* */
  uint32_t capture;     /* 0 none, 1 one-token, 2 uniform batch, 3 any */
  uint32_t unavailable; /* RT_UNAVAILABLE_* on this machine */
  uint32_t reserved0;
  rt_str unavailable_reason;
} rt_row;
RT_STATIC_ASSERT(sizeof(rt_row) == 96, "rt_row layout");

typedef struct rt_column_value {
  uint32_t column;
  uint32_t reserved0;
  int64_t value;
} rt_column_value;

/* One op with everything that decides which kernel can run it. */
typedef struct rt_problem {
  uint32_t struct_size;
  uint32_t phase; /* exactly one RT_PHASE_*, or RT_PHASE_ALL for ops without phases */
  rt_str op;
  uint32_t op_version;
  uint32_t num_columns;
  const rt_column_value* columns;
  const void* attrs; /* the op's attribute struct (op_defs.h), starts with struct_size */
  rt_device_ref device;
} rt_problem;
RT_STATIC_ASSERT(sizeof(rt_problem) == 56, "rt_problem layout");

#define RT_VERDICT_TEXT_BYTES 240
/* Answer of supports(): may only narrow what the row claims and must name the column. */
typedef struct rt_verdict {
  uint32_t struct_size;
  int32_t ok;      /* 1 yes, 0 no */
  uint32_t column; /* with ok = 0 */
  int32_t score_adjust; /* added to the row's score, within -99..99 */
  double estimate_ns;   /* 0 = unknown */
  char text[RT_VERDICT_TEXT_BYTES];
} rt_verdict;
RT_STATIC_ASSERT(sizeof(rt_verdict) == 24 + RT_VERDICT_TEXT_BYTES, "rt_verdict layout");

#ifdef __cplusplus
}
#endif
#endif /* RT_PLUGIN_CAPS_H_ */
