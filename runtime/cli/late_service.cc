#include "runtime/cli/late_service.h"

#include <utility>

namespace rt {

Result<SequenceId> LateService::Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  if (GenerationService* live = engine()) return live->Submit(std::move(request), std::move(sink));
  return {Code::kFailedPrecondition, "the model is still loading"};
}

void LateService::Abort(SequenceId id) {
  if (GenerationService* live = engine()) live->Abort(id);
}

EngineStats LateService::Stats() const {
  const GenerationService* live = engine();
  return live != nullptr ? live->Stats() : EngineStats();
}

bool LateService::Ready() const {
  const GenerationService* live = engine();
  return live != nullptr && live->Ready();
}

void LateService::Drain(std::chrono::steady_clock::time_point deadline) {
  if (GenerationService* live = engine()) live->Drain(deadline);
}

int32_t LateService::max_context_tokens() const {
  const GenerationService* live = engine();
  return live != nullptr ? live->max_context_tokens() : 0;
}

int32_t LateService::vocab_size() const {
  const GenerationService* live = engine();
  return live != nullptr ? live->vocab_size() : 0;
}

}  // namespace rt
