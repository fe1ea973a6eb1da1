#include "kernels/moe/moe.h"

#include <sys/mman.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/common/kernel_testing.h"
#include "kernels/common/thread_pool.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "plugin_sdk/oracle/moe.h"

namespace rt::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kEps = 0x1p-24;  // half a unit of the last place of fp32, relative
const DType kActs[] = {DType::kF32, DType::kBf16};

const MoeKernels& Kernels(Isa isa) { return isa == Isa::kAvx2 ? MoeAvx2() : MoeAvx512Bf16(); }

// A workspace of exactly the stated size, full of NaN, with a canary behind it.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : bytes_(bytes), data_(bytes + 128, 0xff) { std::fill(end(), end() + 64, 0xa5); }
  void* data() { return begin(); }
  bool CanaryIntact() { return std::all_of(end(), end() + 64, [](unsigned char c) { return c == 0xa5; }); }

 private:
  unsigned char* begin() { return data_.data() + (64 - reinterpret_cast<uintptr_t>(data_.data()) % 64) % 64; }
  unsigned char* end() { return begin() + bytes_; }
  size_t bytes_;
  std::vector<unsigned char> data_;
};

// [rows, columns] with a gap behind each row that holds `gap`.
template <class T>
struct Strided {
  Strided(int64_t rows, int64_t columns, T gap) : columns(columns), stride(columns + 3), gap(gap), data(static_cast<size_t>(rows * stride), gap) {}
  T& operator()(int64_t r, int64_t c) { return data[static_cast<size_t>(r * stride + c)]; }
  T operator()(int64_t r, int64_t c) const { return data[static_cast<size_t>(r * stride + c)]; }
  bool GapsIntact() const {
    for (size_t i = 0; i < data.size(); ++i) {
      if (static_cast<int64_t>(i) % stride >= columns && std::memcmp(&data[i], &gap, sizeof(T)) != 0) return false;
    }
    return true;
  }
  int64_t columns, stride;
  T gap;
  std::vector<T> data;
};

oracle::Values RowsOf(const TestMatrix& m) {
  oracle::Values values;
  for (int64_t r = 0; r < m.rows(); ++r) {
    for (int64_t c = 0; c < m.columns(); ++c) values.push_back(m.Get(r, c));
  }
  return values;
}

// ---- router ----

struct RouterCase {
  int64_t tokens, hidden, experts, k, groups, kept;
  RouterScore score = RouterScore::kSigmoid;
  bool renormalize = true;
  float bias = 0;  // spread of the bias; 0 = none
};

struct RouterProblem {
  RouterProblem(DType act, const RouterCase& c, uint32_t seed)
      : act(act), shape(c), x(act, c.tokens, c.hidden, c.hidden + 5), router(static_cast<size_t>(c.experts * c.hidden)), ids(c.tokens, c.k, -7), weights(c.tokens, c.k, kNan) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    x.FillNormal(rng, 1.0f);
    // Logits of about unit size: scores do not saturate.
    for (float& w : router) w = normal(rng) / std::sqrt(static_cast<float>(c.hidden));
    if (c.bias != 0) bias.resize(static_cast<size_t>(c.experts));
    for (float& b : bias) b = c.bias * normal(rng);
  }
  MoeRouterArgs Args() {
    return {shape.tokens, shape.hidden, shape.experts, shape.k, shape.groups, shape.kept, shape.score, shape.renormalize, 2.446f,
            x.data(), x.stride(), router.data(), bias.empty() ? nullptr : bias.data(), ids.data.data(), ids.stride, weights.data.data(), weights.stride, nullptr};
  }
  int Run(Isa isa, const Parallel& parallel) {
    MoeRouterArgs args = Args();
    Workspace workspace(MoeRouterWorkspaceBytes(shape.hidden, shape.experts, shape.groups, parallel.num_threads));
    args.workspace = workspace.data();
    const int code = (act == DType::kF32 ? Kernels(isa).router_f32 : Kernels(isa).router_bf16)(args, parallel);
    EXPECT_TRUE(workspace.CanaryIntact());
    EXPECT_TRUE(ids.GapsIntact() && weights.GapsIntact() && x.BordersIntact());
    return code;
  }
  oracle::RouterParams Params() const {
    oracle::RouterParams p;
    p.num_experts = shape.experts;
    p.experts_per_token = shape.k;
    p.num_groups = shape.groups;
    p.topk_groups = shape.kept;
    p.score = shape.score == RouterScore::kSigmoid ? oracle::RouterScore::kSigmoid : oracle::RouterScore::kSoftmax;
    p.renormalize = shape.renormalize;
    p.routed_scale = 2.446f;
    return p;
  }
  DType act;
  RouterCase shape;
  TestMatrix x;
  std::vector<float> router, bias;
  Strided<int32_t> ids;
  Strided<float> weights;
};

