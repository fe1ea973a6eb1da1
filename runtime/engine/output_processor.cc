#include "runtime/engine/output_processor.h"

#include <iterator>
#include <utility>

namespace rt {

OutputProcessor::OutputProcessor(Callbacks callbacks)
    : callbacks_(std::move(callbacks)), thread_([this] { Run(); }) {}

OutputProcessor::~OutputProcessor() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void OutputProcessor::Publish(std::vector<OutputEvent>* events) {
  if (events->empty()) return;
  bool wake = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (queue_.empty()) {
      queue_.swap(*events);
    } else {
      queue_.insert(queue_.end(), std::make_move_iterator(events->begin()),
                    std::make_move_iterator(events->end()));
    }
    wake = std::exchange(sleeping_, false);
  }
  events->clear();
  if (wake) wake_.notify_one();
}

void OutputProcessor::Run() {
  std::vector<OutputEvent> batch;
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    while (queue_.empty() && !stopping_) {
      sleeping_ = true;
      wake_.wait(lock);
    }
    sleeping_ = false;
    if (queue_.empty()) return;
    batch.swap(queue_);
    lock.unlock();
    for (OutputEvent& event : batch) Handle(&event);
    batch.clear();
    lock.lock();
  }
}

void OutputProcessor::Handle(OutputEvent* event) {
  OutputStream& stream = *event->stream;
  if (stream.done) return;
  GenerationDelta delta;
  int32_t stop_index = -1;
  if (event->token_id >= 0) {
    ++stream.num_output_tokens;
    delta.token_ids.push_back(event->token_id);
    if (stream.want_logprobs)
      delta.logprobs.push_back({event->token_id, event->logprob, std::move(event->top)});
    if (stream.decoder && (!event->is_stop_token || stream.include_stop_text))
      stop_index =
          stream.decoder->Push(event->token_id, stream.num_output_tokens > stream.min_tokens, &delta.text);
  }
  delta.finish_reason = event->finish;
  delta.error = std::move(event->error);
  const bool engine_goes_on = !event->finish.has_value();
  if (stop_index >= 0) {
    delta.finish_reason = FinishReason::kStop;
    delta.stop_string = stream.stop_strings[static_cast<size_t>(stop_index)];
    delta.error = Status::Ok();
  } else if (delta.finish_reason && stream.decoder) {
    stream.decoder->Finish(&delta.text);
  }
  delta.num_prompt_tokens = stream.num_prompt_tokens;
  delta.num_output_tokens = stream.num_output_tokens;
  stream.done = delta.finish_reason.has_value();
  const bool done = stream.done;
  const SequenceId id = stream.id;
  const std::shared_ptr<GenerationSink> sink = done ? std::move(stream.sink) : stream.sink;
  sink->OnDelta(std::move(delta));
  if (stop_index >= 0 && engine_goes_on) callbacks_.stop_matched(id);
  if (done) callbacks_.stream_done(id);
}

}  // namespace rt
