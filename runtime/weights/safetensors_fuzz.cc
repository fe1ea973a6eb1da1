// libFuzzer: the first byte picks the parser, the rest is a safetensors file, its header text, or an index.
// Whatever a parser accepts must keep the promises that the loader builds on.
#include "runtime/weights/checkpoint.h"
#include "runtime/weights/safetensors.h"

#include <cstdlib>

namespace {

using rt::weights::BitsOf;
using rt::weights::ElementCount;

void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckFile(std::span<const std::byte> file) {
  const auto header = rt::weights::ParseSafetensorsHeader(file, "fuzz");
  if (!header.ok()) return;
  uint64_t position = 0;
  for (const auto& t : header->tensors) {
    Require(position == 0 || t.begin == position);
    Require(t.begin <= t.end && t.end <= file.size());
    Require(ElementCount(t.shape).value() * static_cast<uint64_t>(BitsOf(t.dtype)) == 8 * (t.end - t.begin));
    position = t.end;
  }
  Require(header->tensors.empty() || position == file.size());
}

// Puts the length before the text, which random bytes rarely guess, and data bytes behind it.
void CheckHeaderText(std::span<const std::byte> text) {
  std::vector<std::byte> file(8);
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>((uint64_t{text.size()} >> (8 * i)) & 0xff);
  file.insert(file.end(), text.begin(), text.end());
  for (int data_bytes = 0; data_bytes <= 16; data_bytes += 8) {
    CheckFile(file);
    file.insert(file.end(), 8, std::byte{});
  }
}

void CheckIndex(std::span<const std::byte> bytes) {
  const auto index =
      rt::weights::ParseCheckpointIndex({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "fuzz");
  if (!index.ok()) return;
  Require(!index->file_of.empty());
  for (const auto& [name, file] : index->file_of) Require(file.find('/') == std::string::npos);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span<const std::byte> rest(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      CheckFile(rest);
      break;
    case 1:
      CheckHeaderText(rest);
      break;
    default:
      CheckIndex(rest);
      break;
  }
  return 0;
}