// Scores of every expert, [T, E], by the reference: all experts chosen, nothing scaled.
oracle::Values AllScores(const RouterProblem& p, const oracle::Values& x, const oracle::Values& router) {
  oracle::RouterParams all = p.Params();
  all.experts_per_token = p.shape.experts;
  all.num_groups = all.topk_groups = 1;
  all.renormalize = false;
  all.routed_scale = 1;
  const oracle::Routing routing = oracle::Route(all, p.shape.hidden, x, router, {});
  oracle::Values scores(routing.weights.size());
  for (size_t i = 0; i < scores.size(); ++i) scores[i / p.shape.experts * p.shape.experts + routing.ids[i]] = routing.weights[i];
  return scores;
}

// Relative error of a score: a dot product of H terms in at least 8 lanes errs by at most (H / 8 + 5) eps sum |x w|, sigmoid and softmax pass an absolute error
// of the logit on as a relative one (softmax twice: its own and the sum's), and add a few operations and the sum over E.
double ScoreError(const RouterProblem& p, int64_t t) {
  double worst = 0;
  for (int64_t e = 0; e < p.shape.experts; ++e) {
    double magnitude = 0;
    for (int64_t i = 0; i < p.shape.hidden; ++i) magnitude += std::fabs(double{p.x.Get(t, i)} * p.router[static_cast<size_t>(e * p.shape.hidden + i)]);
    worst = std::max(worst, magnitude);
  }
  return 2 * static_cast<double>(p.shape.hidden / 8 + 5) * kEps * worst + static_cast<double>(p.shape.experts + 16) * kEps;
}

void ExpectRoutesLikeTheReference(RouterProblem& p, const std::string& what) {
  const oracle::Values x = RowsOf(p.x), router(p.router.begin(), p.router.end()), bias(p.bias.begin(), p.bias.end());
  const oracle::Routing want = oracle::Route(p.Params(), p.shape.hidden, x, router, bias);
  const oracle::Values scores = AllScores(p, x, router);
  int64_t compared = 0;
  ErrorReport report(what);
  for (int64_t t = 0; t < p.shape.tokens; ++t) {
    const double error = ScoreError(p, t);
    const auto corrected = [&](int32_t e) { return scores[static_cast<size_t>(t * p.shape.experts + e)] + (bias.empty() ? 0.0 : bias[static_cast<size_t>(e)]); };
    double largest = 1;
    for (int32_t e = 0; e < p.shape.experts; ++e) largest = std::max(largest, std::fabs(corrected(e)));
    // Between two corrected scores, or two sums of two.
    const double margin = 4 * (error + 2 * kEps) * largest;
    if (want.margins[static_cast<size_t>(t)] <= margin) continue;
    ++compared;
    for (int64_t k = 0; k < p.shape.k; ++k) {
      const int32_t got_id = p.ids(t, k), want_id = want.ids[static_cast<size_t>(t * p.shape.k + k)];
      const int32_t* begin = want.ids.data() + t * p.shape.k;
      const int32_t* found = std::find(begin, begin + p.shape.k, got_id);
      ASSERT_NE(found, begin + p.shape.k) << what << ": token " << t << " place " << k << " has expert " << got_id << ", the reference has " << want_id;
      EXPECT_EQ(std::count(&p.ids(t, 0), &p.ids(t, 0) + p.shape.k, got_id), 1) << what << ": token " << t << " repeats expert " << got_id;
      EXPECT_LE(std::fabs(corrected(got_id) - corrected(want_id)), margin) << what << ": token " << t << ": order of experts " << got_id << " and " << want_id;
      const double weight = want.weights[static_cast<size_t>(t * p.shape.k + (found - begin))];
      report.Add(t * p.shape.k + k, p.weights(t, k), weight, weight * (2 * error + static_cast<double>(p.shape.k + 4) * kEps));
    }
  }
  EXPECT_TRUE(report.Within());
  EXPECT_GE(2 * compared, p.shape.tokens) << what << ": too many choices are closer than rounding";
}

