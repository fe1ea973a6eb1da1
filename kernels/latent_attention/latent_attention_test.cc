// Latent attention against the fp64 reference: the absorbed and the expanded order at every level and dtype.
#include "kernels/latent_attention/latent_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/common/kernel_testing.h"
#include "kernels/common/thread_pool.h"
#include "plugin_sdk/oracle/latent_attention.h"

namespace rt::kernels {
namespace {

constexpr float kCanary = 512.0f;
constexpr size_t kWorkspaceBorder = 256;

enum class Form { kAbsorbed, kExpanded };
const char* Name(Form form) { return form == Form::kAbsorbed ? "absorbed" : "expanded"; }

struct SequenceSpec {
  int32_t context;
  int32_t num_new;
  bool padding = false;
};

struct Config {
  int32_t num_heads, latent_dim, qk_nope_dim, qk_shared_dim, v_dim, block_size;
};
constexpr Config kOdd = {3, 20, 7, 5, 9, 5};
// Sizes that fill no vector; none shared; Kimi-Linear's head with few heads; more heads than one group of rows; one of each.
const Config kConfigs[] = {kOdd, {5, 33, 16, 0, 17, 16}, {2, 512, 128, 64, 128, 16}, {41, 16, 4, 16, 48, 7}, {1, 1, 1, 1, 1, 1}};

float Scale(const Config& c) { return 1.0f / std::sqrt(static_cast<float>(c.qk_nope_dim + c.qk_shared_dim)); }
oracle::LatentShape Reference(const Config& c) { return {c.num_heads, c.latent_dim, c.qk_nope_dim, c.qk_shared_dim, c.v_dim, Scale(c)}; }

// A batch with its cache. Every byte of the cache that holds no token, and every gap between rows, is NaN.
template <class T>
struct Batch {
  Config config;
  std::vector<SequenceSpec> specs;
  std::vector<int32_t> cu_seqlens{0}, context_lens, block_table;
  int64_t max_blocks = 0, num_blocks = 1;
  int64_t row, q_width, out_width, q_stride, kv_stride, out_stride, block_stride;
  std::vector<T> q, kv_a, kv_b, out, cache;
  std::vector<float> kv_norm;
  std::string what;

  Batch(const Config& c, std::vector<SequenceSpec> sequences, uint64_t seed)
      : config(c), specs(std::move(sequences)), row(c.latent_dim + c.qk_shared_dim), q_width(c.num_heads * (c.qk_nope_dim + c.qk_shared_dim)),
        out_width(c.num_heads * c.v_dim), q_stride(q_width + 3), kv_stride(row + 5), out_stride(out_width + 2), block_stride(row * c.block_size + 11) {
    std::mt19937_64 rng(seed);
    what = std::string(sizeof(T) == 2 ? "bf16" : "f32") + " N=" + std::to_string(c.num_heads) + " L=" + std::to_string(c.latent_dim) + " seed " + std::to_string(seed);
    for (const SequenceSpec& s : specs) {
      const int64_t blocks = (s.context + s.num_new + c.block_size - 1) / c.block_size;
      max_blocks = std::max(max_blocks, blocks + 1);
      num_blocks += blocks;
    }
    cache.assign(static_cast<size_t>(num_blocks * block_stride), FromFloat<T>(std::numeric_limits<float>::quiet_NaN()));
    PlaceSequences(rng);
    const int64_t rows = cu_seqlens.back();
    Fill(rng, q, rows, q_width, q_stride, 1.0f);
    Fill(rng, kv_a, rows, row, kv_stride, 2.0f);
    const int64_t expanded = c.num_heads * (c.qk_nope_dim + c.v_dim);
    Fill(rng, kv_b, expanded, c.latent_dim, c.latent_dim, 1.0f / std::sqrt(static_cast<float>(c.latent_dim)));
    std::normal_distribution<float> normal(1.0f, 0.3f);
    for (int32_t i = 0; i < c.latent_dim; ++i) kv_norm.push_back(normal(rng));
    out.assign(static_cast<size_t>(rows * out_stride), FromFloat<T>(kCanary));
  }

