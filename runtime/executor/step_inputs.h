// Host-to-device inputs of one step: what both backends' metadata, the embedding and the sample op read. Two sets exist, so that a step
// can be prepared while the one before it runs.
#pragma once

#include "runtime/engine/step_plan.h"
#include "runtime/executor/device.h"

#include <rt/plugin/backend.h>
#include <rt/plugin/op_defs.h>

namespace rt {

struct StepInputs {
  UploadArray<int32_t> token_ids, token_sources;  // [T]; source -1 = host id, else row of the previous step's sampled ids
  UploadArray<int32_t> cu_seqlens, context_lens, positions, block_table, state_slot_ids;
  UploadArray<uint8_t> has_initial_state;
  UploadArray<int32_t> sampled_rows;  // [R] token index of each sampled row
  bool any_pending = false;
  rt_step_meta meta = {};

  // Fills the arrays from the plan and uploads them. InvalidArgument when the plan breaks its own rules.
  Status Prepare(const StepPlan& plan, int32_t block_size, const Device& device, DeviceStream* stream);

 private:
  Status Fill(const StepPlan& plan, int32_t block_size);
  void FillMeta(const StepPlan& plan);
};

// Inputs of the sample op for the R sampled rows.
struct SampleInputs {
  UploadArray<float> temperature, top_p, min_p, presence, frequency, repetition;
  UploadArray<int32_t> top_k, pending_rows, history_offsets, history_ids, history_counts, bias_offsets, bias_ids, num_top;
  UploadArray<uint64_t> seed, position;
  UploadArray<uint8_t> history_prompt;
  UploadArray<float> bias_values;
  bool any_pending = false;

  Status Prepare(const StepPlan& plan, const Device& device, DeviceStream* stream);
};

}  // namespace rt
