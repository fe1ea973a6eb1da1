#include "kernels/sampling/sampling.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
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

constexpr double kNever = -std::numeric_limits<double>::infinity();
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Token {
  int32_t id;
  int32_t count;
  bool in_prompt;
};
struct Bias {
  int32_t id;
  float value;
};

struct RowSpec {
  float temperature = 1.0f;
  int32_t top_k = 0;
  float top_p = 1.0f, min_p = 0.0f, presence = 0.0f, frequency = 0.0f, repetition = 1.0f;
  uint64_t seed = 1, position = 0;
  int32_t pending = -1;
  std::vector<Token> history = {};
  std::vector<Bias> bias = {};
  int32_t num_top = 0;
};

// A batch of rows, its inputs as the kernel wants them, and its outputs.
struct Batch {
  int32_t vocab, limit, max_top = 8;
  int64_t stride;
  std::vector<RowSpec> specs;
  std::vector<float> logits;
  std::vector<int32_t> ids, top_ids, status;
  std::vector<float> logprobs, top_logprobs;

  Batch(int32_t vocab_size, int32_t vocab_limit)
      : vocab(vocab_size), limit(vocab_limit), stride(vocab_size + 3) {}

  void Add(const RowSpec& spec, const std::vector<float>& row) {
    specs.push_back(spec);
    logits.insert(logits.end(), row.begin(), row.end());
    logits.insert(logits.end(), 3, kNan);  // past the row: must not be looked at
  }

  void Run(const SamplingKernels& kernels, const Parallel& parallel) {
    const size_t rows = specs.size();
    std::vector<float> temperature, top_p, min_p, presence, frequency, repetition, bias_values;
    std::vector<int32_t> top_k, pending, num_top, history_offsets{0}, history_ids, history_counts,
        bias_offsets{0}, bias_ids;
    std::vector<uint8_t> history_prompt;
    std::vector<uint64_t> seed, position;
    for (const RowSpec& s : specs) {
      temperature.push_back(s.temperature);
      top_k.push_back(s.top_k);
      top_p.push_back(s.top_p);
      min_p.push_back(s.min_p);
      presence.push_back(s.presence);
      frequency.push_back(s.frequency);
      repetition.push_back(s.repetition);
      seed.push_back(s.seed);
      position.push_back(s.position);
      pending.push_back(s.pending);
      num_top.push_back(s.num_top);
      for (const Token& t : s.history) {
        history_ids.push_back(t.id);
        history_counts.push_back(t.count);
        history_prompt.push_back(t.in_prompt ? 1 : 0);
      }
      history_offsets.push_back(static_cast<int32_t>(history_ids.size()));
      for (const Bias& b : s.bias) {
        bias_ids.push_back(b.id);
        bias_values.push_back(b.value);
      }
      bias_offsets.push_back(static_cast<int32_t>(bias_ids.size()));
    }
    ids.assign(rows, -99);
    status.assign(rows, -99);
    logprobs.assign(rows, 99.0f);
    top_ids.assign(rows * static_cast<size_t>(max_top), -99);
    top_logprobs.assign(top_ids.size(), 99.0f);
    const size_t bytes = SampleWorkspaceBytes(static_cast<int64_t>(rows), vocab, parallel.num_threads);
    std::unique_ptr<void, void (*)(void*)> workspace(std::aligned_alloc(64, (bytes + 63) / 64 * 64),
                                                     std::free);
    std::memset(workspace.get(), 0xff, bytes);
    const SampleArgs args{.num_rows = static_cast<int32_t>(rows),
                          .vocab_size = vocab,
                          .vocab_limit = limit,
                          .max_top = max_top,
                          .logits = logits.data(),
                          .logits_stride = stride,
                          .temperature = temperature.data(),
                          .top_k = top_k.data(),
                          .top_p = top_p.data(),
                          .min_p = min_p.data(),
                          .presence = presence.data(),
                          .frequency = frequency.data(),
                          .repetition = repetition.data(),
                          .seed = seed.data(),
                          .position = position.data(),
                          .pending_ids = pending.data(),
                          .history_offsets = history_offsets.data(),
                          .history_ids = history_ids.data(),
                          .history_counts = history_counts.data(),
                          .history_prompt = history_prompt.data(),
                          .bias_offsets = bias_offsets.data(),
                          .bias_ids = bias_ids.data(),
                          .bias_values = bias_values.data(),
                          .num_top = num_top.data(),
                          .ids = ids.data(),
                          .logprobs = logprobs.data(),
                          .top_ids = top_ids.data(),
                          .top_logprobs = top_logprobs.data(),
                          .status = status.data(),
                          .workspace = workspace.get()};
    ASSERT_EQ(kernels.sample(args, parallel), 0);
  }

