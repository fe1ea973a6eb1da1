// Weights without a checkpoint, for benchmarks: `model.weights: random:<seed>`.
#pragma once

#include "runtime/weights/dtype.h"

namespace rt::weights {

// What a tensor should look like so that a model with random weights stays finite.
enum class Init : uint8_t {
  kNormal,  // bell-shaped (sum of four uniform bytes), mean 0, standard deviation `scale`
  kZero,    // kNormal around 0 with a tenth of `scale`: norm weights used as 1 + w, biases
  kOne,     // kNormal around 1 with a tenth of `scale`: norm weights used as w
  kALog,    // log of a decay rate, uniform in [log 1, log 16]
  kDtBias,  // softplus^-1 of a step, log-uniform in [0.001, 0.1] (Mamba-2, arXiv 2405.21060, reference
            // initialisation)
};

// "random:7" -> 7. Anything else after the colon is an error.
Result<uint64_t> ParseRandomSeed(std::string_view weights);

// Fills elements [first, first + count) of the tensor `name` as BF16 or F32. A value depends on (seed, name,
// its index) only, so any split over calls and threads gives the same bytes.
void FillRandom(uint64_t seed, std::string_view name, Init init, float scale, uint64_t first, uint64_t count,
                DType dtype, std::byte* target);

}  // namespace rt::weights