  static void Fill(std::mt19937_64& rng, std::vector<T>& data, int64_t rows, int64_t width, int64_t stride, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    data.assign(static_cast<size_t>(rows * stride), FromFloat<T>(std::numeric_limits<float>::quiet_NaN()));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t i = 0; i < width; ++i) data[static_cast<size_t>(r * stride + i)] = FromFloat<T>(normal(rng));
    }
  }

  void PlaceSequences(std::mt19937_64& rng) {
    std::normal_distribution<float> normal;
    std::vector<int32_t> free(static_cast<size_t>(num_blocks));
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), rng);
    block_table.assign(specs.size() * static_cast<size_t>(max_blocks), -1);
    for (size_t s = 0; s < specs.size(); ++s) {
      const SequenceSpec& spec = specs[s];
      context_lens.push_back(spec.context);
      cu_seqlens.push_back(cu_seqlens.back() + spec.num_new);
      for (int64_t b = 0; b * config.block_size < spec.context + spec.num_new && !spec.padding; ++b) {
        block_table[s * static_cast<size_t>(max_blocks) + static_cast<size_t>(b)] = free.back();
        free.pop_back();
      }
      for (int64_t token = 0; token < spec.context && !spec.padding; ++token) {
        for (int64_t i = 0; i < row; ++i) cache[Place(s, token) + static_cast<size_t>(i)] = FromFloat<T>(normal(rng));
      }
    }
  }

  size_t Place(size_t s, int64_t token) const {
    const int64_t block = block_table[s * static_cast<size_t>(max_blocks) + static_cast<size_t>(token / config.block_size)];
    return static_cast<size_t>(block * block_stride + token % config.block_size * row);
  }
  LatentAttentionShape Shape() const { return {config.num_heads, config.latent_dim, config.qk_nope_dim, config.qk_shared_dim, config.v_dim, Scale(config), 1e-6f}; }

  // A view of sequence s alone: row numbers need not begin at zero.
  Batch Alone(size_t s) const {
    Batch one = *this;
    one.specs = {specs[s]};
    one.cu_seqlens = {cu_seqlens[s], cu_seqlens[s + 1]};
    one.context_lens = {context_lens[s]};
    one.block_table.assign(block_table.begin() + static_cast<int64_t>(s) * max_blocks, block_table.begin() + static_cast<int64_t>(s + 1) * max_blocks);
    return one;
  }

  void Run(const LatentAttentionKernels& kernels, Form form, const Parallel& parallel) {
    const int64_t tokens = cu_seqlens.back() - cu_seqlens.front();
    const size_t bytes = form == Form::kAbsorbed ? AbsorbedLatentWorkspaceBytes(Shape(), tokens, parallel.num_threads) : ExpandedLatentWorkspaceBytes(Shape(), tokens, parallel.num_threads);
    std::unique_ptr<unsigned char, void (*)(void*)> workspace(static_cast<unsigned char*>(std::aligned_alloc(64, (bytes + kWorkspaceBorder + 63) / 64 * 64)), std::free);
    std::memset(workspace.get(), 0xff, bytes + kWorkspaceBorder);  // NaN: contents of the workspace must not matter
    const LatentAttentionArgs args{.shape = Shape(), .num_sequences = static_cast<int32_t>(specs.size()), .cu_seqlens = cu_seqlens.data(), .context_lens = context_lens.data(),
                                   .block_table = block_table.data(), .max_blocks = max_blocks, .q = q.data(), .q_stride = q_stride, .kv_a = kv_a.data(), .kv_a_stride = kv_stride,
                                   .kv_norm = kv_norm.empty() ? nullptr : kv_norm.data(), .kv_b = kv_b.data(), .out = out.data(), .out_stride = out_stride, .cache_base = cache.data(),
                                   .block_stride_bytes = block_stride * static_cast<int64_t>(sizeof(T)), .block_size = config.block_size, .workspace = workspace.get()};
    const bool narrow = sizeof(T) == 2;
    const LatentAttentionFn fn = form == Form::kAbsorbed ? (narrow ? kernels.absorbed_bf16 : kernels.absorbed_f32) : (narrow ? kernels.expanded_bf16 : kernels.expanded_f32);
    ASSERT_EQ(fn(args, parallel), 0);
    for (size_t i = 0; i < kWorkspaceBorder; ++i) ASSERT_EQ(workspace.get()[bytes + i], 0xff) << what << ": written past the workspace";
  }
};

