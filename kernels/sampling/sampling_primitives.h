// The vector loops of sampling, one table a level. sampling.cc, which is compiled once, puts them together.
#pragma once

#include <cstdint>

#include "kernels/sampling/sampling.h"

namespace rt::kernels {

constexpr int64_t kSampleBlock = 256;  // ids whose maximum is kept
constexpr int64_t kSampleChunk =
    64 * kSampleBlock;  // ids a thread looks at at once: 64 KB, in L2 for the second loop

// Of one chunk of raw logits.
struct ChunkStats {
  float reference;  // largest logit, 0 if that is -inf
  float sum;        // of exp(l - reference); NaN if there is a NaN or +inf
  float best;       // largest logit below vocab_limit
  int32_t best_id;  // its first id, relative to the chunk; -1 if every one is -inf
};

struct SamplingPrimitives {
  // logits [n]; the first `limited` may be drawn. block_max [ceil(limited / kSampleBlock)].
  void (*chunk_stats)(const float* logits, int64_t n, int64_t limited, float* block_max, ChunkStats* stats);
  // out[b] = largest of block b of l [n].
  void (*block_maxima)(const float* l, int64_t n, float* out);
  // e[i] = exp((l[i] - largest) * inverse_temperature), 0 where l[i] < threshold or the exponential < min_p;
  // i < n <= kSampleBlock. Returns their sum.
  float (*mass)(const float* l, int64_t n, float largest, float inverse_temperature, float threshold,
                float min_p, float* e);
  // Appends the indices (plus `base`) and values of l [n] not below threshold to ids and values, in order;
  // returns how many.
  int64_t (*collect)(const float* l, int64_t n, float threshold, int32_t base, int32_t* ids, float* values);
};

int SampleWith(const SamplingPrimitives& primitives, const SampleArgs& args, const Parallel& parallel);

}  // namespace rt::kernels
