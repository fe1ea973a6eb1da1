// The table of all configuration keys: the one place that names them.
#pragma once

#include "runtime/config/config.h"

#include <limits>
#include <span>
#include <variant>

namespace rt {

enum class KeyForm {
  kText,
  kPath,  // text; made absolute against the folder of its source
  kPathList,
  kTextList,
  kBool,
  kInteger,
  kNumber,   // double; integers are welcome
  kBytes,    // integer, or text such as 2GiB or 500MB
  kOptions,  // plugin name -> free-form section
  kPins,     // op[.phase] -> kernel
};

// Where the value lives inside a Config. Only the member that fits the form is set.
using KeyPlace =
    std::variant<bool* (*)(Config&), int64_t* (*)(Config&), double* (*)(Config&), std::string* (*)(Config&),
                 std::vector<std::string>* (*)(Config&), std::map<std::string, nlohmann::json>* (*)(Config&),
                 std::map<std::string, std::string>* (*)(Config&)>;

struct KeySpec {
  const char* key;
  KeyForm form;
  KeyPlace place;
  const char* doc;
  std::vector<std::string> choices =
      {};  // text: the only values, unless empty; a choice "random:" is a prefix
  double lo = 0, hi = std::numeric_limits<double>::infinity();  // integers, numbers, bytes
};

std::span<const KeySpec> ConfigSchema();
const KeySpec* FindKey(const std::string& key);  // nullptr if unknown
nlohmann::json KeyValue(const KeySpec& spec, const Config& config);
const char* KeyFormName(KeyForm form);  // for the reference: "integer", "path", …

// The reference of all keys with defaults and meaning, as Markdown.
std::string ConfigReference();

}  // namespace rt