template <class T>
oracle::Values Wide(const std::vector<T>& data, int64_t from, int64_t count) {
  oracle::Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(ToFloat(data[static_cast<size_t>(from + i)]));
  return values;
}
oracle::Values Wide(const std::vector<float>& data) { return {data.begin(), data.end()}; }

// Half the spacing of the output dtype, relative, a little more for the sums before it.
template <class T>
constexpr double kOutputEps = sizeof(T) == 2 ? 0x1p-8 : 0x1p-23;

// The new tokens' cached rows are right and no other byte of the cache changed.
template <class T>
void ExpectCacheAppended(const Batch<T>& before, const Batch<T>& after) {
  const Config& c = after.config;
  std::vector<bool> is_new(after.cache.size(), false);
  for (size_t s = 0; s < after.specs.size(); ++s) {
    for (int64_t t = 0; t < after.specs[s].num_new && !after.specs[s].padding; ++t) {
      const auto raw = Wide(after.kv_a, (after.cu_seqlens[s] + t) * after.kv_stride, after.row);
      const auto want = after.kv_norm.empty() ? raw : oracle::LatentNorm(Reference(c), double{1e-6f}, raw, Wide(after.kv_norm));
      for (int64_t i = 0; i < after.row; ++i) {
        const size_t at = after.Place(s, after.specs[s].context + t) + static_cast<size_t>(i);
        const double wanted = want[static_cast<size_t>(i)];
        is_new[at] = true;
        // The sum of squares errs by L roundings of itself, the rest of the formula by less than 8; copies are exact.
        const bool exact = i >= c.latent_dim || after.kv_norm.empty();
        const double bound = exact ? 0.0 : ((c.latent_dim + 8) * 0x1p-24 + kOutputEps<T>) * std::abs(wanted);
        ASSERT_NEAR(ToFloat(after.cache[at]), wanted, bound) << after.what << ": cached row, sequence " << s << " new token " << t << " feature " << i;
      }
    }
  }
  for (size_t i = 0; i < after.cache.size(); ++i) {
    if (is_new[i]) continue;
    ASSERT_EQ(std::memcmp(&after.cache[i], &before.cache[i], sizeof(T)), 0) << after.what << ": cache element " << i << " was written";
  }
}

double AbsoluteDot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::abs(a[i] * b[i]);
  return sum;
}

// What an output of head h of a query may be off by, over the rows that it sees.
//   score        terms are summed twice: over Dn or L inside, over L or Dn + De outside: L + Dn + De + 8 roundings of the sum of
//                magnitudes |q| |W_uk| |c| + |q_e| |e|
//   probability  twice the score's error (its own and the maximum's), exp and the sums a rounding a row
//   value        L roundings of |W_uv| |c|, and those of the sum over rows
struct ErrorBound {
  double relative;              // of the sum of magnitudes of an output feature
  std::vector<double> largest;  // [Dv] largest |W_uv| |c| of a row
};
ErrorBound BoundOf(const Config& c, const double* q, const oracle::Values& rows, const double* w, int64_t num_rows) {
  const int64_t latent = c.latent_dim, row = latent + c.qk_shared_dim;
  oracle::Values absorbed(static_cast<size_t>(latent), 0.0);
  for (int64_t d = 0; d < c.qk_nope_dim; ++d) {
    for (int64_t l = 0; l < latent; ++l) absorbed[static_cast<size_t>(l)] += std::abs(q[d] * w[d * latent + l]);
  }
  double magnitude = 0;
  ErrorBound bound{0, std::vector<double>(static_cast<size_t>(c.v_dim), 0.0)};
  for (int64_t r = 0; r < num_rows; ++r) {
    const double* c_row = &rows[static_cast<size_t>(r * row)];
    magnitude = std::max(magnitude, AbsoluteDot(absorbed.data(), c_row, latent) + AbsoluteDot(q + c.qk_nope_dim, c_row + latent, c.qk_shared_dim));
    for (int64_t j = 0; j < c.v_dim; ++j) {
      double& largest = bound.largest[static_cast<size_t>(j)];
      largest = std::max(largest, AbsoluteDot(w + (c.qk_nope_dim + j) * latent, c_row, latent));
    }
  }
  bound.relative = 2 * (latent + c.qk_nope_dim + c.qk_shared_dim + 8) * 0x1p-24 * magnitude * double{Scale(c)} + static_cast<double>(num_rows + latent + 64) * 0x1p-23;
  return bound;
}

