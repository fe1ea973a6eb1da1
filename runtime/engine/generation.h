// What a front end (server, CLI, bench) asks of the engine and gets back. Token ids in, text and ids out.
#pragma once

#include <rt/plugin/status.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace rt {

// How the next token is drawn. Order of effects: penalties, bias, temperature, top-k, top-p, min-p.
struct SamplingParams {
  float temperature = 1.0f;         // 0 = greedy (first maximum wins); >= 0
  int32_t top_k = 0;                // 0 = off
  float top_p = 1.0f;               // (0, 1]; 1 = off
  float min_p = 0.0f;               // [0, 1]; 0 = off
  float presence_penalty = 0.0f;    // subtracted once from each token already generated
  float frequency_penalty = 0.0f;   // subtracted count times
  float repetition_penalty = 1.0f;  // > 0; divides positive and multiplies negative logits of prompt and output tokens
  std::optional<uint64_t> seed;     // same seed, same prompt, same parameters: same tokens, whatever else runs
  std::vector<std::pair<int32_t, float>> logit_bias;
  int32_t num_logprobs = -1;        // -1 = none, 0 = of the chosen token, n = and of the n best; <= 20
};

struct StopConditions {
  int32_t max_tokens = 0;  // > 0; the engine refuses prompt + max_tokens above the context length
  int32_t min_tokens = 0;  // stop tokens are not sampled before
  std::vector<std::string> stop_strings;
  std::vector<int32_t> stop_token_ids;  // beside the model's own end tokens
  bool ignore_eos = false;              // the model's end tokens do not stop; stop_token_ids still do
  bool include_stop_string = false;
};

enum class FinishReason { kStop, kLength, kAbort, kError };
const char* FinishReasonName(FinishReason reason);  // "stop", "length", "abort", "error"

struct GenerationRequest {
  std::string request_id;           // for logs and metrics
  std::vector<int32_t> prompt_ids;  // not empty
  SamplingParams sampling;
  StopConditions stop;
  bool want_text = true;            // false: ids only, no detokenizer needed
  bool skip_special_tokens = true;  // special tokens do not appear in text
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;  // natural log, of the raw distribution (before penalties and temperature)
  std::vector<std::pair<int32_t, float>> top;  // best first
};

// One increment of one sequence. Deltas of a sequence arrive in order; exactly one has finish_reason set, and it is the last.
struct GenerationDelta {
  std::string text;                 // complete UTF-8; may be empty while a character or a stop string is incomplete
  std::vector<int32_t> token_ids;   // tokens behind this increment (text may lag)
  std::vector<TokenLogprob> logprobs;
  std::optional<FinishReason> finish_reason;
  std::optional<std::string> stop_string;  // which one matched
  Status error;                            // with kError: why
  int32_t num_prompt_tokens = 0;
  int32_t num_output_tokens = 0;
  int32_t num_cached_prompt_tokens = 0;    // served from the prefix cache
};

// Called from the engine's output thread: must not block and must not throw. Alive until its last delta.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void OnDelta(GenerationDelta delta) = 0;
};

using SequenceId = uint64_t;

// KV blocks and state slots share one arena: a total is what the arena holds if all of it serves that kind, free is what
// could be handed out now. Idle, free equals total for both.
struct EngineStats {
  int64_t kv_blocks_total = 0, kv_blocks_free = 0;
  int64_t state_slots_total = 0, state_slots_free = 0;
  int64_t cache_bytes = 0;           // of the arena
  int64_t cache_stranded_bytes = 0;  // free, but only for the kind whose slab they lie in
  int64_t requests_running = 0, requests_waiting = 0;
  int64_t prompt_tokens_total = 0, output_tokens_total = 0;
  int64_t preemptions_total = 0;
  int64_t ledger_violations_total = 0;   // must stay 0
  int64_t builds_after_ready_total = 0;  // must stay 0
  int64_t steps_total = 0;
  int64_t engine_overhead_ns_total = 0;  // time of a step outside the device: scheduling, metadata, bookkeeping
};

// Thread-safe front door of the engine.
class GenerationService {
 public:
  virtual ~GenerationService() = default;
  // Queues one sequence. InvalidArgument names the parameter; ResourceExhausted: queue full; FailedPrecondition: draining.
  virtual Result<SequenceId> Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) = 0;
  // Idempotent, any phase. The sink still gets its final delta (kAbort).
  virtual void Abort(SequenceId id) = 0;
  virtual EngineStats Stats() const = 0;
  virtual bool Ready() const = 0;
  // No new sequences; returns when all are finished or `deadline` has passed (then the rest is aborted).
  virtual void Drain(std::chrono::steady_clock::time_point deadline) = 0;
  virtual int32_t max_context_tokens() const = 0;
  virtual int32_t vocab_size() const = 0;
};

}  // namespace rt
