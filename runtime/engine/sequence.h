// One running answer, as the scheduler sees it. Owned by the engine thread once submitted.
#pragma once

#include "runtime/cache/block_pool.h"
#include "runtime/engine/generation.h"
#include "runtime/engine/output_processor.h"
#include "runtime/engine/token_history.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace rt {

enum class SequencePhase {
  kWaiting,    // holds no cache memory
  kRunning,    // admitted: prefilling or decoding
  kFinishing,  // its last delta is on its way; waits only for steps in flight, then its memory is free
};

struct Sequence {
  explicit Sequence(BlockPool* pool) : blocks(pool) {}

  SequenceId id = 0;
  SamplingParams sampling;
  StopConditions stop;
  std::shared_ptr<OutputStream> output;
  uint64_t seed = 0;
  bool has_penalties = false;
  std::vector<int32_t> stop_ids;  // stop tokens that apply to this request

  // Prompt, then generated tokens known to the host. Capacity is reserved once, so that spans into it stay
  // valid.
  std::vector<int32_t> tokens;
  int32_t num_prompt_tokens = 0;
  int32_t max_total_tokens = 0;  // prompt + max_tokens

  SequencePhase phase = SequencePhase::kWaiting;
  int32_t prefill_target =
      0;  // tokens to compute as prefill since admission (prompt + what was generated before)
  int32_t num_written_tokens = 0;  // in the caches once all enqueued steps are done
  int32_t num_pending_tokens = 0;  // sampled by steps in flight, unknown to the host
  int32_t pending_row = -1;        // of the newest pending token in its step
  int32_t num_steps_in_flight = 0;
  int32_t num_counted_prompt_tokens = 0;  // prompt tokens already in the statistics
  bool was_admitted = false;
  BlockTable blocks;
  int32_t state_slot_id = -1;
  TokenHistory history;

  int32_t num_known_or_pending() const { return static_cast<int32_t>(tokens.size()) + num_pending_tokens; }
  bool is_prefilling() const { return num_written_tokens < prefill_target; }
};

}  // namespace rt
