/* Status codes and the error record of the plugin ABI. C11; includes only C standard headers.
 *
 * A function of the ABI returns an i32 code (RT_OK = 0) and, on failure only, fills an rt_error that the caller owns;
 * nothing has to be freed and the text survives the plugin. Codes are chosen by what the caller can do: retry, fix the
 * input, give up. Values are never reused; an unknown code reads as RT_INTERNAL. */
#ifndef RT_PLUGIN_STATUS_H_
#define RT_PLUGIN_STATUS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  RT_OK = 0,
  RT_INVALID_ARGUMENT = 1,    /* caller's mistake: fix the input */
  RT_NOT_FOUND = 2,           /* a named thing does not exist */
  RT_UNSUPPORTED = 3,         /* a valid request that this row, plugin or build cannot serve; `column` says which */
  RT_FAILED_PRECONDITION = 4, /* valid later or after another call (life cycle) */
  RT_RESOURCE_EXHAUSTED = 5,  /* memory, slots, blocks, file handles: retry later or with less */
  RT_DATA_LOSS = 6,           /* truncated or corrupt outside data */
  RT_UNAVAILABLE = 7,         /* an optional part is absent on this machine (driver, package, device) */
  RT_DEADLINE_EXCEEDED = 8,
  RT_CANCELLED = 9,
  RT_INTERNAL = 10,           /* a broken invariant of ours; an exception stopped at the ABI */
  RT_DEVICE_LOST = 11,        /* sticky: every later call on that device fails the same way */
  RT_BAD_STRUCT = 12,         /* struct_size below the first version or above 64 KiB */
  RT_UNSUPPORTED_STRUCT = 13, /* a non-zero field that this side does not know */
  RT_ALREADY_EXISTS = 14,
};

#define RT_ERROR_MESSAGE_BYTES 512

/* Caller-owned; zero-fill and set struct_size before the call. `message` is NUL-terminated UTF-8. */
typedef struct rt_error {
  uint32_t struct_size;
  int32_t code;        /* same as the returned value */
  int32_t vendor_code; /* e.g. a cudaError_t; 0 = none */
  uint32_t column;     /* capability column that failed (caps.h), 0 = none */
  char message[RT_ERROR_MESSAGE_BYTES];
} rt_error;

#ifdef __cplusplus
}
static_assert(sizeof(rt_error) == 16 + RT_ERROR_MESSAGE_BYTES, "rt_error layout");
#else
_Static_assert(sizeof(rt_error) == 16 + RT_ERROR_MESSAGE_BYTES, "rt_error layout");
#endif
#endif /* RT_PLUGIN_STATUS_H_ */
