#include "runtime/weights/checkpoint.h"

#include "runtime/weights/error_list.h"
#include "runtime/weights/safetensors.h"
#include "runtime/weights/strict_json.h"

#include <algorithm>
#include <set>

namespace rt::weights {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr uint64_t kMaxIndexBytes = 256u << 20;  // about 2 million tensors
constexpr int kIndexDepth = 16;                  // weight_map needs 2; metadata is free-form

std::string Text(const fs::path& path) { return path.filename().string(); }

// "model-00001-of-00002.safetensors"
bool LooksLikeShard(const std::string& name) {
  return name.starts_with("model-") && name.find("-of-") != std::string::npos &&
         name.ends_with(".safetensors");
}

std::vector<std::string> FileNames(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    names.push_back(Text(it->path()));
  std::sort(names.begin(), names.end());
  return names;
}

std::string Join(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < ErrorList::kMaxListed; ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > ErrorList::kMaxListed)
    text += " and " + std::to_string(names.size() - ErrorList::kMaxListed) + " more";
  return text;
}

// Why a folder without either file is no checkpoint.
Status NothingToOpen(const fs::path& folder) {
  std::vector<std::string> shards, others;
  for (const std::string& name : FileNames(folder)) {
    if (LooksLikeShard(name)) shards.push_back(name);
    if (name.ends_with(".bin") || name.ends_with(".gguf") || name.ends_with(".pth")) others.push_back(name);
  }
  const std::string where = folder.string() + ": ";
  if (!shards.empty()) {
    return {Code::kDataLoss,
            where + "incomplete checkpoint: " + kIndexFileName + " is absent beside " + Join(shards)};
  }
  std::string text = where + "expected " + kSingleFileName + " or " + kIndexFileName + ", found neither";
  if (!others.empty()) text += " (" + Join(others) + ": this format is not read)";
  return {Code::kNotFound, text};
}

bool IsPlainShardName(const std::string& name) {
  return name.ends_with(".safetensors") && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

Result<CheckpointIndex> ParseCheckpointIndex(std::string_view text, std::string_view label_view) {
  const std::string label(label_view);
  if (text.size() > kMaxIndexBytes) {
    return {Code::kDataLoss, label + ": " + std::to_string(text.size()) + " bytes, expected at most " +
                                 std::to_string(kMaxIndexBytes)};
  }
  RT_ASSIGN_OR_RETURN(const json root, ParseStrictJson(text, kIndexDepth, label));
  if (!root.is_object() || !root.contains("weight_map") || !root["weight_map"].is_object()) {
    return {Code::kDataLoss,
            label + ": expected an object with `weight_map`, an object of tensor name to file name"};
  }
  CheckpointIndex index;
  for (const auto& [name, file] : root["weight_map"].items()) {
    if (!file.is_string() || !IsPlainShardName(file.get_ref<const std::string&>())) {
      return {Code::kDataLoss, label + ": tensor " + name +
                                   ": expected a *.safetensors file name without folders, got " +
                                   file.dump()};
    }
    index.file_of.emplace(name, file.get<std::string>());
  }
  if (index.file_of.empty()) return {Code::kDataLoss, label + ": weight_map is empty"};
  if (root.contains("metadata") && root["metadata"].is_object()) {
    const auto size = root["metadata"].find("total_size");
    if (size != root["metadata"].end() && size->is_number_unsigned())
      index.total_size = size->get<uint64_t>();
  }
  return index;
}

Result<Checkpoint> Checkpoint::Open(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    return {Code::kNotFound, folder.string() + ": expected a model folder, found none"};
  Checkpoint checkpoint(folder);
  if (fs::exists(folder / kIndexFileName, error)) {
    RT_RETURN_IF_ERROR(checkpoint.OpenIndexed().Annotate(folder.string()));
  } else if (fs::exists(folder / kSingleFileName, error)) {
    RT_RETURN_IF_ERROR(checkpoint.OpenFiles({kSingleFileName}).Annotate(folder.string()));
  } else {
    return NothingToOpen(folder);
  }
  return checkpoint;
}

Status Checkpoint::OpenIndexed() {
  RT_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(folder_ / kIndexFileName));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  RT_ASSIGN_OR_RETURN(const CheckpointIndex index, ParseCheckpointIndex(text, kIndexFileName));

  std::set<std::string> shards;
  for (const auto& [name, shard] : index.file_of) shards.insert(shard);
  std::vector<std::string> absent, unnamed;
  std::error_code error;
  for (const std::string& shard : shards) {
    if (!fs::exists(folder_ / shard, error)) absent.push_back(shard);
  }
  for (const std::string& name : FileNames(folder_)) {
    if ((name == kSingleFileName || LooksLikeShard(name)) && !shards.contains(name)) unnamed.push_back(name);
  }
  if (!unnamed.empty()) {
    return {Code::kDataLoss, std::string(kIndexFileName) + " names " + Join({shards.begin(), shards.end()}) +
                                 " but not " + Join(unnamed) +
                                 " beside it: index or file is stale, remove the wrong one"};
  }
  if (!absent.empty()) {
    return {Code::kDataLoss, "incomplete checkpoint: " + std::to_string(absent.size()) + " of " +
                                 std::to_string(shards.size()) +
                                 (shards.size() == 1 ? " shard absent: " : " shards absent: ") +
                                 Join(absent)};
  }
  RT_RETURN_IF_ERROR(OpenFiles({shards.begin(), shards.end()}));
  RT_RETURN_IF_ERROR(CheckAgainstIndex(index));
  if (index.total_size && *index.total_size != total_bytes_) {
    warnings_.push_back(std::string(kIndexFileName) + ": total_size is " + std::to_string(*index.total_size) +
                        ", the tensors take " + std::to_string(total_bytes_) + " bytes");
  }
  return Status::Ok();
}