  const float* Logits(size_t row) const { return logits.data() + static_cast<int64_t>(row) * stride; }
};

// ---- The reference: fp64, by sorting.

std::vector<double> AdjustedLogits(const Batch& b, size_t row) {
  const RowSpec& s = b.specs[row];
  std::vector<double> l(b.Logits(row), b.Logits(row) + b.vocab);
  std::vector<Token> tokens = s.history;
  bool listed = s.pending < 0;
  for (Token& t : tokens) {
    if (t.id == s.pending) {
      ++t.count;
      listed = true;
    }
  }
  if (!listed) tokens.push_back({s.pending, 1, false});
  for (const Token& t : tokens) {
    if (t.id < 0 || t.id >= b.vocab) continue;
    double& x = l[static_cast<size_t>(t.id)];
    if (t.in_prompt || t.count > 0) x = x > 0 ? x / s.repetition : x * s.repetition;
    if (t.count > 0) x -= double{s.frequency} * t.count + s.presence;
  }
  for (const Bias& bias : s.bias) {
    if (bias.id >= 0 && bias.id < b.vocab) l[static_cast<size_t>(bias.id)] += bias.value;
  }
  std::fill(l.begin() + b.limit, l.end(), kNever);
  return l;
}

std::vector<double> Probabilities(const Batch& b, size_t row) {
  const RowSpec& s = b.specs[row];
  std::vector<double> l = AdjustedLogits(b, row);
  for (double& x : l) x /= s.temperature;
  const double largest = *std::max_element(l.begin(), l.end());
  auto sorted = [&l] {
    std::vector<double> v = l;
    std::sort(v.begin(), v.end(), std::greater<>());
    return v;
  };
  auto drop_below = [&l](double threshold) {
    for (double& x : l) x = x < threshold ? kNever : x;
  };
  if (s.top_k > 0 && s.top_k < b.limit) drop_below(sorted()[static_cast<size_t>(s.top_k - 1)]);
  if (s.top_p < 1.0f) {
    const std::vector<double> order = sorted();
    double total = 0, above = 0, threshold = order[0];
    for (double x : order) total += std::exp(x - largest);
    for (size_t i = 0; i < order.size() && above < s.top_p * total;) {
      threshold = order[i];
      for (; i < order.size() && order[i] == threshold; ++i) above += std::exp(threshold - largest);
    }
    drop_below(threshold);
  }
  double total = 0;
  for (double& x : l) {
    x = std::exp(x - largest);
    total += x = x >= s.min_p ? x : 0.0;
  }
  for (double& x : l) x /= total;
  return l;
}

std::vector<double> RawLogProbs(const Batch& b, size_t row) {
  std::vector<double> l(b.Logits(row), b.Logits(row) + b.vocab);
  const double largest = *std::max_element(l.begin(), l.end());
  double sum = 0;
  for (double x : l) sum += std::exp(x - largest);
  for (double& x : l) x -= largest + std::log(sum);
  return l;
}

// fp32 sums of V exponentials in 16 lanes err by V / 16 roundings at most, a logit by one; both are relative
// to the mass and so absolute in a log-probability.
double MassTolerance(const Batch& b) { return (b.vocab / 16 + 64) * 0x1p-24; }

