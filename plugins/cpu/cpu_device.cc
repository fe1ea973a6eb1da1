// The host as a device: synchronous streams, aligned memory with huge pages for large blocks.
#include "plugins/cpu/cpu_plugin.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

namespace rt::cpu {
namespace {

constexpr int32_t kDlCpu = 1;  // DLPack's kDLCPU
constexpr uint64_t kCacheLine = 64, kHugePage = 2u << 20;

// First value of `key` in a "key : value" file of /proc; empty if absent.
std::string ProcValue(const char* file, std::string_view key) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}
uint64_t ProcKiB(std::string_view key) { return std::strtoull(ProcValue("/proc/meminfo", key).c_str(), nullptr, 10) * 1024; }

int32_t Enumerate(rt_plugin_ctx*, uint32_t* count, rt_error*) {
  *count = 1;
  return RT_OK;
}

int32_t Info(rt_plugin_ctx* ctx, uint32_t device_idx, rt_device_info* out, rt_error* error) {
  return plugin::Guard(error, [&]() -> Status {
    if (device_idx != 0) return {Code::kInvalidArgument, "device index " + std::to_string(device_idx) + ": the host is the only device"};
    out->ref = {kDlCpu, 0};
    out->memory_is_host = 1;
    const std::string name = ProcValue("/proc/cpuinfo", "model name");
    plugin::CopyText(out->name, sizeof out->name, name.empty() ? "CPU" : name);
    std::string arch;
    for (kernels::Isa isa : {kernels::Isa::kAvx2, kernels::Isa::kAvx512Bf16}) {
      if (kernels::CpuSupports(isa)) arch += (arch.empty() ? "" : " ") + std::string(kernels::IsaName(isa));
    }
    plugin::CopyText(out->arch, sizeof out->arch, arch.empty() ? "x86-64" : arch);
    plugin::CopyText(out->driver, sizeof out->driver, "");
    out->memory_bytes = ProcKiB("MemTotal");
    out->memory_free_bytes = ProcKiB("MemAvailable");
    out->num_units = static_cast<uint32_t>(Instance::Of(ctx).pool->num_threads());
    return Status::Ok();
  });
}

int32_t Alloc(rt_plugin_ctx*, rt_device_ref, uint64_t bytes, rt_str tag, void** out, rt_error* error) {
  return plugin::Guard(error, [&]() -> Status {
    const bool huge = bytes >= 2 * kHugePage;
    const uint64_t unit = huge ? kHugePage : kCacheLine;
    if (bytes > UINT64_MAX - unit) return {Code::kResourceExhausted, std::string(plugin::View(tag)) + ": " + std::to_string(bytes) + " bytes"};
    void* data = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (data == nullptr) return {Code::kResourceExhausted, std::string(plugin::View(tag)) + ": the system has no " + std::to_string(bytes) + " bytes"};
    if (huge) (void)madvise(data, bytes, MADV_HUGEPAGE);  // a hint; plain pages work too
    *out = data;
    return Status::Ok();
  });
}
void Free(rt_plugin_ctx*, rt_device_ref, void* data) { std::free(data); }

int32_t StreamCreate(rt_plugin_ctx*, rt_device_ref device, rt_stream* out, rt_error*) {
  out->flags = 0;
  out->device = device;
  out->native = nullptr;
  return RT_OK;
}
void StreamDestroy(rt_plugin_ctx*, rt_stream*) {}
int32_t StreamSync(rt_plugin_ctx*, const rt_stream*, rt_error*) { return RT_OK; }
int32_t Copy(rt_plugin_ctx*, void* dst, const void* src, uint64_t bytes, const rt_stream*, rt_error*) {
  if (bytes > 0) std::memcpy(dst, src, bytes);
  return RT_OK;
}
int32_t Fill(rt_plugin_ctx*, void* dst, uint32_t byte_value, uint64_t bytes, const rt_stream*, rt_error*) {
  if (bytes > 0) std::memset(dst, static_cast<int>(byte_value & 0xff), bytes);
  return RT_OK;
}

// Every call is done when it returns, so an event has nothing to hold.
int32_t EventCreate(rt_plugin_ctx*, rt_device_ref, rt_event** out, rt_error*) {
  static char done;
  *out = reinterpret_cast<rt_event*>(&done);
  return RT_OK;
}
void EventDestroy(rt_plugin_ctx*, rt_event*) {}
int32_t EventRecord(rt_plugin_ctx*, rt_event*, const rt_stream*, rt_error*) { return RT_OK; }
int32_t EventSync(rt_plugin_ctx*, rt_event*, rt_error*) { return RT_OK; }

}  // namespace

const rt_device_api kDeviceApi = {sizeof(rt_device_api), 0,           Enumerate,    Info,         Alloc,       Free,     StreamCreate, StreamDestroy,
                                  StreamSync,            Copy,        Fill,         EventCreate,  EventDestroy, EventRecord, EventSync};

}  // namespace rt::cpu
