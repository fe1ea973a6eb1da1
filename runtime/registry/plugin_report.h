// What `runtime plugins list` and `runtime plugins inspect` show, as JSON and as text made from it.
#pragma once

#include "runtime/registry/plugin_registry.h"

#include <nlohmann/json.hpp>

namespace rt {

// {"loaded":[{name,vendor,version,targets,path,source,build_id,components:[{kind,name}],warnings}],
//  "rejected":[{path,name,stage,reason}],"folders":[…],"notes":[…]}
nlohmann::json PluginListJson(const PluginRegistry& registry);
std::string PluginListText(const nlohmann::json& list);

struct InspectOptions {
  bool run = true;  // false (--static): no code of the plugin runs; then there are no devices and rows
  std::string probe_helper;  // empty: beside the executable
  std::chrono::milliseconds timeout{10000};
  std::string options_json = "{}";
};

// Everything that can be said of one file:
// {path, manifest:{…}|null, build_id, machine, exports, num_unique, static_tls, runpath, needs:[{name,path}],
// probe:{…}|null,
//  verdict:"ok"|"refused", reason}. Never fails: what is wrong is in `reason`.
nlohmann::json InspectPlugin(const std::string& path, const InspectOptions& options);
std::string InspectText(const nlohmann::json& inspection);

}  // namespace rt