// The drawn id is the one whose share of the cumulative distribution holds the row's uniform number.
void ExpectDraw(const Batch& b, size_t row, const std::string& what) {
  ASSERT_EQ(b.status[row], kSampleOk) << what;
  const int32_t id = b.ids[row];
  ASSERT_GE(id, 0) << what;
  ASSERT_LT(id, b.limit) << what;
  const double logprob = RawLogProbs(b, row)[static_cast<size_t>(id)];
  EXPECT_NEAR(b.logprobs[row], logprob, MassTolerance(b) + std::abs(logprob) * 0x1p-22)
      << what << " id " << id;
  const std::vector<double> p = Probabilities(b, row);
  ASSERT_GT(p[static_cast<size_t>(id)], 0.0) << what << ": id " << id << " should have been dropped";
  const double u = SampleUniform(b.specs[row].seed, b.specs[row].position);
  const double before = std::accumulate(p.begin(), p.begin() + id, 0.0);
  const double tolerance = MassTolerance(b);
  EXPECT_LE(before - tolerance, u) << what << " id " << id;
  EXPECT_GE(before + p[static_cast<size_t>(id)] + tolerance, u) << what << " id " << id;
}

std::vector<float> RandomLogits(int32_t vocab, float scale, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> l(static_cast<size_t>(vocab));
  for (float& x : l) x = normal(rng);
  return l;
}

