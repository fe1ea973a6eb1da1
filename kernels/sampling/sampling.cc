#include "kernels/sampling/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/sampling/sampling_primitives.h"

namespace rt::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp64(int64_t bytes) { return CeilDiv(bytes, 64) * 64; }

struct Candidate {
  float logit;
  float mass;
};

// Where things lie in the workspace. The first part holds what the first pass leaves for every row, the
// second each thread's scratch.
struct Layout {
  int64_t vocab_size;
  int64_t num_chunks() const { return CeilDiv(vocab_size, kSampleChunk); }
  int64_t num_blocks() const { return CeilDiv(vocab_size, kSampleBlock); }
  int64_t row_bytes() const {
    return RoundUp64(num_chunks() * static_cast<int64_t>(sizeof(ChunkStats))) +
           RoundUp64(num_blocks() * static_cast<int64_t>(sizeof(float)));
  }
  int64_t thread_bytes() const {
    const int64_t floats = RoundUp64((vocab_size + 1) * static_cast<int64_t>(sizeof(float)));
    const int64_t blocks = RoundUp64(num_blocks() * static_cast<int64_t>(sizeof(double)));
    return 3 * floats + RoundUp64(vocab_size * static_cast<int64_t>(sizeof(Candidate))) + 2 * blocks;
  }
};

// What the first pass found out about a row's raw logits.
struct RowStats {
  const ChunkStats* chunks;
  const float* block_max;
  int64_t num_chunks;
  double log_sum = 0;    // log(sum_v exp(l_v))
  int32_t best_id = -1;  // first largest below vocab_limit
  bool bad = false;

  void Merge() {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    float best = kMinusInfinity;
    for (int64_t c = 0; c < num_chunks; ++c) {
      if (chunks[c].sum > 0) largest = std::max<double>(largest, chunks[c].reference);
      bad = bad || std::isnan(chunks[c].sum);
      if (chunks[c].best > best) {
        best = chunks[c].best;
        best_id = static_cast<int32_t>(c * kSampleChunk) + chunks[c].best_id;
      }
    }
    for (int64_t c = 0; c < num_chunks; ++c) {
      if (chunks[c].sum > 0) sum += chunks[c].sum * std::exp(chunks[c].reference - largest);
    }
    log_sum = largest + std::log(sum);
  }
};

// One row after the first pass.
class Row {
 public:
  Row(const SamplingPrimitives& primitives, const SampleArgs& args, int64_t row, char* row_space,
      char* thread_space)
      : primitives_(primitives),
        args_(args),
        row_(row),
        raw_(args.logits + row * args.logits_stride),
        logits_(raw_) {
    const Layout layout{args.vocab_size};
    stats_.chunks = reinterpret_cast<const ChunkStats*>(row_space);
    stats_.num_chunks = layout.num_chunks();
    stats_.block_max = reinterpret_cast<const float*>(
        row_space + RoundUp64(layout.num_chunks() * static_cast<int64_t>(sizeof(ChunkStats))));
    stats_.Merge();
    auto take = [&thread_space](int64_t count, auto* type) {
      auto* part = reinterpret_cast<decltype(type)>(thread_space);
      thread_space += RoundUp64(count * static_cast<int64_t>(sizeof(*type)));
      return part;
    };
    adjusted_ = take(layout.vocab_size + 1, adjusted_);
    values_ = take(layout.vocab_size + 1, values_);
    found_ids_ = take(layout.vocab_size + 1, found_ids_);
    candidates_ = take(layout.vocab_size, candidates_);
    block_max_ = take(layout.num_blocks(), block_max_);
    block_mass_ = take(layout.num_blocks(), block_mass_);
  }

  void Sample() {
    ListTop();
    int32_t status = kSampleBadLogits, id = -1;
    if (!stats_.bad) {
      Adjust();
      id = Draw();
      status = id >= 0 ? kSampleOk : kSampleNothingLeft;
    }
    args_.ids[row_] = id;
    args_.logprobs[row_] = id >= 0 ? LogProb(id) : kNan;
    args_.status[row_] = status;
  }

