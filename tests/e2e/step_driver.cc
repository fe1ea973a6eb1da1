#include "tests/e2e/step_driver.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace rt::testing {
namespace {

void Check(const Status& status, const char* what) {
  if (!status.ok()) throw std::runtime_error(std::string(what) + ": " + status.ToString());
}

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

float Widen(const char* base, int64_t index, uint32_t dtype) {
  if (dtype == RT_DTYPE_F32) {
    float value;
    std::memcpy(&value, base + 4 * index, 4);
    return value;
  }
  if (dtype != RT_DTYPE_BF16) throw std::runtime_error("conv window: expected float32 or bfloat16");
  uint16_t half;
  std::memcpy(&half, base + 2 * index, 2);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

}  // namespace

StepDriver::StepDriver(DeviceRunner* runner, int32_t num_sequences, int32_t max_tokens)
    : runner_(runner),
      cached_(static_cast<size_t>(num_sequences), 0),
      block_tables_(static_cast<size_t>(num_sequences)) {
  const CacheGeometry g = runner->cache_geometry();
  CacheBinding binding;
  binding.state_slot_stride_bytes = slot_stride_ = g.state_slot_bytes;
  binding.kv_block_stride_bytes = g.kv_block_bytes;
  const int64_t slots_bytes = num_sequences * slot_stride_;
  const int64_t blocks = CeilDiv(max_tokens, g.block_size_tokens);
  int64_t next = g.kv_block_bytes > 0 ? CeilDiv(slots_bytes, g.kv_block_bytes) : 0;
  // Block i of all sequences, then block i + 1: a sequence's blocks are far apart and never in one run.
  for (int64_t b = 0; b < blocks && g.kv_block_bytes > 0; ++b) {
    for (auto& table : block_tables_) table.push_back(static_cast<int32_t>(next++));
  }
  binding.arena_bytes = std::max(slots_bytes, next * g.kv_block_bytes);
  Check(runner->BindCache(binding), "bind cache");
  runner->set_probe(this);
}

std::vector<RowOutput> StepDriver::Step(const std::vector<Feed>& feeds) {
  static const SamplingParams kGreedy = [] {
    SamplingParams params;
    params.temperature = 0;
    return params;
  }();
  StepPlan plan;
  plan.step_id = next_step_id_++;
  for (const Feed& feed : feeds) {
    const auto index = static_cast<size_t>(feed.sequence);
    StepSequence s;
    s.id = index + 1;
    s.kind = feed.kind;
    s.num_tokens = static_cast<int32_t>(feed.ids.size());
    s.num_cached_tokens = cached_[index];
    s.token_ids = feed.ids;
    s.block_table = block_tables_[index];
    s.state_slot_id = feed.padding ? -1 : feed.sequence;
    s.has_initial_state = s.num_cached_tokens > 0;
    s.samples = s.num_tokens > 0;
    s.sample.params = &kGreedy;
    s.sample.position = static_cast<uint64_t>(s.num_cached_tokens + s.num_tokens);
    plan.num_tokens += s.num_tokens;
    plan.num_sampled_rows += s.samples ? 1 : 0;
    plan.sequences.push_back(s);
  }
  std::vector<RowOutput> outputs(feeds.size());
  outputs_ = &outputs;
  Check(runner_->Enqueue(plan), "enqueue");
  outputs_ = nullptr;
  Result<StepOutput> collected = runner_->Collect(plan.step_id);
  Check(collected.status(), "collect");
  size_t row = 0;
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (!feeds[i].ids.empty()) outputs[i].sampled = collected->tokens.at(row++);
    if (!feeds[i].padding)
      cached_[static_cast<size_t>(feeds[i].sequence)] += static_cast<int32_t>(feeds[i].ids.size());
  }
  return outputs;
}

RowOutput StepDriver::Prefill(int32_t sequence, std::span<const int32_t> ids,
                              std::span<const int32_t> pieces) {
  RowOutput last;
  size_t at = 0, piece = 0;
  while (at < ids.size()) {
    size_t size = piece < pieces.size() ? static_cast<size_t>(pieces[piece++]) : ids.size();
    size = std::min({size, ids.size() - at, static_cast<size_t>(runner_->limits().max_step_tokens)});
    last = std::move(Step({{sequence, ids.subspan(at, size)}}).front());
    at += size;
  }
  return last;
}

RowOutput StepDriver::Decode(int32_t sequence, int32_t id) {
  return std::move(Step({{sequence, std::span(&id, 1), StepKind::kDecode}}).front());
}

std::vector<uint32_t> StepDriver::Caches(uint32_t role) const {
  std::vector<uint32_t> found;
  const auto& caches = runner_->program().caches;
  for (uint32_t i = 0; i < caches.size(); ++i) {
    if (caches[i].role == role) found.push_back(i);
  }
  return found;
}

std::vector<std::vector<float>> StepDriver::RecurrentStates(int32_t sequence) const {
  std::vector<std::vector<float>> states;
  for (const uint32_t cache : Caches(RT_CACHE_RECURRENT)) {
    auto state = runner_->ExportState(cache, sequence);
    Check(state.status(), "export state");
    states.push_back(std::move(state).value());
  }
  return states;
}

std::vector<float> StepDriver::ConvState(uint32_t cache, int32_t sequence) const {
  const rt_cache_view& view = runner_->cache_view(cache);
  const char* base = static_cast<const char*>(view.base) + sequence * view.unit_stride_bytes;
  int64_t elements = 1;
  for (const int64_t dim : runner_->program().caches[cache].dims) elements *= dim;
  std::vector<float> window;
  for (int64_t i = 0; i < elements; ++i) window.push_back(Widen(base, i, view.dtype));
  return window;
}

std::vector<char> StepDriver::StateBytes(int32_t sequence) const {
  std::vector<char> bytes;
  for (const uint32_t role : {RT_CACHE_CONV, RT_CACHE_RECURRENT}) {
    for (const uint32_t cache : Caches(role)) {
      const rt_cache_view& view = runner_->cache_view(cache);
      const char* base = static_cast<const char*>(view.base) + sequence * view.unit_stride_bytes;
      bytes.insert(bytes.end(), base, base + view.unit_bytes);
    }
  }
  return bytes;
}

void StepDriver::OnHidden(int32_t layer, const StepPlan& plan, const float* x, int64_t, int64_t hidden) {
  if (!keep_hidden_) return;
  int64_t end = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    end += plan.sequences[i].num_tokens;
    if (plan.sequences[i].num_tokens == 0) continue;
    auto& rows = (*outputs_)[i].hidden;
    rows.resize(std::max(rows.size(), static_cast<size_t>(layer) + 1));
    rows[static_cast<size_t>(layer)].assign(x + (end - 1) * hidden, x + end * hidden);
  }
}

void StepDriver::OnLogits(const StepPlan& plan, const float* logits, int64_t, int64_t vocab) {
  int64_t row = 0;
  for (size_t i = 0; i < plan.sequences.size(); ++i) {
    if (!plan.sequences[i].samples) continue;
    (*outputs_)[i].logits.assign(logits + row * vocab, logits + (row + 1) * vocab);
    ++row;
  }
}

}  // namespace rt::testing
