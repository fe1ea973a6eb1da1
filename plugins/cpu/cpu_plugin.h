// The CPU plugin: device, dense and routing ops, attention and linear attention, at two instruction set levels.
#pragma once

#include "kernels/common/isa.h"
#include "kernels/common/parallel.h"
#include "kernels/common/thread_pool.h"

#include <rt/plugin/plugin.hpp>

#include <memory>
#include <string>

namespace rt::cpu {

struct Options {
  int num_threads = 0;                // 0 = all CPUs of the affinity mask
  bool pin = true;
  int spin_us = 200;                  // workers spin this long before they sleep
  std::string isa = "auto";           // "auto", "avx512bf16" or "avx2": rows of other levels are disabled
};
Result<Options> ParseOptions(std::string_view json_text);

// One instruction set level as rows see it.
struct Level {
  kernels::Isa isa;
  const char* name;      // "avx512bf16", "avx2"; part of kernel names
  int32_t score;         // capability score of tuned rows
  uint32_t unavailable;  // RT_UNAVAILABLE_*
  std::string reason;
};
std::vector<Level> Levels(const Options& options);

std::unique_ptr<plugin::OpProvider> MakeOps(const std::vector<Level>& levels, const kernels::Parallel& parallel);
std::unique_ptr<plugin::BackendProvider> MakeAttention(const std::vector<Level>& levels, const kernels::Parallel& parallel);
std::unique_ptr<plugin::BackendProvider> MakeLinearAttention(const std::vector<Level>& levels, const kernels::Parallel& parallel);
extern const rt_device_api kDeviceApi;

// What init makes.
struct Instance {
  Options options;
  std::unique_ptr<kernels::ThreadPool> pool;
  std::unique_ptr<plugin::OpProvider> ops;
  std::unique_ptr<plugin::BackendProvider> attention, linear_attention;

  static Instance& Of(rt_plugin_ctx* ctx) { return *reinterpret_cast<Instance*>(ctx); }
};

// ---- argument access, shared by the op files ----

// [rows, columns] view of an activation: dense columns, any row stride.
struct Matrix {
  void* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;  // elements

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Address of row `row`, for elements of `bytes`.
  void* Row(int64_t row, int64_t bytes) const { return static_cast<char*>(data) + row * stride * bytes; }
};
inline void* DataOf(const rt_tensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }
inline Matrix MatrixOf(const rt_tensor& t) {
  return {DataOf(t), t.shape[0], t.ndim > 1 ? t.shape[1] : 1, t.ndim > 1 ? t.strides[0] : 1};
}
inline kernels::DType KernelDType(int64_t dtype) {
  return dtype == RT_DTYPE_F32 ? kernels::DType::kF32 : dtype == RT_DTYPE_F16 ? kernels::DType::kF16 : kernels::DType::kBf16;
}
// A kernel launcher's code as Status.
inline Status FromKernel(int code, const char* op) {
  return code == 0 ? Status::Ok() : Status(Code::kInternal, std::string(op) + ": kernel returned " + std::to_string(code));
}
// Both activation dtypes.
inline std::vector<int64_t> ActDTypes() { return {RT_DTYPE_F32, RT_DTYPE_BF16}; }

}  // namespace rt::cpu
