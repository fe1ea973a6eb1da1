// Reads what a plugin file says about itself from its bytes; no code of the file runs.
//
// The reader accepts 64-bit little-endian ELF files of any machine and type. Every offset is checked against
// the file's size, and a file whose header, segments or sections reach past its end is refused: the dynamic
// linker maps such a file and the process dies of SIGBUS. Layouts: System V gABI, chapters 4 and 5; GNU
// build-id notes; DT_* values of <elf.h>.
#pragma once

#include <rt/plugin/base.h>
#include <rt/plugin/status.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace rt {

struct ElfInfo {
  uint16_t type = 0;           // ET_*
  uint16_t machine = 0;        // EM_*
  bool is_executable = false;  // has DF_1_PIE, or is ET_EXEC
  std::string soname;
  std::string interpreter;              // of executables
  std::vector<std::string> needed;      // DT_NEEDED, in file order
  std::vector<std::string> runpath;     // DT_RUNPATH or DT_RPATH, split at ':'
  std::vector<std::string> exports;     // defined dynamic symbols that others can bind to
  std::vector<std::string> uniques;     // STB_GNU_UNIQUE among them: shared even between RTLD_LOCAL plugins
  std::vector<std::string> imports;     // undefined dynamic symbols
  bool static_tls = false;              // DF_STATIC_TLS: may fail to load late
  std::string build_id;                 // lower-case hex, empty if none
  std::optional<rt_manifest> manifest;  // strings checked to end inside their fields; other fields as found
};

// Errors (DATA_LOSS or UNSUPPORTED) name what was expected and what was found. A manifest section of a wrong
// size, magic or unterminated text is an error too; an absent one is not.
Result<ElfInfo> ReadElf(std::span<const std::byte> file);

// "x86-64", "aarch64", … or "unknown".
const char* ElfMachineName(uint16_t machine);
uint16_t HostElfMachine();  // of this process

// Whether `name` is one of the exports.
bool ElfExports(const ElfInfo& elf, const std::string& name);

}  // namespace rt
