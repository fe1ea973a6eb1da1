#include "kernels/attention/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/isa_testing.h"
#include "kernels/common/thread_pool.h"

namespace rt::kernels {
namespace {

constexpr double kTheta = 1e7;
constexpr float kCanary = 512.0f;

struct SequenceSpec {
  int32_t context;
  int32_t num_new;
  bool padding = false;
};

struct Config {
  int32_t num_q_heads, num_kv_heads, head_dim, rotary_dim;
  bool gate, norm;
  int32_t block_size;
};

// Qwen3.5's shape, the micro model's, and corners: no rotation, full rotation, one head a group, more heads a
// group than an item has rows.
const Config kConfigs[] = {{8, 2, 256, 64, true, true, 16},
                           {4, 2, 24, 6, true, true, 16},
                           {3, 1, 40, 40, false, true, 5},
                           {6, 6, 16, 0, false, false, 16},
                           {70, 1, 9, 4, true, true, 7}};

// A batch with its cache. Every byte of the cache that holds no token is NaN.
template <class T>
struct Batch {
  Config config;
  std::vector<SequenceSpec> specs;
  std::vector<int32_t> cu_seqlens{0}, context_lens, block_table, positions;
  int64_t max_blocks = 0, num_blocks = 1;
  int64_t q_width, kv_width, q_stride, kv_stride, out_stride, block_elements, block_stride;
  std::vector<T> q, k, v, out, keys, values;
  std::vector<float> q_norm, k_norm, rotary;