 private:
  int64_t limit() const { return args_.vocab_limit; }
  int64_t num_blocks() const { return CeilDiv(limit(), kSampleBlock); }
  int64_t BlockSize(int64_t block) const {
    return std::min<int64_t>(kSampleBlock, limit() - block * kSampleBlock);
  }
  float LogProb(int64_t id) const { return static_cast<float>(raw_[id] - stats_.log_sum); }

  // The num_top most likely ids of the raw distribution, equal ones in order of id.
  void ListTop() {
    const int64_t width = args_.max_top;
    for (int64_t i = 0; i < width; ++i) {
      args_.top_ids[row_ * width + i] = -1;
      args_.top_logprobs[row_ * width + i] = kNan;
    }
    const int64_t wanted =
        width > 0 && args_.num_top != nullptr ? std::min<int64_t>(args_.num_top[row_], limit()) : 0;
    if (wanted <= 0 || stats_.bad) return;
    const int64_t found = CollectNotBelow(raw_, stats_.block_max, LowerBoundOfKth(stats_.block_max, wanted));
    const auto better = [this](int32_t a, int32_t b) {
      return raw_[a] != raw_[b] ? raw_[a] > raw_[b] : a < b;
    };
    std::partial_sort(found_ids_, found_ids_ + wanted, found_ids_ + found, better);
    for (int64_t i = 0; i < wanted; ++i) {
      args_.top_ids[row_ * width + i] = found_ids_[i];
      args_.top_logprobs[row_ * width + i] = LogProb(found_ids_[i]);
    }
  }

  // k different blocks have maxima not below the k-th largest maximum, so at least k logits are not below it.
  float LowerBoundOfKth(const float* block_max, int64_t k) {
    if (k > num_blocks()) return kMinusInfinity;
    std::copy(block_max, block_max + num_blocks(), values_);
    std::nth_element(values_, values_ + k - 1, values_ + num_blocks(), std::greater<>());
    return values_[k - 1];
  }

  // found_ids_, values_ = every l not below threshold, in order of id; returns how many.
  int64_t CollectNotBelow(const float* l, const float* block_max, float threshold) {
    int64_t count = 0;
    for (int64_t b = 0; b < num_blocks(); ++b) {
      if (block_max[b] < threshold) continue;
      const int64_t first = b * kSampleBlock;
      count += primitives_.collect(l + first, BlockSize(b), threshold, static_cast<int32_t>(first),
                                   found_ids_ + count, values_ + count);
    }
    return count;
  }

  // Steps 1 and 2: copies the row where a list changes it.
  void Adjust() {
    const int32_t pending = args_.pending_ids[row_];
    const int32_t history_begin = args_.history_offsets[row_], history_end = args_.history_offsets[row_ + 1];
    const int32_t bias_begin = args_.bias_offsets[row_], bias_end = args_.bias_offsets[row_ + 1];
    const bool penalised =
        args_.repetition[row_] != 1.0f || args_.presence[row_] != 0.0f || args_.frequency[row_] != 0.0f;
    const bool has_tokens = history_begin < history_end || pending >= 0;
    if (!(penalised && has_tokens) && bias_begin == bias_end) return;
    std::memcpy(adjusted_, raw_, static_cast<size_t>(limit()) * sizeof(float));
    logits_ = adjusted_;
    bool pending_is_listed = false;
    for (int32_t i = history_begin; i < history_end && penalised; ++i) {
      const bool is_pending = args_.history_ids[i] == pending;
      pending_is_listed = pending_is_listed || is_pending;
      Penalise(args_.history_ids[i], args_.history_counts[i] + (is_pending ? 1 : 0),
               args_.history_prompt[i] != 0);
    }
    if (penalised && !pending_is_listed) Penalise(pending, 1, false);
    for (int32_t i = bias_begin; i < bias_end; ++i) {
      if (InLimit(args_.bias_ids[i])) adjusted_[args_.bias_ids[i]] += args_.bias_values[i];
    }
  }