// Outputs against the reference over the rows that the cache now holds. A large Kimi head costs the reference a second a
// thousand rows, so callers keep those few. `typical` also asks for the golden rule of fp32: 5e-6 of the largest entry.
template <class T>
void ExpectOutputs(const Batch<T>& b, bool typical) {
  const Config& c = b.config;
  const auto kv_b = Wide(b.kv_b, 0, static_cast<int64_t>(b.kv_b.size()));
  for (size_t s = 0; s < b.specs.size(); ++s) {
    const SequenceSpec& spec = b.specs[s];
    oracle::Values q, rows, want(static_cast<size_t>(spec.num_new * b.out_width), 0.0);
    for (int64_t t = 0; t < spec.num_new; ++t) {
      const auto row = Wide(b.q, (b.cu_seqlens[s] + t) * b.q_stride, b.q_width);
      q.insert(q.end(), row.begin(), row.end());
    }
    for (int64_t t = 0; t < spec.context + spec.num_new && !spec.padding; ++t) {
      const auto row = Wide(b.cache, static_cast<int64_t>(b.Place(s, t)), b.row);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    if (!spec.padding && spec.num_new > 0) want = oracle::AbsorbedLatentAttention(Reference(c), q, rows, kv_b);
    double largest = 0;
    for (double w : want) largest = std::max(largest, std::abs(w));
    ErrorReport error(b.what + ": sequence " + std::to_string(s)), golden(b.what + ": beside the largest entry, sequence " + std::to_string(s));
    for (int64_t t = 0; t < spec.num_new; ++t) {
      const T* got = &b.out[static_cast<size_t>((b.cu_seqlens[s] + t) * b.out_stride)];
      for (int64_t h = 0; h < c.num_heads; ++h) {
        ErrorBound bound{0, std::vector<double>(static_cast<size_t>(c.v_dim), 0.0)};
        if (!spec.padding) {
          bound = BoundOf(c, &q[static_cast<size_t>(t * b.q_width + h * (c.qk_nope_dim + c.qk_shared_dim))], rows, &kv_b[static_cast<size_t>(h * (c.qk_nope_dim + c.v_dim) * c.latent_dim)], spec.context + t + 1);
        }
        for (int64_t j = 0; j < c.v_dim; ++j) {
          const int64_t at = h * c.v_dim + j;
          const double wanted = want[static_cast<size_t>(t * b.out_width + at)];
          error.Add(t * b.out_width + at, ToFloat(got[at]), wanted, bound.relative * bound.largest[static_cast<size_t>(j)] + kOutputEps<T> * std::abs(wanted) + 1e-38);
          if (typical && sizeof(T) == 4) golden.Add(t * b.out_width + at, ToFloat(got[at]), wanted, 5e-6 * largest + 1e-38);
        }
      }
      for (int64_t i = b.out_width; i < b.out_stride; ++i) ASSERT_EQ(ToFloat(got[i]), kCanary) << b.what << ": written past the row";
    }
    ASSERT_TRUE(error.Within());
    ASSERT_TRUE(golden.Within());
  }
}

class LatentAttentionTest : public ::testing::TestWithParam<Isa> {
 protected:
  const LatentAttentionKernels& kernels() const { return GetParam() == Isa::kAvx2 ? LatentAttentionAvx2() : LatentAttentionAvx512Bf16(); }

  template <class T>
  void CheckOf(const Config& config, const std::vector<SequenceSpec>& specs, uint64_t seed) {
    const Batch<T> before(config, specs, seed);
    for (Form form : {Form::kAbsorbed, Form::kExpanded}) {
      Batch<T> batch = before;
      batch.what += std::string(" ") + Name(form);
      batch.Run(kernels(), form, SerialParallel());
      ExpectCacheAppended(before, batch);
      ExpectOutputs(batch, true);
      if (HasFatalFailure()) return;
    }
  }
  void Check(const Config& config, const std::vector<SequenceSpec>& specs, uint64_t seed) {
    CheckOf<float>(config, specs, seed);
    CheckOf<bf16>(config, specs, seed);
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, LatentAttentionTest, ::testing::ValuesIn(TestedIsas()), IsaTestName());

// Decode, padding, zero length, first tokens, prefill and continued prefill beside each other; lengths around blocks,
// chunks and tiles.
const std::vector<SequenceSpec> kMixed = {{0, 1}, {15, 1}, {16, 1}, {40, 1}, {3, 1, true}, {7, 0}, {0, 17}, {5, 33}, {64, 2}, {0, 3, true}, {31, 20}, {63, 70}};

TEST_P(LatentAttentionTest, MixedBatchesMatchTheFp64Formula) {
  uint64_t seed = 1;
  for (const Config& config : kConfigs) {
    if (config.latent_dim < 512) Check(config, kMixed, ++seed);
  }
}

TEST_P(LatentAttentionTest, HeadsOfKimiLinearMatchTheFp64Formula) { Check(kConfigs[2], {{0, 70}, {33, 1}, {60, 9}}, 3); }

TEST_P(LatentAttentionTest, PromptsOfEveryLengthMatchTheFp64Formula) {
  for (int32_t length = 1; length <= 130; length += Scaled(1, 7)) {
    ASSERT_NO_FATAL_FAILURE(Check(kOdd, {{0, length}}, 100 + static_cast<uint64_t>(length)));
  }
}

TEST_P(LatentAttentionTest, ContextsAroundBlocksAndTilesMatchTheFp64Formula) {
  for (int32_t context : {1, 4, 5, 6, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 96, 97, 127, 128, 129}) {
    ASSERT_NO_FATAL_FAILURE(Check(kOdd, {{context, 1}, {context, 8}, {context, 35}}, 300 + static_cast<uint64_t>(context)));
  }
}

TEST_P(LatentAttentionTest, LongContextsAreMergedFromSegments) {
  for (int32_t context : {254, 255, 256, 510, 511, 512, 767, 1023, 1500, 4095, 5000}) {
    ASSERT_NO_FATAL_FAILURE(Check(kOdd, {{context, 1}, {9, 1}}, 500 + static_cast<uint64_t>(context)));
  }
}

// Rows are cached as they come when there is no norm weight: the attention half of the decomposition.
TEST_P(LatentAttentionTest, NormalisedRowsAreCachedAsTheyAre) {
  for (Form form : {Form::kAbsorbed, Form::kExpanded}) {
    Batch<bf16> before(kOdd, kMixed, 12);
    before.kv_norm.clear();
    Batch<bf16> batch = before;
    batch.Run(kernels(), form, SerialParallel());
    ExpectCacheAppended(before, batch);
    ExpectOutputs(batch, false);
  }
}

TEST_P(LatentAttentionTest, NormAloneMatchesTheFp64FormulaAlsoInPlace) {
  for (const Config& c : kConfigs) {
    Batch<bf16> b(c, {{0, 5}}, 21);
    const auto raw = b.kv_a;
    std::vector<bf16> out(static_cast<size_t>(5 * (b.row + 2)), FromFloat<bf16>(kCanary));
    ASSERT_EQ(kernels().norm_bf16({b.Shape(), 5, b.kv_a.data(), b.kv_stride, b.kv_norm.data(), out.data(), b.row + 2}, SerialParallel()), 0);
    ASSERT_EQ(kernels().norm_bf16({b.Shape(), 5, b.kv_a.data(), b.kv_stride, b.kv_norm.data(), b.kv_a.data(), b.kv_stride}, SerialParallel()), 0);
    for (int64_t t = 0; t < 5; ++t) {
      const auto want = oracle::LatentNorm(Reference(c), double{1e-6f}, Wide(raw, t * b.kv_stride, b.row), Wide(b.kv_norm));
      for (int64_t i = 0; i < b.row; ++i) {
        const double wanted = want[static_cast<size_t>(i)], got = ToFloat(out[static_cast<size_t>(t * (b.row + 2) + i)]);
        const double bound = i >= c.latent_dim ? 0.0 : ((c.latent_dim + 8) * 0x1p-24 + 0x1p-8) * std::abs(wanted);
        ASSERT_NEAR(got, wanted, bound) << "L=" << c.latent_dim << " token " << t << " feature " << i;
        ASSERT_EQ(ToFloat(b.kv_a[static_cast<size_t>(t * b.kv_stride + i)]), got) << "in place, L=" << c.latent_dim << " token " << t << " feature " << i;
      }
      for (int64_t i = b.row; i < b.row + 2; ++i) ASSERT_EQ(ToFloat(out[static_cast<size_t>(t * (b.row + 2) + i)]), kCanary);
    }
  }
}

// ---- Adversarial scores.

TEST_P(LatentAttentionTest, EqualScoresGiveTheMeanOfTheValues) {
  Batch<float> before(kOdd, {{100, 1}, {300, 40}}, 31);
  std::fill(before.q.begin(), before.q.end(), 0.0f);
  for (Form form : {Form::kAbsorbed, Form::kExpanded}) {
    Batch<float> b = before;
    b.Run(kernels(), form, SerialParallel());
    ExpectOutputs(b, true);
  }
}

TEST_P(LatentAttentionTest, LargeScoresPickOneRowAndDoNotOverflow) {
  for (float factor : {30.0f, 1e4f, 1e18f}) {
    Batch<float> before(kOdd, {{100, 1}, {300, 40}, {600, 1}}, 32);
    for (float& x : before.q) x *= factor;
    for (Form form : {Form::kAbsorbed, Form::kExpanded}) {
      Batch<float> b = before;
      b.Run(kernels(), form, SerialParallel());
      for (int64_t r = 0; r < b.cu_seqlens.back(); ++r) {
        for (int64_t i = 0; i < b.out_width; ++i) ASSERT_TRUE(std::isfinite(b.out[static_cast<size_t>(r * b.out_stride + i)])) << Name(form) << " row " << r << " factor " << factor;
      }
      if (factor < 1e3f) ExpectOutputs(b, false);
    }
  }
}

// One row's shared features match the query's by a wide margin, wherever the row lies: the output is its value alone.
TEST_P(LatentAttentionTest, AOneHotSoftmaxReturnsTheValueOfItsRow) {
  for (int64_t hot : {0, 31, 32, 63, 64, 299, 300}) {
    Batch<float> before(kOdd, {{300, 1}}, 33);
    for (float& x : before.q) x = 0.0f;
    for (int64_t h = 0; h < kOdd.num_heads; ++h) before.q[static_cast<size_t>(h * 12 + 7)] = 100.0f;  // first shared feature
    for (int64_t t = 0; t < 300; ++t) before.cache[before.Place(0, t) + 20] = t == hot ? 10.0f : 0.0f;
    before.kv_a[20] = hot == 300 ? 10.0f : 0.0f;
    for (Form form : {Form::kAbsorbed, Form::kExpanded}) {
      Batch<float> b = before;
      b.Run(kernels(), form, SerialParallel());
      for (int64_t i = 0; i < b.out_width; ++i) {
        double want = 0, magnitude = 0;
        for (int64_t l = 0; l < 20; ++l) {
          const double term = double{b.kv_b[static_cast<size_t>((i / 9 * 16 + 7 + i % 9) * 20 + l)]} * double{b.cache[b.Place(0, hot) + static_cast<size_t>(l)]};
          want += term, magnitude += std::abs(term);
        }
        ASSERT_NEAR(b.out[static_cast<size_t>(i)], want, 32 * 0x1p-24 * magnitude) << Name(form) << " hot row " << hot << " output " << i;
      }
    }
  }
}

TEST_P(LatentAttentionTest, NanInOneQueryStaysInItsRowAndHead) {
  for (Form form : {Form::kAbsorbed, Form::kExpanded}) {
    Batch<float> b(kOdd, {{20, 3}}, 9);
    b.q[static_cast<size_t>(1 * b.q_stride + 2 * 12 + 5)] = std::numeric_limits<float>::quiet_NaN();
    b.Run(kernels(), form, SerialParallel());
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t h = 0; h < 3; ++h) EXPECT_EQ(std::isnan(b.out[static_cast<size_t>(t * b.out_stride + h * 9)]), t == 1 && h == 2) << Name(form) << " token " << t << " head " << h;
    }
  }
}