  Batch(const Config& c, std::vector<SequenceSpec> sequences, uint64_t seed)
      : config(c), specs(std::move(sequences)) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal;
    auto fill = [&](std::vector<T>& data, int64_t rows, int64_t width, int64_t stride) {
      data.assign(static_cast<size_t>(rows * stride), FromFloat<T>(std::numeric_limits<float>::quiet_NaN()));
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < width; ++i)
          data[static_cast<size_t>(r * stride + i)] = FromFloat<T>(normal(rng));
      }
    };
    for (const SequenceSpec& s : specs) {
      max_blocks =
          std::max<int64_t>(max_blocks, (s.context + s.num_new + c.block_size - 1) / c.block_size + 1);
      num_blocks += (s.context + s.num_new + c.block_size - 1) / c.block_size;
    }
    q_width = c.num_q_heads * c.head_dim * (c.gate ? 2 : 1);
    kv_width = c.num_kv_heads * c.head_dim;
    q_stride = q_width + 3;
    kv_stride = kv_width + 5;
    out_stride = c.num_q_heads * c.head_dim + 2;
    block_elements = kv_width * c.block_size;
    block_stride = block_elements + 11;  // a block is part of a larger unit
    keys.assign(static_cast<size_t>(num_blocks * block_stride),
                FromFloat<T>(std::numeric_limits<float>::quiet_NaN()));
    values = keys;
    std::vector<int32_t> free(static_cast<size_t>(num_blocks));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), rng);
    block_table.assign(specs.size() * static_cast<size_t>(max_blocks), -1);
    for (size_t s = 0; s < specs.size(); ++s) {
      const SequenceSpec& spec = specs[s];
      context_lens.push_back(spec.context);
      cu_seqlens.push_back(cu_seqlens.back() + spec.num_new);
      for (int32_t t = 0; t < spec.num_new; ++t) positions.push_back(spec.context + t);
      if (spec.padding) continue;
      for (int64_t b = 0; b * c.block_size < spec.context + spec.num_new; ++b) {
        block_table[s * static_cast<size_t>(max_blocks) + static_cast<size_t>(b)] = free.back();
        free.pop_back();
      }
      for (int64_t token = 0; token < spec.context; ++token) {
        for (int64_t g = 0; g < c.num_kv_heads; ++g) {
          for (int64_t i = 0; i < c.head_dim; ++i) {
            keys[Slot(s, token, g) + static_cast<size_t>(i)] = FromFloat<T>(normal(rng));
            values[Slot(s, token, g) + static_cast<size_t>(i)] = FromFloat<T>(normal(rng));
          }
        }
      }
    }
    const int64_t rows = cu_seqlens.back();
    fill(q, rows, q_width, q_stride);
    fill(k, rows, kv_width, kv_stride);
    fill(v, rows, kv_width, kv_stride);
    out.assign(static_cast<size_t>(rows * out_stride), FromFloat<T>(kCanary));
    for (int32_t i = 0; i < c.head_dim; ++i) {
      q_norm.push_back(0.3f * normal(rng));
      k_norm.push_back(0.3f * normal(rng));
    }
    rotary.resize(static_cast<size_t>(rows * c.rotary_dim));
    RotaryTable(rows, positions.data(), c.rotary_dim, kTheta, rotary.data(), SerialParallel());
  }

  size_t Slot(size_t s, int64_t token, int64_t g) const {
    const int64_t block =
        block_table[s * static_cast<size_t>(max_blocks) + static_cast<size_t>(token / config.block_size)];
    return static_cast<size_t>(block * block_stride +
                               (g * config.block_size + token % config.block_size) * config.head_dim);
  }

  AttentionShape Shape() const {
    return {config.num_q_heads,
            config.num_kv_heads,
            config.head_dim,
            config.rotary_dim,
            config.gate,
            1.0f / std::sqrt(static_cast<float>(config.head_dim)),
            config.norm ? q_norm.data() : nullptr,
            config.norm ? k_norm.data() : nullptr,
            1.0f,
            1e-6f};
  }

  void Run(const AttentionKernels& kernels, const Parallel& parallel) {
    const size_t bytes =
        AttentionWorkspaceBytes(Shape(), static_cast<int64_t>(specs.size()), parallel.num_threads);
    std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(64, (bytes + 63) / 64 * 64),
                                                     std::free);
    std::memset(workspace.get(), 0xff, bytes);  // NaN: contents of the workspace must not matter
    const int64_t stride = block_stride * static_cast<int64_t>(sizeof(T));
    const AttentionArgs args{.shape = Shape(),
                             .num_sequences = static_cast<int32_t>(specs.size()),
                             .cu_seqlens = cu_seqlens.data(),
                             .context_lens = context_lens.data(),
                             .block_table = block_table.data(),
                             .max_blocks = max_blocks,
                             .q = q.data(),
                             .q_stride = q_stride,
                             .k = k.data(),
                             .k_stride = kv_stride,
                             .v = v.data(),
                             .v_stride = kv_stride,
                             .rotary = rotary.data(),
                             .out = out.data(),
                             .out_stride = out_stride,
                             .key_base = keys.data(),
                             .key_block_stride_bytes = stride,
                             .value_base = values.data(),
                             .value_block_stride_bytes = stride,
                             .block_size = config.block_size,
                             .workspace = workspace.get()};
    ASSERT_EQ((sizeof(T) == 2 ? kernels.bf16 : kernels.f32)(args, parallel), 0);
  }
};

template <class T>
constexpr double kOutputEps = sizeof(T) == 2 ? 0x1p-8 : 0x1p-23;

// rotary(norm(x)) in fp64, from the formulas of the header.
template <class T>
std::vector<double> NormRotate(const Config& c, const T* x, const std::vector<float>& weight,
                               int64_t position) {
  std::vector<double> y;
  double squares = 0;
  for (int64_t i = 0; i < c.head_dim; ++i) {
    y.push_back(ToFloat(x[i]));
    squares += y.back() * y.back();
  }
  if (c.norm) {
    for (int64_t i = 0; i < c.head_dim; ++i) {
      y[static_cast<size_t>(i)] *=
          (1.0 + double{weight[static_cast<size_t>(i)]}) / std::sqrt(squares / c.head_dim + double{1e-6f});
    }
  }
  const int64_t half = c.rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double angle =
        static_cast<double>(position) * std::pow(kTheta, -2.0 * static_cast<double>(i) / c.rotary_dim);
    const double first = y[static_cast<size_t>(i)], second = y[static_cast<size_t>(i + half)];
    y[static_cast<size_t>(i)] = first * std::cos(angle) - second * std::sin(angle);
    y[static_cast<size_t>(i + half)] = second * std::cos(angle) + first * std::sin(angle);
  }
  return y;
}

