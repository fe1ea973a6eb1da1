#include "runtime/config/config.h"

#include "runtime/config/config_schema.h"
#include "runtime/config/suggest.h"
#include "runtime/config/yaml_tree.h"

#include <charconv>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

namespace rt {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxReported = 20;  // mistakes listed by one error

// Collects every mistake, so that a user mends a file in one go.
class Mistakes {
 public:
  void Add(const std::string& where, const std::string& text) {
    if (lines_.size() < kMaxReported) lines_.push_back(where + ": " + text);
    ++count_;
  }
  bool full() const { return lines_.size() == kMaxReported; }
  Status ToStatus() const {
    if (count_ == 0) return Status::Ok();
    std::string all;
    for (const std::string& line : lines_) all += (all.empty() ? "" : "\n") + line;
    if (count_ > lines_.size()) all += "\nand " + std::to_string(count_ - lines_.size()) + " more mistakes";
    return {Code::kInvalidArgument, all};
  }

 private:
  std::vector<std::string> lines_;
  size_t count_ = 0;
};

// Reads YAML nodes into a Config. One reader serves one source: a file, or one --set.
class Reader {
 public:
  Reader(Config* config, Mistakes* mistakes, fs::path folder)
      : config_(config), mistakes_(mistakes), folder_(std::move(folder)) {}
  virtual ~Reader() = default;

  // A node at `key`, which names a value, a section or nothing.
  void ReadKey(const std::string& key, const YamlNode& node) {
    if (const KeySpec* spec = FindKey(key)) return ReadValue(*spec, node);
    if (IsSection(key)) return ReadSection(key, node);
    UnknownKey(key, node);
  }

  void ReadSection(const std::string& prefix, const YamlNode& node) {
    if (ClassifyNull(node)) return;  // "server:" with nothing below it
    if (node.kind != YamlNode::Kind::kMap) {
      return Mistake(node,
                     (prefix.empty() ? "expected sections such as model:" : prefix + ": expected a section") +
                         ", found " + DescribeYaml(node));
    }
    ForEachEntry(prefix, node, [&](const std::string& key, const YamlNode& value) { ReadKey(key, value); });
  }

 protected:
  virtual std::string Where(const YamlNode& node) const = 0;   // before a message
  virtual std::string Source(const YamlNode& node) const = 0;  // recorded beside a value
  virtual bool BareText() const { return false; }  // a scalar for a text key is text whatever it looks like

  Config* config_;

 private:
  static bool ClassifyNull(const YamlNode& node) {
    return node.kind == YamlNode::Kind::kNull ||
           (node.kind == YamlNode::Kind::kScalar && ClassifyScalar(node) == ScalarKind::kNull);
  }

  static bool IsSection(const std::string& key) {
    for (const KeySpec& spec : ConfigSchema()) {
      if (std::string_view(spec.key).substr(0, key.size() + 1) == key + ".") return true;
    }
    return false;
  }

  void Mistake(const YamlNode& node, const std::string& text) { mistakes_->Add(Where(node), text); }

  void UnknownKey(const std::string& key, const YamlNode& node) {
    if (mistakes_->full()) return Mistake(node, "");  // counted only; suggestions take time
    std::vector<std::string> known;
    for (const KeySpec& spec : ConfigSchema()) {
      known.emplace_back(spec.key);
      known.push_back(known.back().substr(0, known.back().find('.')));
    }
    std::string hint = DidYouMean(key, known);
    if (hint.empty()) {  // the last part alone may name a key of another section
      const std::string last = key.substr(key.rfind('.') + 1);
      for (const KeySpec& spec : ConfigSchema()) {
        const std::string full = spec.key;
        if (full.substr(full.rfind('.') + 1) == last) hint = "; did you mean \"" + full + "\"?";
      }
    }
    Mistake(at_key_ == nullptr ? node : *at_key_, "unknown key \"" + key + "\"" + hint);
  }