  bool InLimit(int32_t id) const { return id >= 0 && id < limit(); }

  void Penalise(int32_t id, int32_t output_count, bool in_prompt) {
    if (!InLimit(id)) return;
    float& l = adjusted_[id];
    const float repetition = args_.repetition[row_];
    if (in_prompt || output_count > 0) l = l > 0 ? l / repetition : l * repetition;
    if (output_count > 0)
      l -= args_.frequency[row_] * static_cast<float>(output_count) + args_.presence[row_];
  }

  int32_t Draw() {
    const bool greedy = args_.temperature[row_] < kGreedyTemperature;
    if (logits_ == raw_ && greedy) return stats_.best_id;
    const float* block_max = stats_.block_max;
    if (logits_ != raw_) {
      primitives_.block_maxima(logits_, limit(), block_max_);
      block_max = block_max_;
    }
    const int64_t best_block = std::max_element(block_max, block_max + num_blocks()) - block_max;
    if (num_blocks() == 0 || !std::isfinite(block_max[best_block])) return -1;
    largest_ = block_max[best_block];
    if (greedy) {
      const float* block = logits_ + best_block * kSampleBlock;
      return static_cast<int32_t>(std::find(block, block + BlockSize(best_block), largest_) - logits_);
    }
    inverse_temperature_ = 1.0f / args_.temperature[row_];
    return InverseCdf(block_max, Threshold(block_max));
  }

  // Steps 4 and 5: tokens below this logit are dropped.
  float Threshold(const float* block_max) {
    const int64_t k = args_.top_k[row_];
    const float top_p = args_.top_p[row_];
    int64_t count = -1;
    float threshold = kMinusInfinity;
    if (k > 0 && k < limit()) {
      count = CollectNotBelow(logits_, block_max, LowerBoundOfKth(block_max, k));
      std::nth_element(values_, values_ + k - 1, values_ + count, std::greater<>());
      threshold = values_[k - 1];
    }
    if (top_p >= 1.0f) return threshold;
    if (count < 0) return TopPOfAll(block_max, top_p);
    count =
        std::partition(values_, values_ + count, [threshold](float l) { return l >= threshold; }) - values_;
    const double total = MassOfCandidates(count);
    return MassThreshold(candidates_, candidates_ + count, top_p * total);
  }

  // Top-p over the whole vocabulary: masses are counted in bins of equal width below the largest logit; the
  // threshold is looked for among the few logits of the bin in which the mass above reaches its target.
  float TopPOfAll(const float* block_max, float top_p) {
    double bins[kMassBins] = {};
    const double target = top_p * CountMass(block_max, bins);
    double above = 0;
    int bin = 0;
    while (bin < kMassBins - 1 && above + bins[bin] < target) above += bins[bin++];
    int64_t count = 0;
    if (bin < kMassBins - 1) {
      for (int64_t b = 0; b < num_blocks(); ++b) {
        if (BinOf(block_max[b]) > bin) continue;
        const float* l = logits_ + b * kSampleBlock;
        for (int64_t i = 0; i < BlockSize(b); ++i) {
          values_[count] = l[i];
          count += BinOf(l[i]) == bin ? 1 : 0;
        }
      }
    } else {  // the target lies in the far tail: look at every logit
      above = 0;
      count = CollectNotBelow(logits_, block_max, kMinusInfinity);
    }
    MassOfCandidates(count);
    return MassThreshold(candidates_, candidates_ + count, target - above);
  }

  // Bins cover kReach nats below the largest logit; the last one holds everything further down.
  static constexpr int kMassBins = 2048;
  static constexpr float kReach = 20.0f;
  int BinOf(float l) const {
    const float bin = (largest_ - l) * (inverse_temperature_ * ((kMassBins - 1) / kReach));
    return bin < kMassBins - 1 ? static_cast<int>(bin) : kMassBins - 1;
  }