// The new tokens' cache rows are right and no other byte of the cache changed.
template <class T>
void ExpectCacheAppended(const Batch<T>& before, const Batch<T>& after, const std::string& what) {
  const Config& c = after.config;
  std::vector<bool> is_new(after.keys.size(), false);
  for (size_t s = 0; s < after.specs.size(); ++s) {
    for (int64_t t = 0; t < after.specs[s].num_new && !after.specs[s].padding; ++t) {
      const int64_t row = after.cu_seqlens[s] + t, token = after.specs[s].context + t;
      for (int64_t g = 0; g < c.num_kv_heads; ++g) {
        const auto want = NormRotate(c, &after.k[static_cast<size_t>(row * after.kv_stride + g * c.head_dim)],
                                     after.k_norm, token);
        for (int64_t i = 0; i < c.head_dim; ++i) {
          const size_t at = after.Slot(s, token, g) + static_cast<size_t>(i);
          is_new[at] = true;
          // The norm errs by (d + 8) roundings, the rotation by three of values below 4 max|want|.
          const double bound =
              (c.head_dim + 16) * 0x1p-24 * 8 + kOutputEps<T> * std::abs(want[static_cast<size_t>(i)]);
          ASSERT_NEAR(ToFloat(after.keys[at]), want[static_cast<size_t>(i)], bound)
              << what << ": key, sequence " << s << " token " << token;
          ASSERT_EQ(ToFloat(after.values[at]),
                    ToFloat(after.v[static_cast<size_t>(row * after.kv_stride + g * c.head_dim + i)]))
              << what;
        }
      }
    }
  }
  for (size_t i = 0; i < after.keys.size(); ++i) {
    if (is_new[i]) continue;
    ASSERT_EQ(std::memcmp(&after.keys[i], &before.keys[i], sizeof(T)), 0)
        << what << ": key element " << i << " was written";
    ASSERT_EQ(std::memcmp(&after.values[i], &before.values[i], sizeof(T)), 0)
        << what << ": value element " << i << " was written";
  }
}

// One head of one row against the fp64 formula over the keys and values that the cache now holds.
template <class T>
void ExpectHead(const Batch<T>& b, size_t s, int64_t t, int64_t h, const std::string& what) {
  const Config& c = b.config;
  const int64_t row = b.cu_seqlens[s] + t, g = h / (c.num_q_heads / c.num_kv_heads),
                num_keys = b.specs[s].context + t + 1;
  const T* raw = &b.q[static_cast<size_t>(row * b.q_stride + h * c.head_dim * (c.gate ? 2 : 1))];
  const auto q = NormRotate(c, raw, b.q_norm, b.specs[s].context + t);
  const double scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim));
  std::vector<double> weight;
  double largest = -1e300, magnitude = 0, max_value = 0, total = 0;
  for (int64_t n = 0; n < num_keys; ++n) {
    double score = 0, absolute = 0;
    for (int64_t i = 0; i < c.head_dim; ++i) {
      const size_t at = b.Slot(s, n, g) + static_cast<size_t>(i);
      const double product = q[static_cast<size_t>(i)] * ToFloat(b.keys[at]) * scale;
      score += product;
      absolute += std::abs(product);
      max_value = std::max<double>(max_value, std::abs(ToFloat(b.values[at])));
    }
    weight.push_back(score);
    largest = std::max(largest, score);
    magnitude = std::max(magnitude, absolute);
  }
  for (double& w : weight) total += w = std::exp(w - largest);
  // A score errs by (2 d + 32) roundings of the sum of its terms' magnitudes (norm, rotation, product);
  // probabilities by twice that, their sums by a rounding a key and chunk.
  const double error =
      2 * (2 * c.head_dim + 32) * 0x1p-24 * magnitude + static_cast<double>(num_keys + 64) * 0x1p-23;
  for (int64_t i = 0; i < c.head_dim; ++i) {
    double want = 0;
    for (int64_t n = 0; n < num_keys; ++n)
      want += weight[static_cast<size_t>(n)] / total *
              ToFloat(b.values[b.Slot(s, n, g) + static_cast<size_t>(i)]);
    if (c.gate) want /= 1 + std::exp(-double{ToFloat(raw[c.head_dim + i])});
    const double bound = error * max_value + kOutputEps<T> * std::abs(want);
    ASSERT_NEAR(ToFloat(b.out[static_cast<size_t>(row * b.out_stride + h * c.head_dim + i)]), want, bound)
        << what << ": sequence " << s << " new token " << t << " head " << h << " feature " << i;
  }
}

