// The safetensors header: 8 bytes little-endian length n, n bytes of JSON, then the data.
// Format: huggingface/safetensors:README.md; limits as its reader has them (safetensors/src/tensor.rs).
#pragma once

#include "runtime/weights/dtype.h"

#include <map>
#include <span>

namespace rt::weights {

struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // empty: scalar
  uint64_t begin = 0;          // bytes from the start of the file, [begin, end)
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  // by offset
  std::map<std::string, std::string> metadata;
};

// Reads the header of a whole file; the data is not touched. `label` (the file name) opens each message.
// Everything that the data relies on is proven: lengths inside the file, known dtypes, shape × size = byte
// range, ranges in order without gap, overlap or rest, names unique. Errors are kDataLoss; a type that no
// reader knows is kUnsupported.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> file, std::string_view label);

}  // namespace rt::weights
