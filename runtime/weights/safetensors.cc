#include "runtime/weights/safetensors.h"

#include "runtime/weights/strict_json.h"

#include <algorithm>
#include <tuple>

namespace rt::weights {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // MAX_HEADER_SIZE of tensor.rs
constexpr int kHeaderDepth = 3;                    // header { tensor { shape [
constexpr size_t kMaxRank = 16;

uint64_t LittleEndian64(std::span<const std::byte> bytes) {
  uint64_t value = 0;
  for (size_t i = kLengthBytes; i-- > 0;) value = (value << 8) | std::to_integer<uint64_t>(bytes[i]);
  return value;
}

// Hostile values stay short in messages.
std::string Excerpt(const json& value) {
  const std::string text = value.dump();
  return text.size() <= 80 ? text : text.substr(0, 80) + "...";
}

Status Corrupt(std::string message) { return {Code::kDataLoss, std::move(message)}; }

// The text between length and data, or why there is none.
Result<std::string_view> HeaderText(std::span<const std::byte> file, const std::string& label) {
  const std::string size = std::to_string(file.size());
  const std::string_view start(reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 64));
  if (start.starts_with("version https://git-lfs")) {
    return Corrupt(label + ": is a Git LFS pointer (" + size +
                   " bytes), not the file: fetch it with `git lfs pull`");
  }
  if (file.size() < kLengthBytes) {
    return Corrupt(label + ": expected an 8-byte header length, the file has " + size + " bytes");
  }
  const uint64_t length = LittleEndian64(file);
  if (length > kMaxHeaderBytes) {
    return Corrupt(label + ": header length " + std::to_string(length) + " is above the format's limit of " +
                   std::to_string(kMaxHeaderBytes) + ": not a safetensors file");
  }
  if (length > file.size() - kLengthBytes) {
    return Corrupt(label + ": " + std::to_string(length - (file.size() - kLengthBytes)) +
                   " bytes missing: the header takes " + std::to_string(length) + " bytes, the file has " +
                   size + " in all");
  }
  const std::string_view text(reinterpret_cast<const char*>(file.data()) + kLengthBytes, length);
  if (!text.starts_with('{')) return Corrupt(label + ": header: expected `{` at its start");
  return text;
}

Result<std::vector<int64_t>> ParseShape(const json& value, const std::string& where) {
  if (!value.is_array()) return Corrupt(where + ": shape: expected a list, got " + value.type_name());
  if (value.size() > kMaxRank) {
    return Corrupt(where + ": shape: expected at most " + std::to_string(kMaxRank) + " extents, got " +
                   std::to_string(value.size()));
  }
  std::vector<int64_t> shape;
  for (const json& extent : value) {
    if (!extent.is_number_unsigned() || extent.get<uint64_t>() > INT64_MAX) {
      return Corrupt(where + ": shape: expected extents from 0 to 2^63 - 1, got " + Excerpt(extent));
    }
    shape.push_back(extent.get<int64_t>());
  }
  return shape;
}

Status ParseOffsets(const json& value, const std::string& where, TensorEntry* entry) {
  const bool pair =
      value.is_array() && value.size() == 2 && value[0].is_number_unsigned() && value[1].is_number_unsigned();
  if (!pair) return Corrupt(where + ": data_offsets: expected two counts of bytes, got " + Excerpt(value));
  entry->begin = value[0].get<uint64_t>();
  entry->end = value[1].get<uint64_t>();
  if (entry->begin > entry->end)
    return Corrupt(where + ": data_offsets: begin is after end in " + Excerpt(value));
  return Status::Ok();
}

// shape × size of the type must be the byte range.
Status CheckExtent(const TensorEntry& entry, const std::string& where) {
  const auto count = ElementCount(entry.shape);
  uint64_t bits = 0;
  if (!count || __builtin_mul_overflow(*count, static_cast<uint64_t>(BitsOf(entry.dtype)), &bits)) {
    return Corrupt(where + ": shape " + ShapeText(entry.shape) + " overflows");
  }
  if (bits % 8 != 0 || bits / 8 != entry.end - entry.begin) {
    return Corrupt(where + ": " + NameOf(entry.dtype) + " " + ShapeText(entry.shape) + " takes " +
                   std::to_string((bits + 7) / 8) + " bytes, data_offsets span " +
                   std::to_string(entry.end - entry.begin));
  }
  return Status::Ok();
}