template <class T>
void ExpectOutputs(const Batch<T>& b, const std::string& what) {
  const int64_t width = b.config.num_q_heads * b.config.head_dim;
  for (size_t s = 0; s < b.specs.size(); ++s) {
    for (int64_t t = 0; t < b.specs[s].num_new; ++t) {
      const T* row = &b.out[static_cast<size_t>((b.cu_seqlens[s] + t) * b.out_stride)];
      for (int64_t h = 0; h < b.config.num_q_heads && !b.specs[s].padding; ++h) ExpectHead(b, s, t, h, what);
      for (int64_t i = 0; i < width && b.specs[s].padding; ++i)
        ASSERT_EQ(ToFloat(row[i]), 0.0f) << what << ": padding row is not zero";
      for (int64_t i = width; i < b.out_stride; ++i)
        ASSERT_EQ(ToFloat(row[i]), kCanary) << what << ": written past the row";
    }
  }
}

class AttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  const AttentionKernels& kernels() const {
    return GetParam() == Isa::kAvx2 ? AttentionAvx2() : AttentionAvx512Bf16();
  }

  template <class T>
  void Check(const Config& config, const std::vector<SequenceSpec>& specs, uint64_t seed) {
    const Batch<T> before(config, specs, seed);
    Batch<T> batch = before;
    batch.Run(kernels(), SerialParallel());
    const std::string what = std::string(sizeof(T) == 2 ? "bf16" : "f32") +
                             " d=" + std::to_string(config.head_dim) + " seed " + std::to_string(seed);
    ExpectCacheAppended(before, batch, what);
    ExpectOutputs(batch, what);
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, AttentionTest, ::testing::ValuesIn(TestedIsas()), IsaTestName());

// Decode, padding, zero length, first tokens, prefill beside each other; lengths around blocks, chunks and
// query tiles.
const std::vector<SequenceSpec> kMixed = {{0, 1},  {15, 1}, {16, 1}, {40, 1},      {3, 1, true}, {7, 0},
                                          {0, 17}, {5, 33}, {64, 2}, {0, 3, true}, {31, 20}};

TEST_P(AttentionTest, MixedBatchesMatchTheFp64Formula) {
  uint64_t seed = 1;
  for (const Config& config : kConfigs) {
    Check<float>(config, kMixed, ++seed);
    Check<bf16>(config, kMixed, ++seed);
  }
}

TEST_P(AttentionTest, LongDecodesAreMergedFromSegments) {
  const Config config{4, 2, 32, 16, true, true, 16};
  for (const auto& specs : {std::vector<SequenceSpec>{{1023, 1}},
                            {{1024, 1}, {2000, 1}, {100, 1}},
                            {{9000, 1}, {1500, 1, true}}}) {
    Check<float>(config, specs, 77);
    Check<bf16>(config, specs, 78);
  }
}

