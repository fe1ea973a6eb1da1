// The engine as the HTTP server sees it before there is one: the server starts first, so that health checks
// are answered while the model loads.
#pragma once

#include "runtime/engine/generation.h"

#include <atomic>

namespace rt {

// Not ready, and refuses, until the engine is attached; then the engine.
class LateService : public GenerationService {
 public:
  // `engine` is ready, and outlives all calls.
  void Attach(GenerationService* engine) { engine_.store(engine, std::memory_order_release); }

  Result<SequenceId> Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  void Abort(SequenceId id) override;
  EngineStats Stats() const override;
  bool Ready() const override;
  void Drain(std::chrono::steady_clock::time_point deadline) override;
  int32_t max_context_tokens() const override;
  int32_t vocab_size() const override;

 private:
  GenerationService* engine() const { return engine_.load(std::memory_order_acquire); }

  std::atomic<GenerationService*> engine_{nullptr};
};

}  // namespace rt
