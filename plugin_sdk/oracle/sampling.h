// References of what turns logits into a token: log-probabilities, arg-max, and the distribution that a
// sampling op draws from. One row (one sequence) a call; V = vocabulary size.
#pragma once

#include "plugin_sdk/oracle/math.h"

namespace rt::oracle {

// y_i = x_i - log(sum_j exp(x_j)), the largest entry subtracted first. -inf entries stay -inf. x [V] -> y
// [V].
Values LogSoftmax(View x);

// Index of the largest entry, the first of equals; -1 where no entry is above -inf.
int64_t ArgMax(View x);

// A token that occurred before this step.
struct TokenHistory {
  int32_t id;
  int64_t output_count;  // times it was generated
  bool in_prompt;
};

struct LogitBias {
  int32_t id;
  double value;  // -inf bans the token
};

// Defaults switch each filter off.
struct SamplingParams {
  double temperature = 1.0;  // 0 = greedy
  int64_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  int64_t allowed_vocab = -1;  // ids from here on are never drawn; -1 = all are allowed
};

// The probabilities of one draw, in this order:
//   1. repetition penalty r over prompt and output tokens: l > 0 ? l / r : l * r (Keskar et al. 2019, "CTRL",
//   sec. 4.1); then over
//      output tokens l -= frequency_penalty * count + presence_penalty (OpenAI API reference, "presence and
//      frequency penalties");
//   2. l += bias; ids >= allowed_vocab are removed;
//   3. temperature: l /= T. T = 0: all probability on the first largest logit, and nothing below applies;
//   4. top-k keeps every l that is not below the k-th largest;
//   5. top-p keeps a token when the tokens strictly more likely than it, renormalised after step 4, hold less
//   than top_p (Holtzman
//      et al. 2019, sec. 3.1); the most likely one always stays;
//   6. min-p keeps a token whose probability is at least min_p times the largest.
// Equal logits are kept or dropped together, so the set does not depend on an order. logits [V] ->
// probabilities [V], summing to 1; all zero if nothing is left.
Values SamplingProbabilities(const SamplingParams& params, View logits, std::span<const TokenHistory> history,
                             std::span<const LogitBias> bias);

// The first index whose cumulative probability, in index order, exceeds u; -1 if no entry is above 0. u in
// [0, 1).
int64_t InverseCdf(View probabilities, double u);

}  // namespace rt::oracle
