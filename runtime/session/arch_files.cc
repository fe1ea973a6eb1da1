#include "runtime/session/arch_files.h"

#include "runtime/config/suggest.h"
#include "runtime/config/yaml_tree.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace rt {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json ToJson(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return nullptr;
    case YamlNode::Kind::kList: {
      json list = json::array();
      for (const YamlNode* item : node.items) list.push_back(ToJson(*item));
      return list;
    }
    case YamlNode::Kind::kMap: {
      json map = json::object();
      for (const auto& [key, value] : node.entries) map[key->scalar] = ToJson(*value);
      return map;
    }
    case YamlNode::Kind::kScalar: break;
  }
  switch (ClassifyScalar(node)) {
    case ScalarKind::kNull: return nullptr;
    case ScalarKind::kBool: return node.scalar == "true";
    case ScalarKind::kInteger: return std::strtoll(node.scalar.c_str(), nullptr, 0);
    case ScalarKind::kFloat: return std::strtod(node.scalar.c_str(), nullptr);
    case ScalarKind::kText: break;
  }
  return node.scalar;
}

Status CheckDuplicates(const YamlNode& node, const std::string& path) {
  if (node.kind == YamlNode::Kind::kMap) {
    std::vector<std::string> seen;
    for (const auto& [key, value] : node.entries) {
      if (std::find(seen.begin(), seen.end(), key->scalar) != seen.end()) {
        return {Code::kInvalidArgument, path + ":" + std::to_string(key->line) + ":" + std::to_string(key->column) + ": duplicate key " + key->scalar};
      }
      seen.push_back(key->scalar);
      RT_RETURN_IF_ERROR(CheckDuplicates(*value, path));
    }
  }
  return Status::Ok();
}

Result<std::string> TextOf(const json& root, const char* key, const std::string& path) {
  if (!root.contains(key) || !root[key].is_string()) return {Code::kInvalidArgument, path + ": " + key + ": expected text"};
  return root[key].get<std::string>();
}

Result<std::vector<std::string>> TextsOf(const json& root, const char* key, const std::string& path) {
  std::vector<std::string> list;
  if (!root.contains(key)) return list;
  if (!root[key].is_array()) return {Code::kInvalidArgument, path + ": " + key + ": expected a list of text"};
  for (const json& item : root[key]) {
    if (!item.is_string()) return {Code::kInvalidArgument, path + ": " + key + ": expected a list of text"};
    list.push_back(item.get<std::string>());
  }
  return list;
}

Result<std::string> ReadText(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return {Code::kNotFound, path.string() + ": cannot be read"};
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// model_type of the text model and of the wrapper.
std::vector<std::string> ModelTypes(const json& config) {
  std::vector<std::string> types;
  const auto add = [&](const json& object) {
    if (object.contains("model_type") && object["model_type"].is_string()) types.push_back(object["model_type"].get<std::string>());
  };
  add(config);
  if (config.contains("text_config") && config["text_config"].is_object()) add(config["text_config"]);
  return types;
}

bool Contains(const std::vector<std::string>& list, const std::string& text) { return std::find(list.begin(), list.end(), text) != list.end(); }

}  // namespace

Result<ArchFile> ParseArchFile(const std::string& text, const std::string& path) {
  RT_ASSIGN_OR_RETURN(const YamlTree tree, YamlTree::Parse(text, path));
  if (tree.root().kind != YamlNode::Kind::kMap) return {Code::kInvalidArgument, path + ": expected a mapping, found " + DescribeYaml(tree.root())};
  RT_RETURN_IF_ERROR(CheckDuplicates(tree.root(), path));
  const json root = ToJson(tree.root());
  ArchFile file;
  file.path = path;
  RT_ASSIGN_OR_RETURN(file.name, TextOf(root, "name", path));
  RT_ASSIGN_OR_RETURN(file.plugin, TextOf(root, "plugin", path));
  RT_ASSIGN_OR_RETURN(file.architectures, TextsOf(root, "architectures", path));
  RT_ASSIGN_OR_RETURN(file.model_types, TextsOf(root, "model_types", path));
  if (file.architectures.empty() && file.model_types.empty()) return {Code::kInvalidArgument, path + ": serves nothing: architectures and model_types are empty"};
  file.json = root.dump();
  return file;
}

Result<std::vector<ArchFile>> LoadArchFiles(const std::vector<fs::path>& extra_folders) {
  std::error_code ec;
  std::vector<fs::path> folders = extra_folders;
  folders.push_back(fs::read_symlink("/proc/self/exe", ec).parent_path().parent_path() / "share/deltart/arch");
  std::vector<fs::path> paths;
  for (const fs::path& folder : folders) {
    for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
      if (it->path().extension() == ".yaml" && it->is_regular_file(ec)) paths.push_back(it->path());
    }
    ec.clear();
  }
  std::sort(paths.begin(), paths.end());
  std::vector<ArchFile> files;
  for (const fs::path& path : paths) {
    RT_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
    RT_ASSIGN_OR_RETURN(ArchFile file, ParseArchFile(text, path.string()));
    files.push_back(std::move(file));
  }
  return files;
}

Result<ArchFile> FindArch(const std::vector<ArchFile>& files, const std::string& config_json, const std::string& config_path) {
  const json config = json::parse(config_json, nullptr, false);
  if (!config.is_object()) return {Code::kDataLoss, config_path + ": expected a JSON object"};
  std::string architecture;
  if (config.contains("architectures") && config["architectures"].is_array() && !config["architectures"].empty() && config["architectures"][0].is_string()) {
    architecture = config["architectures"][0].get<std::string>();
  }
  std::vector<std::string> known;
  for (const ArchFile& file : files) {
    if (!architecture.empty() && Contains(file.architectures, architecture)) return file;
    known.insert(known.end(), file.architectures.begin(), file.architectures.end());
  }
  if (architecture.empty()) {
    for (const std::string& type : ModelTypes(config)) {
      for (const ArchFile& file : files) {
        if (Contains(file.model_types, type)) return file;
      }
    }
  }
  std::string text = config_path + ": no architecture file serves " + (architecture.empty() ? "it (no architectures; model_type unknown)" : architecture);
  std::string list;
  for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
  text += "; known: " + (list.empty() ? "none" : list);
  const std::string nearest = architecture.empty() ? "" : NearestName(architecture, known);
  if (!nearest.empty()) text += "; nearest: " + nearest;
  return {Code::kNotFound, text};
}

}  // namespace rt
