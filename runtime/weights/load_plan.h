// Which tensors a program needs, matched against a checkpoint before memory is spent: every tensor of the
// checkpoint is requested or skipped, every request is there, shapes and types fit.
#pragma once

#include "runtime/weights/checkpoint.h"
#include "runtime/weights/random_fill.h"

namespace rt::weights {

// What values may be stored. Broken fine-tunes carry such values silently: they surface as NaN logits long
// after loading.
enum class FiniteRule : uint8_t {
  kAny,            // not looked at
  kGateParameter,  // A_log, dt_bias: NaN and +inf are errors; -inf means decay exactly 1 and is a warning
                   // naming the head
  kStrict,         // NaN and ±inf are errors
};

struct WeightRequest {
  std::string name;                  // verbatim, as in the checkpoint
  std::vector<int64_t> shape;        // as stored
  bool any_shape = false;            // any stored shape with as many elements
  DType dtype = DType::kBf16;        // in memory
  std::vector<DType> accepted = {};  // as stored; empty: any that converts to `dtype`
  FiniteRule finite = FiniteRule::kAny;
  int64_t elements_per_head = 1;  // for the warning: head = flat index / elements_per_head
  Init init = Init::kNormal;      // random weights only
  float init_scale = 0.02f;
};

class LoadPlan {
 public:
  // One tensor in one type in memory, however many requests share it.
  struct Item {
    WeightRequest request;  // the first; its finite rule is the strictest of those that share it
    const CheckpointTensor* source = nullptr;  // null: random
    uint64_t elements = 0;
    uint64_t bytes = 0;  // in memory, dense, in stored order
  };

  // Requests that agree in name and dtype (tied embeddings) share an item. `skip` are patterns (GlobMatches)
  // of tensors that the program does not use; one that matches nothing is fine. All findings come in one
  // Status: requested but absent, present but neither requested nor skipped (with the nearest absent name),
  // wrong shape, wrong dtype. The checkpoint must outlive the plan.
  static Result<LoadPlan> FromCheckpoint(const Checkpoint& checkpoint,
                                         const std::vector<WeightRequest>& requests,
                                         const std::vector<std::string>& skip);
  // Every request is filled by FillRandom; dtypes must be BF16 or F32.
  static Result<LoadPlan> Random(uint64_t seed, const std::vector<WeightRequest>& requests);

  const std::vector<Item>& items() const { return items_; }
  // The item of requests[i].
  size_t item_of(size_t request) const { return item_of_[request]; }
  // Null for random weights.
  const Checkpoint* checkpoint() const { return checkpoint_; }
  uint64_t seed() const { return seed_; }
  // Bytes of all items in memory.
  uint64_t total_bytes() const { return total_bytes_; }
  // Names that a pattern skipped, in checkpoint order.
  const std::vector<std::string>& skipped() const { return skipped_; }

 private:
  LoadPlan() = default;
  Status AddRequests(const std::vector<WeightRequest>& requests);
  Status BindToCheckpoint(const std::vector<std::string>& skip);

  std::vector<Item> items_;
  std::vector<size_t> item_of_;
  std::vector<std::string> skipped_;
  const Checkpoint* checkpoint_ = nullptr;
  uint64_t seed_ = 0;
  uint64_t total_bytes_ = 0;
};

}  // namespace rt::weights
