/* The plugin ABI: entry point, manifest, component table. C11; includes only C standard headers.
 *
 * A plugin is one shared library librt_<name>.so that exports one symbol, rt_plugin_query_v1. Everything else goes through
 * tables; a plugin never links to the host. Rules that hold for every header of this folder:
 *  - Every struct that crosses the boundary starts with `struct_size`. Input structs: a missing tail reads as zero, a non-zero
 *    tail that the reader does not know is refused (RT_UNSUPPORTED_STRUCT). Output structs: the caller zero-fills and sets
 *    struct_size, the callee never writes past it. A table member is usable iff it lies inside struct_size and is not NULL.
 *  - Arrays of structs carry a stride.
 *  - Strings are pointer + length, UTF-8, not NUL-terminated.
 *  - No exception, C++ type or host symbol crosses. The creator of a handle destroys it; destroying NULL is fine.
 *  - Threads: [pure] no side effects, any thread; [any] any thread; [control] calls are serialised per plugin;
 *    [exec] one thread per plan at a time, enqueue only, no allocation, no blocking on the device.
 *  - A plugin installs no signal handlers, does not fork, exit, change locale or environment, or start work in static
 *    constructors. Plugins are full-trust code. */
#ifndef RT_PLUGIN_BASE_H_
#define RT_PLUGIN_BASE_H_

#include <stddef.h>
#include <stdint.h>

#include <rt/plugin/status.h>

#define RT_ABI_MAJOR 1u
#define RT_ABI_MINOR 0u
/* While the ABI is a draft, host and plugin must agree on this number too; it is raised with each incompatible change. */
#define RT_ABI_DRAFT 2u

#define RT_PLUGIN_ENTRY_NAME "rt_plugin_query_v1"
#define RT_MANIFEST_SECTION "rt_manifest"
#define RT_MANIFEST_MAGIC "RTPLUG1" /* 7 characters and NUL = 8 bytes */

#if defined(__GNUC__)
#define RT_EXPORT __attribute__((visibility("default")))
#else
#define RT_EXPORT
#endif

