// Reading config.json and architecture files: typed look-ups whose errors name the key, what was expected and what was found.
#pragma once

#include <rt/plugin/status.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rt::models {

using nlohmann::json;

// A JSON object with the path it was reached by. Look-ups latch the first error; read status() at the end.
class ConfigReader {
 public:
  static constexpr int64_t kMaxInt = std::numeric_limits<int32_t>::max();

  ConfigReader(const json& object, std::string path, Status* status) : object_(object), path_(std::move(path)), status_(status) {}

  bool Has(std::string_view key) const { return object_.contains(key) && !object_.at(key).is_null(); }
  int64_t Int(std::string_view key, std::optional<int64_t> otherwise = std::nullopt, int64_t min = 1, int64_t max = kMaxInt) const;
  double Real(std::string_view key, std::optional<double> otherwise = std::nullopt) const;
  bool Bool(std::string_view key, bool otherwise) const;
  std::string Text(std::string_view key, std::optional<std::string> otherwise = std::nullopt) const;
  std::vector<std::string> Texts(std::string_view key) const;  // [] when absent
  std::vector<int64_t> Ints(std::string_view key) const;       // [] when absent
  // The name under which one setting is spelled: the first of `keys` that is present, else the first. Two that disagree are an error.
  std::string_view AnyOf(std::initializer_list<std::string_view> keys) const;
  // a * b, a width that kernels index by 32 bits; `what` names it in the error.
  int64_t Product(std::string_view what, int64_t a, int64_t b) const;
  ConfigReader Object(std::string_view key) const;
  // Refuses keys outside the lists, by name.
  void OnlyKeys(std::initializer_list<std::string_view> known, std::initializer_list<std::string_view> more = {}) const;
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

// A JSON object from outside; `what` names it in the error.
Result<json> ParseObject(std::string_view text, const char* what);

// Reads config.json: calls read(whole, text model's part) and returns the first error.
Status ReadConfig(std::string_view config_json, const std::string& nested_key, const std::function<void(const ConfigReader& outer, const ConfigReader& text)>& read);

// Replaces {p} by the prefix and {i} by the layer.
std::string TensorName(std::string_view pattern, std::string_view prefix, int64_t layer = -1);
// Replaces {e} by an expert's number or by "*".
std::string ExpertName(std::string_view pattern, std::string_view expert);

// "full_attention" or "linear_attention" per layer: `layer_types` when listed, else every `interval`-th layer is full attention.
std::vector<std::string> LayerTypes(const ConfigReader& config, int64_t num_layers, int64_t default_interval);

}  // namespace rt::models