const RouterCase kRouterCases[] = {
    {1, 77, 13, 3, 1, 1},
    {130, 77, 13, 3, 1, 1, RouterScore::kSigmoid, true, 0.3f},
    {5, 64, 1, 1, 1, 1},
    {17, 40, 6, 6, 1, 1, RouterScore::kSoftmax, true},
    {66, 33, 16, 4, 4, 2, RouterScore::kSigmoid, true, 0.3f},
    {31, 130, 24, 6, 3, 2, RouterScore::kSoftmax, false, 0.02f},
    {9, 50, 8, 3, 8, 5, RouterScore::kSigmoid, false},
    {12, 300, 256, 8, 8, 4, RouterScore::kSigmoid, true, 0.1f},
    {64, 7, 35, 5, 5, 5, RouterScore::kSoftmax, false},
};

class MoeRouter : public ::testing::TestWithParam<Isa> {};

TEST_P(MoeRouter, ChoosesAndWeighsAsTheFp64Reference) {
  uint32_t seed = 20;
  for (DType act : kActs) {
    for (const RouterCase& c : kRouterCases) {
      RouterProblem p(act, c, ++seed);
      ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
      ExpectRoutesLikeTheReference(p, "E " + std::to_string(c.experts) + " K " + std::to_string(c.k) + " groups " + std::to_string(c.groups) + " seed " + std::to_string(seed));
    }
  }
}

TEST_P(MoeRouter, EveryTokenCountFromOneTo130IsRouted) {
  for (int64_t tokens = 1; tokens <= 130; tokens += Scaled<int64_t>(1, 7)) {
    RouterProblem p(DType::kBf16, {tokens, 19, 10, 2, 2, 1, RouterScore::kSigmoid, true, 0.1f}, 5);
    ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
    ExpectRoutesLikeTheReference(p, "T " + std::to_string(tokens) + " seed 5");
  }
}

TEST_P(MoeRouter, BiasFlipsTheChoiceAndNeverTheWeight) {
  RouterProblem plain(DType::kF32, {6, 40, 12, 12, 1, 1, RouterScore::kSigmoid, false}, 3);
  ASSERT_EQ(plain.Run(GetParam(), SerialParallel()), kMoeOk);
  RouterProblem p(DType::kF32, {6, 40, 12, 2, 1, 1, RouterScore::kSigmoid, false}, 3);
  p.bias.assign(12, 0.0f);
  p.bias[7] = 3;
  p.bias[4] = 2;
  ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
  for (int64_t t = 0; t < 6; ++t) {
    EXPECT_EQ(p.ids(t, 0), 7);
    EXPECT_EQ(p.ids(t, 1), 4);
    for (int64_t k = 0; k < 12; ++k) {
      for (int64_t chosen = 0; chosen < 2; ++chosen) {
        if (plain.ids(t, k) != p.ids(t, chosen)) continue;
        EXPECT_EQ(plain.weights(t, k), p.weights(t, chosen)) << "token " << t;
      }
    }
  }
}

TEST_P(MoeRouter, TiesGoToTheLowerIndex) {
  for (RouterScore score : {RouterScore::kSigmoid, RouterScore::kSoftmax}) {
    RouterProblem p(DType::kBf16, {5, 33, 12, 3, 4, 2, score, true}, 4);
    std::fill(p.router.begin(), p.router.end(), 0.0f);
    ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
    for (int64_t t = 0; t < 5; ++t) {
      for (int64_t k = 0; k < 3; ++k) {
        EXPECT_EQ(p.ids(t, k), k);
        EXPECT_NEAR(p.weights(t, k), 2.446 / 3, 1e-6);
      }
    }
  }
  // Experts 2 and 5 and 11 have one row of weights: whichever of them are chosen come in that order.
  RouterProblem p(DType::kF32, {40, 33, 12, 6, 1, 1}, 4);
  for (int64_t e : {5, 11}) std::copy_n(p.router.begin() + 2 * 33, 33, p.router.begin() + e * 33);
  ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
  int64_t pairs = 0;
  for (int64_t t = 0; t < 40; ++t) {
    std::vector<int32_t> equal;
    for (int64_t k = 0; k < 6; ++k) {
      if (p.ids(t, k) == 2 || p.ids(t, k) == 5 || p.ids(t, k) == 11) equal.push_back(p.ids(t, k));
    }
    const std::vector<int32_t> order = {2, 5, 11};
    EXPECT_EQ(equal, std::vector<int32_t>(order.begin(), order.begin() + static_cast<int64_t>(equal.size()))) << "token " << t;
    pairs += equal.size() > 1;
  }
  EXPECT_GT(pairs, 0);
}

