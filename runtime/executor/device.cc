#include "runtime/executor/device.h"

#include <rt/plugin/plugin.hpp>

namespace rt {

Status FromAbi(int32_t code, const rt_error& error, const std::string& what) {
  if (code == RT_OK) return Status::Ok();
  const std::string text = error.message[0] != 0 ? std::string(error.message) : std::string("the plugin gave no text");
  return Status(static_cast<Code>(code), text).Annotate(what);
}

Result<Device> OpenDevice(rt_plugin_ctx* ctx, const rt_device_api* api, uint32_t device_idx) {
  Device device;
  device.ctx = ctx;
  device.api = api;
  rt_error error = NewError();
  uint32_t count = 0;
  RT_RETURN_IF_ERROR(FromAbi(api->enumerate(ctx, &count, &error), error, "enumerate devices"));
  if (device_idx >= count) return {Code::kUnavailable, "device " + std::to_string(device_idx) + ": the plugin sees " + std::to_string(count) + " devices"};
  device.info.struct_size = sizeof(rt_device_info);
  RT_RETURN_IF_ERROR(FromAbi(api->info(ctx, device_idx, &device.info, &error), error, "device info"));
  device.ref = device.info.ref;
  return device;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) device_.api->free(device_.ctx, device_.ref, data_);
}

Result<DeviceBuffer> DeviceBuffer::Allocate(const Device& device, uint64_t bytes, const std::string& tag) {
  DeviceBuffer buffer;
  buffer.device_ = device;
  rt_error error = NewError();
  const uint64_t rounded = bytes == 0 ? 64 : bytes;
  RT_RETURN_IF_ERROR(FromAbi(device.api->alloc(device.ctx, device.ref, rounded, plugin::Str(tag), &buffer.data_, &error), error, "allocate " + std::to_string(rounded) + " bytes for " + tag));
  buffer.bytes_ = bytes;
  return buffer;
}

Result<DeviceStream> DeviceStream::Create(const Device& device) {
  DeviceStream stream;
  stream.device_ = device;
  stream.stream_.struct_size = sizeof(rt_stream);
  rt_error error = NewError();
  RT_RETURN_IF_ERROR(FromAbi(device.api->stream_create(device.ctx, device.ref, &stream.stream_, &error), error, "create stream"));
  stream.owned_ = true;
  return stream;
}

DeviceStream::~DeviceStream() {
  if (owned_) device_.api->stream_destroy(device_.ctx, &stream_);
}

Status DeviceStream::Sync() {
  rt_error error = NewError();
  return FromAbi(device_.api->stream_sync(device_.ctx, &stream_, &error), error, "stream sync");
}
Status DeviceStream::Copy(void* dst, const void* src, uint64_t bytes) {
  rt_error error = NewError();
  return FromAbi(device_.api->copy(device_.ctx, dst, src, bytes, &stream_, &error), error, "copy");
}
Status DeviceStream::Fill(void* dst, uint8_t byte_value, uint64_t bytes) {
  rt_error error = NewError();
  return FromAbi(device_.api->fill(device_.ctx, dst, byte_value, bytes, &stream_, &error), error, "fill");
}

}  // namespace rt