TEST_P(AttentionTest, ASequenceHasTheSameBitsInEveryBatchAndOnAnyNumberOfThreads) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = 3, .pin = false}, &error);
  ASSERT_NE(pool, nullptr) << error;
  const Config config{8, 2, 64, 16, true, true, 16};
  Batch<bf16> all(config, {{2000, 1}, {10, 1}, {0, 70}, {130, 1}, {33, 40}}, 5);
  const Batch<bf16> before = all;
  all.Run(kernels(), pool->parallel());
  for (size_t s = 0; s < all.specs.size(); ++s) {
    Batch<bf16> one = before;
    one.specs = {before.specs[s]};
    one.cu_seqlens = {before.cu_seqlens[s], before.cu_seqlens[s + 1]};  // row numbers need not begin at zero
    one.context_lens = {before.context_lens[s]};
    one.block_table.assign(before.block_table.begin() + static_cast<int64_t>(s) * before.max_blocks,
                           before.block_table.begin() + static_cast<int64_t>(s + 1) * before.max_blocks);
    one.Run(kernels(), SerialParallel());
    const int64_t first = before.cu_seqlens[s] * before.out_stride,
                  last = before.cu_seqlens[s + 1] * before.out_stride;
    EXPECT_EQ(std::memcmp(&one.out[static_cast<size_t>(first)], &all.out[static_cast<size_t>(first)],
                          static_cast<size_t>(last - first) * sizeof(bf16)),
              0)
        << "sequence " << s;
    for (int64_t i = 0; i < static_cast<int64_t>(one.out.size()); ++i) {
      const bool own = i >= first && i < last;
      ASSERT_TRUE(own || ToFloat(one.out[static_cast<size_t>(i)]) == kCanary)
          << "row of another sequence was written";
    }
  }
}

TEST_P(AttentionTest, NanInOneQueryStaysInItsRowAndHead) {
  Batch<float> b({4, 2, 32, 8, false, true, 16}, {{20, 3}}, 9);
  b.q[static_cast<size_t>(1 * b.q_stride + 2 * 32 + 5)] = std::numeric_limits<float>::quiet_NaN();
  b.Run(kernels(), SerialParallel());
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t h = 0; h < 4; ++h) {
      EXPECT_EQ(std::isnan(b.out[static_cast<size_t>(t * b.out_stride + h * 32)]), t == 1 && h == 2)
          << "token " << t << " head " << h;
    }
  }
}

TEST_P(AttentionTest, LargeScoresDoNotOverflow) {
  Batch<float> b({2, 1, 16, 0, false, false, 16}, {{40, 2}}, 3);
  for (float& x : b.q) x *= 1e4f;
  b.Run(kernels(), SerialParallel());
  for (int64_t t = 0; t < 2; ++t) {
    for (int64_t i = 0; i < 32; ++i)
      EXPECT_TRUE(std::isfinite(b.out[static_cast<size_t>(t * b.out_stride + i)]));
  }
}

TEST(RotaryTable, IsExactToFp32AtAMillionPositions) {
  const std::vector<int32_t> positions{0, 1, 4097, 999999};
  std::vector<float> table(positions.size() * 64);
  RotaryTable(4, positions.data(), 64, 1e7, table.data(), SerialParallel());
  for (size_t t = 0; t < positions.size(); ++t) {
    for (size_t i = 0; i < 32; ++i) {
      const long double angle =
          static_cast<long double>(positions[t]) * std::pow(1e7L, -2.0L * static_cast<long double>(i) / 64);
      // The double-precision angle errs by 1e6 * 2^-52.
      EXPECT_NEAR(table[t * 64 + i], static_cast<double>(std::cos(angle)), 0x1p-24 + 1e-9)
          << "position " << positions[t] << " pair " << i;
      EXPECT_NEAR(table[t * 64 + 32 + i], static_cast<double>(std::sin(angle)), 0x1p-24 + 1e-9)
          << "position " << positions[t] << " pair " << i;
    }
  }
}

}  // namespace
}  // namespace rt::kernels
