#include "runtime/cli/generate_output.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>

namespace rt {
namespace {

using nlohmann::ordered_json;

double Seconds(GenerateClock::time_point from, GenerateClock::time_point to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

double Rate(size_t count, double seconds) {
  return count > 0 && seconds > 0 ? static_cast<double>(count) / seconds : 0;
}

ordered_json LogprobsJson(const std::vector<TokenLogprob>& logprobs) {
  ordered_json list = ordered_json::array();
  for (const TokenLogprob& token : logprobs) {
    ordered_json top = ordered_json::array();
    for (const auto& [id, logprob] : token.top) top.push_back({{"token_id", id}, {"logprob", logprob}});
    list.push_back({{"token_id", token.token_id}, {"logprob", token.logprob}, {"top", std::move(top)}});
  }
  return list;
}

class InboxSink : public GenerationSink {
 public:
  InboxSink(DeltaInbox* inbox, size_t prompt_idx) : inbox_(inbox), prompt_idx_(prompt_idx) {}
  void OnDelta(GenerationDelta delta) override { inbox_->Push(prompt_idx_, std::move(delta)); }

 private:
  DeltaInbox* const inbox_;
  const size_t prompt_idx_;
};

}  // namespace

void Generation::Add(GenerationDelta delta, GenerateClock::time_point when) {
  if (token_ids.empty() && !delta.token_ids.empty()) first_token = when;
  text += delta.text;
  token_ids.insert(token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  std::move(delta.logprobs.begin(), delta.logprobs.end(), std::back_inserter(logprobs));
  if (!delta.finish_reason) return;
  finished = when;
  if (token_ids.empty()) first_token = when;
  last = std::move(delta);
}

void DeltaInbox::Push(size_t prompt_idx, GenerationDelta delta) {
  {
    const std::lock_guard lock(mutex_);
    entries_.push_back({prompt_idx, std::move(delta), GenerateClock::now()});
  }
  arrived_.notify_one();
}

std::vector<DeltaInbox::Entry> DeltaInbox::Take() {
  std::unique_lock lock(mutex_);
  arrived_.wait(lock, [this] { return !entries_.empty(); });
  return std::exchange(entries_, {});
}

std::shared_ptr<GenerationSink> DeltaInbox::SinkOf(size_t prompt_idx) {
  return std::make_shared<InboxSink>(this, prompt_idx);
}

GenerateRates Rates(const std::vector<Generation>& generations, double load_s) {
  GenerateRates rates;
  rates.load_s = load_s;
  if (generations.empty()) return rates;
  GenerateClock::time_point submitted = generations[0].submitted, first = generations[0].first_token,
                            last_first = first, finished = generations[0].finished;
  size_t prompt_tokens = 0, decode_tokens = 0;
  for (const Generation& g : generations) {
    submitted = std::min(submitted, g.submitted);
    first = std::min(first, g.first_token);
    last_first = std::max(last_first, g.first_token);
    finished = std::max(finished, g.finished);
    prompt_tokens += static_cast<size_t>(g.last.num_prompt_tokens);
    decode_tokens += g.token_ids.size() - std::min<size_t>(g.token_ids.size(), 1);
  }
  rates.first_token_s = Seconds(submitted, last_first);
  rates.decode_s = Seconds(first, finished);
  rates.prefill_tokens_per_s = Rate(prompt_tokens, rates.first_token_s);
  rates.decode_tokens_per_s = Rate(decode_tokens, rates.decode_s);
  return rates;
}

ordered_json GenerationJson(const Generation& generation, size_t prompt_idx, bool has_text, double load_s) {
  const GenerationDelta& last = generation.last;
  const GenerateRates rates = Rates({generation}, load_s);
  ordered_json json;
  json["prompt_idx"] = prompt_idx;
  json["text"] = has_text ? ordered_json(generation.text) : ordered_json();
  json["token_ids"] = generation.token_ids;
  json["finish_reason"] = last.finish_reason ? FinishReasonName(*last.finish_reason) : "error";
  if (last.stop_string) json["stop_string"] = *last.stop_string;
  if (!last.error.ok()) json["error"] = last.error.message();
  json["usage"] = {{"prompt_tokens", last.num_prompt_tokens},
                   {"completion_tokens", last.num_output_tokens},
                   {"total_tokens", last.num_prompt_tokens + last.num_output_tokens},
                   {"cached_prompt_tokens", last.num_cached_prompt_tokens}};
  json["timings"] = {{"load_s", rates.load_s},
                     {"first_token_s", rates.first_token_s},
                     {"decode_s", rates.decode_s},
                     {"prefill_tokens_per_s", rates.prefill_tokens_per_s},
                     {"decode_tokens_per_s", rates.decode_tokens_per_s}};
  if (!generation.logprobs.empty()) json["logprobs"] = LogprobsJson(generation.logprobs);
  return json;
}

std::string JoinIds(const std::vector<int32_t>& ids) {
  std::string text;
  for (const int32_t id : ids) text += (text.empty() ? "" : ",") + std::to_string(id);
  return text;
}

}  // namespace rt
