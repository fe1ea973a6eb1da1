#include "runtime/cli/model_start.h"

#include "runtime/observe/log.h"

namespace rt {

void AddModelOptions(CLI::App* command, ModelOptions* options) {
  AddConfigOptions(command, &options->config);
  AddPluginOption(command, &options->plugins);
}

Result<Config> LoadModelConfig(const ModelOptions& options, bool quiet) {
  RT_ASSIGN_OR_RETURN(Config config, LoadConfig(options.config));
  const bool lower = quiet && !config.IsSet("log.level");
  RT_RETURN_IF_ERROR(InitLogging({lower ? "warn" : config.log.level, config.log.format}));
  if (config.model.path.empty()) {
    return {
        Code::kInvalidArgument,
        "model.path: expected a model folder, found nothing; give --config FILE or --set model.path=FOLDER"};
  }
  return config;
}

ExitCode ModelStart::LoadText() {
  auto text = TextStack::Load(session_.config());
  if (!text.ok()) return Fail(ExitCode::kCheckpoint, text.status());
  text_ = std::move(text).value();
  session_.set_vocab_limit(text_->vocab_limit());
  return ExitCode::kOk;
}

ExitCode ModelStart::OpenModel(const std::vector<std::string>& plugins) {
  if (text_ == nullptr) {
    if (const ExitCode code = LoadText(); code != ExitCode::kOk) return code;
  }
  if (const ExitCode code = Check(session_.LoadPlugins(plugins)); code != ExitCode::kOk) return code;
  return Check(session_.LoadModel());
}

ExitCode ModelStart::Check(const Status& status) const {
  return status.ok() ? ExitCode::kOk : Fail(StageExitCode(session_.stage()), status);
}

}  // namespace rt
