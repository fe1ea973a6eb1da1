#include "runtime/server/fake_generation_service.h"

#include <utility>

namespace rt::server {

FakeGenerationService::FakeGenerationService(Mode mode) : mode_(mode) {
  if (mode_ == Mode::kEcho) echo_thread_ = std::thread([this] { EchoLoop(); });
}

FakeGenerationService::~FakeGenerationService() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (echo_thread_.joinable()) echo_thread_.join();
}

Result<SequenceId> FakeGenerationService::Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (draining_) return Status(Code::kFailedPrecondition, "draining");
  if (accept_ == 0) return refusal_;
  if (accept_ > 0) --accept_;
  submitted_.push_back(request);
  const SequenceId id = submitted_.size();
  stats_.prompt_tokens_total += static_cast<int64_t>(request.prompt_ids.size());
  active_[id] = {std::move(request), std::move(sink), 0, false};
  changed_.notify_all();
  return id;
}

void FakeGenerationService::Abort(SequenceId id) {
  std::shared_ptr<GenerationSink> sink;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = active_.find(id);
    if (found == active_.end() || found->second.aborted) return;
    found->second.aborted = true;
    aborted_.insert(id);
    if (mode_ == Mode::kManual) {
      sink = found->second.sink;
      active_.erase(found);
    }
  }
  changed_.notify_all();
  if (!sink) return;  // the echo thread says it
  GenerationDelta last;
  last.finish_reason = FinishReason::kAbort;
  sink->OnDelta(std::move(last));
}

EngineStats FakeGenerationService::Stats() const {
  std::lock_guard<std::mutex> lock(mutex_);
  EngineStats stats = stats_;
  stats.requests_running = static_cast<int64_t>(active_.size());
  stats.kv_blocks_total = 64;
  return stats;
}

bool FakeGenerationService::Ready() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return ready_;
}

void FakeGenerationService::Drain(std::chrono::steady_clock::time_point deadline) {
  std::vector<SequenceId> left;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    draining_ = true;
    changed_.wait_until(lock, deadline, [this] { return active_.empty(); });
    for (const auto& [id, active] : active_) left.push_back(id);
  }
  for (const SequenceId id : left) Abort(id);
}

void FakeGenerationService::SetReady(bool ready) {
  std::lock_guard<std::mutex> lock(mutex_);
  ready_ = ready;
}

void FakeGenerationService::RefuseAfter(int after, Status status) {
  std::lock_guard<std::mutex> lock(mutex_);
  accept_ = after;
  refusal_ = std::move(status);
}

std::vector<GenerationRequest> FakeGenerationService::WaitForSubmissions(size_t count) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, kPatience, [&] { return submitted_.size() >= count; });
  return submitted_;
}

void FakeGenerationService::Emit(SequenceId id, GenerationDelta delta) {
  std::shared_ptr<GenerationSink> sink;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = active_.find(id);
    if (found == active_.end()) return;
    sink = found->second.sink;
    if (delta.finish_reason) active_.erase(found);
  }
  changed_.notify_all();
  sink->OnDelta(std::move(delta));
}

bool FakeGenerationService::WaitForAborts(size_t count) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return aborted_.size() >= count; });
}

size_t FakeGenerationService::num_active() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return active_.size();
}

GenerationDelta FakeGenerationService::NextEcho(Active& active) const {
  GenerationDelta delta;
  const GenerationRequest& request = active.request;
  const auto num_prompt_tokens = static_cast<int32_t>(request.prompt_ids.size());
  delta.num_prompt_tokens = num_prompt_tokens;
  if (active.aborted) {
    delta.finish_reason = FinishReason::kAbort;
    delta.num_output_tokens = active.num_output_tokens;
    return delta;
  }
  const int32_t token_id = request.prompt_ids[static_cast<size_t>(active.num_output_tokens++ % num_prompt_tokens)];
  delta.token_ids = {token_id};
  if (request.want_text) delta.text = static_cast<char>(token_id);
  if (request.sampling.num_logprobs >= 0) {
    TokenLogprob logprob{token_id, -0.5f, {}};
    for (int32_t k = 0; k < request.sampling.num_logprobs; ++k) {
      logprob.top.emplace_back((token_id + k) % kVocabSize, -0.5f - static_cast<float>(k));
    }
    delta.logprobs.push_back(std::move(logprob));
  }
  delta.num_output_tokens = active.num_output_tokens;
  if (active.num_output_tokens == num_prompt_tokens && !request.stop.ignore_eos) delta.finish_reason = FinishReason::kStop;
  if (!delta.finish_reason && active.num_output_tokens >= request.stop.max_tokens) delta.finish_reason = FinishReason::kLength;
  return delta;
}

// One token of each sequence a turn, as an engine with continuous batching does.
void FakeGenerationService::EchoLoop() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    changed_.wait(lock, [this] { return stopping_ || !active_.empty(); });
    std::vector<std::pair<std::shared_ptr<GenerationSink>, GenerationDelta>> turn;
    for (auto it = active_.begin(); it != active_.end();) {
      GenerationDelta delta = NextEcho(it->second);
      stats_.output_tokens_total += static_cast<int64_t>(delta.token_ids.size());
      const bool finished = delta.finish_reason.has_value();
      turn.emplace_back(it->second.sink, std::move(delta));
      it = finished ? active_.erase(it) : std::next(it);
    }
    lock.unlock();
    for (auto& [sink, delta] : turn) sink->OnDelta(std::move(delta));
    changed_.notify_all();
    turn.clear();
    std::this_thread::yield();
    lock.lock();
  }
}

}  // namespace rt::server