TEST_P(MoeRouter, NanRanksLastAndStaysInItsRow) {
  for (RouterScore score : {RouterScore::kSigmoid, RouterScore::kSoftmax}) {
    for (int64_t kept : {2, 4}) {
      const RouterCase c = {6, 33, 12, 5, 4, kept, score, true, 0.2f};
      RouterProblem clean(DType::kBf16, c, 8), p(DType::kBf16, c, 8);
      p.x.Set(3, 32, kNan);
      ASSERT_EQ(clean.Run(GetParam(), SerialParallel()), kMoeOk);
      ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
      for (int64_t t = 0; t < 6; ++t) {
        for (int64_t k = 0; k < 5; ++k) {
          EXPECT_EQ(p.ids(t, k), t == 3 ? k : clean.ids(t, k));
          EXPECT_TRUE(t == 3 ? std::isnan(p.weights(t, k)) : p.weights(t, k) == clean.weights(t, k)) << "token " << t << " place " << k;
        }
      }
    }
  }
  // One expert's weights are NaN: nobody chooses it while others are left.
  RouterProblem p(DType::kF32, {20, 33, 7, 6, 1, 1, RouterScore::kSigmoid, true}, 9);
  std::fill_n(p.router.begin() + 2 * 33, 33, kNan);
  ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
  for (int64_t t = 0; t < 20; ++t) {
    for (int64_t k = 0; k < 6; ++k) {
      EXPECT_NE(p.ids(t, k), 2);
      EXPECT_TRUE(std::isfinite(p.weights(t, k)));
    }
  }
}

TEST_P(MoeRouter, ATokenHasTheSameBitsInEveryBatchAndOnAnyNumberOfThreads) {
  for (DType act : kActs) {
    const RouterCase c = {130, 1100, 40, 4, 4, 2, RouterScore::kSoftmax, true, 0.01f};
    RouterProblem all(act, c, 12);
    ASSERT_EQ(all.Run(GetParam(), SerialParallel()), kMoeOk);
    for (int threads : {2, 3, 7}) {
      RouterProblem again(act, c, 12);
      ASSERT_EQ(again.Run(GetParam(), FakeParallel(&threads)), kMoeOk);
      EXPECT_EQ(again.ids.data, all.ids.data);
      EXPECT_EQ(std::memcmp(again.weights.data.data(), all.weights.data.data(), all.weights.data.size() * sizeof(float)), 0) << threads << " threads";
    }
    for (int64_t first : {0, 63, 64, 100}) {
      for (int64_t tokens : {1, 2, 17, 30}) {
        RouterCase part = c;
        part.tokens = tokens;
        RouterProblem p(act, part, 12);
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t i = 0; i < c.hidden; ++i) p.x.Set(t, i, all.x.Get(first + t, i));
        }
        p.router = all.router;
        p.bias = all.bias;
        ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
        for (int64_t t = 0; t < tokens; ++t) {
          EXPECT_EQ(std::memcmp(&p.ids(t, 0), &all.ids(first + t, 0), 4 * sizeof(int32_t)), 0) << "token " << first + t;
          EXPECT_EQ(std::memcmp(&p.weights(t, 0), &all.weights(first + t, 0), 4 * sizeof(float)), 0) << "token " << first + t;
        }
      }
    }
  }
}

