#include "runtime/text/text_config.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/text/utf8.h"

namespace rt {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

// Values above are how files spell "no limit" (1e30).
constexpr double kMaxModelLength = 1 << 30;

constexpr const char* kSpecialTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                              "pad_token", "cls_token", "mask_token"};

// The text of a file, or "" if there is none.
Result<std::string> ReadOptional(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return std::string();
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in || in.bad()) return {Code::kDataLoss, path.string() + ": cannot be read"};
  return std::move(text).str();
}

Result<Json> ReadJson(const fs::path& path) {
  RT_ASSIGN_OR_RETURN(const std::string text, ReadOptional(path));
  if (text.empty()) return Json::object();
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return {Code::kDataLoss, path.string() + ": expected a JSON object"};
  return json;
}

// One file and what is read from it, so that every message names both.
class File {
 public:
  File(const Json& json, std::string name) : json_(json), name_(std::move(name)) {}

  Status Wrong(const std::string& key, const char* expected) const {
    std::string found = json_.at(key).dump(-1, ' ', false, Json::error_handler_t::replace);
    if (found.size() > 80) found = found.substr(0, 77) + "...";
    return {Code::kDataLoss, name_ + ": " + key + ": expected " + expected + ", found " + found};
  }

  // Null and absent are the same.
  const Json* Find(const char* key) const {
    const auto it = json_.find(key);
    return it == json_.end() || it->is_null() ? nullptr : &*it;
  }

  template <typename T>
  Status Read(const char* key, const char* expected, bool (Json::*is)() const noexcept, std::optional<T>* out) const {
    const Json* value = Find(key);
    if (value == nullptr) return {};
    if (!(value->*is)()) return Wrong(key, expected);
    *out = value->get<T>();
    return {};
  }
  Status Number(const char* key, std::optional<double>* out) const {
    return Read(key, "a number", &Json::is_number, out);
  }
  Status Integer(const char* key, std::optional<int64_t>* out) const {
    return Read(key, "an integer", &Json::is_number_integer, out);
  }
  Status Bool(const char* key, std::optional<bool>* out) const { return Read(key, "true or false", &Json::is_boolean, out); }

  // An id or a list of ids.
  Status Ids(const char* key, std::vector<int32_t>* ids) const {
    const Json* value = Find(key);
    if (value == nullptr) return {};
    const Json list = value->is_array() ? *value : Json::array({*value});
    for (const Json& id : list) {
      const bool fits = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() <= INT32_MAX;
      if (!fits) return Wrong(key, "a token id or a list of them");
      const auto token = id.get<int32_t>();
      if (std::find(ids->begin(), ids->end(), token) == ids->end()) ids->push_back(token);
    }
    return {};
  }

  Status Id(const char* key, std::optional<int32_t>* id) const {
    std::vector<int32_t> ids;
    RT_RETURN_IF_ERROR(Ids(key, &ids));
    if (!ids.empty() && !id->has_value()) *id = ids.front();
    return {};
  }

  // A token's text: itself, or the member `content` of an object.
  Status TokenText(const char* key, std::map<std::string, std::string>* out) const {
    const Json* value = Find(key);
    if (value == nullptr || out->count(key) != 0) return {};
    const Json text = value->is_object() ? value->value("content", Json()) : *value;
    if (!text.is_string()) return Wrong(key, "text or an object with content");
    out->emplace(key, text.get<std::string>());
    return {};
  }

 private:
  const Json& json_;
  std::string name_;
};

Status ReadSampling(const File& file, TextConfig::SamplingDefaults* sampling) {
  RT_RETURN_IF_ERROR(file.Bool("do_sample", &sampling->do_sample));
  RT_RETURN_IF_ERROR(file.Number("temperature", &sampling->temperature));
  RT_RETURN_IF_ERROR(file.Number("top_p", &sampling->top_p));
  RT_RETURN_IF_ERROR(file.Number("min_p", &sampling->min_p));
  RT_RETURN_IF_ERROR(file.Integer("top_k", &sampling->top_k));
  RT_RETURN_IF_ERROR(file.Number("repetition_penalty", &sampling->repetition_penalty));
  RT_RETURN_IF_ERROR(file.Number("presence_penalty", &sampling->presence_penalty));
  return file.Number("frequency_penalty", &sampling->frequency_penalty);
}

Status ReadIds(const File& file, TextConfig* config) {
  RT_RETURN_IF_ERROR(file.Ids("eos_token_id", &config->eos_ids));
  RT_RETURN_IF_ERROR(file.Id("bos_token_id", &config->bos_id));
  return file.Id("pad_token_id", &config->pad_id);
}