// ---- Properties.

// The two orders differ by rounding only. Each is held to 5e-6 of the reference's largest entry above, so the two are within
// twice that of each other.
TEST_P(LatentAttentionTest, AbsorbedEqualsExpanded) {
  for (const Config& config : kConfigs) {
    Batch<float> absorbed(config, {{0, 3}, {70, 2}, {130, 40}, {520, 1}}, 41);
    Batch<float> expanded = absorbed;
    absorbed.Run(kernels(), Form::kAbsorbed, SerialParallel());
    expanded.Run(kernels(), Form::kExpanded, SerialParallel());
    double largest = 0;
    for (float x : expanded.out) largest = std::max<double>(largest, x == kCanary ? 0.0 : std::abs(x));
    ErrorReport error("absorbed against expanded, " + absorbed.what);
    for (size_t i = 0; i < absorbed.out.size(); ++i) error.Add(static_cast<int64_t>(i), absorbed.out[i], expanded.out[i], 1e-5 * largest);
    EXPECT_TRUE(error.Within());
    EXPECT_EQ(std::memcmp(absorbed.cache.data(), expanded.cache.data(), absorbed.cache.size() * sizeof(float)), 0);
  }
}

TEST_P(LatentAttentionTest, ASequenceHasTheSameBitsInEveryBatchAndOnAnyNumberOfThreads) {
  const Config config{5, 64, 24, 8, 40, 16};
  const std::vector<SequenceSpec> specs = {{2000, 1}, {10, 1}, {0, 70}, {130, 1}, {33, 40}, {0, 0}, {700, 1}, {3, 1, true}};
  for (Form form : {Form::kAbsorbed, Form::kExpanded}) {
    const Batch<bf16> before(config, specs, 5);
    Batch<bf16> all = before;
    all.Run(kernels(), form, SerialParallel());
    for (int num_threads : {2, 3, 7, 64}) {
      Batch<bf16> many = before;
      many.Run(kernels(), form, FakeParallel(&num_threads));
      ASSERT_EQ(std::memcmp(many.out.data(), all.out.data(), all.out.size() * sizeof(bf16)), 0) << Name(form) << " on " << num_threads << " threads";
    }
    for (size_t s = 0; s < specs.size(); ++s) {
      Batch<bf16> one = before.Alone(s);
      one.Run(kernels(), form, SerialParallel());
      const int64_t first = before.cu_seqlens[s] * before.out_stride, last = before.cu_seqlens[s + 1] * before.out_stride;
      for (int64_t i = 0; i < static_cast<int64_t>(one.out.size()); ++i) {
        const auto at = static_cast<size_t>(i);
        const bool own = i >= first && i < last;
        ASSERT_EQ(one.out[at].bits, own ? all.out[at].bits : FromFloat<bf16>(kCanary).bits) << Name(form) << " sequence " << s << " output " << i;
      }
    }
  }
}

