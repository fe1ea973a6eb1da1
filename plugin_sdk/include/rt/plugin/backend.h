/* Attention and linear-attention backends: an op provider plus metadata that is built once per step and read by every layer. C11.
 *
 * Life cycle: create -> begin_step once per step -> execute of each layer's plan (enqueue only). Where the device has graphs:
 * init_capture(max batch, buckets) -> prepare_for_capture(bucket) / prepare_for_replay(meta) -> reset_capture (idempotent, a later
 * init is legal). The two backends stand side by side. Metadata never mentions gates: gate kind, width and bound are plan columns. */
#ifndef RT_PLUGIN_BACKEND_H_
#define RT_PLUGIN_BACKEND_H_

#include <rt/plugin/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sequences are ordered decode, verify, prefill; tokens likewise. Each array exists twice: on the host, and where the device reads
 * it (the same pointer when device memory is host memory). All arrays live until the next begin_step. */
typedef struct rt_step_meta {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  int32_t num_sequences, num_tokens;
  int32_t num_decode_sequences, num_verify_sequences, num_prefill_sequences;
  int32_t num_decode_tokens, num_verify_tokens, num_prefill_tokens;
  int32_t max_blocks_per_sequence; /* row length of block_table */
  int32_t max_context;             /* largest context_len + new tokens of this step */
  /* [num_sequences + 1] exclusive prefix sum of new tokens; a zero-length sequence changes nothing */
  const int32_t* cu_seqlens_host;
  const int32_t* cu_seqlens;
  /* [num_sequences] tokens already cached before this step */
  const int32_t* context_lens_host;
  const int32_t* context_lens;
  /* [num_tokens] position of each token in its sequence, from 0 */
  const int32_t* positions;
  /* [num_sequences, max_blocks_per_sequence] KV block ids; unused entries -1 */
  const int32_t* block_table_host;
  const int32_t* block_table;
  /* [num_sequences] state slot; -1 = padding: no state is read or written and its output rows are written as zeros */
  const int32_t* state_slot_ids_host;
  const int32_t* state_slot_ids;
  /* [num_sequences] 0 = the state is zero whatever its bytes are */
  const uint8_t* has_initial_state_host;
  const uint8_t* has_initial_state;
} rt_step_meta;
RT_STATIC_ASSERT(sizeof(rt_step_meta) == 48 + 11 * 8, "rt_step_meta layout");

typedef struct rt_backend_desc {
  uint32_t struct_size;
  rt_device_ref device;
  int32_t max_sequences, max_tokens, max_context;
  int32_t kv_block_size; /* tokens; 0 for linear attention */
  int32_t reserved0;
} rt_backend_desc;
RT_STATIC_ASSERT(sizeof(rt_backend_desc) == 32, "rt_backend_desc layout");

typedef struct rt_backend_api {
  uint32_t struct_size;
  uint32_t reserved0;
  const rt_op_api* ops;
  int32_t (*create)(rt_plugin_ctx* ctx, const rt_backend_desc* desc, rt_backend** backend, rt_error* error); /* [control] */
  void (*destroy)(rt_plugin_ctx* ctx, rt_backend* backend);
  int32_t (*begin_step)(rt_plugin_ctx* ctx, rt_backend* backend, const rt_step_meta* meta, const rt_stream* stream, rt_error* error);
  /* Graph capture; NULL where rows declare capture = 0. */
  int32_t (*init_capture)(rt_plugin_ctx* ctx, rt_backend* backend, int32_t max_batch, const int32_t* buckets, int32_t num_buckets, rt_error* error);
  int32_t (*prepare_for_capture)(rt_plugin_ctx* ctx, rt_backend* backend, int32_t bucket, const rt_stream* stream, rt_error* error);
  int32_t (*prepare_for_replay)(rt_plugin_ctx* ctx, rt_backend* backend, const rt_step_meta* meta, const rt_stream* stream, rt_error* error);
  int32_t (*reset_capture)(rt_plugin_ctx* ctx, rt_backend* backend, rt_error* error);
  /* Linear attention: one slot's recurrent state as canonical fp32 [Hv, Dk, Dv] in host memory, and back (rounds once to the cache's dtype). */
  int32_t (*export_state)(rt_plugin_ctx* ctx, const rt_cache_view* recurrent, const rt_problem* problem, int32_t state_slot_id, float* out, rt_error* error);
  int32_t (*import_state)(rt_plugin_ctx* ctx, const rt_cache_view* recurrent, const rt_problem* problem, int32_t state_slot_id, const float* in, rt_error* error);
} rt_backend_api;
RT_STATIC_ASSERT(sizeof(rt_backend_api) == 16 + 9 * 8, "rt_backend_api layout");

#ifdef __cplusplus
}
#endif
#endif /* RT_PLUGIN_BACKEND_H_ */
