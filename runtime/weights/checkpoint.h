// A checkpoint folder in Hugging Face layout, opened and proven whole before anything is loaded from it.
#pragma once

#include "runtime/weights/dtype.h"
#include "runtime/weights/mapped_file.h"

#include <map>
#include <unordered_map>

namespace rt::weights {

inline constexpr const char* kSingleFileName = "model.safetensors";
inline constexpr const char* kIndexFileName = "model.safetensors.index.json";

// model.safetensors.index.json
struct CheckpointIndex {
  std::map<std::string, std::string> file_of;  // tensor name -> shard, a plain file name of the same folder
  std::optional<uint64_t> total_size;          // metadata.total_size, bytes of all tensors
};
// `label` opens each message.
Result<CheckpointIndex> ParseCheckpointIndex(std::string_view text, std::string_view label);

struct CheckpointTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const std::byte> data;  // inside the mapped file, any alignment; valid as long as the Checkpoint
  size_t file = 0;                  // Checkpoint::file(file)
};

// Holds the mappings; move-only, immutable, readable from any thread. The files must not change while it
// lives (mapped_file.h).
class Checkpoint {
 public:
  // Reads the index and every header, no tensor data. One Status names every finding: absent shards
  // ("incomplete checkpoint: 1 of 2 shards absent"), short or overlong files, broken headers, and any
  // disagreement of index, shards and headers.
  static Result<Checkpoint> Open(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  // By file, then by offset.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  // Null if there is none.
  const CheckpointTensor* Find(std::string_view name) const;
  const MappedFile& file(size_t index) const { return files_[index]; }
  size_t num_files() const { return files_.size(); }
  // Bytes of all tensors.
  uint64_t total_bytes() const { return total_bytes_; }
  // Oddities that do not make the weights wrong, such as a wrong total_size in the index.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  explicit Checkpoint(std::filesystem::path folder) : folder_(std::move(folder)) {}

  Status OpenIndexed();
  Status OpenFiles(const std::vector<std::string>& names);
  Status CheckAgainstIndex(const CheckpointIndex& index) const;

  std::filesystem::path folder_;
  std::vector<MappedFile> files_;
  std::vector<CheckpointTensor> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;  // views into tensors_
  uint64_t total_bytes_ = 0;
  std::vector<std::string> warnings_;
};

}  // namespace rt::weights
