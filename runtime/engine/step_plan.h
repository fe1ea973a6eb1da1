// One forward pass as the scheduler wants it, and the interface of what runs it on a device.
#pragma once

#include "runtime/engine/generation.h"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace rt {

// Rows of a step are ordered decode, verify, prefill. The kind is stated, never guessed from the shape.
enum class StepKind : int32_t { kDecode = 0, kVerify = 1, kPrefill = 2 };

// What the sample op needs of one row, kept up to date by the engine. Spans live until Collect of the step.
struct SampleRow {
  const SamplingParams* params = nullptr;
  uint64_t seed = 0;      // resolved: the request's or a drawn one
  uint64_t position = 0;  // index of the token to be drawn, counted from the prompt's first token
  // Distinct tokens seen so far and how often each was generated; only filled when a penalty is on.
  std::span<const int32_t> history_ids;
  std::span<const int32_t> history_output_counts;
  std::span<const uint8_t> history_in_prompt;
  // -1, or the row of the *previous* step whose sampled token is not yet in the history (it is still on the device).
  int32_t pending_row = -1;
  // Never sampled this time (stop tokens before min_tokens).
  std::span<const int32_t> banned_ids;
};

struct StepSequence {
  SequenceId id = 0;
  StepKind kind = StepKind::kPrefill;
  int32_t num_tokens = 0;          // new tokens this step; 1 for decode
  int32_t num_cached_tokens = 0;   // tokens already in the caches
  // Host token ids [num_tokens]. For a pipelined decode row the id is still on the device: `token_ids` is empty and
  // `pending_row` is the row (index among the sampled rows) of the previous step that draws it.
  std::span<const int32_t> token_ids;
  int32_t pending_row = -1;
  std::span<const int32_t> block_table;  // KV block ids covering num_cached_tokens + num_tokens
  int32_t state_slot_id = -1;            // -1 only for models without recurrent state
  bool has_initial_state = false;        // num_cached_tokens > 0
  bool samples = false;                  // draw a token from the last position
  SampleRow sample;                      // valid iff samples
};

struct StepPlan {
  uint64_t step_id = 0;  // consecutive
  std::vector<StepSequence> sequences;
  int32_t num_tokens = 0;
  int32_t num_sampled_rows = 0;  // rows in order of the sequences with samples = true
};

struct SampledToken {
  int32_t token_id = -1;
  float logprob = 0.0f;
  std::vector<std::pair<int32_t, float>> top;
  bool bad_logits = false;  // NaN or nothing left to sample: the request fails, the step goes on
};

struct StepOutput {
  uint64_t step_id = 0;
  std::vector<SampledToken> tokens;  // [num_sampled_rows]
};

// Sizes the scheduler needs. Bytes are per unit over all layers.
struct CacheGeometry {
  int32_t block_size_tokens = 16;
  int64_t kv_block_bytes = 0;    // 0: the model has no attention layers
  int64_t state_slot_bytes = 0;  // 0: the model has no recurrent layers
  int64_t alignment_bytes = 64;
};

// Where units lie: address = arena base + id * stride. Set once before the first step.
struct CacheBinding {
  int64_t kv_block_stride_bytes = 0;
  int64_t state_slot_stride_bytes = 0;
  int64_t arena_bytes = 0;
};

struct RunnerLimits {
  int32_t max_sequences = 0;      // rows of one step
  int32_t max_step_tokens = 0;    // token budget of one step
  int32_t max_context_tokens = 0;
};

// Runs steps on a device. One engine thread calls it. Enqueue may return before the work is done; at most two steps are in
// flight: Enqueue(n+1) may precede Collect(n). On the CPU Enqueue computes and Collect only hands over.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;
  virtual CacheGeometry cache_geometry() const = 0;
  virtual RunnerLimits limits() const = 0;
  virtual int32_t vocab_size() const = 0;
  // Allocates the arena on the device and binds all caches to it. ResourceExhausted when the device has not that much.
  virtual Status BindCache(const CacheBinding& binding) = 0;
  virtual Status Enqueue(const StepPlan& plan) = 0;
  virtual Result<StepOutput> Collect(uint64_t step_id) = 0;
  // Device-side copy of one state slot onto another (snapshots); ordered after enqueued steps.
  virtual Status CopyStateSlot(int32_t src_slot_id, int32_t dst_slot_id) = 0;
  // Runs every step kind and size class once with scratch units, so that nothing is built after ready. Needs the arena;
  // uses KV block ids and the state slot id given, whose contents become arbitrary.
  virtual Status WarmUp(std::span<const int32_t> scratch_block_ids, int32_t scratch_state_slot_id) = 0;
  virtual int64_t builds_after_ready() const = 0;
};

}  // namespace rt