Result<TensorEntry> ParseTensor(const std::string& name, const json& value, const std::string& label) {
  const std::string where = label + ": tensor " + name;
  if (!value.is_object()) return Corrupt(where + ": expected an object, got " + value.type_name());
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) return Corrupt(where + ": `" + key + "` is absent");
  }
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      return Corrupt(where + ": unknown field `" + key + "`");
  }
  TensorEntry entry;
  entry.name = name;
  const json& dtype = value["dtype"];
  if (!dtype.is_string()) return Corrupt(where + ": dtype: expected a name, got " + dtype.type_name());
  const auto known = DTypeFromName(dtype.get_ref<const std::string&>());
  if (!known) return Status(Code::kUnsupported, where + ": unknown dtype " + Excerpt(dtype));
  entry.dtype = *known;
  RT_ASSIGN_OR_RETURN(entry.shape, ParseShape(value["shape"], where));
  RT_RETURN_IF_ERROR(ParseOffsets(value["data_offsets"], where, &entry));
  RT_RETURN_IF_ERROR(CheckExtent(entry, where));
  return entry;
}

// Sorts by offset and checks that the tensors tile [0, data_bytes) exactly.
Status CheckTiling(std::vector<TensorEntry>* tensors, uint64_t data_start, uint64_t data_bytes,
                   const std::string& label) {
  std::sort(tensors->begin(), tensors->end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t position = 0;
  const TensorEntry* previous = nullptr;
  for (const TensorEntry& t : *tensors) {
    if (t.begin != position) {
      const std::string after = previous ? "tensor " + previous->name : "the header";
      const char* found = t.begin < position ? " overlaps " : " leaves a gap after ";
      return Corrupt(label + ": tensor " + t.name + found + after + ": it begins at data byte " +
                     std::to_string(t.begin) + ", expected " + std::to_string(position));
    }
    position = t.end;
    previous = &t;
  }
  if (position == data_bytes) return Status::Ok();
  const std::string sizes = ": the header describes " + std::to_string(position) +
                            " bytes of data, the file has " + std::to_string(data_bytes) +
                            " after its header of " + std::to_string(data_start);
  if (position > data_bytes)
    return Corrupt(label + ": " + std::to_string(position - data_bytes) + " bytes missing" + sizes);
  return Corrupt(label + ": " + std::to_string(data_bytes - position) + " bytes too many" + sizes);
}

Status ParseMetadata(const json& value, const std::string& label,
                     std::map<std::string, std::string>* metadata) {
  const std::string where = label + ": __metadata__";
  if (!value.is_object()) return Corrupt(where + ": expected an object, got " + value.type_name());
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      return Corrupt(where + ": " + key + ": expected a string, got " + text.type_name());
    metadata->emplace(key, text.get<std::string>());
  }
  return Status::Ok();
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::span<const std::byte> file,
                                                 std::string_view label_view) {
  const std::string label(label_view);
  RT_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file, label));
  RT_ASSIGN_OR_RETURN(const json root, ParseStrictJson(text, kHeaderDepth, label + ": header"));
  SafetensorsHeader header;
  header.tensors.reserve(root.size());
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      RT_RETURN_IF_ERROR(ParseMetadata(value, label, &header.metadata));
      continue;
    }
    RT_ASSIGN_OR_RETURN(TensorEntry entry, ParseTensor(name, value, label));
    header.tensors.push_back(std::move(entry));
  }
  const uint64_t data_start = kLengthBytes + text.size();
  RT_RETURN_IF_ERROR(CheckTiling(&header.tensors, data_start, file.size() - data_start, label));
  for (TensorEntry& t : header.tensors) {
    t.begin += data_start;
    t.end += data_start;
  }
  return header;
}

}  // namespace rt::weights
