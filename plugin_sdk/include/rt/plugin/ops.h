/* Op providers: rows -> supports -> plan -> (prepack) -> warmup -> execute. C11.
 * The table serves all three kernel kinds: `ops` components export it directly, attention kinds inside rt_backend_api. */
#ifndef RT_PLUGIN_OPS_H_
#define RT_PLUGIN_OPS_H_

#include <rt/plugin/caps.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rt_plan rt_plan;
typedef struct rt_backend rt_backend; /* backend.h */

typedef struct rt_plan_desc {
  uint32_t struct_size;
  uint32_t row_idx;            /* the row negotiation chose */
  const rt_problem* problem;   /* lives for the call */
  rt_backend* backend;         /* attention kinds: whose begin_step feeds this plan; else NULL */
  int32_t max_tokens;          /* upper bounds of later calls */
  int32_t max_sequences;
  int32_t max_rows;            /* sampled rows */
  int32_t reserved0;
} rt_plan_desc;
RT_STATIC_ASSERT(sizeof(rt_plan_desc) == 40, "rt_plan_desc layout");

typedef struct rt_plan_info {
  uint32_t struct_size;
  uint32_t reserved0;
  uint64_t workspace_bytes; /* for max_tokens, max_sequences; 64-byte aligned, supplied dirty, not preserved between calls */
  uint64_t num_builds;      /* kernels compiled, primitives created, tunings run by this plan so far */
} rt_plan_info;
RT_STATIC_ASSERT(sizeof(rt_plan_info) == 24, "rt_plan_info layout");

/* One named cache of one layer. The unit is a KV block or a state slot: unit i of this cache lies at base + i * unit_stride_bytes.
 * The stride covers all layers and is 64-bit on purpose. */
typedef struct rt_cache_view {
  uint32_t struct_size;
  uint32_t dtype;
  uint32_t layout; /* RT_STATE_LAYOUT_* or RT_KV_LAYOUT_*; 0 for conv windows [W-1][channels], oldest first */
  uint32_t reserved0;
  void* base;
  int64_t unit_stride_bytes;
  int64_t unit_bytes; /* of this cache */
} rt_cache_view;
RT_STATIC_ASSERT(sizeof(rt_cache_view) == 40, "rt_cache_view layout");

/* Arguments of one execution. Arrays hold pointers, in the order of op_defs.h; an absent optional tensor is NULL. Token
 * dimensions hold the step's token count. Ops of the attention kinds write only the rows of `phase`, as begin_step's metadata
 * delimits them. */
typedef struct rt_exec_args {
  uint32_t struct_size;
  uint32_t phase; /* one RT_PHASE_* or RT_PHASE_ALL */
  uint32_t num_inputs, num_weights, num_outputs, num_caches;
  const rt_tensor* const* inputs;
  const rt_tensor* const* weights;
  const rt_tensor* const* outputs;
  const rt_cache_view* const* caches;
  void* workspace;
  uint64_t workspace_bytes;
  const rt_stream* stream;
} rt_exec_args;
RT_STATIC_ASSERT(sizeof(rt_exec_args) == 24 + 7 * 8, "rt_exec_args layout");

typedef struct rt_op_api {
  uint32_t struct_size;
  uint32_t reserved0;
  /* [pure after init] Stable for the life of ctx. */
  int32_t (*rows)(rt_plugin_ctx* ctx, const rt_row** rows, uint32_t* count, uint32_t* stride);
  /* [pure] Only asked when the row's constraints hold. No device work. */
  int32_t (*supports)(rt_plugin_ctx* ctx, uint32_t row_idx, const rt_problem* problem, rt_verdict* verdict);
  /* [control] May compile. */
  int32_t (*plan_create)(rt_plugin_ctx* ctx, const rt_plan_desc* desc, rt_plan** plan, rt_error* error);
  void (*plan_destroy)(rt_plugin_ctx* ctx, rt_plan* plan);
  int32_t (*plan_info)(rt_plugin_ctx* ctx, rt_plan* plan, rt_plan_info* info);
  /* Optional. Bytes of a packed form of weight `weight_idx`; 0 = uses the checkpoint's order. The host keeps only the packed form
   * when every user of the weight packs it alike. */
  int32_t (*prepack_size)(rt_plugin_ctx* ctx, rt_plan* plan, uint32_t weight_idx, uint64_t* bytes, rt_error* error);
  int32_t (*prepack)(rt_plugin_ctx* ctx, rt_plan* plan, uint32_t weight_idx, const rt_tensor* weight, void* packed, rt_error* error);
  /* [control] All lazy work for every size up to the plan's limits; num_builds must not grow afterwards. May be NULL. */
  int32_t (*warmup)(rt_plugin_ctx* ctx, rt_plan* plan, rt_error* error);
  int32_t (*execute)(rt_plugin_ctx* ctx, rt_plan* plan, const rt_exec_args* args, rt_error* error); /* [exec] */
} rt_op_api;
RT_STATIC_ASSERT(sizeof(rt_op_api) == 8 + 9 * 8, "rt_op_api layout");

#ifdef __cplusplus
}
#endif
#endif /* RT_PLUGIN_OPS_H_ */
