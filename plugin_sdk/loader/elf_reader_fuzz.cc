// libFuzzer target of the ELF reader: any bytes give an ElfInfo or an error. Seed the corpus with a few small
// shared objects.
#include "plugin_sdk/loader/elf_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)rt::ReadElf(std::as_bytes(std::span(data, size)));
  return 0;
}