TEST_P(MoeRouter, ShapesThatDoNotFitAreRefusedAndWriteNothing) {
  for (const RouterCase& c : {RouterCase{2, 8, 6, 0, 1, 1}, RouterCase{2, 8, 6, 7, 1, 1}, RouterCase{2, 8, 6, 2, 4, 1}, RouterCase{2, 8, 6, 3, 3, 1}, RouterCase{2, 8, 6, 2, 3, 4}, RouterCase{2, 8, 6, 2, 0, 1}}) {
    RouterProblem p(DType::kF32, c, 1);
    MoeRouterArgs args = p.Args();
    EXPECT_EQ(Kernels(GetParam()).router_f32(args, SerialParallel()), kMoeBadShape) << "K " << c.k << " groups " << c.groups << " kept " << c.kept;
    for (int32_t id : p.ids.data) EXPECT_EQ(id, -7);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, MoeRouter, ::testing::ValuesIn(TestedIsas()), IsaTestName());

// ---- experts ----

enum class Pattern { kRandom, kSameForAll, kOneGetsAll, kRepeated };

struct ExpertsCase {
  int64_t tokens;
  MoeExpertsShape shape;
  Pattern pattern = Pattern::kRandom;
  bool shared = true;
};

struct ExpertsProblem {
  ExpertsProblem(DType act, const ExpertsCase& c, uint32_t seed)
      : act(act), c(c), x(act, c.tokens, h(), h() + 7), shared(act, c.tokens, h(), h() + 2), y(act, c.tokens, h(), h() + 9),
        gate(act, e() * i(), h(), h()), up(gate), down(act, e() * h(), i(), i()), ids(c.tokens, k(), -1), weights(c.tokens, k(), kNan) {
    std::mt19937 rng(seed);
    x.FillNormal(rng, 1.0f);
    shared.FillNormal(rng, 1.0f);
    gate.FillNormal(rng, 1.5f / std::sqrt(static_cast<float>(h())));
    up.FillNormal(rng, 1.5f / std::sqrt(static_cast<float>(h())));
    down.FillNormal(rng, 1.5f / std::sqrt(static_cast<float>(i())));
    std::uniform_real_distribution<float> uniform(0.05f, 1.0f);
    for (int64_t t = 0; t < c.tokens; ++t) {
      for (int64_t j = 0; j < k(); ++j) weights(t, j) = uniform(rng);
    }
    DrawIds(rng);
  }
  void DrawIds(std::mt19937& rng) {
    std::vector<int32_t> order(static_cast<size_t>(e()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), rng);
    const int32_t favourite = order[0];
    for (int64_t t = 0; t < c.tokens; ++t) {
      // The last expert of a random choice gets nothing where it can be spared.
      if (c.pattern != Pattern::kSameForAll) {
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end() - (k() < e() ? 1 : 0), rng);
      }
      if (c.pattern == Pattern::kOneGetsAll) std::swap(order[0], *std::find(order.begin(), order.end(), favourite));
      for (int64_t j = 0; j < k(); ++j) ids(t, j) = c.pattern == Pattern::kRepeated ? order[0] : order[static_cast<size_t>(j)];
    }
  }
  MoeExpertsArgs Args() {
    return {c.shape, c.tokens, x.data(), x.stride(), ids.data.data(), ids.stride, weights.data.data(), weights.stride,
            c.shared ? shared.data() : nullptr, shared.stride(), gate.data(), up.data(), down.data(), y.data(), y.stride(), nullptr};
  }
  int Run(Isa isa, const Parallel& parallel) {
    MoeExpertsArgs args = Args();
    Workspace workspace(MoeExpertsWorkspaceBytes(c.shape, c.tokens, act, parallel.num_threads));
    args.workspace = workspace.data();
    const int code = (act == DType::kF32 ? Kernels(isa).experts_f32 : Kernels(isa).experts_bf16)(args, parallel);
    EXPECT_TRUE(workspace.CanaryIntact() && y.BordersIntact());
    return code;
  }
  int64_t e() const { return c.shape.num_experts; }
  int64_t k() const { return c.shape.experts_per_token; }
  int64_t h() const { return c.shape.hidden_size; }
  int64_t i() const { return c.shape.intermediate_size; }

  DType act;
  ExpertsCase c;
  TestMatrix x, shared, y, gate, up, down;
  Strided<int32_t> ids;
  Strided<float> weights;
};

// A dot product's value and the sum of its terms' magnitudes.
struct Dot {
  double value = 0, magnitude = 0;
  void Add(double term) {
    value += term;
    magnitude += std::fabs(term);
  }
};

// How far the experts' part of row t may lie from the formula, [H]. r: one rounding to the activation dtype. Products err by (n + 1) eps
// of their magnitude and r of themselves; silu has slope below 1.1 and a few operations of its own; the rest follows the formula.
std::vector<double> ExpertsTolerance(const ExpertsProblem& p, int64_t t) {
  const double r = RoundingOf(p.act);
  std::vector<double> tolerance(static_cast<size_t>(p.h()), 1e-30);
  std::vector<double> inner(static_cast<size_t>(p.i())), error(inner.size());
  for (int64_t k = 0; k < p.k(); ++k) {
    const int64_t e = p.ids(t, k);
    for (int64_t i = 0; i < p.i(); ++i) {
      Dot gate, up;
      for (int64_t d = 0; d < p.h(); ++d) {
        gate.Add(double{p.x.Get(t, d)} * p.gate.Get(e * p.i() + i, d));
        up.Add(double{p.x.Get(t, d)} * p.up.Get(e * p.i() + i, d));
      }
      const double n = static_cast<double>(p.h() + 1) * kEps;
      const double gate_error = n * gate.magnitude + r * std::fabs(gate.value), up_error = n * up.magnitude + r * std::fabs(up.value);
      const double silu = gate.value / (1 + std::exp(-gate.value)), silu_error = 1.1 * gate_error + 8 * kEps * std::fabs(silu);
      inner[static_cast<size_t>(i)] = silu * up.value;
      error[static_cast<size_t>(i)] = silu_error * (std::fabs(up.value) + up_error) + std::fabs(silu) * up_error + (r + 2 * kEps) * std::fabs(silu * up.value);
    }
    for (int64_t d = 0; d < p.h(); ++d) {
      double bound = 0;
      for (int64_t i = 0; i < p.i(); ++i) {
        const double w = std::fabs(p.down.Get(e * p.h() + d, i));
        bound += w * (error[static_cast<size_t>(i)] + static_cast<double>(p.i() + p.k() + 2) * kEps * std::fabs(inner[static_cast<size_t>(i)]));
      }
      tolerance[static_cast<size_t>(d)] += p.weights(t, k) * bound;
    }
  }
  return tolerance;
}

