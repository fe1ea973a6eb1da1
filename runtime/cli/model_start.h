// What the commands that load a model share: options, log, text stack, and which exit code a failed stage
// gives.
#pragma once

#include "runtime/cli/commands.h"
#include "runtime/cli/session_exit.h"
#include "runtime/session/session.h"
#include "runtime/session/text_stack.h"

#include <string>
#include <vector>

namespace rt {

struct ModelOptions {
  ConfigOptions config;
  std::vector<std::string> plugins;
};

// --config, --set, --plugin.
void AddModelOptions(CLI::App* command, ModelOptions* options);

// Configuration with a model, and the process log set up by it. `quiet`: warnings only, unless the user set
// log.level.
Result<Config> LoadModelConfig(const ModelOptions& options, bool quiet);

// A text stack and a session on it, brought up stage by stage. Each call prints its failure and gives its
// exit code.
class ModelStart {
 public:
  explicit ModelStart(Config config) : session_(std::move(config)) {}

  // The text stack alone; OpenModel does it if it has not been done.
  ExitCode LoadText();
  // Text stack, plugins, architecture, checkpoint index, program.
  ExitCode OpenModel(const std::vector<std::string>& plugins);
  ExitCode Negotiate() { return Check(session_.NegotiateKernels()); }
  ExitCode LoadWeights() { return Check(session_.LoadWeights()); }
  ExitCode StartEngine() { return Check(session_.StartEngine(text_->decoder_factory(), text_->eos_ids())); }

  TextStack& text() { return *text_; }
  Session& session() { return session_; }

 private:
  ExitCode Check(const Status& status) const;

  std::unique_ptr<TextStack> text_;  // outlives the session
  Session session_;
};

}  // namespace rt