  // Fills all bins but the last; returns the mass of everything.
  double CountMass(const float* block_max, double* bins) {
    double total = 0;
    float e[kSampleBlock];
    for (int64_t b = 0; b < num_blocks(); ++b) {
      const float* l = logits_ + b * kSampleBlock;
      total += primitives_.mass(l, BlockSize(b), largest_, inverse_temperature_, kMinusInfinity, 0.0f, e);
      if (BinOf(block_max[b]) == kMassBins - 1) continue;
      for (int64_t i = 0; i < BlockSize(b); ++i) {
        const int bin = BinOf(l[i]);
        if (bin < kMassBins - 1) bins[bin] += e[i];
      }
    }
    return total;
  }

  // Fills candidates_ from values_; returns the sum of their masses.
  double MassOfCandidates(int64_t count) {
    double total = 0;
    float e[kSampleBlock];
    for (int64_t i = 0; i < count; i += kSampleBlock) {
      const int64_t n = std::min<int64_t>(kSampleBlock, count - i);
      total += primitives_.mass(values_ + i, n, largest_, inverse_temperature_, kMinusInfinity, 0.0f, e);
      for (int64_t j = 0; j < n; ++j) candidates_[i + j] = {values_[i + j], e[j]};
    }
    return total;
  }

  // The logit v with mass(> v) < target <= mass(>= v); the smallest one if rounding leaves the target
  // unreached. Quickselect by mass: a pivot splits the candidates, the side that holds the threshold is
  // looked at again.
  static float MassThreshold(Candidate* begin, Candidate* end, double target) {
    const auto mass_of = [](const Candidate* from, const Candidate* to) {
      double mass = 0;
      for (; from != to; ++from) mass += from->mass;
      return mass;
    };
    double above = 0;
    float threshold = begin->logit;
    while (begin != end) {
      const float first = begin->logit, middle = begin[(end - begin) / 2].logit, last = end[-1].logit;
      const float pivot = std::max(std::min(first, middle), std::min(std::max(first, middle), last));
      Candidate* equal = std::partition(begin, end, [pivot](const Candidate& c) { return c.logit > pivot; });
      Candidate* below = std::partition(equal, end, [pivot](const Candidate& c) { return c.logit == pivot; });
      const double greater = mass_of(begin, equal);
      if (begin != equal && above + greater >= target) {
        end = equal;
        continue;
      }
      threshold = pivot;
      above += greater + mass_of(equal, below);
      if (above >= target) break;
      begin = below;
    }
    return threshold;
  }

  // Masses of every block in block_mass_; returns their sum.
  double TotalMass(const float* block_max, float threshold, float min_p) {
    double total = 0;
    float e[kSampleBlock];
    for (int64_t b = 0; b < num_blocks(); ++b) {
      block_mass_[b] = 0;
      if (block_max[b] < threshold) continue;
      block_mass_[b] = primitives_.mass(logits_ + b * kSampleBlock, BlockSize(b), largest_,
                                        inverse_temperature_, threshold, min_p, e);
      total += block_mass_[b];
    }
    return total;
  }

  // The first id whose cumulative mass exceeds the drawn share of the total; the last one with mass if
  // rounding leaves none.
  int32_t InverseCdf(const float* block_max, float threshold) {
    const float min_p = args_.min_p[row_];
    const double target =
        SampleUniform(args_.seed[row_], args_.position[row_]) * TotalMass(block_max, threshold, min_p);
    double before = 0;
    int64_t block = -1;
    for (int64_t b = 0; b < num_blocks(); ++b) {
      if (block_mass_[b] <= 0) continue;
      if (block >= 0) before += block_mass_[block];
      block = b;
      if (before + block_mass_[b] > target) break;
    }
    float e[kSampleBlock];
    const int64_t first = block * kSampleBlock;
    primitives_.mass(logits_ + first, BlockSize(block), largest_, inverse_temperature_, threshold, min_p, e);
    int64_t chosen = -1;
    double cumulative = before;
    for (int64_t i = 0; i < BlockSize(block); ++i) {
      if (!(e[i] > 0)) continue;
      cumulative += e[i];
      chosen = first + i;
      if (cumulative > target) break;
    }
    return static_cast<int32_t>(chosen);
  }