  // Calls `read` with each full key; reports keys that are no names or occur twice.
  template <typename F>
  void ForEachEntry(const std::string& prefix, const YamlNode& map, F read) {
    std::map<std::string, const YamlNode*> seen;
    for (const auto& [key, value] : map.entries) {
      if (ClassifyNull(*key)) {
        Mistake(*key, "an empty key");
        continue;
      }
      const std::string full = prefix.empty() ? key->scalar : prefix + "." + key->scalar;
      if (key->scalar == "<<") {
        Mistake(*key, "merge keys (<<) are not supported");
      } else if (const auto [first, fresh] = seen.emplace(key->scalar, key); !fresh) {
        Mistake(*key,
                "duplicate key \"" + full + "\", first given in line " + std::to_string(first->second->line));
      } else if (prefix.empty() && key->scalar.find('.') != std::string::npos) {
        Mistake(*key, "unknown key \"" + full + "\"; sections are nested: \"" +
                          full.substr(0, full.find('.')) + ":\" on a line of its own");
      } else {
        at_key_ = key;
        read(full, *value);
      }
    }
  }

  void ReadValue(const KeySpec& spec, const YamlNode& node) {
    switch (spec.form) {
      case KeyForm::kText:
        return ReadText(spec, node);
      case KeyForm::kPath:
        return ReadPath(spec, node);
      case KeyForm::kTextList:
        return ReadList(spec, node, false);
      case KeyForm::kPathList:
        return ReadList(spec, node, true);
      case KeyForm::kBool:
        return ReadBool(spec, node);
      case KeyForm::kInteger:
        return ReadInteger(spec, node);
      case KeyForm::kNumber:
        return ReadNumber(spec, node);
      case KeyForm::kBytes:
        return ReadBytes(spec, node);
      case KeyForm::kOptions:
        return ReadOptions(spec.key, node);
      case KeyForm::kPins:
        return ReadPins(spec.key, node);
    }
  }

  template <typename T>
  void Store(const KeySpec& spec, const YamlNode& node, T value) {
    *std::get<T* (*)(Config&)>(spec.place)(*config_) = std::move(value);
    config_->sources[spec.key] = Source(node);
  }

  void Expected(const std::string& key, const YamlNode& node, const std::string& expected) {
    Mistake(node, key + ": expected " + expected + ", found " + DescribeYaml(node));
  }

  bool IsText(const YamlNode& node) const {
    if (node.kind != YamlNode::Kind::kScalar) return false;
    return BareText() || ClassifyScalar(node) == ScalarKind::kText;
  }

  void ReadText(const KeySpec& spec, const YamlNode& node) {
    if (!IsText(node)) return Expected(spec.key, node, spec.choices.empty() ? "a text" : Choices(spec));
    if (!spec.choices.empty() && !IsChoice(spec, node.scalar)) {
      return Mistake(node, std::string(spec.key) + ": expected " + Choices(spec) + ", found \"" +
                               node.scalar + "\"" + DidYouMean(node.scalar, WholeChoices(spec)));
    }
    Store(spec, node, node.scalar);
  }

