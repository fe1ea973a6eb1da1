// Gates with a value per key channel, where the chunk form differs most from the scalar one: every length, and gates chosen to overflow a
// careless factorisation or to lose the digits of a chunk-wide running sum.
#include <tuple>

#include "kernels/gated_delta/gated_delta_testing.h"

namespace rt::kernels {
namespace {

// Log decays -g >= 0 of a token and channel, as far as `strongest`.
struct Pattern {
  const char* name;
  double (*decay)(int64_t t, int64_t channel, double strongest);
};
constexpr double kFaint = 1e-3;
const Pattern kPatterns[] = {
    {"weak", [](int64_t t, int64_t c, double) { return kFaint * static_cast<double>(1 + (t + c) % 7); }},
    {"uniform", [](int64_t t, int64_t c, double strongest) { return strongest * static_cast<double>((t * 7919 + c * 104729) % 997 + 1) / 1000; }},
    {"moderate", [](int64_t t, int64_t c, double) { return 0.3 * static_cast<double>((t * 31 + c * 17) % 10 + 1) / 10; }},
    {"on and off", [](int64_t t, int64_t c, double strongest) { return (t + c) % 2 ? strongest : kFaint; }},
    {"strongest throughout", [](int64_t, int64_t, double strongest) { return strongest; }},
    // Twenty strong steps, then twenty faint ones: after the burst a chunk-wide sum of -400 has an ulp of 3e-5.
    {"bursty", [](int64_t t, int64_t, double strongest) { return t / 20 % 2 ? kFaint : strongest; }},
    {"bursts that differ by channel", [](int64_t t, int64_t c, double strongest) { return (t + 3 * c) / 20 % 2 ? kFaint : strongest; }},
    {"a burst within a block", [](int64_t t, int64_t c, double strongest) { return (t + c) % 16 == 5 ? strongest : kFaint; }},
};

class ChannelGates : public ::testing::TestWithParam<std::tuple<Isa, GateKind>> {
 protected:
  const GatedDeltaKernels& kernels() const { return std::get<0>(GetParam()) == Isa::kAvx2 ? GatedDeltaAvx2() : GatedDeltaAvx512Bf16(); }
  GateKind gate() const { return std::get<1>(GetParam()); }
  // Just inside the bound; else 20 a step.
  double strongest() const { return gate() == GateKind::kChannelBounded ? -kTestBound * 0.9999 : 20.0; }

