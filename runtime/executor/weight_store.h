// The resident weights of a program: one copy each, merged products concatenated, in device memory.
#pragma once

#include "runtime/executor/device.h"
#include "runtime/program/program.h"
#include "runtime/weights/loader.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace rt {

struct WeightSource {
  const weights::Checkpoint* checkpoint = nullptr;  // null: random
  uint64_t random_seed = 0;
};

class WeightStore {
 public:
  // Loads every weight once; warnings (such as -inf gates) go to `warnings`.
  static Result<WeightStore> Load(const Program& program, uint32_t act_dtype, const WeightSource& source, const Device& device, const weights::LoadOptions& options,
                                  std::vector<std::string>* warnings);
  void* data(uint32_t weight) const { return buffers_[weight].data(); }
  uint64_t total_bytes() const { return total_bytes_; }
  // Gives one weight's memory back (its packed form is used instead); bytes() keeps its size.
  void Release(uint32_t weight) { buffers_[weight] = DeviceBuffer(); }
  uint64_t bytes(uint32_t weight) const { return sizes_[weight]; }

 private:
  std::vector<DeviceBuffer> buffers_;
  std::vector<uint64_t> sizes_;
  uint64_t total_bytes_ = 0;
};

}  // namespace rt