TEST_P(LatentAttentionTest, RealThreadsGiveTheSameBits) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = 3, .pin = false}, &error);
  ASSERT_NE(pool, nullptr) << error;
  for (Form form : {Form::kAbsorbed, Form::kExpanded}) {
    const Batch<bf16> before({8, 128, 32, 16, 32, 16}, {{1500, 1}, {40, 1}, {0, 200}, {130, 40}}, 6);
    Batch<bf16> one = before, many = before;
    one.Run(kernels(), form, SerialParallel());
    many.Run(kernels(), form, pool->parallel());
    EXPECT_EQ(std::memcmp(many.out.data(), one.out.data(), one.out.size() * sizeof(bf16)), 0) << Name(form);
    EXPECT_EQ(std::memcmp(many.cache.data(), one.cache.data(), one.cache.size() * sizeof(bf16)), 0) << Name(form);
  }
}

// A prompt cut anywhere: the expanded order gives the same bits, since tiles lie at absolute positions.
TEST_P(LatentAttentionTest, APromptGivesTheSameBitsHoweverItIsSplit) {
  const int32_t length = 150;
  const Batch<bf16> before(kOdd, {{0, length}}, 7);
  Batch<bf16> whole = before;
  whole.Run(kernels(), Form::kExpanded, SerialParallel());
  for (const std::vector<int32_t>& parts : std::vector<std::vector<int32_t>>{{1, 149}, {64, 86}, {63, 1, 86}, {31, 33, 60, 26}, {149, 1}, {100, 50}}) {
    Batch<bf16> split = before;
    int32_t done = 0;
    for (int32_t part : parts) {
      split.cu_seqlens = {done, done + part};
      split.context_lens = {done};
      split.Run(kernels(), Form::kExpanded, SerialParallel());
      done += part;
    }
    ASSERT_EQ(done, length);
    ASSERT_EQ(std::memcmp(split.out.data(), whole.out.data(), whole.out.size() * sizeof(bf16)), 0) << "first part of " << parts[0];
    ASSERT_EQ(std::memcmp(split.cache.data(), whole.cache.data(), whole.cache.size() * sizeof(bf16)), 0) << "first part of " << parts[0];
  }
}

