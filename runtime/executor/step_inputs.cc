#include "runtime/executor/step_inputs.h"

#include <algorithm>
#include <limits>
#include <string>

namespace rt {
namespace {

uint32_t PhaseOrder(StepKind kind) { return static_cast<uint32_t>(kind); }

}  // namespace

Status StepInputs::Fill(const StepPlan& plan, int32_t block_size) {
  token_ids.host.clear();
  token_sources.host.clear();
  positions.host.clear();
  sampled_rows.host.clear();
  any_pending = false;
  const size_t num = plan.sequences.size();
  cu_seqlens.host.assign(1, 0);
  context_lens.host.resize(num);
  state_slot_ids.host.resize(num);
  has_initial_state.host.resize(num);
  size_t max_blocks = 1;
  for (const StepSequence& s : plan.sequences) max_blocks = std::max(max_blocks, s.block_table.size());
  block_table.host.assign(num * max_blocks, -1);
  meta.max_blocks_per_sequence = static_cast<int32_t>(max_blocks);
  meta.max_context = 0;
  for (size_t i = 0; i < num; ++i) {
    const StepSequence& s = plan.sequences[i];
    if (i > 0 && PhaseOrder(s.kind) < PhaseOrder(plan.sequences[i - 1].kind)) return {Code::kInternal, "step plan: rows are not ordered decode, verify, prefill"};
    const bool pending = s.token_ids.empty() && s.num_tokens > 0;
    if (!pending && static_cast<int32_t>(s.token_ids.size()) != s.num_tokens) return {Code::kInternal, "step plan: token_ids and num_tokens disagree"};
    if (pending && (s.num_tokens != 1 || s.pending_row < 0)) return {Code::kInternal, "step plan: a row without token ids must be one pending token"};
    const int64_t context = int64_t{s.num_cached_tokens} + s.num_tokens;
    if (!s.block_table.empty() && static_cast<int64_t>(s.block_table.size()) * block_size < context) {
      return {Code::kInternal, "step plan: " + std::to_string(s.block_table.size()) + " blocks do not hold " + std::to_string(context) + " tokens"};
    }
    context_lens.host[i] = s.num_cached_tokens;
    state_slot_ids.host[i] = s.state_slot_id;
    has_initial_state.host[i] = s.has_initial_state ? 1 : 0;
    std::copy(s.block_table.begin(), s.block_table.end(), block_table.host.begin() + static_cast<ptrdiff_t>(i * max_blocks));
    for (int32_t t = 0; t < s.num_tokens; ++t) {
      token_ids.host.push_back(pending ? 0 : s.token_ids[static_cast<size_t>(t)]);
      token_sources.host.push_back(pending ? s.pending_row : -1);
      positions.host.push_back(s.num_cached_tokens + t);
    }
    any_pending |= pending;
    cu_seqlens.host.push_back(static_cast<int32_t>(token_ids.host.size()));
    if (s.samples) sampled_rows.host.push_back(static_cast<int32_t>(token_ids.host.size()) - 1);
    meta.max_context = static_cast<int32_t>(std::max<int64_t>(meta.max_context, context));
  }
  return Status::Ok();
}

void StepInputs::FillMeta(const StepPlan& plan) {
  meta.struct_size = sizeof meta;
  meta.flags = 0;
  meta.num_sequences = static_cast<int32_t>(plan.sequences.size());
  meta.num_tokens = static_cast<int32_t>(token_ids.host.size());
  meta.num_decode_sequences = meta.num_verify_sequences = meta.num_prefill_sequences = 0;
  meta.num_decode_tokens = meta.num_verify_tokens = meta.num_prefill_tokens = 0;
  for (const StepSequence& s : plan.sequences) {
    int32_t& sequences = s.kind == StepKind::kDecode ? meta.num_decode_sequences : s.kind == StepKind::kVerify ? meta.num_verify_sequences : meta.num_prefill_sequences;
    int32_t& tokens = s.kind == StepKind::kDecode ? meta.num_decode_tokens : s.kind == StepKind::kVerify ? meta.num_verify_tokens : meta.num_prefill_tokens;
    ++sequences;
    tokens += s.num_tokens;
  }
  meta.cu_seqlens_host = cu_seqlens.host.data();
  meta.cu_seqlens = cu_seqlens.device_data();
  meta.context_lens_host = context_lens.host.data();
  meta.context_lens = context_lens.device_data();
  meta.positions = positions.device_data();
  meta.block_table_host = block_table.host.data();
  meta.block_table = block_table.device_data();
  meta.state_slot_ids_host = state_slot_ids.host.data();
  meta.state_slot_ids = state_slot_ids.device_data();
  meta.has_initial_state_host = has_initial_state.host.data();
  meta.has_initial_state = has_initial_state.device_data();
}

Status StepInputs::Prepare(const StepPlan& plan, int32_t block_size, const Device& device, DeviceStream* stream) {
  RT_RETURN_IF_ERROR(Fill(plan, block_size));
  for (UploadArray<int32_t>* array : {&token_ids, &token_sources, &cu_seqlens, &context_lens, &positions, &block_table, &state_slot_ids, &sampled_rows}) {
    RT_RETURN_IF_ERROR(array->Upload(device, stream));
  }
  RT_RETURN_IF_ERROR(has_initial_state.Upload(device, stream));
  FillMeta(plan);
  return Status::Ok();
}

Status SampleInputs::Prepare(const StepPlan& plan, const Device& device, DeviceStream* stream) {
  for (auto* a : {&temperature, &top_p, &min_p, &presence, &frequency, &repetition, &bias_values}) a->host.clear();
  for (auto* a : {&top_k, &pending_rows, &history_ids, &history_counts, &bias_ids, &num_top}) a->host.clear();
  for (auto* a : {&seed, &position}) a->host.clear();
  history_prompt.host.clear();
  history_offsets.host.assign(1, 0);
  bias_offsets.host.assign(1, 0);
  any_pending = false;
  for (const StepSequence& s : plan.sequences) {
    if (!s.samples) continue;
    const SampleRow& row = s.sample;
    const SamplingParams& p = *row.params;
    temperature.host.push_back(p.temperature);
    top_k.host.push_back(p.top_k);
    top_p.host.push_back(p.top_p);
    min_p.host.push_back(p.min_p);
    presence.host.push_back(p.presence_penalty);
    frequency.host.push_back(p.frequency_penalty);
    repetition.host.push_back(p.repetition_penalty);
    seed.host.push_back(row.seed);
    position.host.push_back(row.position);
    pending_rows.host.push_back(row.pending_row);
    any_pending |= row.pending_row >= 0;
    num_top.host.push_back(std::max(0, p.num_logprobs));
    history_ids.host.insert(history_ids.host.end(), row.history_ids.begin(), row.history_ids.end());
    history_counts.host.insert(history_counts.host.end(), row.history_output_counts.begin(), row.history_output_counts.end());
    history_prompt.host.insert(history_prompt.host.end(), row.history_in_prompt.begin(), row.history_in_prompt.end());
    history_offsets.host.push_back(static_cast<int32_t>(history_ids.host.size()));
    for (const auto& [id, bias] : p.logit_bias) {
      bias_ids.host.push_back(id);
      bias_values.host.push_back(bias);
    }
    for (int32_t id : row.banned_ids) {
      bias_ids.host.push_back(id);
      bias_values.host.push_back(-std::numeric_limits<float>::infinity());
    }
    bias_offsets.host.push_back(static_cast<int32_t>(bias_ids.host.size()));
  }
  for (auto* a : {&temperature, &top_p, &min_p, &presence, &frequency, &repetition, &bias_values}) RT_RETURN_IF_ERROR(a->Upload(device, stream));
  for (auto* a : {&top_k, &pending_rows, &history_offsets, &history_ids, &history_counts, &bias_offsets, &bias_ids, &num_top}) RT_RETURN_IF_ERROR(a->Upload(device, stream));
  for (auto* a : {&seed, &position}) RT_RETURN_IF_ERROR(a->Upload(device, stream));
  return history_prompt.Upload(device, stream);
}

}  // namespace rt