#ifdef __cplusplus
#define RT_STATIC_ASSERT(cond, text) static_assert(cond, text)
extern "C" {
#else
#define RT_STATIC_ASSERT(cond, text) _Static_assert(cond, text)
#endif

typedef struct rt_str {
  const char* data;
  uint64_t size;
} rt_str;
RT_STATIC_ASSERT(sizeof(rt_str) == 16, "rt_str layout");

/* Component kinds; a plugin may bring several components. Bits, so that the manifest can hold a set. */
enum {
  RT_KIND_DEVICE = 1,
  RT_KIND_OPS = 2,
  RT_KIND_ATTENTION = 4,
  RT_KIND_LINEAR_ATTENTION = 8,
  RT_KIND_MODEL = 16,
};

/* Sanitizers a plugin was built with; must match the host's for address and thread. */
enum { RT_SANITIZER_NONE = 0, RT_SANITIZER_ADDRESS = 1, RT_SANITIZER_THREAD = 2 };

/* Pointer-free record in the ELF section `rt_manifest`, readable from the file's bytes without running vendor code. */
typedef struct rt_manifest {
  char magic[8];
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor_built;  /* minor of the headers it was built with */
  uint32_t abi_minor_needed; /* loads iff host minor >= this */
  uint32_t abi_draft;
  uint32_t kinds; /* set of RT_KIND_* */
  uint32_t sanitizer;
  uint32_t reserved0;
  char name[64];     /* NUL-terminated, [a-z0-9_-]+; the file is librt_<name>.so */
  char vendor[64];
  char version[32];  /* semver */
  char targets[128]; /* what it can run on, e.g. "x86-64-v3 avx512_bf16" */
} rt_manifest;
RT_STATIC_ASSERT(sizeof(rt_manifest) == 40 + 64 + 64 + 32 + 128, "rt_manifest layout");

/* Puts the manifest into the file. NAME, VENDOR, VERSION, TARGETS are string literals. */
#define RT_PLUGIN_MANIFEST(KINDS, NAME, VENDOR, VERSION, TARGETS)                                                   \
  __attribute__((section(RT_MANIFEST_SECTION), used)) static const rt_manifest rt_plugin_manifest = { \
      RT_MANIFEST_MAGIC, sizeof(rt_manifest), RT_ABI_MAJOR, RT_ABI_MINOR, 0u,      RT_ABI_DRAFT, (KINDS),           \
      RT_PLUGIN_SANITIZER_, 0u,               NAME,         VENDOR,       VERSION, TARGETS}

#if defined(__SANITIZE_ADDRESS__)
#define RT_PLUGIN_SANITIZER_ RT_SANITIZER_ADDRESS
#elif defined(__SANITIZE_THREAD__)
#define RT_PLUGIN_SANITIZER_ RT_SANITIZER_THREAD
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RT_PLUGIN_SANITIZER_ RT_SANITIZER_ADDRESS
#elif __has_feature(thread_sanitizer)
#define RT_PLUGIN_SANITIZER_ RT_SANITIZER_THREAD
#else
#define RT_PLUGIN_SANITIZER_ RT_SANITIZER_NONE
#endif
#else
#define RT_PLUGIN_SANITIZER_ RT_SANITIZER_NONE
#endif

/* Log levels of the host table. */
enum { RT_LOG_DEBUG = 0, RT_LOG_INFO = 1, RT_LOG_WARN = 2, RT_LOG_ERROR = 3 };

/* What the host offers a plugin; [any], valid until shutdown. Never calls back into the plugin. */
typedef struct rt_host {
  uint32_t struct_size;
  uint32_t abi_minor; /* the host's */
  void* self;
  void (*log)(void* self, int32_t level, rt_str plugin, rt_str text);
  /* The plugin's own section of the configuration as JSON text, e.g. {"isa":"avx2"}; "{}" when absent. */
  rt_str options_json;
  const void* (*get_interface)(void* self, rt_str id); /* unknown id: NULL */
} rt_host;
RT_STATIC_ASSERT(sizeof(rt_host) == 48, "rt_host layout");

/* One component. `api` points to the table of its kind: rt_device_api, rt_op_api, rt_backend_api (both attention kinds), rt_model_api. */
typedef struct rt_component {
  uint32_t struct_size;
  uint32_t kind;
  rt_str name;
  const void* api;
} rt_component;
RT_STATIC_ASSERT(sizeof(rt_component) == 32, "rt_component layout");

/* Instance of a plugin, made by init and passed to every table function as `ctx`. */
typedef struct rt_plugin_ctx rt_plugin_ctx;

typedef struct rt_plugin_desc {
  uint32_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor_built;
  uint32_t abi_minor_needed;
  uint32_t abi_draft;
  uint32_t num_components;
  uint32_t component_stride; /* bytes */
  uint32_t reserved0;
  rt_str name, vendor, version; /* equal to the manifest's */
  const rt_component* components;
  /* [control] Repeatable after shutdown. Zero devices is success. Options that the plugin does not know are an error naming them. */
  int32_t (*init)(const rt_host* host, rt_plugin_ctx** ctx, rt_error* error);
  void (*shutdown)(rt_plugin_ctx* ctx); /* after the last plan, backend and stream is destroyed; no callbacks later */
  const void* (*get_interface)(rt_str id); /* [pure] extensions by id; unknown: NULL. May be NULL. */
} rt_plugin_desc;
RT_STATIC_ASSERT(sizeof(rt_plugin_desc) == 32 + 48 + 32, "rt_plugin_desc layout");

/* The exported symbol. [pure], under 50 ms, opens no driver; the result lives as long as the library. */
typedef const rt_plugin_desc* (*rt_plugin_query_fn)(void);

#ifdef __cplusplus
}
#endif
#endif /* RT_PLUGIN_BASE_H_ */