  // Sets a, A_log and dt_bias so that g is -decay up to the rounding of a (which the reference sees as well).
  static void SetDecays(DeltaProblem& p, const Pattern& pattern, double strongest) {
    p.a_log.assign(p.a_log.size(), 0.0f);
    p.dt_bias.assign(p.dt_bias.size(), 0.0f);
    for (int64_t t = 0; t < p.a.rows(); ++t) {
      for (int64_t c = 0; c < p.a.columns(); ++c) {
        const double decay = pattern.decay(t, c, strongest);
        const double bounded = std::log(decay / (-kTestBound - decay));
        const double unbounded = decay > 30 ? decay : std::log(std::expm1(decay));
        p.a.Set(t, c, static_cast<float>(p.gate == GateKind::kChannelBounded ? bounded : unbounded));
      }
    }
  }
};

// 1e-6 of the largest entry: Tolerance() is 64 * 2^-24.
constexpr double kTight = 1e-6 / (64 * 0x1p-24);

TEST_P(ChannelGates, TheChunkedFormIsWithinAMillionthOfTheRecurrenceAtEveryLength) {
  constexpr DeltaDims kSmall = {1, 1, 35, 24};
  for (const Pattern& pattern : kPatterns) {
    for (int32_t length = 1; length <= 130; length += Scaled(1, 7)) {
      DeltaProblem p(kSmall, DType::kF32, DType::kF32, {{length, 3, length % 3 != 0}}, 700 + length, 1, gate());
      SetDecays(p, pattern, strongest());
      CheckAgainstReference(kernels().chunked_f32, p, std::string(pattern.name) + ", length " + std::to_string(length), kTight);
    }
  }
}

TEST_P(ChannelGates, BothFormsStayWithinAMillionthAtFullHeadSizeAndInRaggedBatches) {
  constexpr DeltaDims kFull = {Scaled(2, 1), Scaled(4, 2), 128, 128};
  std::vector<TestSequence> ragged = {{33, 0, true}, {1, 1, true}, {2, -1, false}, {16, 3, true}};
  if (!kSanitized) ragged.insert(ragged.end(), {{100, 2, false}, {47, 4, true}});
  for (const Pattern& pattern : kPatterns) {
    for (const auto kernel : {kernels().chunked_f32, kernels().recurrent_f32}) {
      DeltaProblem p(kFull, DType::kF32, DType::kF32, ragged, 810, 2, gate());
      SetDecays(p, pattern, strongest());
      CheckAgainstReference(kernel, p, std::string(pattern.name) + (kernel == kernels().chunked_f32 ? ", chunked" : ", recurrent"), kTight);
    }
  }
}

// e^-200 is no fp32 number, and e^(64 * 200) no double: the state holds the last token alone.
TEST_P(ChannelGates, DecaysFarBelowTheSmallestNumberLeaveTheLastTokenOnly) {
  if (gate() == GateKind::kChannelBounded) {
    // The bounded form reaches its bound at most.
    DeltaProblem p(DeltaDims{1, 2, 128, 128}, DType::kF32, DType::kF32, {{150, 3, true}}, 51, 1, gate());
    for (int64_t t = 0; t < 150; ++t) p.a.FillRow(t, 1e30f);
    return CheckAgainstReference(kernels().chunked_f32, p, "at the bound", kTight);
  }
  for (const auto kernel : {kernels().chunked_f32, kernels().recurrent_f32, kernels().chunked_bf16_dot}) {
    const DType act = kernel == kernels().chunked_bf16_dot ? DType::kBf16 : DType::kF32;
    DeltaProblem p(DeltaDims{1, 2, 128, 128}, act, DType::kF32, {{150, 3, true}}, 51, 1, gate());
    SetDecays(p, {"", [](int64_t, int64_t, double s) { return s; }}, 200.0);
    CheckAgainstReference(kernel, p, "g = -200, seed 51", act == DType::kF32 ? kTight : 4096);
    for (int64_t i = 0; i < 128 * 128; ++i) {
      ASSERT_TRUE(std::isfinite(p.pool.Get(3, 1, i / 128, i % 128))) << "state entry " << i;
    }
  }
}

// g = 0, beta = 1, orthonormal keys: a perfect memory. Reading with the key of token j gives v_j.
TEST_P(ChannelGates, OrthonormalKeysRecallTheirValuesWithoutDecay) {
  constexpr int32_t kTokens = 60;
  for (const auto kernel : {kernels().chunked_f32, kernels().recurrent_f32}) {
    DeltaProblem p(DeltaDims{1, 1, 64, 48}, DType::kF32, DType::kF32, {{2 * kTokens, 3, false}}, 52, 1, gate());
    for (int64_t t = 0; t < 2 * kTokens; ++t) {
      p.a.FillRow(t, -200), p.b.FillRow(t, t < kTokens ? 200.0f : -200.0f);  // store sixty tokens, then read them
      p.k.FillRow(t, 0), p.q.FillRow(t, 0);
      p.k.Set(t, t % kTokens, 1), p.q.Set(t, (t * 7) % kTokens, 1);
    }
    p.Run(kernel);
    ErrorReport report("recall, seed 52");
    for (int64_t t = kTokens; t < 2 * kTokens; ++t) {
      for (int64_t c = 0; c < 48; ++c) {
        // q carries 1/sqrt(64), and q and k a factor 1/sqrt(1 + 1e-6) of their norm each.
        const double want = p.v.Get((t * 7) % kTokens, c) / 8 / (1 + 1e-6);
        report.Add(t, p.out.Get(t, c), want, 8 * 0x1p-24 * std::fabs(want) + 0x1p-24);
      }
    }
    EXPECT_TRUE(report.Within());
  }
}

// Channels are not mixed up: one channel forgets, its neighbours keep everything.
TEST_P(ChannelGates, EachChannelDecaysByItsOwnGate) {
  for (const auto kernel : {kernels().chunked_f32, kernels().recurrent_f32}) {
    DeltaProblem p(DeltaDims{1, 2, 20, 16}, DType::kF32, DType::kF32, {{5, 3, true}}, 53, 1, gate());
    p.a_log.assign(2, 0.0f);
    p.dt_bias.assign(p.dt_bias.size(), 0.0f);
    for (int64_t t = 0; t < 5; ++t) {
      p.a.FillRow(t, -200), p.b.FillRow(t, -200), p.a.Set(t, 20 + 7, -1.0f);  // head 1, channel 7
    }
    const TestStatePool before = p.pool;
    p.Run(kernel);
    const double sum = 5 * p.Gates(0, 1)[7];
    for (int64_t i = 0; i < 2 * 20 * 16; ++i) {
      const int64_t h = i / 320, d = i / 16 % 20, v = i % 16;
      const double want = before.Get(3, h, d, v) * (h == 1 && d == 7 ? std::exp(sum) : 1.0);
      // g to 3 ulp, its sum and the exponential on top.
      ASSERT_NEAR(p.pool.Get(3, h, d, v), want, (16 - 8 * sum) * 0x1p-24 * std::fabs(want)) << "head " << h << ", d " << d << ", v " << v << ", seed 53";
    }
  }
}

std::string ChannelTestName(const ::testing::TestParamInfo<std::tuple<Isa, GateKind>>& info) {
  return std::string(IsaName(std::get<0>(info.param))) + "_" + GateKindName(std::get<1>(info.param));
}
INSTANTIATE_TEST_SUITE_P(EveryIsa, ChannelGates,
                         ::testing::Combine(::testing::ValuesIn(TestedIsas()), ::testing::Values(GateKind::kChannel, GateKind::kChannelBounded)),
                         ChannelTestName);

}  // namespace
}  // namespace rt::kernels
