// One phase of a step's metadata, rebased so that its first row is row 0 of shifted activations.
#pragma once

#include "kernels/common/sequence_batch.h"

#include <rt/plugin/backend.h>

#include <vector>

namespace rt::cpu {

// Keeps one copy of the step's metadata for all layers; rebuilt by begin_step.
class StepView {
 public:
  struct Phase {
    int32_t first_sequence = 0, num_sequences = 0;
    int64_t first_token = 0, num_tokens = 0;
    std::vector<int32_t> cu_seqlens;  // [num_sequences + 1], starts at 0
  };

  void Begin(const rt_step_meta& meta) {
    meta_ = meta;
    Fill(&decode_, 0, meta.num_decode_sequences);
    Fill(&verify_, meta.num_decode_sequences, meta.num_verify_sequences);
    Fill(&prefill_, meta.num_decode_sequences + meta.num_verify_sequences, meta.num_prefill_sequences);
  }
  const rt_step_meta& meta() const { return meta_; }
  const Phase& phase(uint32_t phase) const { return phase == RT_PHASE_DECODE ? decode_ : phase == RT_PHASE_VERIFY ? verify_ : prefill_; }
  // The phase as recurrent kernels see it.
  kernels::SequenceBatch Batch(const Phase& p) const {
    return {p.num_sequences, p.cu_seqlens.data(), meta_.state_slot_ids + p.first_sequence, meta_.has_initial_state + p.first_sequence};
  }

 private:
  void Fill(Phase* p, int32_t first, int32_t count) {
    p->first_sequence = first;
    p->num_sequences = count;
    p->first_token = meta_.cu_seqlens[first];
    p->cu_seqlens.resize(static_cast<size_t>(count) + 1);
    for (int32_t i = 0; i <= count; ++i) p->cu_seqlens[static_cast<size_t>(i)] = meta_.cu_seqlens[first + i] - meta_.cu_seqlens[first];
    p->num_tokens = p->cu_seqlens.back();
  }

  rt_step_meta meta_ = {};
  Phase decode_, verify_, prefill_;
};

}  // namespace rt::cpu
