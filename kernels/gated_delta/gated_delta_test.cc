#include "kernels/gated_delta/gated_delta.h"

#include <tuple>

#include "kernels/gated_delta/gated_delta_testing.h"

namespace rt::kernels {
namespace {

constexpr DeltaDims kOdd = {2, 6, 96, 40};
constexpr DeltaDims kReal = {1, 2, 128, 128};
constexpr DeltaDims kTiny = {3, 3, 19, 5};

enum class Form { kRecurrent, kChunked };

GatedDeltaFn KernelOf(Isa isa, Form form, DType act) {
  const GatedDeltaKernels& table = isa == Isa::kAvx2 ? GatedDeltaAvx2() : GatedDeltaAvx512Bf16();
  if (form == Form::kRecurrent) return act == DType::kF32 ? table.recurrent_f32 : table.recurrent_bf16;
  return act == DType::kF32 ? table.chunked_f32 : table.chunked_bf16_fma;
}

class GatedDelta : public ::testing::TestWithParam<std::tuple<Isa, Form, GateKind>> {
 protected:
  GatedDeltaFn kernel(DType act) const { return KernelOf(std::get<0>(GetParam()), std::get<1>(GetParam()), act); }
  GatedDeltaFn other_form(DType act) const {
    return KernelOf(std::get<0>(GetParam()), std::get<1>(GetParam()) == Form::kChunked ? Form::kRecurrent : Form::kChunked, act);
  }
  DeltaProblem Problem(const DeltaDims& dims, DType act, DType state, const std::vector<TestSequence>& sequences, uint32_t seed, int threads = 1) const {
    return {dims, act, state, sequences, seed, threads, std::get<2>(GetParam())};
  }
};

TEST_P(GatedDelta, MatchesTheDoublePrecisionRecurrenceAtEveryLength) {
  for (int32_t length : {0, 1, 2, 15, 16, 17, 63, 64, 65, 130, 200}) {
    for (const DeltaDims& dims : {kOdd, kReal, kTiny}) {
      for (bool initial : {false, true}) {
        DeltaProblem p = Problem(dims, DType::kF32, DType::kF32, {{length, 3, initial}}, 100 + length);
        CheckAgainstReference(kernel(DType::kF32), p,
                              "f32, length " + std::to_string(length) + ", Dk " + std::to_string(dims.head_k_dim) + ", seed " +
                                  std::to_string(100 + length));
      }
    }
  }
}

const std::vector<TestSequence> kMixed = {{3, -1, false}, {1, 4, true}, {0, 2, true}, {70, 0, true}, {1, -1, true},
                                          {5, 3, false}, {17, 1, true}, {0, 5, false}, {2, -1, false}};

TEST_P(GatedDelta, MixedBatchesOfEveryDtypeMatchAndTouchNothingElse) {
  for (DType act : {DType::kF32, DType::kBf16}) {
    for (DType state : {DType::kF32, DType::kBf16, DType::kF16}) {
      DeltaProblem p = Problem(kOdd, act, state, kMixed, 21, 3);
      CheckAgainstReference(kernel(act), p, "mixed batch, seed 21, act " + std::to_string(static_cast<int>(act)) + ", state " +
                                                std::to_string(static_cast<int>(state)));
    }
  }
}

// A narrow state after 150 tokens is the fp32 state of the same call, rounded once.
TEST_P(GatedDelta, NarrowStatesAreRoundedOncePerCall) {
  for (DType narrow : {DType::kBf16, DType::kF16}) {
    DeltaProblem wide = Problem(kOdd, DType::kF32, DType::kF32, {{150, 2, false}}, 4), p = Problem(kOdd, DType::kF32, narrow, {{150, 2, false}}, 4);
    wide.Run(kernel(DType::kF32));
    p.Run(kernel(DType::kF32));
    EXPECT_EQ(wide.out.bytes(), p.out.bytes());
    for (int64_t i = 0; i < int64_t{kOdd.num_v_heads} * kOdd.head_k_dim * kOdd.head_v_dim; ++i) {
      const int64_t h = i / (kOdd.head_k_dim * kOdd.head_v_dim), d = i / kOdd.head_v_dim % kOdd.head_k_dim, v = i % kOdd.head_v_dim;
      const float exact = static_cast<float>(wide.pool.Get(2, h, d, v));
      const float rounded = narrow == DType::kBf16 ? ToFloat(FromFloat<bf16>(exact)) : ToFloat(FromFloat<f16>(exact));
      ASSERT_EQ(p.pool.Get(2, h, d, v), rounded) << "head " << h << ", d " << d << ", v " << v << ", seed 4";
    }
  }
}

constexpr double kChunkRows = 64;

struct Extreme {
  const char* name;
  void (*apply)(DeltaProblem&);
  double amplification = 1;
};

TEST_P(GatedDelta, ExtremesStayFiniteAndCorrect) {
  const Extreme extremes[] = {
      {"g = -20 a step", [](DeltaProblem& p) { 
         p.a_log.assign(p.a_log.size(), std::log(20.0f));
         p.dt_bias.assign(p.dt_bias.size(), 0.54132485f);  // softplus = 1
         for (int64_t t = 0; t < p.a.rows(); ++t) p.a.FillRow(t, 0); }},
      {"g = -inf", [](DeltaProblem& p) { p.a_log.assign(p.a_log.size(), 100.0f); }},
      {"no decay", [](DeltaProblem& p) { p.a_log.assign(p.a_log.size(), -std::numeric_limits<float>::infinity()); }},
      {"decay from nothing to everything within a chunk", [](DeltaProblem& p) {
         for (int64_t t = 0; t < p.a.rows(); ++t) p.a.FillRow(t, t % 7 == 3 ? 300.0f : -30.0f); }},
      {"zero keys", [](DeltaProblem& p) { for (int64_t t = 0; t < p.k.rows(); ++t) p.k.FillRow(t, 0); }},
      {"zero queries", [](DeltaProblem& p) { for (int64_t t = 0; t < p.q.rows(); ++t) p.q.FillRow(t, 0); }},
      {"one repeated key, beta near 1", [](DeltaProblem& p) {
         for (int64_t t = 0; t < p.k.rows(); ++t) p.k.FillRow(t, 1), p.b.FillRow(t, 12); }},
      {"beta = 0", [](DeltaProblem& p) { for (int64_t t = 0; t < p.b.rows(); ++t) p.b.FillRow(t, -200); }},
      {"beta up to 2", [](DeltaProblem& p) { p.beta_scale = 2; for (int64_t t = 0; t < p.b.rows(); ++t) p.b.FillRow(t, t % 3 ? 20.0f : 0.0f); }},
      {"repeated keys, beta 2, no decay", [](DeltaProblem& p) {
         p.beta_scale = 2;
         p.a_log.assign(p.a_log.size(), -std::numeric_limits<float>::infinity());
         for (int64_t t = 0; t < p.k.rows(); ++t) p.k.FillRow(t, 1), p.b.FillRow(t, 20); },
       // Every step reflects the state along the same axis: no error ever fades, and the triangular system adds each row to all later ones.
       kChunkRows},
      {"large activations", [](DeltaProblem& p) { std::mt19937 rng(1); p.k.FillNormal(rng, 1e4f), p.q.FillNormal(rng, 1e4f); }},
  };
  for (const Extreme& extreme : extremes) {
    for (bool initial : {false, true}) {
      DeltaProblem p = Problem(kOdd, DType::kF32, DType::kF32, {{100, 3, initial}}, 31);
      extreme.apply(p);
      CheckAgainstReference(kernel(DType::kF32), p, std::string(extreme.name) + ", seed 31", extreme.amplification);
    }
  }
}

// The same tokens in pieces, each form, and pieces that switch form: prefill(n) + decode(m) = prefill(n + m).
TEST_P(GatedDelta, AnySplitEqualsOneCallWithinRounding) {
  DeltaProblem whole = Problem(kOdd, DType::kF32, DType::kF32, {{200, 2, true}}, 8);
  whole.Run(kernel(DType::kF32));
  for (const std::vector<int32_t>& pieces :
       {std::vector<int32_t>{64, 64, 64, 8}, {1, 2, 3, 63, 65, 66}, {130, 1, 1, 1, 67}, {199, 1}, {16, 0, 17, 100, 67}}) {
    for (bool alternate : {false, true}) {
      DeltaProblem p = Problem(kOdd, DType::kF32, DType::kF32, {{200, 2, true}}, 8);
      int32_t done = 0;
      for (size_t i = 0; i < pieces.size(); ++i) {
        const std::vector<int32_t> cu = {0, pieces[i]};
        GatedDeltaParams part = p.params();
        const auto at = [&](TestMatrix& x) { return static_cast<float*>(x.data()) + done * x.stride(); };
        part.q = at(p.q), part.k = at(p.k), part.v = at(p.v), part.out = at(p.out), part.gates.a = at(p.a), part.gates.b = at(p.b);
        part.batch.cu_seqlens = cu.data();
        (alternate && i % 2 ? other_form(DType::kF32) : kernel(DType::kF32))(part, SerialParallel());
        done += pieces[i];
      }
      ASSERT_EQ(done, 200);
      ErrorReport report("split against whole, seed 8");
      for (int64_t t = 0; t < 200; ++t) {
        for (int64_t c = 0; c < p.out.columns(); ++c) report.Add(t, p.out.Get(t, c), whole.out.Get(t, c), Tolerance(0, 1.0, DType::kF32));
      }
      for (int64_t i = 0; i < int64_t{kOdd.head_k_dim} * kOdd.head_v_dim; ++i) {
        const int64_t d = i / kOdd.head_v_dim, v = i % kOdd.head_v_dim;
        report.Add(i, p.pool.Get(2, 5, d, v), whole.pool.Get(2, 5, d, v), Tolerance(0, 1.0, DType::kF32));
      }
      EXPECT_TRUE(report.Within());
    }
  }
}

// Byte for byte, whatever the number of threads (which also changes how finely heads are cut).
TEST_P(GatedDelta, ResultsDoNotDependOnTheNumberOfThreads) {
  for (const DeltaDims& dims : {kOdd, kReal}) {
    for (const std::vector<TestSequence>& sequences : {kMixed, {{70, 1, true}}}) {
      DeltaProblem one = Problem(dims, DType::kBf16, DType::kF32, sequences, 12);
      one.Run(kernel(DType::kBf16));
      for (int threads : {2, 3, 7, 40}) {
        DeltaProblem many = Problem(dims, DType::kBf16, DType::kF32, sequences, 12, threads);
        many.Run(kernel(DType::kBf16));
        EXPECT_EQ(one.out.bytes(), many.out.bytes()) << threads << " threads";
        EXPECT_EQ(one.pool.bytes(), many.pool.bytes()) << threads << " threads";
      }
    }
  }
}

TEST_P(GatedDelta, ASequenceGivesTheSameBytesAloneAndInABatch) {
  DeltaProblem together = Problem(kOdd, DType::kBf16, DType::kF16, kMixed, 13, 2), alone = Problem(kOdd, DType::kBf16, DType::kF16, kMixed, 13, 2);
  together.Run(kernel(DType::kBf16));
  for (size_t s = kMixed.size(); s-- > 0;) {
    const std::vector<int32_t> cu = {0, kMixed[s].length};
    GatedDeltaParams part = alone.params();
    const int64_t row = alone.batch.cu_seqlens[s];
    const auto at = [&](TestMatrix& x) { return static_cast<bf16*>(x.data()) + row * x.stride(); };
    part.q = at(alone.q), part.k = at(alone.k), part.v = at(alone.v), part.out = at(alone.out);
    part.gates.a = at(alone.a), part.gates.b = at(alone.b);
    part.batch = {1, cu.data(), &alone.batch.slots[s], &alone.batch.has_initial[s]};
    kernel(DType::kBf16)(part, SerialParallel());
  }
  EXPECT_EQ(together.out.bytes(), alone.out.bytes());
  EXPECT_EQ(together.pool.bytes(), alone.pool.bytes());
}

// bf16 operands carry 2^-9 each: 2^-6 of the largest entry is eight such roundings adding up; the RMS stays far below.
constexpr double kDotAmplification = 4096;

class GatedDeltaDot : public ::testing::TestWithParam<std::tuple<Isa, GateKind>> {
 protected:
  const GatedDeltaKernels& kernels() const { return std::get<0>(GetParam()) == Isa::kAvx2 ? GatedDeltaAvx2() : GatedDeltaAvx512Bf16(); }
  GateKind gate() const { return std::get<1>(GetParam()); }
};

TEST_P(GatedDeltaDot, MixedBatchesOfEveryShapeMatchWithinBf16OperandsAndTouchNothingElse) {
  for (const DeltaDims& dims : {kOdd, kReal, kTiny}) {
    for (DType state : {DType::kF32, DType::kBf16, DType::kF16}) {
      DeltaProblem p(dims, DType::kBf16, state, kMixed, 41, 3, gate());
      CheckAgainstReference(kernels().chunked_bf16_dot, p, "dot form, seed 41, Dk " + std::to_string(dims.head_k_dim), kDotAmplification);
    }
  }
}

TEST_P(GatedDeltaDot, RelativeRmsErrorStaysBelowFourThousandths) {
  DeltaProblem exact(kReal, DType::kBf16, DType::kF32, {{300, 2, true}}, 43, 1, gate()), p(exact);
  exact.Run(kernels().recurrent_bf16);
  p.Run(kernels().chunked_bf16_dot);
  double error = 0, size = 0, state_error = 0, state_size = 0;
  for (int64_t t = 0; t < 300; ++t) {
    for (int64_t c = 0; c < p.out.columns(); ++c) {
      error += std::pow(p.out.Get(t, c) - exact.out.Get(t, c), 2);
      size += std::pow(exact.out.Get(t, c), 2);
    }
  }
  for (int64_t i = 0; i < 2 * 128 * 128; ++i) {
    state_error += std::pow(p.pool.Get(2, i / 16384, i / 128 % 128, i % 128) - exact.pool.Get(2, i / 16384, i / 128 % 128, i % 128), 2);
    state_size += std::pow(exact.pool.Get(2, i / 16384, i / 128 % 128, i % 128), 2);
  }
  // fla's bf16 kernels are near 4e-3 on o.
  EXPECT_LT(std::sqrt(error / size), 4e-3);
  EXPECT_LT(std::sqrt(state_error / state_size), 4e-3);
}

TEST_P(GatedDeltaDot, ExtremesStayFinite) {
  for (float a : {-30.0f, 0.0f, 300.0f}) {
    for (float key : {0.0f, 1.0f}) {
      DeltaProblem p(kOdd, DType::kBf16, DType::kF32, {{100, 3, true}}, 44, 1, gate());
      for (int64_t t = 0; t < p.k.rows(); ++t) p.a.FillRow(t, t % 7 ? a : 2.0f), p.k.FillRow(t, key), p.b.FillRow(t, 20);
      CheckAgainstReference(kernels().chunked_bf16_dot, p, "dot form, a " + std::to_string(a) + ", seed 44", 4 * kDotAmplification);
    }
  }
}

TEST_P(GatedDeltaDot, ResultsDoNotDependOnTheNumberOfThreads) {
  DeltaProblem one(kReal, DType::kBf16, DType::kF32, kMixed, 12, 1, gate());
  one.Run(kernels().chunked_bf16_dot);
  for (int threads : {2, 7, 40}) {
    DeltaProblem many(kReal, DType::kBf16, DType::kF32, kMixed, 12, threads, gate());
    many.Run(kernels().chunked_bf16_dot);
    EXPECT_EQ(one.out.bytes(), many.out.bytes()) << threads << " threads";
    EXPECT_EQ(one.pool.bytes(), many.pool.bytes()) << threads << " threads";
  }
}

using DotParam = std::tuple<Isa, GateKind>;
using DeltaParam = std::tuple<Isa, Form, GateKind>;

template <class Tuple>
std::string ParamName(const ::testing::TestParamInfo<Tuple>& info) {
  std::string name = std::string(IsaName(std::get<0>(info.param)));
  if constexpr (std::tuple_size_v<Tuple> == 3) name += std::get<1>(info.param) == Form::kRecurrent ? "_recurrent" : "_chunked";
  return name + "_" + GateKindName(std::get<GateKind>(info.param));
}

const auto kGateKinds = ::testing::Values(GateKind::kScalar, GateKind::kScalarBounded, GateKind::kChannel, GateKind::kChannelBounded);
INSTANTIATE_TEST_SUITE_P(EveryIsa, GatedDeltaDot,
                         ::testing::Combine(::testing::ValuesIn(TestedIsas()), ::testing::Values(GateKind::kScalar, GateKind::kChannel)),
                         ParamName<DotParam>);
INSTANTIATE_TEST_SUITE_P(EveryIsa, GatedDelta,
                         ::testing::Combine(::testing::ValuesIn(TestedIsas()), ::testing::Values(Form::kRecurrent, Form::kChunked), kGateKinds),
                         ParamName<DeltaParam>);

}  // namespace
}  // namespace rt::kernels
