#include "kernels/attention/attention.h"

#include <cmath>

#include "kernels/attention/attention_blocking.h"

namespace rt::kernels {

size_t AttentionWorkspaceBytes(const AttentionShape& shape, int64_t max_sequences, int num_threads) {
  const int64_t partials = max_sequences * kMaxSegments * shape.num_q_heads * PartialFloats(shape.head_dim);
  return static_cast<size_t>(num_threads * ThreadScratchFloats(shape.head_dim) + partials) * sizeof(float);
}

int RotaryTable(int64_t num_tokens, const int32_t* positions, int32_t rotary_dim, double theta, float* table,
                const Parallel& parallel) {
  const int32_t half = rotary_dim / 2;
  // A sine, a cosine and a power cost about 60 ns.
  ParallelForCost(parallel, num_tokens, half * 256, [&](int64_t begin, int64_t end, int) {
    for (int32_t i = 0; i < half; ++i) {
      const double frequency = std::pow(theta, -2.0 * i / rotary_dim);
      for (int64_t t = begin; t < end; ++t) {
        const double angle = positions[t] * frequency;
        table[t * rotary_dim + i] = static_cast<float>(std::cos(angle));
        table[t * rotary_dim + half + i] = static_cast<float>(std::sin(angle));
      }
    }
  });
  return 0;
}

}  // namespace rt::kernels