  static bool IsChoice(const KeySpec& spec, const std::string& text) {
    for (const std::string& choice : spec.choices) {
      if (text == choice && choice.back() != ':') return true;
      if (choice.back() != ':' || text.rfind(choice, 0) != 0) continue;
      const std::string rest = text.substr(choice.size());  // a seed: digits of a u64
      uint64_t seed = 0;
      const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), seed);
      if (!rest.empty() && error == std::errc() && end == rest.data() + rest.size()) return true;
    }
    return false;
  }

  static std::vector<std::string> WholeChoices(const KeySpec& spec) {
    std::vector<std::string> out;
    for (const std::string& choice : spec.choices) {
      if (choice.back() != ':') out.push_back(choice);
    }
    return out;
  }

  static std::string Choices(const KeySpec& spec) {
    std::string out;
    for (size_t i = 0; i < spec.choices.size(); ++i) {
      const std::string& choice = spec.choices[i];
      out += (i == 0                         ? ""
              : i + 1 == spec.choices.size() ? " or "
                                             : ", ") +
             choice + (choice.back() == ':' ? "<seed>" : "");
    }
    return out;
  }

  std::string Absolute(const std::string& text) const {
    if (text.empty()) return text;
    const fs::path path(text);
    return (path.is_absolute() ? path : folder_ / path).lexically_normal().string();
  }

  void ReadPath(const KeySpec& spec, const YamlNode& node) {
    if (!IsText(node)) return Expected(spec.key, node, "a path");
    Store(spec, node, Absolute(node.scalar));
  }

  void ReadList(const KeySpec& spec, const YamlNode& node, bool paths) {
    if (node.kind != YamlNode::Kind::kList)
      return Expected(spec.key, node, paths ? "a list of paths" : "a list of texts");
    std::vector<std::string> values;
    for (const YamlNode* item : node.items) {
      if (!IsText(*item) || item->scalar.empty())
        return Expected(spec.key, *item, paths ? "a path" : "a text");
      values.push_back(paths ? Absolute(item->scalar) : item->scalar);
    }
    Store(spec, node, std::move(values));
  }

  void ReadBool(const KeySpec& spec, const YamlNode& node) {
    if (node.kind != YamlNode::Kind::kScalar || ClassifyScalar(node) != ScalarKind::kBool) {
      return Expected(spec.key, node, "true or false");
    }
    Store(spec, node, node.scalar == "true");
  }

  static std::string Number(double value) {
    std::ostringstream out;
    out.precision(17);
    out << value;
    return out.str();
  }

  bool InRange(const KeySpec& spec, const YamlNode& node, double value) {
    if (value >= spec.lo && value <= spec.hi) return true;
    Mistake(node, std::string(spec.key) + ": expected " + Number(spec.lo) + " to " + Number(spec.hi) +
                      ", found " + node.scalar);
    return false;
  }

  // False, with a mistake reported, if the digits do not fit.
  bool ToInteger(const KeySpec& spec, const YamlNode& node, int64_t* value) {
    const char* begin = node.scalar.data() + (node.scalar[0] == '+' ? 1 : 0);
    const char* end = node.scalar.data() + node.scalar.size();
    if (std::from_chars(begin, end, *value).ec != std::errc()) {
      Mistake(node, std::string(spec.key) + ": expected " + Number(spec.lo) + " to " + Number(spec.hi) +
                        ", found " + node.scalar);
      return false;
    }
    return InRange(spec, node, static_cast<double>(*value));
  }

  void ReadInteger(const KeySpec& spec, const YamlNode& node) {
    if (node.kind != YamlNode::Kind::kScalar || ClassifyScalar(node) != ScalarKind::kInteger) {
      return Expected(spec.key, node, "an integer");
    }
    int64_t value = 0;
    if (ToInteger(spec, node, &value)) Store(spec, node, value);
  }

  void ReadNumber(const KeySpec& spec, const YamlNode& node) {
    const ScalarKind kind = node.kind == YamlNode::Kind::kScalar ? ClassifyScalar(node) : ScalarKind::kText;
    if (kind != ScalarKind::kInteger && kind != ScalarKind::kFloat)
      return Expected(spec.key, node, "a number");
    const double value = std::strtod(node.scalar.c_str(), nullptr);
    if (node.scalar[0] == '.' || !std::isfinite(value)) return Expected(spec.key, node, "a finite number");
    if (InRange(spec, node, value)) Store(spec, node, value);
  }

  void ReadBytes(const KeySpec& spec, const YamlNode& node) {
    static const std::pair<const char*, double> kUnits[] = {
        {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}, {"TiB", 1099511627776.0},
        {"kB", 1e3},     {"MB", 1e6},        {"GB", 1e9},           {"TB", 1e12}};
    const ScalarKind kind = node.kind == YamlNode::Kind::kScalar ? ClassifyScalar(node) : ScalarKind::kNull;
    if (kind == ScalarKind::kInteger) {
      int64_t value = 0;
      if (ToInteger(spec, node, &value)) Store(spec, node, value);
      return;
    }
    if (kind == ScalarKind::kText) {
      char* unit = nullptr;
      const bool digit = !node.scalar.empty() && node.scalar[0] >= '0' && node.scalar[0] <= '9';
      const double count = digit ? std::strtod(node.scalar.c_str(), &unit) : 0;
      while (unit != nullptr && *unit == ' ') ++unit;
      for (const auto& [name, scale] : kUnits) {
        if (unit == nullptr || std::string_view(unit) != name) continue;
        if (InRange(spec, node, count * scale)) Store(spec, node, static_cast<int64_t>(count * scale));
        return;
      }
    }
    Expected(spec.key, node, "a number of bytes such as 1048576, 512MiB or 2GiB");
  }

  // A free-form value as JSON; scalars keep the type that YAML gives them.
  nlohmann::json ToJson(const std::string& key, const YamlNode& node) {
    switch (node.kind) {
      case YamlNode::Kind::kNull:
        return nullptr;
      case YamlNode::Kind::kList: {
        nlohmann::json list = nlohmann::json::array();
        for (const YamlNode* item : node.items) list.push_back(ToJson(key, *item));
        return list;
      }
      case YamlNode::Kind::kMap: {
        nlohmann::json map = nlohmann::json::object();
        ForEachEntry(key, node, [&](const std::string& full, const YamlNode& value) {
          map[full.substr(key.size() + 1)] = ToJson(full, value);
        });
        return map;
      }
      case YamlNode::Kind::kScalar:
        return ScalarToJson(key, node);
    }
    return nullptr;
  }

  nlohmann::json ScalarToJson(const std::string& key, const YamlNode& node) {
    switch (ClassifyScalar(node)) {
      case ScalarKind::kNull:
        return nullptr;
      case ScalarKind::kBool:
        return node.scalar == "true";
      case ScalarKind::kText:
        return node.scalar;
      case ScalarKind::kInteger: {
        int64_t value = 0;
        const char* begin = node.scalar.data() + (node.scalar[0] == '+' ? 1 : 0);
        if (std::from_chars(begin, node.scalar.data() + node.scalar.size(), value).ec == std::errc())
          return value;
        Mistake(node, key + ": the integer " + node.scalar + " does not fit into 64 bits");
        return nullptr;
      }
      case ScalarKind::kFloat: {
        const double value = std::strtod(node.scalar.c_str(), nullptr);
        if (std::isfinite(value) && node.scalar.find("nan") == std::string::npos) return value;
        Mistake(node, key + ": expected a finite number, found " + node.scalar);
        return nullptr;
      }
    }
    return nullptr;
  }

  void ReadOptions(const std::string& prefix, const YamlNode& node) {
    if (ClassifyNull(node)) return;
    if (node.kind != YamlNode::Kind::kMap) return Expected(prefix, node, "a section of plugin names");
    ForEachEntry(prefix, node, [&](const std::string& full, const YamlNode& value) {
      if (value.kind != YamlNode::Kind::kMap) return Expected(full, value, "a section of options");
      const std::string plugin = full.substr(prefix.size() + 1);
      ForEachEntry(full, value, [&](const std::string& option, const YamlNode& set) {
        StoreOption(plugin, option.substr(full.size() + 1), option, set);
      });
    });
  }

  void ReadPins(const std::string& prefix, const YamlNode& node) {
    if (ClassifyNull(node)) return;
    if (node.kind != YamlNode::Kind::kMap) return Expected(prefix, node, "a section of ops");
    ForEachEntry(prefix, node, [&](const std::string& full, const YamlNode& value) {
      if (value.kind != YamlNode::Kind::kMap) return StorePin(full, full.substr(prefix.size() + 1), value);
      ForEachEntry(full, value, [&](const std::string& phase, const YamlNode& kernel) {
        StorePin(phase, phase.substr(prefix.size() + 1), kernel);
      });
    });
  }

 protected:
  void StoreOption(const std::string& plugin, const std::string& option, const std::string& full,
                   const YamlNode& node) {
    nlohmann::json& section = config_->plugins.options[plugin];
    if (section.is_null()) section = nlohmann::json::object();
    section[option] = ToJson(full, node);
    config_->sources[full] = Source(node);
  }

  void StorePin(const std::string& full, const std::string& op, const YamlNode& node) {
    if (!IsText(node) || node.scalar.empty()) return Expected(full, node, "a kernel name");
    config_->negotiation.pin[op] = node.scalar;
    config_->sources[full] = Source(node);
  }

 private:
  Mistakes* mistakes_;
  fs::path folder_;
  const YamlNode* at_key_ = nullptr;  // the key whose value is being read
};

