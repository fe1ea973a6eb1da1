// Reads the small safetensors files of the test data: whole tensors, widened to double or int64. For trusted
// test data only; the product's reader is runtime/weights.
#pragma once

#include "plugin_sdk/oracle/math.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace rt::testing {

struct Tensor {
  std::vector<int64_t> shape;
  oracle::Values values;  // row-major; F32, F16 and BF16 widen exactly
};

// All tensors of all *.safetensors files of a folder, by name. Throws std::runtime_error naming the file or
// tensor.
class TensorFiles {
 public:
  explicit TensorFiles(const std::filesystem::path& folder);

  bool Has(const std::string& name) const { return entries_.count(name) != 0; }
  std::vector<std::string> Names() const;

  Tensor Read(const std::string& name) const;                                      // float tensors
  oracle::Values Read(const std::string& name, std::vector<int64_t> shape) const;  // and checks the shape
  std::vector<int64_t> ReadIntegers(const std::string& name) const;                // I64 and I32 tensors

 private:
  struct Entry {
    std::filesystem::path file;
    std::string dtype;
    std::vector<int64_t> shape;
    uint64_t begin_bytes;  // from the start of the file
    uint64_t end_bytes;
  };
  void Index(const std::filesystem::path& file);
  const Entry& Find(const std::string& name) const;
  static std::vector<char> Bytes(const Entry& entry);

  std::map<std::string, Entry> entries_;
};

}  // namespace rt::testing
