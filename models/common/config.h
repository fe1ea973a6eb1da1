// Reading config.json and architecture files: typed look-ups whose errors name the key, what was expected and what was found.
#pragma once

#include <rt/plugin/status.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rt::models {

using nlohmann::json;

// A JSON object with the path it was reached by. Look-ups latch the first error; read status() at the end.
class ConfigReader {
 public:
  ConfigReader(const json& object, std::string path, Status* status) : object_(object), path_(std::move(path)), status_(status) {}

  bool Has(std::string_view key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  int64_t Int(std::string_view key, std::optional<int64_t> otherwise = std::nullopt, int64_t min = 1) const;
  double Real(std::string_view key, std::optional<double> otherwise = std::nullopt) const;
  bool Bool(std::string_view key, bool otherwise) const;
  std::string Text(std::string_view key, std::optional<std::string> otherwise = std::nullopt) const;
  std::vector<std::string> Texts(std::string_view key) const;  // [] when absent
  ConfigReader Object(std::string_view key) const;
  // Refuses keys outside the list, by name.
  void OnlyKeys(std::initializer_list<std::string_view> known) const;
  void Fail(std::string_view key, const std::string& text) const;
  const json& raw() const { return object_; }
  const std::string& path() const { return path_; }

 private:
  const json& object_;
  std::string path_;
  Status* status_;
};

// Rotary settings from either form: `rope_parameters` {rope_theta, partial_rotary_factor, rope_type, mrope_*} or the older top-level
// `rope_theta`, `partial_rotary_factor`, `rope_scaling`. Both present and different is an error. For text all mRoPE positions are
// equal, so the sections do not change anything.
struct RopeSettings {
  bool present = false;  // false: no rotary embedding (NoPE)
  double theta = 10000;
  double partial_rotary_factor = 1;
  std::string source;    // for the start-up report
};
RopeSettings ReadRope(const ConfigReader& config, double default_partial_rotary_factor);

// The text model's part of a config: the nested object when it exists, else the whole.
const json& TextConfig(const json& config, const std::string& nested_key);

// Replaces {p} by the prefix and {i} by the layer.
std::string TensorName(std::string_view pattern, std::string_view prefix, int64_t layer = -1);

// "full_attention" or "linear_attention" per layer: `layer_types` when listed, else every `interval`-th layer is full attention.
std::vector<std::string> LayerTypes(const ConfigReader& config, int64_t num_layers, int64_t default_interval);

}  // namespace rt::models