class FileReader : public Reader {
 public:
  FileReader(Config* config, Mistakes* mistakes, fs::path folder, std::string name)
      : Reader(config, mistakes, std::move(folder)), name_(std::move(name)) {}

 private:
  std::string Where(const YamlNode& node) const override {
    return name_ + ":" + std::to_string(node.line) + ":" + std::to_string(node.column);
  }
  std::string Source(const YamlNode& node) const override { return name_ + ":" + std::to_string(node.line); }

  std::string name_;
};

// One key=value of the command line. The value of a text key is taken as it is, that of every other key is
// read as YAML.
class OverrideReader : public Reader {
 public:
  OverrideReader(Config* config, Mistakes* mistakes, std::string key, bool bare)
      : Reader(config, mistakes, fs::current_path()), key_(std::move(key)), bare_(bare) {}

  void Read(const YamlNode& node) {
    constexpr std::string_view kOptions = "plugins.options.", kPin = "negotiation.pin.";
    const std::string_view key = key_;
    if (key.substr(0, kOptions.size()) == kOptions) {
      const size_t dot = key_.find('.', kOptions.size());
      if (dot != std::string::npos && dot > kOptions.size() && dot + 1 < key_.size()) {
        return StoreOption(key_.substr(kOptions.size(), dot - kOptions.size()), key_.substr(dot + 1), key_,
                           node);
      }
    } else if (key.substr(0, kPin.size()) == kPin && key.size() > kPin.size()) {
      return StorePin(key_, key_.substr(kPin.size()), node);
    }
    ReadKey(key_, node);
  }

