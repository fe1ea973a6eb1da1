#include "runtime/registry/plugin_registry.h"

#include "plugin_sdk/loader/descriptor.h"
#include "plugin_sdk/loader/probe.h"
#include "plugin_sdk/loader/static_check.h"
#include "runtime/config/config.h"
#include "runtime/config/suggest.h"
#include "runtime/registry/library.h"
#include "runtime/registry/plugin_search.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

namespace rt {
namespace {

void HostLog(void*, int32_t level, rt_str plugin, rt_str text) noexcept {
  try {
    const auto view = [](rt_str s) {
      return std::string_view(s.data == nullptr ? "" : s.data, s.data == nullptr ? 0 : s.size);
    };
    const spdlog::level::level_enum levels[] = {spdlog::level::debug, spdlog::level::info,
                                                spdlog::level::warn, spdlog::level::err};
    spdlog::log(levels[std::clamp(level, 0, 3)], "[{}] {}", view(plugin), view(text));
  } catch (...) {  // a lost log line is better than an exception in vendor code
  }
}

const void* HostInterface(void*, rt_str) noexcept { return nullptr; }

// The host table that a plugin keeps, with the option text it points to. Lives as long as the process, like
// the library.
struct HostBinding {
  std::string options;
  rt_host host = {};
};

const rt_host* BindHost(const std::string& options_json) {
  auto* binding = new HostBinding;
  binding->options = options_json;
  binding->host = {
      sizeof(rt_host), RT_ABI_MINOR, nullptr, HostLog, {binding->options.data(), binding->options.size()},
      HostInterface};
  // Reachable for ever, so that leak checkers see no loss.
  static std::vector<std::unique_ptr<HostBinding>>& all = *new std::vector<std::unique_ptr<HostBinding>>;
  all.emplace_back(binding);
  return &binding->host;
}

bool SameBytes(const std::string& a, const std::string& b) {
  std::error_code error;
  if (std::filesystem::file_size(a, error) != std::filesystem::file_size(b, error) || error) return false;
  std::ifstream first(a, std::ios::binary), second(b, std::ios::binary);
  return std::equal(std::istreambuf_iterator<char>(first), {}, std::istreambuf_iterator<char>(second));
}

// A file that passed the static check.
struct Checked {
  PluginCandidate candidate;
  ElfInfo elf;

  std::string path() const { return candidate.path.string(); }
  std::string name() const { return elf.manifest->name; }
};

bool SamePlugin(const Checked& a, const Checked& b) {
  if (!a.elf.build_id.empty() || !b.elf.build_id.empty()) return a.elf.build_id == b.elf.build_id;
  return SameBytes(a.path(), b.path());
}

}  // namespace

// One run of PluginRegistry::Load.
class RegistryLoader {
 public:
  RegistryLoader(const PluginRegistryOptions& options, PluginRegistry* registry)
      : options_(options), registry_(*registry) {}

  Status Run() {
    PluginSearchResult search = SearchPlugins(
        {options_.explicit_paths, options_.config_paths, options_.use_environment, options_.use_installed});
    registry_.folders_ = search.folders;
    registry_.notes_ = search.notes;
    FindHelper();
    std::vector<Checked> checked = CheckStatically(std::move(search.candidates));
    DropDenied(&checked);
    DropIdentical(&checked);
    DropConflicting(&checked);
    for (const Checked& file : checked) LoadOne(file);
    NoteUnusedOptions();
    return CheckRequired();
  }

 private:
  void Reject(const std::string& path, const std::string& name, const char* stage,
              const std::string& reason) {
    registry_.rejected_.push_back({path, name, stage, reason});
  }
  void Reject(const Checked& file, const char* stage, const std::string& reason) {
    Reject(file.path(), file.name(), stage, reason);
  }

  void FindHelper() {
    if (!options_.probe) {
      registry_.notes_.push_back(
          "plugins.probe is false: a plugin that crashes while it loads ends this process");
      return;
    }
    helper_ = options_.probe_helper.empty() ? FindProbeHelper() : options_.probe_helper;
    if (helper_.empty()) {
      registry_.notes_.push_back(
          "rt-plugin-probe is missing beside the executable: plugins are loaded WITHOUT being tried in a "
          "child process first");
    }
  }

  std::vector<Checked> CheckStatically(std::vector<PluginCandidate> candidates) {
    std::vector<Checked> checked;
    std::map<std::pair<dev_t, ino_t>, std::string> seen;
    for (PluginCandidate& candidate : candidates) {
      if (!candidate.problem.empty()) {
        Reject(candidate.named.string(), "", "file", candidate.problem);
        continue;
      }
      const auto [first, fresh] =
          seen.emplace(std::pair(candidate.device, candidate.inode), candidate.path.string());
      if (!fresh) {
        if (candidate.named.string() != first->second)
          Reject(candidate.named.string(), "", "duplicate",
                 "the same file as " + first->second + ", which is used");
        continue;
      }
      Result<ElfInfo> elf = ReadPluginFile(candidate.path.string());
      const Status status = elf.ok() ? CheckPluginElf(*elf, HostAbi::Current()) : elf.status();
      if (!status.ok()) {
        const bool named = elf.ok() && elf->manifest.has_value();
        Reject(candidate.path.string(), named ? elf->manifest->name : "", "static check", status.message());
        continue;
      }
      const std::string expected = "librt_" + std::string(elf->manifest->name) + ".so";
      if (candidate.path.filename() != expected)
        candidate.warnings.push_back("its name asks for the file name " + expected);
      checked.push_back({std::move(candidate), std::move(*elf)});
    }
    return checked;
  }