void ExpectMatchesTheReference(const ExpertsProblem& p, const std::string& what) {
  oracle::Values ids, weights;
  for (int64_t t = 0; t < p.c.tokens; ++t) {
    for (int64_t k = 0; k < p.k(); ++k) ids.push_back(p.ids(t, k)), weights.push_back(p.weights(t, k));
  }
  const oracle::ExpertsShape shape{p.e(), p.k(), p.h(), p.i()};
  const oracle::Values want = oracle::Experts(shape, RowsOf(p.x), ids, weights, RowsOf(p.gate), RowsOf(p.up), RowsOf(p.down));
  ErrorReport report(what);
  for (int64_t t = 0; t < p.c.tokens; ++t) {
    const std::vector<double> tolerance = ExpertsTolerance(p, t);
    for (int64_t d = 0; d < p.h(); ++d) {
      const double value = want[static_cast<size_t>(t * p.h() + d)] + (p.c.shared ? p.shared.Get(t, d) : 0.0);
      report.Add(t * p.h() + d, p.y.Get(t, d), value, tolerance[static_cast<size_t>(d)] + (RoundingOf(p.act) + kEps) * (std::fabs(value) + tolerance[static_cast<size_t>(d)]));
    }
  }
  EXPECT_TRUE(report.Within());
}

std::string Describe(const ExpertsCase& c, uint32_t seed) {
  return "T " + std::to_string(c.tokens) + " E " + std::to_string(c.shape.num_experts) + " K " + std::to_string(c.shape.experts_per_token) + " H " +
         std::to_string(c.shape.hidden_size) + " I " + std::to_string(c.shape.intermediate_size) + " pattern " + std::to_string(static_cast<int>(c.pattern)) + " seed " + std::to_string(seed);
}

const ExpertsCase kExpertsCases[] = {
    {1, {7, 3, 77, 37}},
    {33, {7, 3, 77, 37}},
    {130, {9, 2, 50, 33}},
    {20, {5, 5, 64, 48}},                            // K = E
    {18, {1, 1, 31, 70}},                            // E = 1
    {70, {6, 2, 40, 65}, Pattern::kSameForAll},      // two experts have every token, four have none
    {35, {8, 3, 33, 20}, Pattern::kOneGetsAll},
    {5, {4, 2, 20, 9}, Pattern::kRepeated, false},   // an expert twice in a token
    {3, {40, 4, 130, 100}, Pattern::kRandom, false}, // more experts than pairs
    {2, {3, 1, 1, 1}},
};

class MoeExperts : public ::testing::TestWithParam<Isa> {};

TEST_P(MoeExperts, EqualTheFp64Reference) {
  uint32_t seed = 40;
  for (DType act : kActs) {
    for (const ExpertsCase& c : kExpertsCases) {
      ExpertsProblem p(act, c, ++seed);
      ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
      ExpectMatchesTheReference(p, Describe(c, seed));
    }
  }
}

TEST_P(MoeExperts, EveryTokenCountFromOneTo130EqualsTheReference) {
  for (int64_t tokens = 1; tokens <= 130; tokens += Scaled<int64_t>(1, 7)) {
    const ExpertsCase c = {tokens, {5, 2, 19, 26}};
    ExpertsProblem p(tokens % 2 ? DType::kBf16 : DType::kF32, c, 6);
    ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
    ExpectMatchesTheReference(p, Describe(c, 6));
  }
}

