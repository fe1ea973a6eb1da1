#include "runtime/cli/explain_command.h"

#include "runtime/cli/model_start.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <memory>

namespace rt {
namespace {

struct ExplainOptions {
  ModelOptions model;
  bool program = false;
  bool json = false;
};

void PrintExplanation(const ExplainOptions& options, const Session& session) {
  const std::string program =
      options.program ? DumpProgram(session.program(), session.negotiated().dtypes) : "";
  if (!options.json) {
    std::fputs(session.ExplainText().c_str(), stdout);
    if (options.program) std::printf("\nprogram\n%s", program.c_str());
    return;
  }
  nlohmann::json all = nlohmann::json::parse(session.ExplainJson());
  if (options.program) all["program"] = program;
  std::printf("%s\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

ExitCode RunExplain(const ExplainOptions& options) {
  Result<Config> config = LoadModelConfig(options.model, /*quiet=*/true);
  if (!config.ok()) return Fail(ExitCode::kUsage, config.status());
  ModelStart start(std::move(config).value());
  if (const ExitCode code = start.OpenModel(options.model.plugins); code != ExitCode::kOk) return code;
  if (const ExitCode code = start.Negotiate(); code != ExitCode::kOk) return code;
  PrintExplanation(options, start.session());
  return ExitCode::kOk;
}

}  // namespace

void AddExplainCommand(CLI::App& app, ExitCode* exit_code) {
  auto options = std::make_shared<ExplainOptions>();
  CLI::App* command =
      app.add_subcommand("explain", "show which kernel runs each op of the model, and why; loads no weights");
  AddModelOptions(command, &options->model);
  command->add_flag("--program", options->program, "also show the model's program, op by op");
  command->add_flag("--json", options->json, "print JSON");
  command->callback([options, exit_code] { *exit_code = RunExplain(*options); });
}

}  // namespace rt