Status Checkpoint::OpenFiles(const std::vector<std::string>& names) {
  ErrorList errors;
  for (const std::string& name : names) {
    auto file = MappedFile::Open(folder_ / name);
    if (!file.ok()) {
      errors.Add(file.status());
      continue;
    }
    auto header = ParseSafetensorsHeader(file->bytes(), name);
    if (!header.ok()) {
      errors.Add(header.status());
      continue;
    }
    for (TensorEntry& entry : header->tensors) {
      const auto data = file->bytes().subspan(entry.begin, entry.end - entry.begin);
      total_bytes_ += data.size();
      tensors_.push_back({std::move(entry.name), entry.dtype, std::move(entry.shape), data, files_.size()});
    }
    files_.push_back(std::move(*file));
  }
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [it, inserted] = by_name_.emplace(tensors_[i].name, i);
    if (inserted) continue;
    errors.Add(Code::kDataLoss, "tensor " + tensors_[i].name + " lies in both " +
                                    Text(files_[tensors_[it->second].file].path()) + " and " +
                                    Text(files_[tensors_[i].file].path()));
  }
  if (errors.empty() && tensors_.empty()) errors.Add(Code::kDataLoss, Join(names) + ": holds no tensor");
  return errors.ToStatus();
}

Status Checkpoint::CheckAgainstIndex(const CheckpointIndex& index) const {
  ErrorList errors;
  for (const auto& [name, shard] : index.file_of) {
    const CheckpointTensor* tensor = Find(name);
    const std::string found = tensor ? Text(files_[tensor->file].path()) : "";
    if (found == shard) continue;
    errors.Add(Code::kDataLoss, std::string(kIndexFileName) + " places tensor " + name + " in " + shard +
                                    ", whose header lacks it" + (tensor ? "; it lies in " + found : ""));
  }
  for (const CheckpointTensor& tensor : tensors_) {
    if (index.file_of.contains(tensor.name)) continue;
    errors.Add(Code::kDataLoss, Text(files_[tensor.file].path()) + " holds tensor " + tensor.name +
                                    ", which " + kIndexFileName + " does not name");
  }
  return errors.ToStatus();
}

const CheckpointTensor* Checkpoint::Find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace rt::weights