// prefill(n) then decode(m) against prefill(n + m).
TEST_P(LatentAttentionTest, DecodingAfterAPromptEqualsALongerPrompt) {
  const Batch<float> before(kOdd, {{0, 100}}, 8);
  Batch<float> whole = before, split = before;
  whole.Run(kernels(), Form::kExpanded, SerialParallel());
  split.cu_seqlens = {0, 60};
  split.Run(kernels(), Form::kExpanded, SerialParallel());
  for (int32_t t = 60; t < 100; ++t) {
    split.cu_seqlens = {t, t + 1};
    split.context_lens = {t};
    split.Run(kernels(), Form::kAbsorbed, SerialParallel());
  }
  split.cu_seqlens = {0, 100};
  split.context_lens = {0};
  EXPECT_EQ(std::memcmp(split.cache.data(), whole.cache.data(), whole.cache.size() * sizeof(float)), 0);
  ExpectOutputs(whole, true);
  ExpectOutputs(split, true);
}

// The workspace must not grow with the context or with a long prompt.
TEST(LatentAttentionWorkspace, IsBounded) {
  const LatentAttentionShape kimi{32, 512, 128, 64, 128, 0.07f, 1e-6f};
  EXPECT_EQ(AbsorbedLatentWorkspaceBytes(kimi, 16, 2), AbsorbedLatentWorkspaceBytes(kimi, 4096, 2));
  EXPECT_EQ(ExpandedLatentWorkspaceBytes(kimi, 1024, 2), ExpandedLatentWorkspaceBytes(kimi, 32768, 2));
  EXPECT_LE(AbsorbedLatentWorkspaceBytes(kimi, 4096, 2), size_t{24} << 20);
  EXPECT_LE(ExpandedLatentWorkspaceBytes(kimi, 32768, 2), size_t{8} << 20);
}

}  // namespace
}  // namespace rt::kernels
