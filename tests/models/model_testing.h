// What tests of model plugins share: shipped files, and the program of a config over a set of tensor names.
#pragma once

#include "runtime/program/program.h"
#include "runtime/session/arch_files.h"

#include <nlohmann/json.hpp>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

namespace rt::testing {

inline std::string ReadText(const std::string& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline nlohmann::json ReadJson(const std::string& path) { return nlohmann::json::parse(ReadText(path)); }

// models/<family>/arch/<name>.yaml
inline ArchFile ShippedArch(const std::string& name) {
  const std::string path = std::string(RT_SOURCE_DIR) + "/models/" + name;
  return ParseArchFile(ReadText(path), path).value();
}

// The names that a checkpoint's index lists.
inline std::set<std::string> IndexedTensors(const std::string& folder) {
  std::set<std::string> tensors;
  const nlohmann::json index = ReadJson(folder + "/model.safetensors.index.json");
  for (const auto& [name, file] : index["weight_map"].items()) tensors.insert(name);
  return tensors;
}

// build(plugin::ProgramBuilder*) over a checkpoint that holds `tensors`.
template <typename Build>
Result<Program> RecordProgram(const std::set<std::string>& tensors, Build&& build) {
  ProgramRecorder recorder([&](std::string_view name) { return tensors.count(std::string(name)) != 0; });
  plugin::ProgramBuilder builder(recorder.table());
  RT_RETURN_IF_ERROR(build(&builder));
  return recorder.Finish();
}

}  // namespace rt::testing
