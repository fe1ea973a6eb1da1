// For tests only: writes checkpoints, well-formed or broken on purpose, into a temporary folder.
#pragma once

#include "runtime/weights/dtype.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

namespace rt::weights {

struct FixtureTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

template <typename T>
FixtureTensor MakeTensor(std::string name, DType dtype, std::vector<int64_t> shape,
                         const std::vector<T>& values) {
  FixtureTensor tensor{std::move(name), dtype, std::move(shape), {}};
  tensor.bytes.resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

// 1, 2, 3, ... in F32 of the shape.
inline FixtureTensor CountingTensor(std::string name, std::vector<int64_t> shape) {
  std::vector<float> values(ElementCount(shape).value());
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1);
  return MakeTensor(std::move(name), DType::kF32, std::move(shape), values);
}

// Length, header text as given, data as given.
inline std::string RawFile(const std::string& header, const std::string& data) {
  std::string file;
  for (int i = 0; i < 8; ++i)
    file.push_back(static_cast<char>((static_cast<uint64_t>(header.size()) >> (8 * i)) & 0xff));
  return file + header + data;
}

// A well-formed file of the tensors, in order.
inline std::string SafetensorsFile(const std::vector<FixtureTensor>& tensors) {
  nlohmann::json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const FixtureTensor& t : tensors) {
    header[t.name] = {{"dtype", NameOf(t.dtype)},
                      {"shape", t.shape},
                      {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
    data.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
  }
  return RawFile(header.dump(), data);
}

// A folder that is removed with the object.
class CheckpointFolder {
 public:
  CheckpointFolder() {
    const std::string pattern = (std::filesystem::temp_directory_path() / "rt_weights_XXXXXX").string();
    std::vector<char> path(pattern.begin(), pattern.end());
    path.push_back('\0');
    if (!::mkdtemp(path.data())) ADD_FAILURE() << "mkdtemp " << pattern << ": " << std::strerror(errno);
    path_ = path.data();
  }
  ~CheckpointFolder() { std::filesystem::remove_all(path_); }
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  void Write(const std::string& name, const std::string& content) const {
    std::ofstream out(path_ / name, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    EXPECT_TRUE(out.good()) << path_ / name;
  }
  void WriteIndex(const std::map<std::string, std::string>& weight_map) const {
    Write("model.safetensors.index.json", nlohmann::json{{"weight_map", weight_map}}.dump());
  }
  // Two shards with their index: a [2, 3] and b [4] in the first, c [5] in the second.
  void WriteTwoShards() const {
    Write(kFirst, SafetensorsFile({CountingTensor("a", {2, 3}), CountingTensor("b", {4})}));
    Write(kSecond, SafetensorsFile({CountingTensor("c", {5})}));
    WriteIndex({{"a", kFirst}, {"b", kFirst}, {"c", kSecond}});
  }

  static constexpr const char* kFirst = "model-00001-of-00002.safetensors";
  static constexpr const char* kSecond = "model-00002-of-00002.safetensors";

 private:
  std::filesystem::path path_;
};

}  // namespace rt::weights
