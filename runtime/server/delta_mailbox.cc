#include "runtime/server/delta_mailbox.h"

#include <iterator>
#include <utility>

namespace rt::server {
namespace {

template <typename T>
void Append(std::vector<T> from, std::vector<T>* to) {
  to->insert(to->end(), std::make_move_iterator(from.begin()), std::make_move_iterator(from.end()));
}

}  // namespace

void MergeDelta(GenerationDelta next, GenerationDelta* into) {
  into->text += next.text;
  Append(std::move(next.token_ids), &into->token_ids);
  Append(std::move(next.logprobs), &into->logprobs);
  into->finish_reason = next.finish_reason;
  into->stop_string = std::move(next.stop_string);
  into->error = std::move(next.error);
  into->num_prompt_tokens = next.num_prompt_tokens;
  into->num_output_tokens = next.num_output_tokens;
  into->num_cached_prompt_tokens = next.num_cached_prompt_tokens;
}

class DeltaMailbox::Sink : public GenerationSink {
 public:
  Sink(std::shared_ptr<DeltaMailbox> mailbox, size_t index) : mailbox_(std::move(mailbox)), index_(index) {}
  void OnDelta(GenerationDelta delta) override { mailbox_->Put(index_, std::move(delta)); }

 private:
  const std::shared_ptr<DeltaMailbox> mailbox_;
  const size_t index_;
};

DeltaMailbox::DeltaMailbox(size_t num_sequences, std::function<void()> wake)
    : wake_(std::move(wake)), num_unfinished_(num_sequences), pending_(num_sequences) {}

std::shared_ptr<GenerationSink> DeltaMailbox::SinkFor(size_t index) {
  return std::make_shared<Sink>(shared_from_this(), index);
}

void DeltaMailbox::Put(size_t index, GenerationDelta delta) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (delta.finish_reason) --num_unfinished_;
  if (!delta.token_ids.empty() && !first_token_time_) first_token_time_ = Clock::now();
  if (!wake_) return;
  if (pending_[index]) {
    MergeDelta(std::move(delta), &*pending_[index]);
  } else {
    pending_[index] = std::move(delta);
  }
  if (!std::exchange(has_news_, true)) wake_();
}

std::vector<DeltaMailbox::News> DeltaMailbox::Take() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<News> news;
  for (size_t i = 0; i < pending_.size(); ++i) {
    if (!pending_[i]) continue;
    news.push_back({i, *std::move(pending_[i])});
    pending_[i].reset();
  }
  has_news_ = false;
  return news;
}

bool DeltaMailbox::AllFinished() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_unfinished_ == 0;
}

void DeltaMailbox::Detach() {
  std::lock_guard<std::mutex> lock(mutex_);
  wake_ = nullptr;
  for (auto& delta : pending_) delta.reset();
}

std::optional<DeltaMailbox::Clock::time_point> DeltaMailbox::first_token_time() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return first_token_time_;
}

}  // namespace rt::server
