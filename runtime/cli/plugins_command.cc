#include "runtime/cli/plugins_command.h"

#include "runtime/registry/plugin_report.h"

#include <cstdio>
#include <memory>

namespace rt {
namespace {

struct ListOptions {
  ConfigOptions config;
  std::vector<std::string> plugins;
  bool json = false;
};

struct InspectCommandOptions {
  std::vector<std::string> files;
  bool only_static = false;
  bool json = false;
};

void Print(const nlohmann::json& value) {
  std::printf("%s\n", value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

ExitCode RunList(const ListOptions& options) {
  const Result<Config> config = LoadConfig(options.config);
  if (!config.ok()) return Fail(ExitCode::kUsage, config.status());
  PluginRegistryOptions registry_options = PluginRegistryOptions::From(*config);
  registry_options.explicit_paths = options.plugins;
  const std::vector<std::string> required = std::move(registry_options.required);
  registry_options.required.clear();  // list shows everything first
  const Result<std::unique_ptr<PluginRegistry>> registry = PluginRegistry::Load(registry_options);
  if (!registry.ok()) return Fail(ExitCode::kPlugin, registry.status());
  const nlohmann::json list = PluginListJson(**registry);
  if (options.json)
    Print(list);
  else
    std::fputs(PluginListText(list).c_str(), stdout);
  for (const std::string& name : required) {
    if ((*registry)->Find(name) == nullptr)
      return Fail(ExitCode::kPlugin, {Code::kNotFound, "required plugin \"" + name + "\" did not load"});
  }
  return ExitCode::kOk;
}

ExitCode RunInspect(const InspectCommandOptions& options) {
  ExitCode exit_code = ExitCode::kOk;
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& file : options.files) {
    InspectOptions inspect;
    inspect.run = !options.only_static;
    const nlohmann::json inspection = InspectPlugin(file, inspect);
    if (inspection["verdict"] != "ok") exit_code = ExitCode::kPlugin;
    if (options.json)
      all.push_back(inspection);
    else
      std::printf("%s%s", &file == &options.files.front() ? "" : "\n", InspectText(inspection).c_str());
  }
  if (options.json) Print(all);
  return exit_code;
}

}  // namespace

void AddPluginsCommand(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command = app.add_subcommand("plugins", "list plugins, or inspect plugin files");
  command->require_subcommand(1);

  auto list_options = std::make_shared<ListOptions>();
  CLI::App* list = command->add_subcommand(
      "list", "load plugins as `serve` would; show what loaded and why others did not");
  AddConfigOptions(list, &list_options->config);
  AddPluginOption(list, &list_options->plugins);
  list->add_flag("--json", list_options->json, "print JSON");
  list->callback([list_options, exit_code] { *exit_code = RunList(*list_options); });

  auto inspect_options = std::make_shared<InspectCommandOptions>();
  CLI::App* inspect = command->add_subcommand("inspect", "show everything a plugin file says about itself");
  inspect->add_option("files", inspect_options->files, "plugin files")->required()->type_name("FILE");
  inspect->add_flag("--static", inspect_options->only_static,
                    "run no code of the plugin (without devices and rows)");
  inspect->add_flag("--json", inspect_options->json, "print JSON");
  inspect->callback([inspect_options, exit_code] { *exit_code = RunInspect(*inspect_options); });
}

}  // namespace rt
