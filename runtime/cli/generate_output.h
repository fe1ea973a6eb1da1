// Collects what the engine sends for the prompts of `runtime generate`, and prints it as text or JSON.
#pragma once

#include "runtime/engine/generation.h"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace rt {

using GenerateClock = std::chrono::steady_clock;

// Everything one prompt gave.
struct Generation {
  std::string text;
  std::vector<int32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  GenerationDelta last;  // the one with finish_reason
  GenerateClock::time_point submitted, first_token, finished;

  void Add(GenerationDelta delta, GenerateClock::time_point when);
  bool done() const { return last.finish_reason.has_value(); }
};

// Deltas of all prompts in the order they came. Push: engine's output thread; Take: the command's.
class DeltaInbox {
 public:
  struct Entry {
    size_t prompt_idx = 0;
    GenerationDelta delta;
    GenerateClock::time_point when;
  };

  void Push(size_t prompt_idx, GenerationDelta delta);
  // Waits for at least one.
  std::vector<Entry> Take();
  // A sink that pushes here; the inbox outlives it.
  std::shared_ptr<GenerationSink> SinkOf(size_t prompt_idx);

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Entry> entries_;
};

struct GenerateRates {
  double load_s = 0;         // from the start of the command until the engine was ready
  double first_token_s = 0;  // from submission to the last prompt's first token
  double decode_s = 0;       // from the first prompt's first token to the end
  double prefill_tokens_per_s = 0;
  double decode_tokens_per_s = 0;
};
// Over all prompts; a rate of nothing is 0.
GenerateRates Rates(const std::vector<Generation>& generations, double load_s);

// One prompt's answer as docs/cli.md describes it. `has_text` false: text is null.
nlohmann::ordered_json GenerationJson(const Generation& generation, size_t prompt_idx, bool has_text,
                                      double load_s);

// "1,2,3".
std::string JoinIds(const std::vector<int32_t>& ids);

}  // namespace rt
