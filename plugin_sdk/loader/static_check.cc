#include "plugin_sdk/loader/static_check.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace rt {
namespace {

constexpr uint32_t kKnownKinds =
    RT_KIND_DEVICE | RT_KIND_OPS | RT_KIND_ATTENTION | RT_KIND_LINEAR_ATTENTION | RT_KIND_MODEL;

const char* TypeName(uint16_t type) {
  switch (type) {
    case ET_REL:
      return "a relocatable object file";
    case ET_EXEC:
      return "an executable";
    case ET_CORE:
      return "a core dump";
    default:
      return "a file of unknown type";
  }
}

Status CheckKind(const ElfInfo& elf, const HostAbi& host) {
  if (elf.machine != host.machine) {
    return {Code::kUnsupported, std::string("built for ") + ElfMachineName(elf.machine) + " (ELF machine " +
                                    std::to_string(elf.machine) + "), this host is " +
                                    ElfMachineName(host.machine) + " (" + std::to_string(host.machine) + ")"};
  }
  if (elf.type != ET_DYN || elf.is_executable || !elf.interpreter.empty()) {
    const bool executable = elf.is_executable || !elf.interpreter.empty();
    return {Code::kUnsupported, std::string("expected a shared object, found ") +
                                    (executable ? "an executable" : TypeName(elf.type)) + " (ELF type " +
                                    std::to_string(elf.type) + ")"};
  }
  return Status::Ok();
}

Status CheckEntry(const ElfInfo& elf) {
  if (ElfExports(elf, RT_PLUGIN_ENTRY_NAME)) return Status::Ok();
  constexpr std::string_view kAnyMajor = "rt_plugin_query_v";
  for (const std::string& name : elf.exports) {
    if (name.compare(0, kAnyMajor.size(), kAnyMajor) == 0) {
      return {Code::kUnsupported,
              "plugin ABI major differs: it exports " + name + ", this host calls " RT_PLUGIN_ENTRY_NAME};
    }
  }
  return {Code::kUnsupported, "not a plugin: it does not export " RT_PLUGIN_ENTRY_NAME};
}

Status CheckManifest(const rt_manifest& m, const HostAbi& host) {
  const auto number = [](uint32_t value) { return std::to_string(value); };
  if (m.struct_size != sizeof(rt_manifest)) {
    return {Code::kBadStruct, "manifest struct_size: expected " + number(sizeof(rt_manifest)) + ", found " +
                                  number(m.struct_size)};
  }
  if (m.abi_major != host.major) {
    return {Code::kUnsupported,
            "plugin ABI major " + number(m.abi_major) + ", this host has " + number(host.major)};
  }
  if (m.abi_minor_needed > host.minor) {
    return {Code::kUnsupported, "needs plugin ABI " + number(m.abi_major) + "." + number(m.abi_minor_needed) +
                                    " or later, this host has " + number(host.major) + "." +
                                    number(host.minor) + ": update the runtime"};
  }
  if (m.abi_draft != host.draft) {
    return {Code::kUnsupported, "built against plugin ABI draft " + number(m.abi_draft) +
                                    ", this host has draft " + number(host.draft) +
                                    ": rebuild the plugin with this runtime's SDK"};
  }
  if (m.sanitizer != host.sanitizer) {
    return {Code::kUnsupported, std::string("built with sanitizer ") + SanitizerName(m.sanitizer) +
                                    ", this host with " + SanitizerName(host.sanitizer) +
                                    ": build both alike"};
  }
  if (m.reserved0 != 0)
    return {Code::kUnsupportedStruct, "manifest reserved0: expected 0, found " + number(m.reserved0)};
  if (m.kinds == 0) return {Code::kInvalidArgument, "its manifest names no component kind"};
  if ((m.kinds & ~kKnownKinds) != 0)
    return {Code::kUnsupported, "unknown component kinds: " + KindNames(m.kinds & ~kKnownKinds)};
  if (m.name[0] == 0) return {Code::kInvalidArgument, "its manifest has an empty name"};
  if (!IsPluginName(m.name))
    return {Code::kInvalidArgument,
            std::string("its name \"") + m.name + "\" is not of the form [a-z0-9_-]+"};
  return Status::Ok();
}

// A read-only view of a whole file.
class MappedFile {
 public:
  ~MappedFile() {
    if (data_ != MAP_FAILED) munmap(data_, size_);
  }
  Status Open(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
      return {errno == ENOENT ? Code::kNotFound : Code::kUnavailable,
              std::string("cannot be opened: ") + std::strerror(errno)};
    struct stat info = {};
    const bool regular = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
    if (regular && info.st_size > 0) {
      size_ = static_cast<size_t>(info.st_size);
      data_ = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    }
    const int map_error = errno;
    close(fd);
    if (!regular) return {Code::kInvalidArgument, "not a regular file"};
    if (size_ > 0 && data_ == MAP_FAILED)
      return {Code::kUnavailable, std::string("cannot be read: ") + std::strerror(map_error)};
    return Status::Ok();
  }
  std::span<const std::byte> bytes() const {
    return data_ == MAP_FAILED ? std::span<const std::byte>()
                               : std::span(static_cast<const std::byte*>(data_), size_);
  }

 private:
  void* data_ = MAP_FAILED;
  size_t size_ = 0;
};

}  // namespace

HostAbi HostAbi::Current() {
  HostAbi host;
  host.machine = HostElfMachine();
  host.sanitizer = RT_PLUGIN_SANITIZER_;
  return host;
}

Status CheckPluginElf(const ElfInfo& elf, const HostAbi& host) {
  RT_RETURN_IF_ERROR(CheckKind(elf, host));
  RT_RETURN_IF_ERROR(CheckEntry(elf));
  if (!elf.manifest.has_value()) {
    return {Code::kUnsupported,
            "no manifest: the ELF section " RT_MANIFEST_SECTION " is missing (RT_PLUGIN_MANIFEST makes it)"};
  }
  return CheckManifest(*elf.manifest, host);
}

Result<ElfInfo> ReadPluginFile(const std::string& path) {
  MappedFile file;
  RT_RETURN_IF_ERROR(file.Open(path));
  return ReadElf(file.bytes());
}

const char* SanitizerName(uint32_t sanitizer) {
  switch (sanitizer) {
    case RT_SANITIZER_NONE:
      return "none";
    case RT_SANITIZER_ADDRESS:
      return "address";
    case RT_SANITIZER_THREAD:
      return "thread";
    default:
      return "unknown";
  }
}

std::string KindNames(uint32_t kinds) {
  static constexpr std::pair<uint32_t, const char*> kNames[] = {
      {RT_KIND_DEVICE, "device"},
      {RT_KIND_OPS, "ops"},
      {RT_KIND_ATTENTION, "attention"},
      {RT_KIND_LINEAR_ATTENTION, "linear_attention"},
      {RT_KIND_MODEL, "model"}};
  std::string out;
  for (const auto& [bit, name] : kNames) {
    if ((kinds & bit) != 0) out += (out.empty() ? "" : ", ") + std::string(name);
  }
  if ((kinds & ~kKnownKinds) != 0) {
    char hex[16];
    std::snprintf(hex, sizeof hex, "0x%x", kinds & ~kKnownKinds);
    out += (out.empty() ? "" : ", ") + std::string(hex);
  }
  return out;
}

bool IsPluginName(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  });
}

}  // namespace rt
