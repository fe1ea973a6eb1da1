// Finds, checks, probes and loads plugins. One broken file never stops the others; each refused file keeps
// its exact reason.
//
// A file goes through: permissions -> static ELF check -> rules for duplicates -> probe in a child process ->
// load with Boost.DLL (now, local, absolute path) -> descriptor check -> init. A loaded library is never
// unloaded: with default visibility or a live thread_local, dlclose does nothing or leaves destructors that
// jump into freed code.
#pragma once

#include <rt/plugin/base.h>
#include <rt/plugin/status.hpp>

#include <nlohmann/json.hpp>

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace rt {

struct Config;

struct PluginRegistryOptions {
  std::vector<std::string> explicit_paths;  // files or folders of the command line; win over everything else
  std::vector<std::string> config_paths;
  bool use_environment = true;        // RT_PLUGIN_PATH
  bool use_installed = true;          // folders relative to the executable
  std::vector<std::string> required;  // plugin names; one that does not load is an error of Load
  std::vector<std::string> deny;      // plugin names
  std::map<std::string, std::string> options_json;  // plugin name -> JSON object for its init
  bool probe = true;
  std::chrono::milliseconds probe_timeout{10000};
  std::string probe_helper;  // empty: rt-plugin-probe beside the executable

  static PluginRegistryOptions From(const Config& config);
};

struct LoadedComponent {
  std::string plugin, name;
  uint32_t kind = 0;          // RT_KIND_*
  const void* api = nullptr;  // table of its kind
  rt_plugin_ctx* ctx = nullptr;

  template <typename Table>
  const Table& table() const {
    return *static_cast<const Table*>(api);
  }
};

struct LoadedPlugin {
  std::string name, vendor, version, targets;
  std::string path;    // canonical
  std::string source;  // where it was found, in words
  std::string build_id;
  const rt_plugin_desc* desc = nullptr;
  rt_plugin_ctx* ctx = nullptr;
  std::vector<LoadedComponent> components;
  std::vector<std::string> warnings;
};

struct RejectedPlugin {
  std::string path;
  std::string name;   // of its manifest, if that could be read
  std::string stage;  // "file", "static check", "duplicate", "denied", "probe", "load", "init"
  std::string reason;
};

// Components stay valid until the registry is destroyed, which calls shutdown of each plugin, last loaded
// first.
class PluginRegistry {
 public:
  // Fails only if a required plugin did not load; the message then holds every reason known.
  static Result<std::unique_ptr<PluginRegistry>> Load(const PluginRegistryOptions& options);
  ~PluginRegistry();
  PluginRegistry(const PluginRegistry&) = delete;
  PluginRegistry& operator=(const PluginRegistry&) = delete;

  const std::deque<LoadedPlugin>& loaded() const { return loaded_; }
  const std::vector<RejectedPlugin>& rejected() const { return rejected_; }
  const std::vector<std::string>& notes() const { return notes_; }  // warnings about the search as a whole
  const std::vector<std::string>& folders() const { return folders_; }  // searched

  const LoadedPlugin* Find(const std::string& name) const;               // nullptr if not loaded
  std::vector<const LoadedComponent*> Components(uint32_t kinds) const;  // of any of the kinds, in load order

  // Writes what happened to the log: one line a plugin, a WARN for each refused file and each warning.
  void LogSummary() const;

 private:
  friend class RegistryLoader;
  PluginRegistry() = default;

  std::deque<LoadedPlugin> loaded_;
  std::vector<RejectedPlugin> rejected_;
  std::vector<std::string> notes_, folders_;
};

}  // namespace rt