class SamplingTest : public ::testing::TestWithParam<Isa> {
 protected:
  const SamplingKernels& kernels() const {
    return GetParam() == Isa::kAvx2 ? SamplingAvx2() : SamplingAvx512Bf16();
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, SamplingTest, ::testing::ValuesIn(TestedIsas()), IsaTestName());

TEST(Philox, MatchesTheKnownAnswersOfItsAuthors) {
  // Random123 1.14.0, tests/kat_vectors, philox4x32 10.
  auto expect = [](const Philox4& counter, uint64_t key, const Philox4& want) {
    const Philox4 got = Philox4x32(counter, key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got.words[i], want.words[i]) << "word " << i;
  };
  expect({{0, 0, 0, 0}}, 0, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
  expect({{~0u, ~0u, ~0u, ~0u}}, ~uint64_t{0}, {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
  expect({{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0x299f31d0a4093822,
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

TEST_P(SamplingTest, EveryFilterKeepsTheSetOfTheSortedReference) {
  struct Filter {
    float temperature;
    int32_t top_k;
    float top_p, min_p;
  };
  const Filter filters[] = {
      {1, 0, 1, 0},      {0.7f, 0, 1, 0},          {1, 1, 1, 0},       {1, 5, 1, 0},
      {1, 40, 1, 0},     {1.3f, 0, 0.9f, 0},       {1, 0, 0.1f, 0},    {1, 0, 0, 0},
      {1, 20, 0.8f, 0},  {0.8f, 20, 0.95f, 0.05f}, {2, 0, 1, 0.1f},    {1, 0, 0.99999f, 0},
      {5, 0, 0.999f, 0}, {1, 1000000, 0.7f, 0},    {0.01f, 3, 0.5f, 0}};
  uint64_t seed = 100;
  for (int32_t vocab : {1, 7, 300, 5000}) {
    for (float scale : {0.01f, 1.0f, 6.0f}) {
      Batch b(vocab, vocab - vocab / 10);
      for (const Filter& f : filters) {
        for (uint64_t position = 0; position < 4; ++position) {
          RowSpec s;
          s.temperature = f.temperature;
          s.top_k = f.top_k;
          s.top_p = f.top_p;
          s.min_p = f.min_p;
          s.seed = ++seed;
          s.position = position << 33;
          b.Add(s, RandomLogits(vocab, scale, seed));
        }
      }
      b.Run(kernels(), SerialParallel());
      for (size_t r = 0; r < b.specs.size(); ++r) {
        ExpectDraw(b, r,
                   "vocab " + std::to_string(vocab) + " scale " + std::to_string(scale) + " row " +
                       std::to_string(r) + " seed " + std::to_string(b.specs[r].seed));
      }
    }
  }
}

TEST_P(SamplingTest, PenaltiesAndBiasesMatchTheReference) {
  Batch b(400, 390);
  std::mt19937_64 rng(3);
  for (uint64_t i = 0; i < 60; ++i) {
    RowSpec s;
    s.temperature = 0.9f;
    s.top_p = i % 3 == 0 ? 0.8f : 1.0f;
    s.presence = i % 2 == 0 ? 0.7f : 0.0f;
    s.frequency = i % 5 == 0 ? 0.4f : 0.0f;
    s.repetition = i % 4 == 0 ? 1.3f : 1.0f;
    s.seed = i;
    for (int32_t id = static_cast<int32_t>(i); id < 400; id += 7) {
      s.history.push_back({id, static_cast<int32_t>(rng() % 4), rng() % 2 == 0});
    }
    s.pending = i % 3 == 0 ? s.history[2].id : i % 3 == 1 ? s.history[2].id + 1 : -1;
    for (int n = 0; n < 10; ++n)
      s.bias.push_back({static_cast<int32_t>(rng() % 400), static_cast<float>(rng() % 100) / 20 - 2});
    s.bias.push_back({-5, 100});  // outside the vocabulary: ignored
    s.bias.push_back({400, 100});
    s.bias.push_back({395, 100});  // past the limit: still never drawn
    s.history.push_back({1000, 3, true});
    b.Add(s, RandomLogits(400, 2, 1000 + i));
  }
  b.Run(kernels(), SerialParallel());
  for (size_t r = 0; r < b.specs.size(); ++r) ExpectDraw(b, r, "row " + std::to_string(r));
}

TEST_P(SamplingTest, DrawsFollowTheDistribution) {
  const std::vector<float> logits{0.5f, -1, 2, 1, 0, -3, 1.5f, 0.25f};
  Batch b(8, 8);
  constexpr int kDraws = 20000;
  RowSpec s;
  s.seed = 12345;
  for (int i = 0; i < kDraws; ++i) {
    s.position = static_cast<uint64_t>(i);
    b.Add(s, logits);
  }
  b.Run(kernels(), SerialParallel());
  std::vector<int> counts(8);
  for (int32_t id : b.ids) ++counts[static_cast<size_t>(id)];
  const std::vector<double> p = Probabilities(b, 0);
  double chi_square = 0;
  for (size_t i = 0; i < 8; ++i) chi_square += std::pow(counts[i] - kDraws * p[i], 2) / (kDraws * p[i]);
  // 7 degrees of freedom: above 24.3 once in a thousand seeds; this one is fixed.
  EXPECT_LT(chi_square, 24.3);
}

TEST_P(SamplingTest, GreedyTakesTheFirstLargestAllowedLogit) {
  for (int32_t vocab : {5, 1000, 40000}) {
    Batch b(vocab, vocab - 1);
    std::vector<float> row = RandomLogits(vocab, 1, 9);
    row[static_cast<size_t>(vocab - 1)] = 90;  // past the limit
    row[static_cast<size_t>(vocab - 2)] = 50;
    row[static_cast<size_t>(vocab / 2)] = 50;
    RowSpec plain;
    plain.temperature = 0;
    b.Add(plain, row);
    RowSpec biased = plain;
    biased.bias = {{0, 0.0f}};  // takes the adjusted path
    b.Add(biased, row);
    RowSpec banned = plain;
    banned.bias = {{vocab / 2, kMinusInfinity}};
    b.Add(banned, row);
    RowSpec repeated = plain;
    repeated.repetition = 2;
    repeated.pending = vocab / 2;
    b.Add(repeated, row);
    b.Run(kernels(), SerialParallel());
    EXPECT_EQ(b.ids, (std::vector<int32_t>{vocab / 2, vocab / 2, vocab - 2, vocab - 2}));
    for (size_t r = 0; r < 4; ++r) {
      EXPECT_NEAR(b.logprobs[r], RawLogProbs(b, r)[static_cast<size_t>(b.ids[r])], 40 * 0x1p-22)
          << "vocab " << vocab << " row " << r;
    }
  }
}

TEST_P(SamplingTest, NanOrInfinityIsReportedForItsRowOnly) {
  for (int32_t at : {0, 255, 256, 20000, 39999}) {
    for (float bad : {kNan, std::numeric_limits<float>::infinity()}) {
      for (float temperature : {0.0f, 1.0f}) {
        Batch b(40000, 39000);
        RowSpec s;
        s.temperature = temperature;
        s.num_top = 3;
        const std::vector<float> good = RandomLogits(40000, 1, 4);
        std::vector<float> row = good;
        row[static_cast<size_t>(at)] = bad;
        b.Add(s, good);
        b.Add(s, row);
        b.Add(s, good);
        b.Run(kernels(), SerialParallel());
        EXPECT_EQ(b.status, (std::vector<int32_t>{kSampleOk, kSampleBadLogits, kSampleOk})) << "at " << at;
        EXPECT_EQ(b.ids[1], -1);
        EXPECT_EQ(b.ids[0], b.ids[2]);
        EXPECT_TRUE(std::isnan(b.logprobs[1]));
        EXPECT_EQ(b.top_ids[8], -1);
      }
    }
  }
}

TEST_P(SamplingTest, ForbiddingEverythingIsReported) {
  for (float temperature : {0.0f, 1.0f}) {
    Batch b(3, 2);
    RowSpec s;
    s.temperature = temperature;
    s.bias = {{0, kMinusInfinity}, {1, kMinusInfinity}};
    b.Add(s, {1, 2, 3});
    b.Add({.temperature = temperature}, {kMinusInfinity, kMinusInfinity, 1});
    b.Add({.temperature = temperature}, {kMinusInfinity, 0, kMinusInfinity});
    b.Run(kernels(), SerialParallel());
    EXPECT_EQ(b.status, (std::vector<int32_t>{kSampleNothingLeft, kSampleNothingLeft, kSampleOk}));
    EXPECT_EQ(b.ids, (std::vector<int32_t>{-1, -1, 1}));
  }
}

TEST_P(SamplingTest, TopLogProbsAreTheLargestInOrder) {
  for (int32_t vocab : {4, 1000, 50000}) {
    Batch b(vocab, vocab - 1);
    for (int32_t num_top : {0, 1, 5, 8}) {
      RowSpec s;
      s.num_top = num_top;
      s.temperature = 0;
      s.bias = {{1, kMinusInfinity}};  // the list shows the raw distribution
      std::vector<float> row = RandomLogits(vocab, 1, static_cast<uint64_t>(num_top));
      row[1] = row[2] = 7;  // equal: in order of id
      b.Add(s, row);
    }
    b.Run(kernels(), SerialParallel());
    for (size_t r = 0; r < b.specs.size(); ++r) {
      const std::vector<double> logprobs = RawLogProbs(b, r);
      std::vector<int32_t> order(static_cast<size_t>(b.limit));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int32_t i, int32_t j) { return b.Logits(r)[i] > b.Logits(r)[j]; });
      const int32_t wanted = std::min(b.specs[r].num_top, b.limit);
      for (int32_t i = 0; i < b.max_top; ++i) {
        const size_t at = r * 8 + static_cast<size_t>(i);
        if (i >= wanted) {
          EXPECT_EQ(b.top_ids[at], -1);
          EXPECT_TRUE(std::isnan(b.top_logprobs[at]));
          continue;
        }
        EXPECT_EQ(b.top_ids[at], order[static_cast<size_t>(i)]) << "vocab " << vocab << " place " << i;
        const double want = logprobs[static_cast<size_t>(order[static_cast<size_t>(i)])];
        EXPECT_NEAR(b.top_logprobs[at], want, MassTolerance(b) + std::abs(want) * 0x1p-22);
      }
    }
  }
}

TEST_P(SamplingTest, ARowsTokenDependsNeitherOnItsBatchNorOnThreads) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = 3, .pin = false}, &error);
  ASSERT_NE(pool, nullptr) << error;
  Batch all(40000, 40000);
  for (uint64_t i = 0; i < 7; ++i) {
    RowSpec s;
    s.temperature = i == 3 ? 0.0f : 1.0f;
    s.top_p = i % 2 == 0 ? 0.9f : 1.0f;
    s.top_k = i == 5 ? 50 : 0;
    s.seed = 77;
    s.position = i;
    s.num_top = 4;
    if (i == 2) s.history = {{5, 2, true}}, s.presence = 1;
    all.Add(s, RandomLogits(40000, 1, i));
  }
  all.Run(kernels(), pool->parallel());
  for (size_t r = 0; r < all.specs.size(); ++r) {
    Batch one(40000, 40000);
    one.Add(all.specs[r], std::vector<float>(all.Logits(r), all.Logits(r) + 40000));
    one.Run(kernels(), SerialParallel());
    EXPECT_EQ(one.ids[0], all.ids[r]);
    EXPECT_EQ(std::memcmp(&one.logprobs[0], &all.logprobs[r], sizeof(float)), 0);
    EXPECT_EQ(std::memcmp(one.top_logprobs.data(), &all.top_logprobs[r * 8], 4 * sizeof(float)), 0);
  }
}

}  // namespace
}  // namespace rt::kernels