  // Moves the files for which `refuse` gives a reason to the rejected ones.
  template <typename F>
  void DropIf(std::vector<Checked>* files, const char* stage, F refuse) {
    std::vector<std::string> reasons;
    for (size_t i = 0; i < files->size(); ++i) reasons.push_back(refuse(i));
    std::vector<Checked> kept;
    for (size_t i = 0; i < files->size(); ++i) {
      if (reasons[i].empty())
        kept.push_back(std::move((*files)[i]));
      else
        Reject((*files)[i], stage, reasons[i]);
    }
    *files = std::move(kept);
  }

  void DropDenied(std::vector<Checked>* files) {
    DropIf(files, "denied", [&](size_t i) -> std::string {
      const bool denied =
          std::find(options_.deny.begin(), options_.deny.end(), (*files)[i].name()) != options_.deny.end();
      return denied ? "plugins.deny names it" : "";
    });
  }

  // A copy of a plugin that stands earlier in the search order.
  void DropIdentical(std::vector<Checked>* files) {
    DropIf(files, "duplicate", [&](size_t i) -> std::string {
      for (size_t j = 0; j < i; ++j) {
        if ((*files)[j].name() == (*files)[i].name() && SamePlugin((*files)[j], (*files)[i]))
          return "a copy of " + (*files)[j].path() + ", which is used";
      }
      return "";
    });
  }

  // Different plugins of one name: the source of higher precedence wins (the user named it); within one
  // source none is loaded, because any choice would be a guess.
  void DropConflicting(std::vector<Checked>* files) {
    DropIf(files, "duplicate", [&](size_t i) -> std::string {
      const Checked& file = (*files)[i];
      std::string rivals;
      for (size_t j = 0; j < files->size(); ++j) {
        const Checked& other = (*files)[j];
        if (j == i || other.name() != file.name()) continue;
        if (other.candidate.source < file.candidate.source) {
          return "plugin \"" + file.name() + "\" is taken from " + other.path() + " (" +
                 PluginSourceName(other.candidate.source) + " comes before " +
                 PluginSourceName(file.candidate.source) + ")";
        }
        if (other.candidate.source == file.candidate.source)
          rivals += (rivals.empty() ? "" : ", ") + other.path();
      }
      if (rivals.empty()) return "";
      return "plugin \"" + file.name() + "\" " + file.elf.manifest->version + " also exists as " + rivals +
             ": none is chosen; remove one, or name one on the command line";
    });
  }

  std::string OptionsFor(const std::string& name) const {
    const auto found = options_.options_json.find(name);
    return found == options_.options_json.end() ? "{}" : found->second;
  }

  void LoadOne(const Checked& file) {
    std::vector<std::string> warnings = file.candidate.warnings;
    if (file.elf.static_tls)
      warnings.push_back("uses static TLS, which can make loading fail when much of it is in use");
    if (!file.elf.uniques.empty()) {
      warnings.push_back(
          "exports " + std::to_string(file.elf.uniques.size()) +
          " unique symbols, which plugins share (build with hidden visibility or -fno-gnu-unique)");
    }
    const std::string options = OptionsFor(file.name());
    if (!helper_.empty() && !Probe(file, options, &warnings)) return;

    struct stat before = {}, after = {};
    stat(file.path().c_str(), &before);
    Result<const rt_plugin_desc*> desc = OpenPluginLibrary(file.path());
    if (!desc.ok()) return Reject(file, "load", desc.status().message());
    stat(file.path().c_str(), &after);
    if (before.st_ino != file.candidate.inode || after.st_ino != before.st_ino ||
        after.st_mtime != before.st_mtime || after.st_size != before.st_size) {
      return Reject(file, "load", "the file was replaced while it was being loaded");
    }
    if (const Status status = ValidateDescriptor(*desc, *file.elf.manifest); !status.ok())
      return Reject(file, "load", status.message());
    Init(file, **desc, options, std::move(warnings));
  }

  bool Probe(const Checked& file, const std::string& options, std::vector<std::string>* warnings) {
    const Result<nlohmann::json> answer =
        ProbePlugin(file.path(), {helper_, options_.probe_timeout, options});
    if (!answer.ok()) {
      Reject(file, "probe", answer.status().message());
      return false;
    }
    for (const nlohmann::json& warning : answer->value("warnings", nlohmann::json::array())) {
      if (warning.is_string()) warnings->push_back(warning.get<std::string>());
    }
    return true;
  }

