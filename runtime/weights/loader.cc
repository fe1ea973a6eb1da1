#include "runtime/weights/loader.h"

#include "runtime/weights/error_list.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <tuple>

namespace rt::weights {
namespace {

// Large enough that a disk reads at full speed and threads rarely meet, small enough for progress to move.
constexpr uint64_t kChunkBytes = 4u << 20;
// More than any model has heads; bounds the list when a whole file is NaN.
constexpr size_t kMaxFindingsAChunk = 4096;
constexpr auto kProgressInterval = std::chrono::milliseconds(100);

// Elements [first, first + count) of one item.
struct Chunk {
  size_t item;
  uint64_t first, count;
  uint64_t bytes;  // read from the file, or written where there is none
};

// A value that the item's rule refuses or warns of.
struct Finding {
  size_t item;
  uint64_t index;
  float value;
  bool operator<(const Finding& other) const {
    return std::tie(item, index) < std::tie(other.item, other.index);
  }
};

int StoredBits(const LoadPlan::Item& item) {
  return BitsOf(item.source ? item.source->dtype : item.request.dtype);
}

// In file order, so that a cold disk is read forwards.
std::vector<Chunk> MakeChunks(const LoadPlan& plan) {
  std::vector<size_t> order(plan.items().size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto place = [&](size_t i) {
    const CheckpointTensor* source = plan.items()[i].source;
    return source ? std::tuple(source->file, source->data.data(), i)
                  : std::tuple(size_t{0}, static_cast<const std::byte*>(nullptr), i);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return place(a) < place(b); });
  std::vector<Chunk> chunks;
  for (const size_t i : order) {
    const LoadPlan::Item& item = plan.items()[i];
    // A multiple of eight elements keeps packed types at byte borders.
    const uint64_t step = kChunkBytes * 8 / static_cast<uint64_t>(StoredBits(item)) & ~uint64_t{7};
    for (uint64_t first = 0; first < item.elements; first += step) {
      const uint64_t count = std::min(step, item.elements - first);
      chunks.push_back({i, first, count, count * static_cast<uint64_t>(StoredBits(item)) / 8});
    }
  }
  return chunks;
}

// F32, BF16 or F16: the plan admits finite rules for these only.
float ValueAt(DType dtype, const std::byte* data, uint64_t index) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, data + index * sizeof value, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * sizeof bits, sizeof bits);
  return dtype == DType::kBf16 ? F32FromBf16(bits) : F32FromF16(bits);
}

// Shared by the workers and the thread that waits for them.
class LoadRun {
 public:
  LoadRun(const LoadPlan& plan, std::span<const std::span<std::byte>> targets)
      : plan_(plan), targets_(targets), chunks_(MakeChunks(plan)) {
    for (const Chunk& chunk : chunks_) total_bytes_ += chunk.bytes;
  }

  void Run(int num_threads, const LoadProgress& progress);
  Result<std::vector<std::string>> Conclude();

 private:
  void Work();
  Status LoadChunk(const Chunk& chunk, std::vector<Finding>* findings) const;
  void FindNonFinite(const Chunk& chunk, const std::byte* data, std::vector<Finding>* findings) const;

  const LoadPlan& plan_;
  const std::span<const std::span<std::byte>> targets_;
  const std::vector<Chunk> chunks_;
  uint64_t total_bytes_ = 0;

  std::atomic<size_t> next_chunk_{0};
  std::atomic<uint64_t> done_bytes_{0};
  std::mutex mutex_;
  std::condition_variable worker_ended_;
  size_t ended_workers_ = 0;  // under mutex_, as all below
  std::vector<Finding> findings_;
  Status status_;  // first failure
};

void LoadRun::Run(int num_threads, const LoadProgress& progress) {
  const size_t wanted =
      num_threads > 0 ? static_cast<size_t>(num_threads) : std::max(1u, std::thread::hardware_concurrency());
  std::vector<std::thread> workers;
  try {
    while (workers.size() < std::min(wanted, std::max<size_t>(chunks_.size(), 1)))
      workers.emplace_back([this] { Work(); });
  } catch (const std::system_error&) {
    // No more threads to be had: those that started do the work, or this one.
    if (workers.empty()) Work();
  }
  std::unique_lock lock(mutex_);
  while (ended_workers_ < workers.size()) {
    worker_ended_.wait_for(lock, kProgressInterval);
    lock.unlock();
    const uint64_t done = done_bytes_.load(std::memory_order_relaxed);
    if (progress && done < total_bytes_) progress(done, total_bytes_);
    lock.lock();
  }
  lock.unlock();
  for (std::thread& worker : workers) worker.join();
  if (progress && status_.ok()) progress(total_bytes_, total_bytes_);
}

