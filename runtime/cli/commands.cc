#include "runtime/cli/commands.h"

namespace rt {

void AddConfigOptions(CLI::App* command, ConfigOptions* options) {
  command->add_option("--config", options->file, "configuration file (YAML)")->type_name("FILE");
  command
      ->add_option("--set", options->overrides,
                   "set a configuration key; wins over the file; may be repeated")
      ->type_name("KEY=VALUE")
      ->type_size(1)
      ->allow_extra_args(false);
}

void AddPluginOption(CLI::App* command, std::vector<std::string>* paths) {
  command->add_option("--plugin", *paths, "plugin file or folder, before all others; may be repeated")
      ->type_name("PATH")
      ->type_size(1)
      ->allow_extra_args(false);
}

Result<Config> LoadConfig(const ConfigOptions& options) {
  return Config::Load(options.file, options.overrides);
}

}  // namespace rt
