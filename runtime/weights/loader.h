// Fills caller memory with the tensors of a plan, on several threads.
#pragma once

#include "runtime/weights/load_plan.h"

#include <functional>

namespace rt::weights {

// Bytes read so far and in all (for random weights: written). Called on the thread that called LoadWeights,
// never backwards, about ten times a second and once at the end.
using LoadProgress = std::function<void(uint64_t done_bytes, uint64_t total_bytes)>;

struct LoadOptions {
  int num_threads = 0;  // 0: one a hardware thread
  LoadProgress progress;
};

// targets[i] receives plan.items()[i]: exactly its `bytes`, host memory, any alignment. Merged matrices are
// laid out by the caller: the target of each part is its row range of the merged one. Returns warnings (one a
// tensor with -inf gates, naming the heads). Errors: sizes that differ (before any write), values that the
// finite rules refuse (naming tensor and index), a file that shrank. After an error the targets hold
// unspecified values.
Result<std::vector<std::string>> LoadWeights(const LoadPlan& plan,
                                             std::span<const std::span<std::byte>> targets,
                                             const LoadOptions& options);

}  // namespace rt::weights