// What one token gets from products of single rows, one expert after the other, in the stated order of operations.
template <class Act>
std::vector<float> OneToken(Isa isa, const ExpertsProblem& p, int64_t t) {
  const GemmKernels& gemm = isa == Isa::kAvx2 ? GemmAvx2() : GemmAvx512Bf16();
  const GemmFn to_act = FindGemm(gemm, p.act, p.act, p.act), to_float = FindGemm(gemm, p.act, p.act, DType::kF32);
  const auto& rows = isa == Isa::kAvx2 ? ElementwiseAvx2() : ElementwiseAvx512Bf16();
  Workspace workspace(GemmWorkspaceBytes(1));
  const Parallel serial = SerialParallel();
  const auto at = [](const TestMatrix& m, int64_t row) { return static_cast<const Act*>(m.data()) + row * m.stride(); };
  std::vector<Act> gate(static_cast<size_t>(p.i())), up(gate);
  std::vector<float> down(static_cast<size_t>(p.h())), sum(down.size(), 0.0f);
  for (int64_t k = 0; k < p.k(); ++k) {
    const int64_t e = p.ids(t, k);
    to_act({1, p.i(), p.h(), at(p.x, t), p.h(), at(p.gate, e * p.i()), gate.data(), p.i(), false, workspace.data()}, serial);
    to_act({1, p.i(), p.h(), at(p.x, t), p.h(), at(p.up, e * p.i()), up.data(), p.i(), false, workspace.data()}, serial);
    (p.act == DType::kF32 ? rows.silu_mul_f32 : rows.silu_mul_bf16)({1, p.i(), gate.data(), p.i(), up.data(), p.i(), gate.data(), p.i()}, serial);
    to_float({1, p.h(), p.i(), gate.data(), p.i(), at(p.down, e * p.h()), down.data(), p.h(), false, workspace.data()}, serial);
    for (size_t d = 0; d < sum.size(); ++d) sum[d] = std::fma(p.weights(t, k), down[d], sum[d]);
  }
  for (size_t d = 0; d < sum.size(); ++d) sum[d] = ToFloat(FromFloat<Act>(p.c.shared ? sum[d] + p.shared.Get(t, static_cast<int64_t>(d)) : sum[d]));
  return sum;
}

void ExpectBitsOfSingleTokens(Isa isa, const ExpertsProblem& p, const std::string& what) {
  for (int64_t t = 0; t < p.c.tokens; ++t) {
    const std::vector<float> want = p.act == DType::kF32 ? OneToken<float>(isa, p, t) : OneToken<bf16>(isa, p, t);
    for (int64_t d = 0; d < p.h(); ++d) {
      ASSERT_EQ(BitsOf(p.y.Get(t, d)), BitsOf(want[static_cast<size_t>(d)])) << what << ": token " << t << " column " << d << ": " << p.y.Get(t, d) << ", alone " << want[static_cast<size_t>(d)];
    }
  }
}

TEST_P(MoeExperts, ATokenHasTheBitsOfItsExpertsAloneInEveryBatchAndOnAnyNumberOfThreads) {
  const ExpertsCase cases[] = {{1, {16, 4, 1100, 75}}, {40, {6, 3, 77, 70}}, {130, {4, 2, 100, 61}, Pattern::kOneGetsAll}, {67, {5, 2, 48, 130}, Pattern::kSameForAll}};
  for (DType act : kActs) {
    for (const ExpertsCase& c : cases) {
      for (int threads : {1, 2, 3, 7}) {
        ExpertsProblem p(act, c, 77);
        ASSERT_EQ(p.Run(GetParam(), FakeParallel(&threads)), kMoeOk);
        ExpectBitsOfSingleTokens(GetParam(), p, Describe(c, 77) + " threads " + std::to_string(threads));
      }
    }
  }
}

TEST_P(MoeExperts, ThreadsThatRunAtOnceGiveTheSameBits) {
  std::string error;
  auto pool = ThreadPool::Create({.num_threads = 3, .pin = false}, &error);
  ASSERT_NE(pool, nullptr) << error;
  for (const ExpertsCase& c : {ExpertsCase{2, {8, 3, 300, 200}}, ExpertsCase{100, {4, 2, 300, 100}}}) {
    ExpertsProblem serial(DType::kBf16, c, 78), parallel(DType::kBf16, c, 78);
    ASSERT_EQ(serial.Run(GetParam(), SerialParallel()), kMoeOk);
    for (int repeat = 0; repeat < 5; ++repeat) {
      ASSERT_EQ(parallel.Run(GetParam(), pool->parallel()), kMoeOk);
      EXPECT_EQ(parallel.y.bytes(), serial.y.bytes()) << Describe(c, 78);
    }
  }
}

