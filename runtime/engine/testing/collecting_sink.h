// A sink that keeps what it gets and lets a test wait for the end.
#pragma once

#include "runtime/engine/generation.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

namespace rt {

class CollectingSink : public GenerationSink {
 public:
  struct Answer {
    std::vector<int32_t> token_ids;
    std::vector<TokenLogprob> logprobs;
    std::string text;
    GenerationDelta last;   // the delta that had a finish reason
    int num_finals = 0;     // deltas with a finish reason
    int num_after_end = 0;  // deltas after the first of them
  };

  void OnDelta(GenerationDelta delta) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (answer_.num_finals > 0) ++answer_.num_after_end;
    answer_.token_ids.insert(answer_.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
    answer_.logprobs.insert(answer_.logprobs.end(), delta.logprobs.begin(), delta.logprobs.end());
    answer_.text += delta.text;
    if (delta.finish_reason) {
      ++answer_.num_finals;
      answer_.last = std::move(delta);
    }
    changed_.notify_all();
  }

  // The whole answer. Fails the wait (num_finals stays 0) after a time no healthy test needs.
  Answer Wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kPatience, [this] { return answer_.num_finals > 0; });
    return answer_;
  }
  // Waits until at least `n` tokens or the end have arrived.
  void WaitForTokens(size_t n) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kPatience,
                      [&] { return answer_.num_finals > 0 || answer_.token_ids.size() >= n; });
  }
  Answer Now() {
    std::lock_guard<std::mutex> lock(mutex_);
    return answer_;
  }

 private:
  static constexpr std::chrono::seconds kPatience{60};
  std::mutex mutex_;
  std::condition_variable changed_;
  Answer answer_;
};

}  // namespace rt
