// The engine's output thread: token events in, text deltas to sinks out.
//
// The engine publishes the events of a step in one batch and never waits. Detokenizing and stop strings
// happen here, in the order of events, so a stop string is found by the token that completes it however far
// the engine has run ahead; later tokens of that stream are dropped and the engine is told to abort the
// sequence.
#pragma once

#include "runtime/engine/generation.h"
#include "runtime/engine/text_decoder.h"

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace rt {

// The output side of one sequence. Made by Submit, then used by the output thread alone.
struct OutputStream {
  SequenceId id = 0;
  std::shared_ptr<GenerationSink> sink;
  std::unique_ptr<TextDecoder> decoder;  // null: ids only
  std::vector<std::string> stop_strings;
  bool want_logprobs = false;
  bool include_stop_text = false;  // the text of a stop token is shown
  int32_t min_tokens = 0;
  int32_t num_prompt_tokens = 0;

  int32_t num_output_tokens = 0;
  bool done = false;  // the final delta is out
};

struct OutputEvent {
  OutputStream* stream = nullptr;  // alive until its event with `last`
  int32_t token_id = -1;           // -1: no token in this event
  bool is_stop_token = false;
  float logprob = 0.0f;
  std::vector<std::pair<int32_t, float>> top;
  std::optional<FinishReason> finish;
  Status error;
  std::shared_ptr<OutputStream>
      last;  // set with `finish`: the engine's reference, no event of this stream follows
};

class OutputProcessor {
 public:
  struct Callbacks {
    // A stop string matched: generating more is useless. Output thread.
    std::function<void(SequenceId)> stop_matched;
    // The final delta of a stream has been delivered. Output thread.
    std::function<void(SequenceId)> stream_done;
  };

  explicit OutputProcessor(Callbacks callbacks);
  // Delivers what was published, then stops the thread.
  ~OutputProcessor();

  // Takes all events out of `events` (its capacity is recycled). Engine thread.
  void Publish(std::vector<OutputEvent>* events);

 private:
  void Run();
  void Handle(OutputEvent* event);

  Callbacks callbacks_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<OutputEvent> queue_;
  bool sleeping_ = false;
  bool stopping_ = false;
  std::thread thread_;  // last member: starts when all others exist
};

}  // namespace rt
