// RAII over the device component's C table.
#pragma once

#include <rt/plugin/device.h>
#include <rt/plugin/status.hpp>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace rt {

// Status of an ABI call: code and text as the plugin gave them, prefixed by what was being done.
Status FromAbi(int32_t code, const rt_error& error, const std::string& what);
inline rt_error NewError() {
  rt_error error = {};
  error.struct_size = sizeof error;
  return error;
}

// One device of a loaded plugin; a value type, valid as long as the plugin (which is never unloaded).
struct Device {
  rt_plugin_ctx* ctx = nullptr;
  const rt_device_api* api = nullptr;
  rt_device_ref ref = {};
  rt_device_info info = {};

  bool memory_is_host() const { return info.memory_is_host != 0; }
};

// The first device of a device component, by index.
Result<Device> OpenDevice(rt_plugin_ctx* ctx, const rt_device_api* api, uint32_t device_idx);

// Device memory; move-only.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();
  static Result<DeviceBuffer> Allocate(const Device& device, uint64_t bytes, const std::string& tag);
  void* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Device device_;
  void* data_ = nullptr;
  uint64_t bytes_ = 0;
};

// A stream and the event that marks the end of a step.
class DeviceStream {
 public:
  static Result<DeviceStream> Create(const Device& device);
  DeviceStream(DeviceStream&& other) noexcept : device_(other.device_), stream_(other.stream_), owned_(std::exchange(other.owned_, false)) {}
  DeviceStream& operator=(DeviceStream&&) = delete;
  ~DeviceStream();
  const rt_stream* get() const { return &stream_; }
  Status Sync();
  Status Copy(void* dst, const void* src, uint64_t bytes);
  Status Fill(void* dst, uint8_t byte_value, uint64_t bytes);

 private:
  DeviceStream() = default;
  Device device_;
  rt_stream stream_ = {};
  bool owned_ = false;
};

// A host array and where the device reads it: the same memory when device memory is host memory, else a device copy that grows.
template <typename T>
class UploadArray {
 public:
  std::vector<T> host;
  Status Upload(const Device& device, DeviceStream* stream) {
    if (device.memory_is_host()) {
      data_ = host.data();
      return Status::Ok();
    }
    const uint64_t bytes = host.size() * sizeof(T);
    if (buffer_.bytes() < bytes) {
      RT_ASSIGN_OR_RETURN(buffer_, DeviceBuffer::Allocate(device, bytes * 2, "step inputs"));
    }
    data_ = static_cast<T*>(buffer_.data());
    return bytes == 0 ? Status::Ok() : stream->Copy(buffer_.data(), host.data(), bytes);
  }
  T* device_data() const { return data_; }

 private:
  DeviceBuffer buffer_;
  T* data_ = nullptr;
};

}  // namespace rt
