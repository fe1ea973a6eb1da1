/* Model components turn a checkpoint's configuration into a program: ops with named weights, symbolic sizes and caches. C11.
 * A model names ops, never kernels; it owns no memory, stream, cache or state. */
#ifndef RT_PLUGIN_MODEL_H_
#define RT_PLUGIN_MODEL_H_

#include <rt/plugin/op_defs.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Symbolic dimensions of values; non-negative numbers are literal. */
enum { RT_DIM_TOKENS = -1, RT_DIM_ROWS = -2 };

/* How a value's dtype is decided. */
enum { RT_VALUE_ACT = 0 /* the compute dtype */, RT_VALUE_F32 = 1, RT_VALUE_I32 = 2 };

/* Values every program starts from; ids are handed out by the builder's `input`. */
enum { RT_INPUT_TOKEN_IDS = 1 /* [T] i32 */, RT_INPUT_SAMPLED_ROWS = 2 /* [R] i32, token index of each sampled row */ };
/* Values a program may publish. */
enum { RT_OUTPUT_LOGITS = 1 /* [R,V] f32 */, RT_OUTPUT_HIDDEN = 2 /* [T,H] residual after decoder layer `index`, complete after the op recorded last; for tests and drafts */ };

typedef struct rt_value_desc {
  uint32_t struct_size;
  uint32_t dtype; /* RT_VALUE_* */
  rt_str name;    /* for dumps */
  int64_t dims[2];
} rt_value_desc;
RT_STATIC_ASSERT(sizeof(rt_value_desc) == 40, "rt_value_desc layout");

/* Resident dtype of a weight. */
enum { RT_WEIGHT_ACT = 0 /* the compute dtype */, RT_WEIGHT_F32 = 1 };
/* Distribution for random weights (benches). */
enum { RT_INIT_NORMAL = 0 /* N(0, 0.02) */, RT_INIT_NORM = 1 /* such that offset + w is near 1 */, RT_INIT_A_LOG = 2, RT_INIT_DT_BIAS = 3, RT_INIT_CONV = 4 };
enum {
  RT_WEIGHT_CHECK_FINITE = 1, /* NaN and +inf are errors, -inf a warning naming the head */
  RT_WEIGHT_ANY_SHAPE = 2,    /* any stored shape with the right number of elements */
};

/* One tensor of the checkpoint that fills rows of a weight. */
typedef struct rt_weight_part {
  rt_str name;  /* verbatim */
  int64_t rows; /* along dims[0] of the weight */
} rt_weight_part;
RT_STATIC_ASSERT(sizeof(rt_weight_part) == 24, "rt_weight_part layout");

typedef struct rt_weight_desc {
  uint32_t struct_size;
  uint32_t dtype; /* RT_WEIGHT_* */
  rt_str name;    /* tensor name in the checkpoint, verbatim; with parts, the weight's own name in reports */
  uint32_t ndim;
  uint32_t flags; /* RT_WEIGHT_CHECK_* */
  uint32_t init;  /* RT_INIT_* */
  float init_offset; /* RT_INIT_NORM: the norm's weight_offset */
  int64_t dims[4];
  /* Tensors stacked along dims[0] in this order, e.g. separate q, k and v, or one tensor an expert; their rows add up to dims[0].
   * NULL: the weight is one tensor called `name`. */
  const rt_weight_part* parts;
  uint32_t num_parts;
  uint32_t elements_per_head; /* for findings about single elements; 0 = 1 */
} rt_weight_desc;
RT_STATIC_ASSERT(sizeof(rt_weight_desc) == 88, "rt_weight_desc layout");

enum { RT_CACHE_PER_SEQUENCE = 1, RT_CACHE_PER_TOKENS = 2 };
enum { RT_CACHE_KEY = 1, RT_CACHE_VALUE = 2, RT_CACHE_CONV = 3, RT_CACHE_RECURRENT = 4, RT_CACHE_LATENT = 5 };
/* How a cache gives back tokens. */
enum { RT_ROLLBACK_TRUNCATE = 1, RT_ROLLBACK_SNAPSHOT = 2, RT_ROLLBACK_REPLAY = 3 };

/* One line of the state contract. Shapes: key, value [num_kv_heads, head_dim] per token; latent [L+De] per token; conv [W-1, channels];
 * recurrent [Hv, Dk, Dv]. */
