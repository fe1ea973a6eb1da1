#include "runtime/engine/testing/fake_model_runner.h"

#include <algorithm>
#include <map>
#include <set>

namespace rt {
namespace {

constexpr int32_t kPoison = -777;
constexpr size_t kMaxErrors = 20;

uint64_t Mix(uint64_t x) {
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9u;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

uint64_t FoldKv(uint64_t hash, int32_t token, int32_t position) {
  return Mix(hash * 3 + static_cast<uint64_t>(token) * 1000003 + static_cast<uint64_t>(position));
}

uint64_t FoldState(uint64_t hash, int32_t token) { return Mix(hash + static_cast<uint64_t>(token) + 1); }

uint64_t HistoryTerm(int32_t id, int32_t count, bool in_prompt) {
  return Mix(static_cast<uint64_t>(id) * 4096 + static_cast<uint64_t>(count) * 2 + (in_prompt ? 1 : 0));
}

bool HasPenalties(const SamplingParams& p) {
  return p.presence_penalty != 0.0f || p.frequency_penalty != 0.0f || p.repetition_penalty != 1.0f;
}

int32_t Choose(const FakeModel& model, uint64_t hash, const SamplingParams& params, uint64_t seed,
               uint64_t position, uint64_t history_sum, std::span<const int32_t> banned) {
  uint64_t h = Mix(hash ^ history_sum);
  if (params.temperature > 0.0f) h = Mix(h ^ Mix(seed ^ Mix(position)));
  int32_t token = static_cast<int32_t>(h % static_cast<uint64_t>(model.vocab_size));
  if (model.eos_one_in > 0 && (h >> 32) % static_cast<uint64_t>(model.eos_one_in) == 0) token = model.eos_id;
  while (std::find(banned.begin(), banned.end(), token) != banned.end())
    token = (token + 1) % model.vocab_size;
  return token;
}

}  // namespace

std::vector<int32_t> FakeModel::Answer(const GenerationRequest& request, FinishReason* reason) const {
  uint64_t kv = 0;
  uint64_t state = 0;
  std::map<int32_t, std::pair<int32_t, bool>> history;  // id -> output count, in prompt
  std::vector<int32_t> stops = request.stop.stop_token_ids;
  if (!request.stop.ignore_eos) stops.push_back(eos_id);
  std::vector<int32_t> output;
  int32_t position = 0;
  const auto take = [&](int32_t token, bool is_prompt) {
    kv = FoldKv(kv, token, position++);
    state = FoldState(state, token);
    auto& [count, in_prompt] = history[token];
    if (is_prompt)
      in_prompt = true;
    else
      ++count;
  };
  for (const int32_t token : request.prompt_ids) take(token, true);
  while (true) {
    uint64_t history_sum = 0;
    if (HasPenalties(request.sampling))
      for (const auto& [id, entry] : history) history_sum += HistoryTerm(id, entry.first, entry.second);
    const bool banned = static_cast<int32_t>(output.size()) < request.stop.min_tokens;
    const uint64_t hash = (has_kv ? kv : 0) ^ (has_state ? Mix(state) : 0);
    const int32_t token = Choose(*this, hash, request.sampling, request.sampling.seed.value_or(0),
                                 static_cast<uint64_t>(position), history_sum,
                                 banned ? std::span<const int32_t>(stops) : std::span<const int32_t>());
    output.push_back(token);
    const bool stop = !banned && std::find(stops.begin(), stops.end(), token) != stops.end();
    if (stop || static_cast<int32_t>(output.size()) == request.stop.max_tokens) {
      if (reason) *reason = stop ? FinishReason::kStop : FinishReason::kLength;
      return output;
    }
    take(token, false);
  }
}

FakeModelRunner::FakeModelRunner(FakeRunnerOptions options) : options_(std::move(options)) {
  if (!options_.model.has_kv) options_.geometry.kv_block_bytes = 0;
  if (!options_.model.has_state) options_.geometry.state_slot_bytes = 0;
}

void FakeModelRunner::Error(uint64_t step_id, const std::string& what) {
  if (errors_.size() < kMaxErrors) errors_.push_back("step " + std::to_string(step_id) + ": " + what);
}

Status FakeModelRunner::BindCache(const CacheBinding& binding) {
  if (options_.model.has_kv)
    kv_.resize(static_cast<size_t>(binding.arena_bytes / binding.kv_block_stride_bytes *
                                   options_.geometry.block_size_tokens));
  if (options_.model.has_state)
    states_.resize(static_cast<size_t>(binding.arena_bytes / binding.state_slot_stride_bytes));
  return Status::Ok();
}

Status FakeModelRunner::WarmUp(std::span<const int32_t> scratch_block_ids, int32_t scratch_state_slot_id) {
  if (options_.model.has_kv && scratch_block_ids.empty()) Error(0, "warm-up without scratch blocks");
  if (options_.model.has_state && scratch_state_slot_id < 0) Error(0, "warm-up without a scratch slot");
  warmed_up_ = true;
  return options_.fail_warm_up;
}

void FakeModelRunner::OnUnit(UnitKind kind, int32_t id, bool /*allocated*/) {
  if (kind == UnitKind::kStateSlot) {
    states_[static_cast<size_t>(id)] = {0xDEADBEEF, kPoison};
    return;
  }
  const size_t size = static_cast<size_t>(options_.geometry.block_size_tokens);
  std::fill_n(kv_.begin() + static_cast<int64_t>(static_cast<size_t>(id) * size), size,
              KvEntry{kPoison, kPoison});
}

void FakeModelRunner::OnPreempt(SequenceId /*id*/) { ++num_preempted_; }
void FakeModelRunner::OnRelease(SequenceId /*id*/) { ++num_released_; }

void FakeModelRunner::CheckPlan(const StepPlan& plan) {
  if (!warmed_up_) Error(plan.step_id, "enqueued before warm-up");
  if (plan.step_id != next_step_id_) Error(plan.step_id, "expected step " + std::to_string(next_step_id_));
  if (next_step_id_ - next_collect_id_ > 1) Error(plan.step_id, "more than two steps in flight");
  int32_t num_tokens = 0;
  int32_t num_sampled = 0;
  std::set<int32_t> slots;
  std::set<int32_t> blocks;
  std::set<StepKind> kinds;
  StepKind last_kind = StepKind::kDecode;
  for (const StepSequence& row : plan.sequences) {
    CheckRow(plan, row);
    if (row.kind < last_kind) Error(plan.step_id, "rows out of order");
    last_kind = row.kind;
    kinds.insert(row.kind);
    num_tokens += row.num_tokens;
    num_sampled += row.samples ? 1 : 0;
    if (row.state_slot_id >= 0 && !slots.insert(row.state_slot_id).second)
      Error(plan.step_id, "a slot in two rows");
    for (const int32_t block : row.block_table)
      if (!blocks.insert(block).second) Error(plan.step_id, "a block in two places");
  }
  if (num_tokens != plan.num_tokens || num_sampled != plan.num_sampled_rows)
    Error(plan.step_id, "wrong totals");
  if (plan.sequences.empty()) Error(plan.step_id, "empty step");
  if (num_tokens > options_.limits.max_step_tokens) Error(plan.step_id, "over the token budget");
  num_rows_ += static_cast<int64_t>(plan.sequences.size());
  num_mixed_steps_ += kinds.size() > 1 ? 1 : 0;
  most_step_tokens_ = std::max(most_step_tokens_, num_tokens);
  most_sequences_ = std::max(most_sequences_, static_cast<int32_t>(plan.sequences.size()));
}

void FakeModelRunner::CheckRow(const StepPlan& plan, const StepSequence& row) {
  const int32_t total = row.num_cached_tokens + row.num_tokens;
  const int32_t block_size = options_.geometry.block_size_tokens;
  if (row.num_tokens <= 0 || (row.kind == StepKind::kDecode && row.num_tokens != 1))
    Error(plan.step_id, "row of " + std::to_string(row.num_tokens) + " tokens");
  if (row.has_initial_state != (row.num_cached_tokens > 0)) Error(plan.step_id, "has_initial_state is wrong");
  if (options_.model.has_state != (row.state_slot_id >= 0)) Error(plan.step_id, "state slot is wrong");
  if (options_.model.has_kv && static_cast<int64_t>(row.block_table.size()) * block_size < total)
    Error(plan.step_id, "block table too short");
  if (row.pending_row >= 0 && !row.token_ids.empty()) Error(plan.step_id, "pending row with host ids");
  if (row.pending_row < 0 && static_cast<int32_t>(row.token_ids.size()) != row.num_tokens)
    Error(plan.step_id, "wrong number of host ids");
  if (row.pending_row >= 0) ++num_pending_rows_;
  if (row.kind == StepKind::kDecode && !row.samples) Error(plan.step_id, "decode row that draws nothing");
  if (row.samples && row.sample.position != static_cast<uint64_t>(total))
    Error(plan.step_id,
          "sample position " + std::to_string(row.sample.position) + " after " + std::to_string(total));
  if (row.samples && row.sample.pending_row != row.pending_row) Error(plan.step_id, "pending rows differ");
}

Status FakeModelRunner::Enqueue(const StepPlan& plan) {
  if (options_.fail_enqueue) {
    const Status status = options_.fail_enqueue(plan);
    if (!status.ok()) return status;
  }
  CheckPlan(plan);
  calls_ += 'E';
  ++next_step_id_;
  if (options_.deferred) {
    queued_.push_back(plan);
  } else {
    done_.push_back(Compute(plan));
  }
  return Status::Ok();
}

Result<StepOutput> FakeModelRunner::Collect(uint64_t step_id) {
  if (step_id != next_collect_id_++) Error(step_id, "collected out of order");
  calls_ += 'C';
  if (options_.deferred) {
    done_.push_back(Compute(queued_.front()));
    queued_.pop_front();
  }
  StepOutput output = std::move(done_.front());
  done_.pop_front();
  if (options_.fail_collect) {
    const Status status = options_.fail_collect(step_id);
    if (!status.ok()) return status;
  }
  return output;
}

Status FakeModelRunner::CopyStateSlot(int32_t src_slot_id, int32_t dst_slot_id) {
  states_[static_cast<size_t>(dst_slot_id)] = states_[static_cast<size_t>(src_slot_id)];
  return Status::Ok();
}

StepOutput FakeModelRunner::Compute(const StepPlan& plan) {
  StepOutput output;
  output.step_id = plan.step_id;
  for (const StepSequence& row : plan.sequences) ComputeRow(plan, row, &output);
  previous_ = output;
  if (options_.edit_output) options_.edit_output(plan, &output);
  return output;
}

int32_t FakeModelRunner::PendingToken(const StepPlan& plan, int32_t pending_row) {
  if (previous_.step_id + 1 != plan.step_id || pending_row >= static_cast<int32_t>(previous_.tokens.size())) {
    Error(plan.step_id, "pending row " + std::to_string(pending_row) + " is not in the step before");
    return 0;
  }
  return previous_.tokens[static_cast<size_t>(pending_row)].token_id;
}

int32_t FakeModelRunner::InputToken(const StepPlan& plan, const StepSequence& row, int32_t i) {
  return row.pending_row >= 0 ? PendingToken(plan, row.pending_row) : row.token_ids[static_cast<size_t>(i)];
}

void FakeModelRunner::ComputeRow(const StepPlan& plan, const StepSequence& row, StepOutput* output) {
  const int32_t block_size = options_.geometry.block_size_tokens;
  State state{0, 0};
  if (options_.model.has_state && row.has_initial_state)
    state = states_[static_cast<size_t>(row.state_slot_id)];
  if (options_.model.has_state && state.num_tokens != row.num_cached_tokens)
    Error(plan.step_id, "the state holds " + std::to_string(state.num_tokens) + " tokens, expected " +
                            std::to_string(row.num_cached_tokens));
  for (int32_t i = 0; i < row.num_tokens; ++i) {
    const int32_t token = InputToken(plan, row, i);
    const int32_t position = row.num_cached_tokens + i;
    if (options_.model.has_kv) {
      const int32_t block = row.block_table[static_cast<size_t>(position / block_size)];
      kv_[static_cast<size_t>(block * block_size + position % block_size)] = {token, position};
    }
    state.hash = FoldState(state.hash, token);
    ++state.num_tokens;
  }
  if (options_.model.has_state) states_[static_cast<size_t>(row.state_slot_id)] = state;
  if (!row.samples) return;

  const SampleRow& sample = row.sample;
  uint64_t history_sum = 0;
  if (HasPenalties(*sample.params)) {
    const int32_t pending = sample.pending_row >= 0 ? PendingToken(plan, sample.pending_row) : -1;
    bool pending_seen = pending < 0;
    for (size_t i = 0; i < sample.history_ids.size(); ++i) {
      const bool is_pending = sample.history_ids[i] == pending;
      pending_seen |= is_pending;
      history_sum +=
          HistoryTerm(sample.history_ids[i], sample.history_output_counts[i] + (is_pending ? 1 : 0),
                      sample.history_in_prompt[i] != 0);
    }
    if (!pending_seen) history_sum += HistoryTerm(pending, 1, false);
  }
  const uint64_t hash =
      (options_.model.has_kv ? ReadBackKv(plan, row) : 0) ^ (options_.model.has_state ? Mix(state.hash) : 0);
  SampledToken& token = output->tokens.emplace_back();
  token.token_id = Choose(options_.model, hash, *sample.params, sample.seed, sample.position, history_sum,
                          sample.banned_ids);
  token.logprob = -static_cast<float>(token.token_id);
  for (int32_t i = 0; i < sample.params->num_logprobs; ++i) token.top.push_back({i, -static_cast<float>(i)});
}

uint64_t FakeModelRunner::ReadBackKv(const StepPlan& plan, const StepSequence& row) {
  const int32_t block_size = options_.geometry.block_size_tokens;
  uint64_t hash = 0;
  for (int32_t position = 0; position < row.num_cached_tokens + row.num_tokens; ++position) {
    const int32_t block = row.block_table[static_cast<size_t>(position / block_size)];
    const KvEntry& entry = kv_[static_cast<size_t>(block * block_size + position % block_size)];
    if (entry.position != position) {
      Error(plan.step_id, "KV block " + std::to_string(block) + " holds position " +
                              std::to_string(entry.position) + ", expected " + std::to_string(position));
    }
    hash = FoldKv(hash, entry.token, entry.position);
  }
  return hash;
}

}  // namespace rt
