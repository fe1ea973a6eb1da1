// Between the engine's output thread and one HTTP response: deltas of a sequence that have not been taken yet are merged
// into one, so a slow client costs the engine nothing and memory no more than the answer itself.
#pragma once

#include "runtime/engine/generation.h"

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace rt::server {

// Appends `next` to `into`; counts and the finish are those of `next`.
void MergeDelta(GenerationDelta next, GenerationDelta* into);

class DeltaMailbox : public std::enable_shared_from_this<DeltaMailbox> {
 public:
  using Clock = std::chrono::steady_clock;

  struct News {
    size_t index;  // of the sequence
    GenerationDelta delta;
  };

  // `wake` is called on the engine's thread, under the mailbox's lock, when news arrive after a Take(): it must neither
  // block nor call back.
  DeltaMailbox(size_t num_sequences, std::function<void()> wake);

  // The sink of sequence `index`; keeps the mailbox alive.
  std::shared_ptr<GenerationSink> SinkFor(size_t index);

  // What arrived since the last call, at most one entry a sequence, by index.
  std::vector<News> Take();

  // All sequences have sent their last delta (which may still wait to be taken). State, not an event: cannot be lost.
  bool AllFinished() const;

  // No more wakes once this has returned; later deltas are dropped.
  void Detach();

  std::optional<Clock::time_point> first_token_time() const;

 private:
  class Sink;

  void Put(size_t index, GenerationDelta delta);

  mutable std::mutex mutex_;
  std::function<void()> wake_;  // empty: detached
  bool has_news_ = false;
  size_t num_unfinished_;
  std::optional<Clock::time_point> first_token_time_;
  std::vector<std::optional<GenerationDelta>> pending_;  // by sequence
};

}  // namespace rt::server
