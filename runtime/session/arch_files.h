// Architecture files: which one serves a checkpoint.
#pragma once

#include <rt/plugin/status.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace rt {

struct ArchFile {
  std::string path;
  std::string name;
  std::string plugin;  // name of the model plugin
  std::vector<std::string> architectures, model_types;
  std::string json;    // the whole file as JSON, for the plugin
};

// Every *.yaml below `<executable>/../share/deltart/arch/` and the extra folders; a broken file is an error that names it.
Result<std::vector<ArchFile>> LoadArchFiles(const std::vector<std::filesystem::path>& extra_folders);
Result<ArchFile> ParseArchFile(const std::string& text, const std::string& path);
// By architectures[0], else by model_type of config.json (outer, then nested text). Unknown: NotFound with the known names and the nearest.
Result<ArchFile> FindArch(const std::vector<ArchFile>& files, const std::string& config_json, const std::string& config_path);

}  // namespace rt
