// Which files could be plugins, in which order. Looks at names, owners and permissions; opens nothing.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace rt {

// Where a candidate was named, in falling precedence.
enum class PluginSource { kExplicit, kConfig, kEnvironment, kInstalled, kBuildTree };
const char* PluginSourceName(PluginSource source);  // "command line", "plugins.paths", "RT_PLUGIN_PATH", …

struct PluginCandidate {
  std::filesystem::path path;   // canonical, or as named if it cannot be resolved
  std::filesystem::path named;  // as found
  PluginSource source = PluginSource::kExplicit;
  std::string problem;  // why it cannot be considered; empty if it can
  std::vector<std::string> warnings;
  dev_t device = 0;  // identity of the file
  ino_t inode = 0;
};

struct PluginSearchOptions {
  std::vector<std::string> explicit_paths;  // files or folders
  std::vector<std::string> config_paths;
  bool use_environment = true;  // RT_PLUGIN_PATH; ignored anyway when the process runs with raised privileges
  bool use_installed = true;    // folders relative to the executable
};

struct PluginSearchResult {
  std::vector<PluginCandidate> candidates;  // in search order; in a folder by name
  std::vector<std::string> folders;         // looked into, for messages
  std::vector<std::string> notes;           // e.g. that the environment was ignored
};

// Order: explicit paths, config paths, RT_PLUGIN_PATH (split at ':'), <exe>/../lib/deltart/plugins,
// <exe>/../plugins (a build tree). Never the working folder. In folders only files named librt_*.so count; a
// file named on its own may have any name.
PluginSearchResult SearchPlugins(const PluginSearchOptions& options);

}  // namespace rt
