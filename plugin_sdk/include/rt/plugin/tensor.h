/* Tensors, dtypes, layouts, streams. C11. */
#ifndef RT_PLUGIN_TENSOR_H_
#define RT_PLUGIN_TENSOR_H_

#include <rt/plugin/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* dtype ids used in capability columns, weights and caches. */
enum {
  RT_DTYPE_NONE = 0,
  RT_DTYPE_F32 = 1,
  RT_DTYPE_BF16 = 2,
  RT_DTYPE_F16 = 3,
  RT_DTYPE_I32 = 4,
  RT_DTYPE_I64 = 5,
  RT_DTYPE_U8 = 6,
  RT_DTYPE_U64 = 7,
  RT_DTYPE_F64 = 8,
};

/* Same layout as DLPack's DLDevice, DLDataType and DLTensor (dlpack 1.x), so a tensor can be handed over as it is. Stricter:
 * strides (in elements) are always present; address = data + byte_offset; the arrays live for the call; an empty tensor is a
 * no-op; everything is borrowed. */
typedef struct rt_device_ref {
  int32_t device_type; /* DLPack's codes: 1 = CPU, 2 = CUDA, 10 = ROCm */
  int32_t device_id;
} rt_device_ref;

typedef struct rt_dltype {
  uint8_t code; /* 0 int, 1 uint, 2 float, 4 bfloat */
  uint8_t bits;
  uint16_t lanes;
} rt_dltype;

typedef struct rt_tensor {
  void* data;
  rt_device_ref device;
  int32_t ndim;
  rt_dltype dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
} rt_tensor;
RT_STATIC_ASSERT(sizeof(rt_tensor) == 48, "rt_tensor must equal DLTensor");

/* Order of a recurrent state [Hv, Dk, Dv] inside a slot. */
enum {
  RT_STATE_LAYOUT_KV = 1,       /* [Hv][Dk][Dv] */
  RT_STATE_LAYOUT_VK = 2,       /* [Hv][Dv][Dk] */
  RT_STATE_LAYOUT_VPANEL16 = 3, /* [Hv][ceil(Dv/16)][Dk][16], tail lanes zero */
};

/* Order of one KV block. */
enum {
  RT_KV_LAYOUT_HND = 1, /* key [Hkv][block_size][D], value [Hkv][block_size][D] */
  RT_KV_LAYOUT_NHD = 2, /* key [block_size][Hkv][D], value likewise */
};

/* Host-owned; never a default stream. */
typedef struct rt_stream {
  uint32_t struct_size;
  uint32_t flags;  /* bit 0: capturing */
  rt_device_ref device;
  void* native;    /* made by the device component */
} rt_stream;
RT_STATIC_ASSERT(sizeof(rt_stream) == 24, "rt_stream layout");

#ifdef __cplusplus
}
#endif
#endif /* RT_PLUGIN_TENSOR_H_ */
