#include "models/common/config.h"

#include <algorithm>
#include <cmath>

namespace rt::models {
namespace {

std::string Found(const json& value) {
  std::string text = value.dump();
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

void ConfigReader::Fail(std::string_view key, const std::string& text) const {
  if (status_->ok()) *status_ = Status(Code::kInvalidArgument, path_ + (key.empty() ? "" : ".") + std::string(key) + ": " + text);
}

int64_t ConfigReader::Int(std::string_view key, std::optional<int64_t> otherwise, int64_t min, int64_t max) const {
  if (!Has(key)) {
    if (!otherwise) Fail(key, "expected an integer, found nothing");
    return otherwise.value_or(min);
  }
  const json& value = object_.at(key);
  if (!value.is_number_integer()) {
    Fail(key, "expected an integer, found " + Found(value));
    return min;
  }
  const auto number = value.get<int64_t>();
  if (number < min || number > max) {
    Fail(key, "expected an integer from " + std::to_string(min) + " to " + std::to_string(max) + ", found " + Found(value));
    return min;
  }
  return number;
}

double ConfigReader::Real(std::string_view key, std::optional<double> otherwise) const {
  if (!Has(key)) {
    if (!otherwise) Fail(key, "expected a number, found nothing");
    return otherwise.value_or(1);
  }
  const json& value = object_.at(key);
  if (!value.is_number() || !std::isfinite(value.get<double>())) {
    Fail(key, "expected a number, found " + Found(value));
    return 1;
  }
  return value.get<double>();
}

bool ConfigReader::Bool(std::string_view key, bool otherwise) const {
  if (!Has(key)) return otherwise;
  const json& value = object_.at(key);
  if (!value.is_boolean()) {
    Fail(key, "expected true or false, found " + Found(value));
    return otherwise;
  }
  return value.get<bool>();
}

std::string ConfigReader::Text(std::string_view key, std::optional<std::string> otherwise) const {
  if (!Has(key)) {
    if (!otherwise) Fail(key, "expected a string, found nothing");
    return otherwise.value_or("");
  }
  const json& value = object_.at(key);
  if (!value.is_string()) {
    Fail(key, "expected a string, found " + Found(value));
    return "";
  }
  return value.get<std::string>();
}

std::vector<std::string> ConfigReader::Texts(std::string_view key) const {
  std::vector<std::string> list;
  if (!Has(key)) return list;
  const json& value = object_.at(key);
  const bool strings = value.is_array() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_string(); });
  if (!strings) {
    Fail(key, "expected a list of strings, found " + Found(value));
    return list;
  }
  for (const json& v : value) list.push_back(v.get<std::string>());
  return list;
}

std::vector<int64_t> ConfigReader::Ints(std::string_view key) const {
  std::vector<int64_t> list;
  if (!Has(key)) return list;
  const json& value = object_.at(key);
  const bool ints = value.is_array() && std::all_of(value.begin(), value.end(), [](const json& v) { return v.is_number_integer(); });
  if (!ints) {
    Fail(key, "expected a list of integers, found " + Found(value));
    return list;
  }
  for (const json& v : value) list.push_back(v.get<int64_t>());
  return list;
}

std::string_view ConfigReader::AnyOf(std::initializer_list<std::string_view> keys) const {
  std::string_view found;
  for (const std::string_view key : keys) {
    if (!Has(key)) continue;
    if (found.empty()) {
      found = key;
    } else if (object_.at(key) != object_.at(found)) {
      Fail(key, "disagrees with " + std::string(found));
    }
  }
  return found.empty() ? *keys.begin() : found;
}

int64_t ConfigReader::Product(std::string_view what, int64_t a, int64_t b) const {
  if (a <= 0 || b <= kMaxInt / a) return a * b;
  Fail("", std::string(what) + ": expected at most " + std::to_string(kMaxInt) + ", found " + std::to_string(a) + " * " + std::to_string(b));
  return 1;
}

ConfigReader ConfigReader::Object(std::string_view key) const {
  static const json empty = json::object();
  const std::string path = path_ + "." + std::string(key);
  if (!Has(key)) return {empty, path, status_};
  if (!object_.at(key).is_object()) {
    Fail(key, "expected an object, found " + Found(object_.at(key)));
    return {empty, path, status_};
  }
  return {object_.at(key), path, status_};
}

void ConfigReader::OnlyKeys(std::initializer_list<std::string_view> known, std::initializer_list<std::string_view> more) const {
  for (const auto& [key, value] : object_.items()) {
    const auto in = [&key = key](std::initializer_list<std::string_view> list) { return std::find(list.begin(), list.end(), key) != list.end(); };
    if (!in(known) && !in(more)) Fail(key, "unknown key");
  }
}

RopeSettings ReadRope(const ConfigReader& config, double default_partial_rotary_factor) {
  RopeSettings rope;
  rope.partial_rotary_factor = default_partial_rotary_factor;
  const bool nested = config.Has("rope_parameters"), flat = config.Has("rope_theta");
  if (config.Has("rope_scaling")) config.Fail("rope_scaling", "only null is supported, found " + Found(config.raw().at("rope_scaling")));
  if (nested) {
    const ConfigReader p = config.Object("rope_parameters");
    const std::string type = p.Text("rope_type", "default");
    if (type != "default") p.Fail("rope_type", "expected \"default\", found \"" + type + "\"");
    if (p.Has("rope_theta")) {
      rope.present = true;
      rope.theta = p.Real("rope_theta");
      rope.source = "rope_parameters.rope_theta";
    }
    rope.partial_rotary_factor = p.Real("partial_rotary_factor", config.Real("partial_rotary_factor", default_partial_rotary_factor));
    if (p.Has("partial_rotary_factor") && config.Has("partial_rotary_factor") && config.Real("partial_rotary_factor") != rope.partial_rotary_factor) {
      config.Fail("partial_rotary_factor", "disagrees with rope_parameters.partial_rotary_factor");
    }
    if (flat && rope.present && config.Real("rope_theta") != rope.theta) config.Fail("rope_theta", "disagrees with rope_parameters.rope_theta");
  }
  if (!rope.present && flat) {
    rope.present = true;
    rope.theta = config.Real("rope_theta");
    rope.source = "rope_theta";
    rope.partial_rotary_factor = nested ? rope.partial_rotary_factor : config.Real("partial_rotary_factor", default_partial_rotary_factor);
  }
  if (rope.present && rope.theta <= 0) config.Fail("rope_theta", "expected > 0, found " + std::to_string(rope.theta));
  if (rope.partial_rotary_factor <= 0 || rope.partial_rotary_factor > 1) config.Fail("partial_rotary_factor", "expected above 0 and at most 1, found " + std::to_string(rope.partial_rotary_factor));
  return rope;
}

const json& TextConfig(const json& config, const std::string& nested_key) {
  if (!nested_key.empty() && config.contains(nested_key) && config.at(nested_key).is_object()) return config.at(nested_key);
  return config;
}

Result<json> ParseObject(std::string_view text, const char* what) {
  json parsed = json::parse(text, nullptr, false);
  if (parsed.is_discarded() || !parsed.is_object()) return {Code::kInvalidArgument, std::string(what) + ": expected a JSON object"};
  return parsed;
}

Status ReadConfig(std::string_view config_json, const std::string& nested_key, const std::function<void(const ConfigReader& outer, const ConfigReader& text)>& read) {
  RT_ASSIGN_OR_RETURN(const json root, ParseObject(config_json, "config.json"));
  const json& text = TextConfig(root, nested_key);
  Status status;
  read(ConfigReader(root, "config.json", &status), ConfigReader(text, &text == &root ? "config.json" : "config.json." + nested_key, &status));
  return status;
}

std::string ExpertName(std::string_view pattern, std::string_view expert) {
  std::string name(pattern);
  if (const size_t at = name.find("{e}"); at != std::string::npos) name.replace(at, 3, expert);
  return name;
}

std::string TensorName(std::string_view pattern, std::string_view prefix, int64_t layer) {
  std::string name;
  for (size_t i = 0; i < pattern.size();) {
    if (pattern.substr(i, 3) == "{p}") {
      name += prefix;
      i += 3;
    } else if (pattern.substr(i, 3) == "{i}") {
      name += std::to_string(layer);
      i += 3;
    } else {
      name += pattern[i++];
    }
  }
  return name;
}

std::vector<std::string> LayerTypes(const ConfigReader& config, int64_t num_layers, int64_t default_interval) {
  std::vector<std::string> types = config.Texts("layer_types");
  if (!types.empty()) {
    if (static_cast<int64_t>(types.size()) != num_layers) {
      config.Fail("layer_types", "expected " + std::to_string(num_layers) + " entries (num_hidden_layers), found " + std::to_string(types.size()));
    }
    for (const std::string& t : types) {
      if (t != "full_attention" && t != "linear_attention") config.Fail("layer_types", "expected full_attention or linear_attention, found " + t);
    }
    return types;
  }
  const int64_t interval = config.Int("full_attention_interval", default_interval);
  for (int64_t i = 0; i < num_layers; ++i) types.push_back((i + 1) % interval == 0 ? "full_attention" : "linear_attention");
  return types;
}

}  // namespace rt::models