 private:
  std::string Where(const YamlNode&) const override { return "--set " + key_; }
  std::string Source(const YamlNode&) const override { return "--set"; }
  bool BareText() const override { return bare_; }

  std::string key_;
  bool bare_;
};

void ApplyOverride(const std::string& text, Config* config, Mistakes* mistakes) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return mistakes->Add("--set " + text, "expected key=value");
  }
  const std::string key = text.substr(0, equals), value = text.substr(equals + 1);
  const KeySpec* spec = FindKey(key);
  const bool bare = (spec != nullptr && (spec->form == KeyForm::kText || spec->form == KeyForm::kPath)) ||
                    key.rfind("negotiation.pin.", 0) == 0;
  OverrideReader reader(config, mistakes, key, bare);
  if (bare) {
    YamlNode node;
    node.kind = YamlNode::Kind::kScalar;
    node.scalar = value;
    return reader.Read(node);
  }
  const Result<YamlTree> tree = YamlTree::Parse(value, "--set " + key);
  if (!tree.ok()) return mistakes->Add("--set " + key, "value is " + tree.status().message());
  reader.Read(tree->root());
}

Result<std::string> ReadFile(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::exists(status)) return {Code::kNotFound, file.string() + ": no such file"};
  if (!fs::is_regular_file(status)) return {Code::kInvalidArgument, file.string() + ": not a regular file"};
  const uintmax_t size = fs::file_size(file, error);
  if (error || size > YamlTree::kMaxBytes) {
    return {Code::kInvalidArgument, file.string() + ": " +
                                        (error ? error.message()
                                               : std::to_string(size) + " bytes, at most " +
                                                     std::to_string(YamlTree::kMaxBytes) + " are read")};
  }
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  if (size > 0) text << in.rdbuf();
  if (!in) return {Code::kInvalidArgument, file.string() + ": cannot be read"};
  return text.str();
}

}  // namespace

Result<Config> Config::Parse(std::string_view text, const std::string& name, const fs::path& folder,
                             const std::vector<std::string>& overrides) {
  RT_ASSIGN_OR_RETURN(const YamlTree tree, YamlTree::Parse(text, name));
  Config config;
  Mistakes mistakes;
  FileReader(&config, &mistakes, fs::absolute(folder), name).ReadSection("", tree.root());
  for (const std::string& override_text : overrides) ApplyOverride(override_text, &config, &mistakes);
  RT_RETURN_IF_ERROR(mistakes.ToStatus());
  return config;
}

Result<Config> Config::Load(const fs::path& file, const std::vector<std::string>& overrides) {
  if (file.empty()) return Parse("", "(no file)", ".", overrides);
  RT_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  return Parse(text, file.string(), fs::absolute(file).parent_path(), overrides);
}

std::string Config::Source(const std::string& key) const {
  const auto found = sources.find(key);
  return found == sources.end() ? "default" : found->second;
}

std::vector<ConfigEntry> Config::Explain() const {
  std::vector<ConfigEntry> entries;
  for (const KeySpec& spec : ConfigSchema()) {
    const std::string prefix = std::string(spec.key) + ".";
    if (spec.form == KeyForm::kOptions) {
      for (const auto& [plugin, section] : plugins.options) {
        for (const auto& [key, value] : section.items()) {
          const std::string full = prefix + plugin + "." + key;
          entries.push_back({full, value, Source(full)});
        }
      }
    } else if (spec.form == KeyForm::kPins) {
      for (const auto& [op, kernel] : negotiation.pin)
        entries.push_back({prefix + op, kernel, Source(prefix + op)});
    } else {
      entries.push_back({spec.key, KeyValue(spec, *this), Source(spec.key)});
    }
  }
  return entries;
}

}  // namespace rt
