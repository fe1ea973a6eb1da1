// A GenerationService for tests of the server: echoes prompts token by token from its own thread, or plays what the test
// says, delta by delta.
#pragma once

#include "runtime/engine/generation.h"

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace rt::server {

class FakeGenerationService : public GenerationService {
 public:
  static constexpr int32_t kContextTokens = 100000;
  static constexpr int32_t kVocabSize = 256;
  static constexpr std::chrono::seconds kPatience{20};

  // kEcho: a sequence says its prompt (one token a turn, text = the byte) and stops, or goes round with ignore_eos until
  // max_tokens. kManual: Emit() says what the test wants.
  enum class Mode { kEcho, kManual };
  explicit FakeGenerationService(Mode mode);
  ~FakeGenerationService() override;

  Result<SequenceId> Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override;
  void Abort(SequenceId id) override;
  EngineStats Stats() const override;
  bool Ready() const override;
  void Drain(std::chrono::steady_clock::time_point deadline) override;
  int32_t max_context_tokens() const override { return kContextTokens; }
  int32_t vocab_size() const override { return kVocabSize; }

  // ---- for tests ----
  void SetReady(bool ready);
  // The next `after` sequences are accepted, later ones are refused with `status`.
  void RefuseAfter(int after, Status status);
  // Waits until `count` sequences have been submitted in all; the requests in order. Ids are 1, 2, ….
  std::vector<GenerationRequest> WaitForSubmissions(size_t count);
  void Emit(SequenceId id, GenerationDelta delta);
  // Waits until `count` sequences have been aborted while they ran.
  bool WaitForAborts(size_t count);
  size_t num_active() const;

 private:
  struct Active {
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
    int32_t num_output_tokens = 0;
    bool aborted = false;
  };

  GenerationDelta NextEcho(Active& active) const;
  void EchoLoop();

  const Mode mode_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool ready_ = true;
  bool draining_ = false;
  bool stopping_ = false;
  int accept_ = -1;  // -1: all
  Status refusal_;
  std::vector<GenerationRequest> submitted_;
  std::map<SequenceId, Active> active_;
  std::set<SequenceId> aborted_;
  EngineStats stats_;
  std::thread echo_thread_;
};

}  // namespace rt::server