  const SamplingPrimitives& primitives_;
  const SampleArgs& args_;
  const int64_t row_;
  const float* const raw_;
  const float* logits_;  // raw_, or adjusted_ where a list changed it
  RowStats stats_{};
  float largest_ = 0;
  float inverse_temperature_ = 0;
  float* adjusted_ = nullptr;
  float* values_ = nullptr;
  int32_t* found_ids_ = nullptr;
  Candidate* candidates_ = nullptr;
  float* block_max_ = nullptr;
  double* block_mass_ = nullptr;
};

}  // namespace

size_t SampleWorkspaceBytes(int64_t max_rows, int64_t vocab_size, int num_threads) {
  const Layout layout{vocab_size};
  return static_cast<size_t>(max_rows * layout.row_bytes() + num_threads * layout.thread_bytes());
}

int SampleWith(const SamplingPrimitives& primitives, const SampleArgs& args, const Parallel& parallel) {
  const Layout layout{args.vocab_size};
  char* rows = static_cast<char*>(args.workspace);
  char* threads = rows + args.num_rows * layout.row_bytes();
  const int64_t stats_bytes = RoundUp64(layout.num_chunks() * static_cast<int64_t>(sizeof(ChunkStats)));
  // Pass 1, over chunks of all rows, so that one row keeps every thread busy. An exponential is worth 16
  // elements of plain work.
  const int64_t cost = std::min<int64_t>(kSampleChunk, args.vocab_size) * 16;
  ParallelForCost(parallel, args.num_rows * layout.num_chunks(), cost, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / layout.num_chunks(), chunk = i % layout.num_chunks(),
                    first = chunk * kSampleChunk;
      char* space = rows + row * layout.row_bytes();
      const int64_t n = std::min<int64_t>(kSampleChunk, args.vocab_size - first);
      const int64_t limited = std::clamp<int64_t>(args.vocab_limit - first, 0, n);
      primitives.chunk_stats(
          args.logits + row * args.logits_stride + first, n, limited,
          reinterpret_cast<float*>(space + stats_bytes) + chunk * (kSampleChunk / kSampleBlock),
          reinterpret_cast<ChunkStats*>(space) + chunk);
    }
  });
  // Pass 2, over rows.
  ParallelForCost(parallel, args.num_rows, args.vocab_size, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t row = begin; row < end; ++row) {
      Row(primitives, args, row, rows + row * layout.row_bytes(), threads + thread * layout.thread_bytes())
          .Sample();
    }
  });
  return 0;
}

Philox4 Philox4x32(const Philox4& counter, uint64_t key) {
  // Multipliers and Weyl increments of Salmon et al. 2011, sec. 4.3.
  constexpr uint64_t kMul0 = 0xD2511F53u, kMul1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u, kWeyl1 = 0xBB67AE85u;
  Philox4 c = counter;
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMul0 * c.words[0], product1 = kMul1 * c.words[2];
    c = {{static_cast<uint32_t>(product1 >> 32) ^ c.words[1] ^ key0, static_cast<uint32_t>(product1),
          static_cast<uint32_t>(product0 >> 32) ^ c.words[3] ^ key1, static_cast<uint32_t>(product0)}};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return c;
}

double SampleUniform(uint64_t seed, uint64_t position) {
  const Philox4 counter{{static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 0}};
  const Philox4 drawn = Philox4x32(counter, seed);
  const uint64_t bits = drawn.words[0] | uint64_t{drawn.words[1]} << 32;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace rt::kernels
