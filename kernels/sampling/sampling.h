// Draws one token a row from its logits.
//
// Effects, in this order (the order of the OpenAI parameters as vLLM applies them); l is the row of logits:
//   1. repetition penalty r over prompt and output tokens: l > 0 ? l / r : l * r (Keskar et al. 2019,
//   sec. 4.1); then over output tokens
//      l -= frequency * count + presence
//   2. l += bias (-inf forbids a token); ids >= vocab_limit are never drawn
//   3. temperature: l / T. Below kGreedyTemperature: the first largest l wins and nothing below applies
//   4. top-k keeps every l not below the k-th largest
//   5. top-p keeps a token when the tokens more likely than it, renormalised after 4, hold less than top_p
//   (Holtzman et al. 2019, sec. 3.1)
//   6. min-p keeps a token whose probability is at least min_p times the largest
// Equal logits are kept or dropped together. The draw is the inverse of the cumulative distribution, in order
// of ids, at one uniform number of Philox4x32-10 (Salmon et al. 2011) keyed by the row's seed at its
// position. A row's token depends on that row alone.
//
// No pass sorts the vocabulary: maxima of blocks of 256 bound the k-th largest from below, so that only few
// candidates are looked at, and the top-p threshold is a selection by mass (expected linear time).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/parallel.h"

namespace rt::kernels {

constexpr float kGreedyTemperature = 1e-5f;

enum SampleStatus : int32_t {
  kSampleOk = 0,
  kSampleBadLogits = 1,    // NaN or +inf among the logits
  kSampleNothingLeft = 2,  // every token is forbidden
};

struct SampleArgs {
  int32_t num_rows;     // R
  int32_t vocab_size;   // V
  int32_t vocab_limit;  // ids from here on are never drawn and never listed; <= V
  int32_t max_top;      // width of top_ids, top_logprobs; 0 = none
  const float* logits;  // [R, V]
  int64_t logits_stride;

  const float* temperature;    // [R]
  const int32_t* top_k;        // [R] 0 = off
  const float* top_p;          // [R] 1 = off
  const float* min_p;          // [R] 0 = off
  const float* presence;       // [R]
  const float* frequency;      // [R]
  const float* repetition;     // [R] 1 = off
  const uint64_t* seed;        // [R]
  const uint64_t* position;    // [R]
  const int32_t* pending_ids;  // [R] one more output token that the lists do not hold yet; -1 = none

  // Tokens that occurred, distinct within a row: entries [history_offsets[r], history_offsets[r + 1]).
  const int32_t* history_offsets;  // [R + 1]
  const int32_t* history_ids;
  const int32_t* history_counts;  // occurrences in the output
  const uint8_t* history_prompt;  // occurs in the prompt
  const int32_t* bias_offsets;    // [R + 1]
  const int32_t* bias_ids;
  const float* bias_values;
  const int32_t* num_top;  // [R] log-probabilities wanted, <= max_top; null = none

  int32_t* ids;         // [R], -1 unless status is kSampleOk
  float* logprobs;      // [R] of the drawn token under log-softmax of the raw logits over all V; NaN unless
                        // status is kSampleOk
  int32_t* top_ids;     // [R, max_top] best first, -1 past num_top
  float* top_logprobs;  // [R, max_top] NaN past num_top
  int32_t* status;      // [R] SampleStatus

  void* workspace;  // SampleWorkspaceBytes, 64-byte aligned; contents are not kept
};

size_t SampleWorkspaceBytes(int64_t max_rows, int64_t vocab_size, int num_threads);

// List entries outside [0, V) are ignored. Returns 0.
using SampleFn = int (*)(const SampleArgs& args, const Parallel& parallel);

struct SamplingKernels {
  SampleFn sample;
};

const SamplingKernels& SamplingAvx512Bf16();
const SamplingKernels& SamplingAvx2();

// Four random words for a 128-bit counter and a 64-bit key.
struct Philox4 {
  uint32_t words[4];
};
Philox4 Philox4x32(const Philox4& counter, uint64_t key);

// Uniform in [0, 1), 53 bits: words 0 (low) and 1 of Philox4x32 at counter (position, 0) and key `seed`.
double SampleUniform(uint64_t seed, uint64_t position);

}  // namespace rt::kernels