typedef struct rt_cache_desc {
  uint32_t struct_size;
  uint32_t role;      /* RT_CACHE_KEY ... */
  rt_str name;        /* e.g. "layers.0.recurrent_state" */
  uint32_t extent;    /* RT_CACHE_PER_* */
  uint32_t rollback;  /* RT_ROLLBACK_* */
  uint32_t dtype_set; /* bits 1 << RT_DTYPE_*; allowed storage dtypes */
  uint32_t default_dtype; /* RT_DTYPE_*, or RT_DTYPE_NONE = the compute dtype */
  uint32_t ndim;
  uint32_t layer;
  int64_t dims[4];
} rt_cache_desc;
RT_STATIC_ASSERT(sizeof(rt_cache_desc) == 80, "rt_cache_desc layout");

typedef struct rt_op_desc {
  uint32_t struct_size;
  uint32_t version;
  rt_str op;
  rt_str label; /* for dumps, e.g. "layers.3.self_attn" */
  uint32_t num_inputs, num_weights, num_outputs, num_caches;
  const uint32_t* inputs; /* ids from the builder; RT_NO_ID = absent optional */
  const uint32_t* weights;
  const uint32_t* outputs;
  const uint32_t* caches;
  const void* attrs; /* copied; starts with its struct_size */
} rt_op_desc;
RT_STATIC_ASSERT(sizeof(rt_op_desc) == 56 + 5 * 8, "rt_op_desc layout");
#define RT_NO_ID 0xffffffffu

typedef struct rt_model_info {
  uint32_t struct_size;
  int32_t vocab_size;  /* rows of the logits */
  int32_t hidden_size;
  int32_t num_layers;
  int32_t max_context; /* positions the checkpoint declares */
  int32_t reserved0;
} rt_model_info;
RT_STATIC_ASSERT(sizeof(rt_model_info) == 24, "rt_model_info layout");

/* The host's builder; [control], only during build. Every call validates its arguments and names the offender. */
typedef struct rt_builder {
  uint32_t struct_size;
  uint32_t reserved0;
  void* self;
  int32_t (*input)(void* self, uint32_t which, uint32_t* value, rt_error* error);
  int32_t (*value)(void* self, const rt_value_desc* desc, uint32_t* value, rt_error* error);
  int32_t (*weight)(void* self, const rt_weight_desc* desc, uint32_t* weight, rt_error* error); /* same name and desc: same id */
  int32_t (*cache)(void* self, const rt_cache_desc* desc, uint32_t* cache, rt_error* error);
  int32_t (*op)(void* self, const rt_op_desc* desc, rt_error* error);
  int32_t (*output)(void* self, uint32_t which, uint32_t index, uint32_t value, rt_error* error);
  int32_t (*info)(void* self, const rt_model_info* info, rt_error* error);
  int32_t (*has_tensor)(void* self, rt_str name); /* 1: the checkpoint holds it; with random weights: 0 */
  int32_t (*skip)(void* self, rt_str glob, rt_error* error); /* checkpoint tensors that are not for this program */
  int32_t (*note)(void* self, rt_str text); /* a line for the start-up report, e.g. where rope_theta came from */
} rt_builder;
RT_STATIC_ASSERT(sizeof(rt_builder) == 16 + 10 * 8, "rt_builder layout");

#define RT_MATCH_REASON_BYTES 240
typedef struct rt_model_match {
  uint32_t struct_size;
  int32_t score; /* 0 = no */
  char reason[RT_MATCH_REASON_BYTES];
} rt_model_match;
RT_STATIC_ASSERT(sizeof(rt_model_match) == 8 + RT_MATCH_REASON_BYTES, "rt_model_match layout");

typedef struct rt_model_request {
  uint32_t struct_size;
  uint32_t random_weights; /* 1: no checkpoint; has_tensor answers 0 */
  rt_str config_json;      /* config.json, verbatim */
  rt_str arch_json;        /* the architecture YAML, as JSON */
} rt_model_request;
RT_STATIC_ASSERT(sizeof(rt_model_request) == 40, "rt_model_request layout");

typedef struct rt_model_api {
  uint32_t struct_size;
  uint32_t reserved0;
  int32_t (*match)(rt_plugin_ctx* ctx, const rt_model_request* request, rt_model_match* match); /* [pure] */
  int32_t (*build)(rt_plugin_ctx* ctx, const rt_model_request* request, const rt_builder* builder, rt_error* error); /* [control] */
} rt_model_api;
RT_STATIC_ASSERT(sizeof(rt_model_api) == 24, "rt_model_api layout");

#ifdef __cplusplus
}
#endif
#endif /* RT_PLUGIN_MODEL_H_ */
