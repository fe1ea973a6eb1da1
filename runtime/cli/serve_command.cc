#include "runtime/cli/serve_command.h"

#include "runtime/cli/late_service.h"
#include "runtime/cli/model_start.h"
#include "runtime/cli/stop_signal.h"
#include "runtime/server/server.h"
#include "runtime/weights/progress.h"

#ifdef RT_HAVE_TEXT
#include "runtime/server/tokenizer_text_service.h"
#endif

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <set>

namespace rt {
namespace {

using std::chrono::steady_clock;

std::chrono::milliseconds Milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

server::ServerConfig ServerConfigOf(const Session& session, const TextStack& text) {
  const Config::Server& from = session.config().server;
  server::ServerConfig config;
  config.host = from.host;
  config.port = static_cast<uint16_t>(from.port);
  config.model_name = session.model_name();
  config.default_sampling = text.default_sampling();
  config.no_text_reason = text.no_text_reason();
  config.max_connections = static_cast<int32_t>(from.max_connections);
  config.max_body_bytes = static_cast<size_t>(from.max_body_bytes);
  config.header_timeout = Milliseconds(from.header_timeout_s);
  config.idle_timeout = Milliseconds(from.idle_timeout_s);
  return config;
}

// Null without a tokenizer. Starts the chat template's child; without it completions work and chat says what
// is missing.
std::unique_ptr<server::TextService> TextServiceOf([[maybe_unused]] TextStack* text) {
#ifdef RT_HAVE_TEXT
  if (!text->has_text()) {
    spdlog::warn("text: {}", text->no_text_reason());
    return nullptr;
  }
  const auto chat = text->Chat();
  if (!chat.ok()) spdlog::warn("chat: {}", chat.status().message());
  return std::make_unique<server::TokenizerTextService>(text->tokenizer(), chat.ok() ? *chat : nullptr,
                                                        chat.status());
#else
  spdlog::warn("text: {}", text->no_text_reason());
  return nullptr;
#endif
}

// What GET /v1/runtime/kernels and the metrics say of the negotiation; empty before it. Thread-safe.
class KernelReport {
 public:
  void Publish(const Session& session) {
    std::vector<KernelLabels> labels;
    std::set<KernelLabels> seen;  // problems of other shapes may share everything the labels tell
    for (const Decision& decision : session.negotiated().decisions) {
      if (decision.chosen < 0) continue;
      const Candidate& chosen = decision.candidates[static_cast<size_t>(decision.chosen)];
      KernelLabels one = {{"op", decision.op},
                          {"phase", ops::PhaseName(decision.phase)},
                          {"kernel", chosen.kernel},
                          {"plugin", chosen.plugin},
                          {"requested", decision.requested}};
      if (seen.insert(one).second) labels.push_back(std::move(one));
    }
    std::string json = session.ExplainJson();
    const std::lock_guard lock(mutex_);
    json_ = std::move(json);
    labels_ = std::move(labels);
  }
  std::string Json() const {
    const std::lock_guard lock(mutex_);
    return json_;
  }
  std::vector<KernelLabels> Labels() const {
    const std::lock_guard lock(mutex_);
    return labels_;
  }

 private:
  mutable std::mutex mutex_;
  std::string json_ = "{}";
  std::vector<KernelLabels> labels_;
};

class ServeRun {
 public:
  ServeRun(Config config, const std::vector<std::string>& plugins)
      : plugins_(plugins), start_(std::move(config)) {}

  ExitCode Run() {
    for (const auto& step : {&ServeRun::Listen, &ServeRun::Load}) {
      if (const ExitCode code = (this->*step)(); code != ExitCode::kOk) return code;
    }
    stop_.Started();
    stop_.Wait();
    const double patience_s = start_.session().config().server.drain_timeout_s;
    spdlog::info("stopping: running requests have {:g} s; a second signal stops at once", patience_s);
    server_->Drain(steady_clock::now() + Milliseconds(patience_s));
    server_->Stop();
    spdlog::info("stopped");
    return ExitCode::kOk;
  }

 private:
  // The text side and the socket, in well under a second for most models.
  ExitCode Listen() {
    if (const ExitCode code = start_.LoadText(); code != ExitCode::kOk) return code;
    text_service_ = TextServiceOf(&start_.text());
    server::ServerCallbacks callbacks;
    callbacks.kernels_json = [this] { return report_.Json(); };
    callbacks.kernel_labels = [this] { return report_.Labels(); };
    server_ = std::make_unique<server::Server>(ServerConfigOf(start_.session(), start_.text()), &service_,
                                               text_service_.get(), std::move(callbacks));
    if (const Status status = server_->Start(); !status.ok()) {
      // A taken port is nothing to install.
      const bool wrong_host = status.code() == Code::kInvalidArgument;
      return Fail(wrong_host ? ExitCode::kUsage : ExitCode::kFailed,
                  {Code::kFailedPrecondition, status.message()});
    }
    std::printf("listening on %s\n", Url().c_str());
    std::fflush(stdout);
    return ExitCode::kOk;
  }

  ExitCode Load() {
    const steady_clock::time_point begin = steady_clock::now();
    if (const ExitCode code = start_.OpenModel(plugins_); code != ExitCode::kOk) return code;
    if (const ExitCode code = start_.Negotiate(); code != ExitCode::kOk) return code;
    report_.Publish(start_.session());
    start_.session().set_progress(weights::MakeProgressWriter("loading weights", STDERR_FILENO));
    if (const ExitCode code = start_.LoadWeights(); code != ExitCode::kOk) return code;
    if (const ExitCode code = start_.StartEngine(); code != ExitCode::kOk) return code;
    service_.Attach(start_.session().engine());
    const double seconds = std::chrono::duration<double>(steady_clock::now() - begin).count();
    std::printf("ready: %s at %s/v1 after %.2f s\n", start_.session().model_name().c_str(), Url().c_str(),
                seconds);
    std::fflush(stdout);
    return ExitCode::kOk;
  }

  std::string Url() {
    const std::string& host = start_.session().config().server.host;
    const bool ipv6 = host.find(':') != std::string::npos;
    return fmt::format("http://{}{}{}:{}", ipv6 ? "[" : "", host, ipv6 ? "]" : "", server_->port());
  }

  const std::vector<std::string>& plugins_;
  StopSignal stop_;  // first: its mask goes to all threads
  KernelReport report_;
  LateService service_;
  ModelStart start_;
  std::unique_ptr<server::TextService> text_service_;
  std::unique_ptr<server::Server> server_;  // last: it ends before what it uses
};

ExitCode RunServe(const ModelOptions& options) {
  Result<Config> config = LoadModelConfig(options, /*quiet=*/false);
  if (!config.ok()) return Fail(ExitCode::kUsage, config.status());
  return ServeRun(std::move(config).value(), options.plugins).Run();
}

}  // namespace

void AddServeCommand(CLI::App& app, ExitCode* exit_code) {
  auto options = std::make_shared<ModelOptions>();
  CLI::App* command =
      app.add_subcommand("serve", "serve the model over HTTP (OpenAI-compatible) until SIGTERM");
  AddModelOptions(command, options.get());
  command->callback([options, exit_code] { *exit_code = RunServe(*options); });
}

}  // namespace rt