// A readable block of bytes with one part that may not be touched.
class GuardedWeights {
 public:
  explicit GuardedWeights(size_t bytes) : bytes_(bytes), data_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~GuardedWeights() { munmap(data_, bytes_); }
  GuardedWeights(const GuardedWeights&) = delete;
  char* data() const { return static_cast<char*>(data_); }
  bool Forbid(size_t from, size_t count) { return mprotect(data() + from, count, PROT_NONE) == 0; }

 private:
  size_t bytes_;
  void* data_;
};

TEST_P(MoeExperts, WeightsOfExpertsThatNobodyChoseAreNotRead) {
  constexpr int64_t kPage = 4096;
  for (int64_t tokens : {1, 40}) {
    ExpertsProblem p(DType::kBf16, {tokens, {6, 2, 64, 64}, Pattern::kSameForAll}, 13);  // an expert's matrix is two pages
    const size_t expert = 64 * 64 * sizeof(bf16);
    ASSERT_EQ(expert % kPage, 0u);
    GuardedWeights gate(6 * expert), up(6 * expert), down(6 * expert);
    std::memcpy(gate.data(), p.gate.data(), 6 * expert);
    std::memcpy(up.data(), p.up.data(), 6 * expert);
    std::memcpy(down.data(), p.down.data(), 6 * expert);
    int forbidden = 0;
    for (int32_t e = 0; e < 6; ++e) {
      if (e == p.ids(0, 0) || e == p.ids(0, 1)) continue;
      for (GuardedWeights* w : {&gate, &up, &down}) ASSERT_TRUE(w->Forbid(static_cast<size_t>(e) * expert, expert));
      ++forbidden;
    }
    EXPECT_EQ(forbidden, 4);
    ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
    const TestMatrix want = p.y;
    MoeExpertsArgs args = p.Args();
    args.gate = gate.data();
    args.up = up.data();
    args.down = down.data();
    Workspace workspace(MoeExpertsWorkspaceBytes(p.c.shape, tokens, p.act, 1));
    args.workspace = workspace.data();
    ASSERT_EQ(Kernels(GetParam()).experts_bf16(args, SerialParallel()), kMoeOk);
    EXPECT_EQ(p.y.bytes(), want.bytes());
  }
}

TEST_P(MoeExperts, IdsOutOfRangeAreRefusedAndNothingIsWritten) {
  for (int32_t id : {-1, 7, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    ExpertsProblem p(DType::kF32, {9, {7, 3, 20, 10}}, 2);
    p.ids(8, 2) = id;
    const std::vector<unsigned char> before = p.y.bytes();
    EXPECT_EQ(p.Run(GetParam(), SerialParallel()), kMoeBadExpert) << id;
    EXPECT_EQ(p.y.bytes(), before);
  }
}

TEST_P(MoeExperts, NanInOneTokenStaysInItsRow) {
  ExpertsProblem clean(DType::kBf16, {30, {4, 2, 40, 24}}, 5), p(DType::kBf16, {30, {4, 2, 40, 24}}, 5);
  p.x.Set(11, 3, kNan);
  p.weights(17, 1) = kNan;
  ASSERT_EQ(clean.Run(GetParam(), SerialParallel()), kMoeOk);
  ASSERT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
  for (int64_t t = 0; t < 30; ++t) {
    for (int64_t d = 0; d < 40; ++d) {
      if (t == 11 || t == 17) {
        EXPECT_TRUE(std::isnan(p.y.Get(t, d))) << "token " << t;
      } else {
        EXPECT_EQ(p.y.Get(t, d), clean.y.Get(t, d)) << "token " << t;
      }
    }
  }
}

TEST_P(MoeExperts, NoTokensAreNoWork) {
  ExpertsProblem p(DType::kF32, {0, {3, 2, 8, 8}}, 1);
  EXPECT_EQ(p.Run(GetParam(), SerialParallel()), kMoeOk);
  RouterProblem r(DType::kF32, {0, 8, 4, 2, 1, 1}, 1);
  EXPECT_EQ(r.Run(GetParam(), SerialParallel()), kMoeOk);
}

INSTANTIATE_TEST_SUITE_P(Levels, MoeExperts, ::testing::ValuesIn(TestedIsas()), IsaTestName());

}  // namespace
}  // namespace rt::kernels
