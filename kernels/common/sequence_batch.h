// The sequences of one step, as every kernel with per-sequence state sees them.
#pragma once

#include <cstdint>

namespace rt::kernels {

// Tokens of all sequences are packed along the first dimension of every activation: sequence s owns rows
// [cu_seqlens[s], cu_seqlens[s + 1]). No two sequences of a batch may name the same slot.
struct SequenceBatch {
  int32_t num_seqs;
  const int32_t* cu_seqlens;         // [num_seqs + 1], non-decreasing, starts at 0
  const int32_t* state_slot_ids;     // [num_seqs]; -1 = padding: no state is read or written, output rows become zeros
  const uint8_t* has_initial_state;  // [num_seqs]; 0 = start from zero whatever bytes the slot holds
};

// A sequence of length 0 leaves its slot untouched, whatever has_initial_state says.

}  // namespace rt::kernels
