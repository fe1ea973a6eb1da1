/* The device component: the only part that allocates device memory. C11. */
#ifndef RT_PLUGIN_DEVICE_H_
#define RT_PLUGIN_DEVICE_H_

#include <rt/plugin/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RT_DEVICE_TEXT_BYTES 128

typedef struct rt_device_info {
  uint32_t struct_size;
  rt_device_ref ref;
  uint32_t memory_is_host; /* 1: device pointers can be read and written by the host */
  char name[RT_DEVICE_TEXT_BYTES];   /* e.g. the CPU brand string */
  char arch[RT_DEVICE_TEXT_BYTES];   /* e.g. "avx2 avx512f avx512_bf16" */
  char driver[RT_DEVICE_TEXT_BYTES]; /* version; empty if none */
  uint64_t memory_bytes;           /* total usable by us */
  uint64_t memory_free_bytes;
  uint32_t num_units;              /* cores or multiprocessors used */
  uint32_t reserved0;
} rt_device_info;
RT_STATIC_ASSERT(sizeof(rt_device_info) == 16 + 3 * RT_DEVICE_TEXT_BYTES + 24, "rt_device_info layout");

typedef struct rt_event rt_event;

/* Streams are ordered queues; on a CPU every call is done when it returns. */
typedef struct rt_device_api {
  uint32_t struct_size;
  uint32_t reserved0;
  int32_t (*enumerate)(rt_plugin_ctx* ctx, uint32_t* count, rt_error* error); /* [control] zero devices is success */
  int32_t (*info)(rt_plugin_ctx* ctx, uint32_t device_idx, rt_device_info* out, rt_error* error);
  /* [control] 64-byte aligned, contents undefined. `tag` names the use in reports. */
  int32_t (*alloc)(rt_plugin_ctx* ctx, rt_device_ref device, uint64_t bytes, rt_str tag, void** out, rt_error* error);
  void (*free)(rt_plugin_ctx* ctx, rt_device_ref device, void* data);
  int32_t (*stream_create)(rt_plugin_ctx* ctx, rt_device_ref device, rt_stream* out, rt_error* error);
  void (*stream_destroy)(rt_plugin_ctx* ctx, rt_stream* stream);
  int32_t (*stream_sync)(rt_plugin_ctx* ctx, const rt_stream* stream, rt_error* error);
  /* [exec] Ordered on the stream; either side may be host or device memory. */
  int32_t (*copy)(rt_plugin_ctx* ctx, void* dst, const void* src, uint64_t bytes, const rt_stream* stream, rt_error* error);
  int32_t (*fill)(rt_plugin_ctx* ctx, void* dst, uint32_t byte_value, uint64_t bytes, const rt_stream* stream, rt_error* error);
  int32_t (*event_create)(rt_plugin_ctx* ctx, rt_device_ref device, rt_event** out, rt_error* error);
  void (*event_destroy)(rt_plugin_ctx* ctx, rt_event* event);
  int32_t (*event_record)(rt_plugin_ctx* ctx, rt_event* event, const rt_stream* stream, rt_error* error); /* [exec] */
  int32_t (*event_sync)(rt_plugin_ctx* ctx, rt_event* event, rt_error* error);
} rt_device_api;
RT_STATIC_ASSERT(sizeof(rt_device_api) == 8 + 13 * 8, "rt_device_api layout");

#ifdef __cplusplus
}
#endif
#endif /* RT_PLUGIN_DEVICE_H_ */
