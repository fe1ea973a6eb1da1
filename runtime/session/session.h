// Puts the parts together: configuration -> plugins -> architecture -> program -> negotiation -> weights -> engine. Each stage is a call, so
// that `explain` stops before weights and tests can look at every result.
#pragma once

#include "runtime/config/config.h"
#include "runtime/engine/engine.h"
#include "runtime/executor/device_runner.h"
#include "runtime/negotiation/negotiation.h"
#include "runtime/registry/plugin_registry.h"
#include "runtime/session/arch_files.h"
#include "runtime/weights/checkpoint.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace rt {

// Which part of start-up failed; the CLI maps it to an exit code.
enum class SessionStage { kConfig, kPlugins, kModel, kNegotiation, kWeights, kEngine };

class Session {
 public:
  explicit Session(Config config) : config_(std::move(config)) {}
  ~Session();

  // Loads plugins and opens the device.
  Status LoadPlugins(const std::vector<std::string>& explicit_plugins = {});
  // Resolves the architecture, opens the checkpoint, builds the program.
  Status LoadModel();
  // Chooses kernels, dtypes and layouts. Logs one line per op kind and each finding.
  Status NegotiateKernels();
  // Loads weights and makes the runner.
  Status LoadWeights();
  // Makes the engine and waits until it is ready. `text` (may be null) outlives the session.
  Status StartEngine(TextDecoderFactory* text, std::vector<int32_t> eos_token_ids, const EngineConfig* adjust = nullptr);
  // All of the above but the engine.
  Status Prepare(const std::vector<std::string>& explicit_plugins = {});

  SessionStage stage() const { return stage_; }  // the one running or failed
  const Config& config() const { return config_; }
  const PluginRegistry& plugins() const { return *plugins_; }
  const ArchFile& arch() const { return arch_; }
  const Device& device() const { return device_; }
  const Program& program() const { return runner_ ? runner_->program() : program_; }
  const NegotiationResult& negotiated() const { return runner_ ? runner_->negotiated() : negotiated_; }
  DeviceRunner* runner() { return runner_.get(); }
  Engine* engine() { return engine_.get(); }
  // The whole decision table as text and JSON, with model, device and plugins.
  std::string ExplainText() const;
  std::string ExplainJson() const;
  std::string model_name() const;
  // Ids from here on have no token; set before NegotiateKernels. 0 = all are drawn.
  void set_vocab_limit(int32_t limit) { vocab_limit_ = limit; }
  // Tests: a runner whose cache arena starts with this byte.
  void set_fill_arena_byte(int byte) { fill_arena_byte_ = byte; }
  void set_progress(weights::LoadProgress progress) { progress_ = std::move(progress); }
  EngineConfig DefaultEngineConfig() const;

 private:
  Result<RunnerOptions> Options() const;
  NegotiationPolicy Policy() const;

  Config config_;
  SessionStage stage_ = SessionStage::kConfig;
  std::unique_ptr<PluginRegistry> plugins_;
  Device device_;
  std::vector<KernelProvider> providers_;
  ArchFile arch_;
  std::optional<weights::Checkpoint> checkpoint_;
  uint64_t random_seed_ = 0;
  Program program_;
  NegotiationResult negotiated_;
  Decision sample_, select_ids_;
  std::unique_ptr<DeviceRunner> runner_;
  std::unique_ptr<Engine> engine_;
  int32_t vocab_limit_ = 0;
  int fill_arena_byte_ = -1;
  weights::LoadProgress progress_;
};

}  // namespace rt
