// Stage 0 of loading a plugin: may this file be loaded by this host? Decided from the file's bytes alone.
#pragma once

#include "plugin_sdk/loader/elf_reader.h"

namespace rt {

// What a plugin has to fit. Current() describes this build.
struct HostAbi {
  uint16_t machine = 0;
  uint32_t major = RT_ABI_MAJOR;
  uint32_t minor = RT_ABI_MINOR;
  uint32_t draft = RT_ABI_DRAFT;
  uint32_t sanitizer = RT_SANITIZER_NONE;

  static HostAbi Current();
};

// OK, or a message with what was expected and found. Checks type, machine, entry point, manifest, ABI,
// sanitizer, kinds, name.
Status CheckPluginElf(const ElfInfo& elf, const HostAbi& host);

// Reads, parses and checks a file. The file must not change meanwhile.
Result<ElfInfo> ReadPluginFile(const std::string& path);

const char* SanitizerName(uint32_t sanitizer);  // "none", "address", "thread", "unknown"
std::string KindNames(uint32_t kinds);          // "device, ops"; unknown bits in hex
bool IsPluginName(std::string_view name);       // [a-z0-9_-]+

}  // namespace rt
