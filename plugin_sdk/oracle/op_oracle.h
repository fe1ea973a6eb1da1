// The oracle by op name: evaluates any op of the table (rt/plugin/op_defs.h) over a whole step, with the
// step's metadata and caches as the ABI has them. What conformance and plugin tests compare a row's outputs
// and caches with.
#pragma once

#include "plugin_sdk/ops/op_table.h"
#include "plugin_sdk/oracle/math.h"

#include <rt/plugin/status.hpp>

#include <vector>

namespace rt::oracle {

// rt_step_meta by value, host side only.
struct StepMeta {
  std::vector<int64_t> cu_seqlens{0};              // [num_sequences + 1]
  std::vector<int64_t> context_lens;               // [num_sequences]
  std::vector<int64_t> positions;                  // [num_tokens]
  std::vector<std::vector<int32_t>> block_tables;  // per sequence
  std::vector<int32_t> state_slot_ids;             // [num_sequences]; -1 = padding
  std::vector<uint8_t> has_initial_state;          // [num_sequences]

  int64_t num_sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
  int64_t num_tokens() const { return cu_seqlens.back(); }
};

// Tensors in the order of op_defs.h; integers as doubles. An absent optional tensor is empty. A cache holds
// all its units: [num_slots, W-1, C] convolution windows, [num_slots, state in the instance's layout],
// [num_blocks, Nkv, block_size, d] keys or values, [num_blocks, block_size, L+De] latent rows.
struct OpTensors {
  std::vector<Values> inputs, weights, outputs, caches;
};

// Fills outputs and updates caches; units that no sequence of the step owns keep their bits. kUnsupported for
// `sample` (compare a draw with SamplingProbabilities) and for layouts or attributes that have no reference;
// kInvalidArgument for ids out of range.
Status EvaluateOp(const ops::OpInstance& op, const StepMeta& meta, OpTensors& tensors);

// The same through the pieces of the op's decomposition, one EvaluateOp each.
Status EvaluateDecomposed(const ops::OpInstance& op, const StepMeta& meta, OpTensors& tensors);

}  // namespace rt::oracle