  void Init(const Checked& file, const rt_plugin_desc& desc, const std::string& options,
            std::vector<std::string> warnings) {
    const rt_host* host = BindHost(options);
    rt_plugin_ctx* ctx = nullptr;
    const Status status = CallPlugin([&](rt_error* error) { return desc.init(host, &ctx, error); });
    if (!status.ok()) return Reject(file, "init", "init failed: " + status.message());

    const rt_manifest& manifest = *file.elf.manifest;
    LoadedPlugin plugin = {manifest.name,
                           manifest.vendor,
                           manifest.version,
                           manifest.targets,
                           file.path(),
                           PluginSourceName(file.candidate.source),
                           file.elf.build_id,
                           &desc,
                           ctx,
                           {},
                           std::move(warnings)};
    for (const rt_component* component : rt::Components(desc)) {
      plugin.components.push_back({plugin.name, std::string(component->name.data, component->name.size),
                                   component->kind, component->api, ctx});
    }
    registry_.loaded_.push_back(std::move(plugin));
  }

  // Options that nobody reads are most likely a typo; a plugin that is absent on this machine explains them,
  // too.
  void NoteUnusedOptions() {
    for (const auto& [name, text] : options_.options_json) {
      if (registry_.Find(name) != nullptr) continue;
      registry_.notes_.push_back("plugins.options." + name +
                                 " has no effect: no plugin of that name is loaded" +
                                 DidYouMean(name, LoadedNames()));
    }
  }

  std::vector<std::string> LoadedNames() const {
    std::vector<std::string> names;
    for (const LoadedPlugin& plugin : registry_.loaded_) names.push_back(plugin.name);
    return names;
  }

  Status CheckRequired() const {
    std::string missing;
    for (const std::string& name : options_.required) {
      if (registry_.Find(name) == nullptr) missing += (missing.empty() ? "" : "\n") + WhyMissing(name);
    }
    return missing.empty() ? Status::Ok() : Status(Code::kNotFound, missing);
  }

  std::string WhyMissing(const std::string& name) const {
    const std::string start = "required plugin \"" + name + "\" ";
    std::string reasons;
    for (const RejectedPlugin& rejected : registry_.rejected_) {
      const bool same_name = rejected.name == name;
      const bool same_file =
          rejected.name.empty() && std::filesystem::path(rejected.path).filename() == "librt_" + name + ".so";
      if (same_name || same_file)
        reasons += (reasons.empty() ? "" : "; ") + rejected.path + ": " + rejected.reason;
    }
    if (!reasons.empty()) return start + "did not load: " + reasons;
    std::string folders;
    for (const std::string& folder : registry_.folders_) folders += (folders.empty() ? "" : ", ") + folder;
    return start + "was not found; looked into: " + (folders.empty() ? "no folder" : folders) +
           DidYouMean(name, LoadedNames());
  }

  const PluginRegistryOptions& options_;
  PluginRegistry& registry_;
  std::string helper_;
};

PluginRegistryOptions PluginRegistryOptions::From(const Config& config) {
  PluginRegistryOptions options;
  options.config_paths = config.plugins.paths;
  options.required = config.plugins.required;
  options.deny = config.plugins.deny;
  options.probe = config.plugins.probe;
  options.probe_timeout =
      std::chrono::milliseconds(static_cast<int64_t>(config.plugins.probe_timeout_s * 1000));
  for (const auto& [plugin, section] : config.plugins.options) options.options_json[plugin] = section.dump();
  return options;
}

Result<std::unique_ptr<PluginRegistry>> PluginRegistry::Load(const PluginRegistryOptions& options) {
  std::unique_ptr<PluginRegistry> registry(new PluginRegistry);
  RT_RETURN_IF_ERROR(RegistryLoader(options, registry.get()).Run());
  return registry;
}

PluginRegistry::~PluginRegistry() {
  for (auto plugin = loaded_.rbegin(); plugin != loaded_.rend(); ++plugin)
    plugin->desc->shutdown(plugin->ctx);
}

const LoadedPlugin* PluginRegistry::Find(const std::string& name) const {
  for (const LoadedPlugin& plugin : loaded_) {
    if (plugin.name == name) return &plugin;
  }
  return nullptr;
}

std::vector<const LoadedComponent*> PluginRegistry::Components(uint32_t kinds) const {
  std::vector<const LoadedComponent*> out;
  for (const LoadedPlugin& plugin : loaded_) {
    for (const LoadedComponent& component : plugin.components) {
      if ((component.kind & kinds) != 0) out.push_back(&component);
    }
  }
  return out;
}

void PluginRegistry::LogSummary() const {
  for (const std::string& note : notes_) spdlog::warn("plugins: {}", note);
  for (const LoadedPlugin& plugin : loaded_) {
    std::string kinds;
    for (const LoadedComponent& component : plugin.components)
      kinds += (kinds.empty() ? "" : ", ") + KindNames(component.kind);
    spdlog::info("plugin {} {} ({}): {} from {}", plugin.name, plugin.version, plugin.vendor, kinds,
                 plugin.path);
    for (const std::string& warning : plugin.warnings) spdlog::warn("plugin {}: {}", plugin.name, warning);
  }
  for (const RejectedPlugin& plugin : rejected_)
    spdlog::warn("plugin file {} not loaded ({}): {}", plugin.path, plugin.stage, plugin.reason);
}

}  // namespace rt
