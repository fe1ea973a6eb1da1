// Row-wise operations without reductions: SwiGLU's product, embedding, gathering of rows, choice of input
// ids.
#pragma once

#include <cstdint>

#include "kernels/common/parallel.h"
#include "kernels/common/types.h"

namespace rt::kernels {

// y[t, i] = silu(gate[t, i]) * up[t, i], silu(x) = x * sigmoid(x) (Shazeer 2020, SwiGLU). fp32 inside,
// rounded once. gate, up, y have the activation dtype; y may be gate or up.
struct SiluMulArgs {
  int64_t num_rows;
  int64_t size;
  const void* gate;  // [num_rows, size]
  int64_t gate_stride;
  const void* up;  // [num_rows, size]
  int64_t up_stride;
  void* y;  // [num_rows, size]
  int64_t y_stride;
};

// out[t] = table[ids[t]], widened to fp32. An id outside the table gives a row of zeros: the id of a row
// whose sampling failed (-1) may reach the next step before the failure reaches the host.
struct EmbeddingArgs {
  int64_t num_tokens;
  int64_t vocab_size;
  int64_t size;
  const int32_t* ids;  // [num_tokens]
  const void* table;   // [vocab_size, size], fp32 or bf16
  float* out;          // [num_tokens, size]
  int64_t out_stride;
};

// residual[t, i] += delta[t, i]; delta has the activation dtype.
struct AddArgs {
  int64_t num_rows;
  int64_t size;
  float* residual;  // [num_rows, size]
  int64_t residual_stride;
  const void* delta;  // [num_rows, size]
  int64_t delta_stride;
};

// y[t, i] = x[t, i] * sigmoid(gate[t, i]), all of the activation dtype; y may be x.
struct SigmoidGateArgs {
  int64_t num_rows;
  int64_t size;
  const void* x;  // [num_rows, size]
  int64_t x_stride;
  const void* gate;  // [num_rows, size]
  int64_t gate_stride;
  void* y;  // [num_rows, size]
  int64_t y_stride;
};

using SiluMulFn = int (*)(const SiluMulArgs& args, const Parallel& parallel);
using EmbeddingFn = int (*)(const EmbeddingArgs& args, const Parallel& parallel);
using AddFn = int (*)(const AddArgs& args, const Parallel& parallel);
using SigmoidGateFn = int (*)(const SigmoidGateArgs& args, const Parallel& parallel);

// Functions return 0.
struct ElementwiseKernels {
  SiluMulFn silu_mul_f32;
  SiluMulFn silu_mul_bf16;
  EmbeddingFn embedding_f32;
  EmbeddingFn embedding_bf16;
  AddFn add_f32;
  AddFn add_bf16;
  SigmoidGateFn sigmoid_gate_f32;
  SigmoidGateFn sigmoid_gate_bf16;
};

const ElementwiseKernels& ElementwiseAvx512Bf16();
const ElementwiseKernels& ElementwiseAvx2();

// out[r] = in[rows[r]], rows of row_bytes bytes, strides in bytes; a negative index gives zeros.
struct GatherRowsArgs {
  int64_t num_rows;
  int64_t row_bytes;
  const int32_t* rows;  // [num_rows]
  const void* in;
  int64_t in_stride_bytes;
  void* out;
  int64_t out_stride_bytes;
};
int GatherRows(const GatherRowsArgs& args, const Parallel& parallel);

// out[t] = source[t] >= 0 ? device_ids[source[t]] : host_ids[t]: tokens sampled by a step that the host has
// not seen yet stay on the device.
struct SelectIdsArgs {
  int64_t num_tokens;
  const int32_t* source;      // [num_tokens]
  const int32_t* device_ids;  // sampled ids of the step before; may be null if every source is negative
  const int32_t* host_ids;    // [num_tokens]
  int32_t* out;               // [num_tokens]
};
int SelectIds(const SelectIdsArgs& args);

}  // namespace rt::kernels
