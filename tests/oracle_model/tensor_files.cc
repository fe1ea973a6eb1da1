#include "tests/oracle_model/tensor_files.h"

#include <nlohmann/json.hpp>

#include <bit>
#include <cstring>
#include <fstream>
#include <stdexcept>

namespace rt::testing {
namespace {

template <typename T>
std::vector<T> Elements(const std::vector<char>& bytes) {
  std::vector<T> elements(bytes.size() / sizeof(T));
  if (!elements.empty()) std::memcpy(elements.data(), bytes.data(), elements.size() * sizeof(T));
  return elements;
}

double WidenBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// IEEE 754 binary16: 1 sign, 5 exponent (bias 15), 10 fraction bits.
double WidenF16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  double magnitude = std::ldexp(1024.0 + fraction, exponent - 25);
  if (exponent == 0) magnitude = std::ldexp(fraction, -24);
  if (exponent == 31) magnitude = fraction != 0 ? std::nan("") : HUGE_VAL;
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

}  // namespace

TensorFiles::TensorFiles(const std::filesystem::path& folder) {
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() == ".safetensors") Index(file.path());
  }
  if (entries_.empty()) throw std::runtime_error(folder.string() + ": no tensors found");
}

// File: u64 header length, JSON header {name: {dtype, shape, data_offsets}}, data (safetensors format,
// version 0.x).
void TensorFiles::Index(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  uint64_t header_bytes = 0;
  in.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  if (!in || header_bytes > std::filesystem::file_size(file))
    throw std::runtime_error(file.string() + ": bad header length");
  std::string header(header_bytes, '\0');
  in.read(header.data(), static_cast<std::streamsize>(header_bytes));
  const nlohmann::json tensors = nlohmann::json::parse(header);
  for (const auto& [name, entry] : tensors.items()) {
    if (name == "__metadata__") continue;
    const auto offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
    const uint64_t base = sizeof(header_bytes) + header_bytes;
    entries_[name] = {file, entry.at("dtype"), entry.at("shape"), base + offsets.at(0), base + offsets.at(1)};
  }
}

std::vector<std::string> TensorFiles::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : entries_) names.push_back(name);
  return names;
}

const TensorFiles::Entry& TensorFiles::Find(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw std::runtime_error(name + ": no such tensor");
  return found->second;
}

std::vector<char> TensorFiles::Bytes(const Entry& entry) {
  std::vector<char> bytes(entry.end_bytes - entry.begin_bytes);
  std::ifstream in(entry.file, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(entry.begin_bytes));
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!in) throw std::runtime_error(entry.file.string() + ": ends before its tensors");
  return bytes;
}

Tensor TensorFiles::Read(const std::string& name) const {
  const Entry& entry = Find(name);
  const std::vector<char> bytes = Bytes(entry);
  Tensor tensor{entry.shape, {}};
  if (entry.dtype == "F32") {
    for (const float x : Elements<float>(bytes)) tensor.values.push_back(x);
  } else if (entry.dtype == "BF16") {
    for (const uint16_t x : Elements<uint16_t>(bytes)) tensor.values.push_back(WidenBf16(x));
  } else if (entry.dtype == "F16") {
    for (const uint16_t x : Elements<uint16_t>(bytes)) tensor.values.push_back(WidenF16(x));
  } else {
    throw std::runtime_error(name + ": expected a float tensor, got " + entry.dtype);
  }
  return tensor;
}

oracle::Values TensorFiles::Read(const std::string& name, std::vector<int64_t> shape) const {
  Tensor tensor = Read(name);
  if (tensor.shape != shape) throw std::runtime_error(name + ": shape differs from the config");
  return std::move(tensor.values);
}

std::vector<int64_t> TensorFiles::ReadIntegers(const std::string& name) const {
  const Entry& entry = Find(name);
  if (entry.dtype == "I64") return Elements<int64_t>(Bytes(entry));
  if (entry.dtype != "I32")
    throw std::runtime_error(name + ": expected an integer tensor, got " + entry.dtype);
  const std::vector<int32_t> narrow = Elements<int32_t>(Bytes(entry));
  return {narrow.begin(), narrow.end()};
}

}  // namespace rt::testing