void LoadRun::Work() {
  Status status;
  std::vector<Finding> findings;
  while (status.ok()) {
    const size_t index = next_chunk_.fetch_add(1, std::memory_order_relaxed);
    if (index >= chunks_.size()) break;
    status = LoadChunk(chunks_[index], &findings);
    done_bytes_.fetch_add(chunks_[index].bytes, std::memory_order_relaxed);
  }
  if (!status.ok()) next_chunk_.store(chunks_.size(), std::memory_order_relaxed);  // the others stop too
  const std::lock_guard lock(mutex_);
  if (status_.ok()) status_ = status;
  findings_.insert(findings_.end(), findings.begin(), findings.end());
  ++ended_workers_;
  worker_ended_.notify_one();
}

Status LoadRun::LoadChunk(const Chunk& chunk, std::vector<Finding>* findings) const {
  const LoadPlan::Item& item = plan_.items()[chunk.item];
  const WeightRequest& request = item.request;
  std::byte* const target =
      targets_[chunk.item].data() + chunk.first * static_cast<uint64_t>(BitsOf(request.dtype)) / 8;
  if (!item.source) {
    FillRandom(plan_.seed(), request.name, request.init, request.init_scale, chunk.first, chunk.count,
               request.dtype, target);
    return Status::Ok();
  }
  const CheckpointTensor& source = *item.source;
  const auto data =
      source.data.subspan(chunk.first * static_cast<uint64_t>(StoredBits(item)) / 8, chunk.bytes);
  RT_RETURN_IF_ERROR(plan_.checkpoint()->file(source.file).Prefetch(data));
  if (request.finite != FiniteRule::kAny) FindNonFinite(chunk, data.data(), findings);
  if (source.dtype == request.dtype) {
    std::memcpy(target, data.data(), data.size());
  } else {
    Convert(source.dtype, data.data(), request.dtype, target, chunk.count);
  }
  return Status::Ok();
}

void LoadRun::FindNonFinite(const Chunk& chunk, const std::byte* data, std::vector<Finding>* findings) const {
  const DType dtype = plan_.items()[chunk.item].source->dtype;
  size_t left = kMaxFindingsAChunk;
  for (uint64_t i = 0; i < chunk.count && left > 0; ++i) {
    const float value = ValueAt(dtype, data, i);
    if (std::isfinite(value)) continue;
    findings->push_back({chunk.item, chunk.first + i, value});
    --left;
  }
}

// "[2, 7]"
std::string IndexText(uint64_t flat, const std::vector<int64_t>& shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = static_cast<int64_t>(flat % static_cast<uint64_t>(shape[d]));
    flat /= static_cast<uint64_t>(shape[d]);
  }
  return ShapeText(index);
}

std::string HeadsText(const std::vector<uint64_t>& heads) {
  std::string text = heads.size() == 1 ? "head " : "heads ";
  for (size_t i = 0; i < heads.size() && i < ErrorList::kMaxListed; ++i)
    text += (i ? ", " : "") + std::to_string(heads[i]);
  if (heads.size() > ErrorList::kMaxListed)
    text += " and " + std::to_string(heads.size() - ErrorList::kMaxListed) + " more";
  return text;
}

Result<std::vector<std::string>> LoadRun::Conclude() {
  RT_RETURN_IF_ERROR(status_);
  std::sort(findings_.begin(), findings_.end());
  ErrorList errors;
  std::map<size_t, std::vector<uint64_t>> endless;  // item -> heads with -inf
  for (const Finding& f : findings_) {
    const WeightRequest& request = plan_.items()[f.item].request;
    if (request.finite == FiniteRule::kGateParameter && std::isinf(f.value) && f.value < 0) {
      std::vector<uint64_t>& heads = endless[f.item];
      const uint64_t head = f.index / static_cast<uint64_t>(request.elements_per_head);
      if (heads.empty() || heads.back() != head) heads.push_back(head);
      continue;
    }
    const char* what = std::isnan(f.value) ? "NaN" : f.value > 0 ? "+inf" : "-inf";
    errors.Add(Code::kDataLoss,
               "tensor " + request.name + ": " + what + " at " + IndexText(f.index, request.shape));
  }
  if (!errors.empty()) return errors.ToStatus().Annotate(plan_.checkpoint()->folder().string());
  std::vector<std::string> warnings;
  for (const auto& [item, heads] : endless) {
    warnings.push_back("tensor " + plan_.items()[item].request.name + ": -inf at " + HeadsText(heads) +
                       ": decay is exactly 1 there, the state never forgets");
  }
  return warnings;
}

}  // namespace

Result<std::vector<std::string>> LoadWeights(const LoadPlan& plan,
                                             std::span<const std::span<std::byte>> targets,
                                             const LoadOptions& options) {
  if (targets.size() != plan.items().size()) {
    return {Code::kInvalidArgument, "load: expected " + std::to_string(plan.items().size()) +
                                        " targets, got " + std::to_string(targets.size())};
  }
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].size() == plan.items()[i].bytes) continue;
    return {Code::kInvalidArgument, "load: tensor " + plan.items()[i].request.name +
                                        ": expected a target of " + std::to_string(plan.items()[i].bytes) +
                                        " bytes, got " + std::to_string(targets[i].size())};
  }
  LoadRun run(plan, targets);
  run.Run(options.num_threads, options.progress);
  return run.Conclude();
}

}  // namespace rt::weights
