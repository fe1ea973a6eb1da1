// References of the token-wise dense ops: embedding, linear, RMS norms, SwiGLU, gates on an output.
//
// Tensors are dense and row-major. Weights are [out, in] as a checkpoint stores them.
#pragma once

#include "plugin_sdk/oracle/math.h"

namespace rt::oracle {

struct LinearShape {
  int64_t num_tokens;
  int64_t in_features;
  int64_t out_features;
};

// y[t, n] = sum_k x[t, k] weight[n, k].
// x [num_tokens, in_features], weight [out_features, in_features] -> y [num_tokens, out_features].
Values Linear(const LinearShape& shape, View x, View weight);

struct EmbeddingShape {
  int64_t vocab_size;
  int64_t hidden_size;
};

// y[t] = table[ids[t]]. ids [num_tokens], each in [0, vocab_size); table [vocab_size, hidden_size] -> y
// [num_tokens, hidden_size].
Values Embedding(const EmbeddingShape& shape, std::span<const int32_t> ids, View table);

struct NormShape {
  int64_t num_rows;  // tokens, or tokens * heads
  int64_t width;     // features the mean runs over
};

// weight_offset is 1 where the checkpoint stores the factor minus one (Qwen block, q/k norms), else 0.
struct NormParams {
  double eps;
  double weight_offset = 0.0;
};

// y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight), per row (Zhang & Sennrich 2019, "Root Mean Square
// Layer Normalization", eq. 4, with eps inside the root). x [num_rows, width], weight [width] -> y [num_rows,
// width].
Values RmsNorm(const NormShape& shape, const NormParams& params, View x, View weight);

// residual += delta, then y = RmsNorm(residual): the step between two blocks of a pre-norm transformer.
// residual [num_rows, width] is updated in place; delta [num_rows, width], weight [width] -> y [num_rows,
// width].
Values AddRmsNorm(const NormShape& shape, const NormParams& params, MutableView residual, View delta,
                  View weight);

// y = a + b, element by element.
Values Add(View a, View b);

// y = silu(gate) * up, element by element (Shazeer 2020, "GLU Variants Improve Transformer", SwiGLU without
// its matrices).
Values SiluMul(View gate, View up);

// y = x * sigmoid(gate), element by element: the output gate of gated attention.
Values SigmoidGate(View x, View gate);

struct MlpShape {
  int64_t num_tokens;
  int64_t hidden_size;
  int64_t intermediate_size;
};

// y = down (silu(gate_proj x) * (up_proj x)), per token.
// x [num_tokens, hidden], gate_proj and up_proj [intermediate, hidden], down_proj [hidden, intermediate] ->
// [num_tokens, hidden].
Values GatedMlp(const MlpShape& shape, View x, View gate_proj, View up_proj, View down_proj);

}  // namespace rt::oracle