// tokenizer_config.json holds one template as text, or several as [{"name": ..., "template": ...}].
Status ReadTemplates(const File& file, std::map<std::string, std::string>* templates) {
  const Json* value = file.Find("chat_template");
  if (value == nullptr) return {};
  if (value->is_string()) {
    templates->emplace("default", value->get<std::string>());
    return {};
  }
  constexpr const char* kExpected = "text or a list of {name, template}";
  if (!value->is_array()) return file.Wrong("chat_template", kExpected);
  for (const Json& entry : *value) {
    const Json name = entry.is_object() ? entry.value("name", Json()) : Json();
    const Json source = entry.is_object() ? entry.value("template", Json()) : Json();
    if (!name.is_string() || !source.is_string()) return file.Wrong("chat_template", kExpected);
    templates->emplace(name.get<std::string>(), source.get<std::string>());
  }
  return {};
}

// Template files win over tokenizer_config.json.
Status ReadTemplateFiles(const fs::path& dir, std::map<std::string, std::string>* templates) {
  RT_ASSIGN_OR_RETURN(const std::string text, ReadOptional(dir / "chat_template.jinja"));
  if (!text.empty()) (*templates)["default"] = text;
  std::error_code error;
  for (fs::directory_iterator it(dir / "additional_chat_templates", error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() != ".jinja") continue;
    RT_ASSIGN_OR_RETURN((*templates)[it->path().stem().string()], ReadOptional(it->path()));
  }
  for (const auto& [name, source] : *templates) {
    if (FindInvalidUtf8(source) != std::string_view::npos) {
      return {Code::kDataLoss, dir.string() + ": chat template \"" + name + "\" is not UTF-8"};
    }
  }
  return {};
}

// Ids of eos_token and the like, where the id fields did not give one.
void AddIdsOfTexts(const Tokenizer& tokenizer, TextConfig* config) {
  const auto id_of = [&](const char* name) {
    const auto it = config->special_tokens.find(name);
    return it == config->special_tokens.end() ? -1 : tokenizer.TokenToId(it->second);
  };
  const int32_t eos = id_of("eos_token");
  if (eos >= 0 && std::find(config->eos_ids.begin(), config->eos_ids.end(), eos) == config->eos_ids.end()) {
    config->eos_ids.push_back(eos);
  }
  if (const int32_t bos = id_of("bos_token"); bos >= 0 && !config->bos_id) config->bos_id = bos;
  if (const int32_t pad = id_of("pad_token"); pad >= 0 && !config->pad_id) config->pad_id = pad;
}

}  // namespace

Result<TextConfig> TextConfig::Load(const fs::path& model_dir, const fs::path& tokenizer_dir, const Tokenizer* tokenizer) {
  TextConfig config;
  for (const char* name : {"generation_config.json", "config.json"}) {
    RT_ASSIGN_OR_RETURN(const Json json, ReadJson(model_dir / name));
    const File file(json, (model_dir / name).string());
    RT_RETURN_IF_ERROR(ReadIds(file, &config));
    if (name == std::string_view("generation_config.json")) RT_RETURN_IF_ERROR(ReadSampling(file, &config.sampling));
    if (const Json* nested = file.Find("text_config"); nested != nullptr && nested->is_object()) {
      RT_RETURN_IF_ERROR(ReadIds(File(*nested, (model_dir / name).string() + ": text_config"), &config));
    }
  }
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    RT_ASSIGN_OR_RETURN(const Json json, ReadJson(tokenizer_dir / name));
    const File file(json, (tokenizer_dir / name).string());
    for (const char* key : kSpecialTokenNames) RT_RETURN_IF_ERROR(file.TokenText(key, &config.special_tokens));
    if (name != std::string_view("tokenizer_config.json")) continue;
    std::optional<bool> add_bos;
    RT_RETURN_IF_ERROR(file.Bool("add_bos_token", &add_bos));
    config.add_bos_token = add_bos.value_or(false);
    std::optional<double> length;
    RT_RETURN_IF_ERROR(file.Number("model_max_length", &length));
    if (length && *length >= 1 && *length <= kMaxModelLength) config.model_max_length = static_cast<int64_t>(*length);
    RT_RETURN_IF_ERROR(ReadTemplates(file, &config.chat_templates));
  }
  RT_RETURN_IF_ERROR(ReadTemplateFiles(tokenizer_dir, &config.chat_templates));
  if (tokenizer != nullptr) AddIdsOfTexts(*tokenizer, &config);
  return config;
}

}  // namespace rt
