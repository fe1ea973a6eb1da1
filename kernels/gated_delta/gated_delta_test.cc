#include "kernels/gated_delta/gated_delta.h"

#include <tuple>

#include "kernels/gated_delta/delta_testing.h"

namespace rt::kernels {
namespace {

constexpr DeltaDims kOdd = {2, 6, 96, 40};
constexpr DeltaDims kReal = {1, 2, 128, 128};
constexpr DeltaDims kTiny = {3, 3, 19, 5};

enum class Form { kRecurrent, kChunked };

class GatedDelta : public ::testing::TestWithParam<std::tuple<Isa, Form>> {
 protected:
  GatedDeltaFn kernel(DType act) const {
    const auto [isa, form] = GetParam();
    const GatedDeltaKernels& table = isa == Isa::kAvx2 ? GatedDeltaAvx2() : GatedDeltaAvx512Bf16();
    if (form == Form::kRecurrent) return act == DType::kF32 ? table.recurrent_f32 : table.recurrent_bf16;
    return act == DType::kF32 ? table.chunked_f32 : table.chunked_bf16_fma;
  }
  GatedDeltaFn other_form(DType act) const {
    const auto [isa, form] = GetParam();
    const GatedDeltaKernels& table = isa == Isa::kAvx2 ? GatedDeltaAvx2() : GatedDeltaAvx512Bf16();
    if (form == Form::kChunked) return act == DType::kF32 ? table.recurrent_f32 : table.recurrent_bf16;
    return act == DType::kF32 ? table.chunked_f32 : table.chunked_bf16_fma;
  }
};

struct Problem {
  Problem(const DeltaDims& dims, DType act, DType state_dtype, std::vector<TestSequence> sequences, uint32_t seed, int threads = 1)
      : act(act), dims(dims), list(sequences), batch(sequences), num_threads(threads),
        q(act, TotalTokens(list), dims.num_k_heads * dims.head_k_dim, dims.num_k_heads * dims.head_k_dim + 7), k(q),
        v(act, TotalTokens(list), dims.num_v_heads * dims.head_v_dim, dims.num_v_heads * dims.head_v_dim + 3),
        a(act, TotalTokens(list), dims.num_v_heads, dims.num_v_heads + 5), b(a), out(v), pool(dims, state_dtype, 8),
        workspace(GatedDeltaWorkspaceBytes(dims, threads) + 64) {
    std::mt19937 rng(seed);
    q.FillNormal(rng, 1.0f);
    k.FillNormal(rng, 1.0f);
    v.FillNormal(rng, 1.0f);
    a.FillNormal(rng, 2.0f);
    b.FillNormal(rng, 2.0f);
    std::normal_distribution<float> normal;
    for (int32_t h = 0; h < dims.num_v_heads; ++h) {
      a_log.push_back(normal(rng) - 1.0f);
      dt_bias.push_back(normal(rng) - 1.0f);
    }
    for (const TestSequence& s : list) {
      if (s.slot >= 0 && s.has_initial) pool.FillSlot(s.slot, rng, 0.3f);
    }
  }
  GatedDeltaParams params() {
    void* aligned = reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
    return {q.data(), q.stride(), k.data(), k.stride(), v.data(), v.stride(),
            {a.data(), a.stride(), b.data(), b.stride(), a_log.data(), dt_bias.data(), beta_scale},
            out.data(), out.stride(), pool.view(), batch.view(), dims, 1e-6f, aligned};
  }
  void Run(GatedDeltaFn kernel) {
    // Whatever an earlier call left in the workspace must not matter.
    std::memset(workspace.data(), 0xff, workspace.size());
    ASSERT_EQ(kernel(params(), FakeParallel(&num_threads)), 0);
  }

  DType act;
  DeltaDims dims;
  std::vector<TestSequence> list;
  TestBatch batch;
  int num_threads;
  TestMatrix q, k, v, a, b, out;
  std::vector<float> a_log, dt_bias;
  float beta_scale = 1.0f;
  TestStatePool pool;
  std::vector<char> workspace;
};

std::vector<double> HeadRow(const TestMatrix& x, int64_t row, int64_t head, int64_t width) {
  std::vector<double> values(static_cast<size_t>(width));
  for (int64_t i = 0; i < width; ++i) values[static_cast<size_t>(i)] = x.Get(row, head * width + i);
  return values;
}

// fp32 roundings in a chain of at most Dk + 64 terms behave like a random walk; 64 epsilon of the largest entry covers the worst of the
// shapes here with a factor of about three. Narrow results add their one rounding.
double Tolerance(double want, double largest, DType dtype) { return 64 * 0x1p-24 * largest + RoundingOf(dtype) * std::fabs(want); }

double Largest(const std::vector<double>& x) {
  double largest = 1e-3;
  for (double value : x) largest = std::max(largest, std::fabs(value));
  return largest;
}

// Runs the kernel and compares outputs and states with the double-precision recurrence, and checks all that must stay untouched.
void CheckAgainstReference(GatedDeltaFn kernel, Problem& p, const std::string& what, double amplification = 1) {
  const TestStatePool before = p.pool;
  p.Run(kernel);
  std::vector<bool> written(static_cast<size_t>(before.num_slots()), false);
  const auto [hk, hv, dk, dv] = p.dims;
  ErrorReport outputs(what + ", output"), states(what + ", state");
  for (size_t s = 0; s < p.list.size(); ++s) {
    const auto [length, slot, has_initial] = p.list[s];
    const int64_t first = p.batch.cu_seqlens[s];
    for (int32_t h = 0; h < hv; ++h) {
      if (slot < 0) {
        for (int64_t t = 0; t < length; ++t) {
          for (double o : HeadRow(p.out, first + t, h, dv)) ASSERT_EQ(o, 0) << what;
        }
        continue;
      }
      DeltaReference reference(dk, dv);
      for (int64_t i = 0; has_initial && i < int64_t{dk} * dv; ++i) reference.state[i] = before.Get(slot, h, i / dv, i % dv);
      const double largest_initial = Largest(reference.state);
      std::vector<double> wants, gots;
      for (int64_t t = first; t < first + length; ++t) {
        const int64_t key_head = h / (hv / hk);
        const std::vector<double> o =
            reference.Step(HeadRow(p.q, t, key_head, dk), HeadRow(p.k, t, key_head, dk), HeadRow(p.v, t, h, dv),
                           GateF64(p.a.Get(t, h), p.a_log[h], p.dt_bias[h]), BetaF64(p.b.Get(t, h), p.beta_scale), 1e-6);
        const std::vector<double> got = HeadRow(p.out, t, h, dv);
        wants.insert(wants.end(), o.begin(), o.end());
        gots.insert(gots.end(), got.begin(), got.end());
      }
      const double largest = Largest(wants);
      for (size_t i = 0; i < wants.size(); ++i) outputs.Add(static_cast<int64_t>(i), gots[i], wants[i], amplification * Tolerance(wants[i], largest, p.act));
      if (length == 0) continue;
      written[static_cast<size_t>(slot)] = true;
      const double largest_state = std::max(largest_initial, Largest(reference.state));
      for (int64_t i = 0; i < int64_t{dk} * dv; ++i) {
        const double want = reference.state[i];
        states.Add(i, p.pool.Get(slot, h, i / dv, i % dv), want,
                   amplification * Tolerance(want, largest_state, p.pool.view().dtype) + 0x1p-25);
      }
    }
    if (slot >= 0 && length > 0) {
      EXPECT_TRUE(p.pool.TailLanesAreZero(slot)) << what;
    }
  }
  EXPECT_TRUE(outputs.Within());
  EXPECT_TRUE(states.Within());
  EXPECT_TRUE(p.out.BordersIntact()) << what;
  EXPECT_TRUE(p.pool.BordersIntact()) << what;
  for (int64_t slot = 0; slot < before.num_slots(); ++slot) {
    if (!written[static_cast<size_t>(slot)]) {
      EXPECT_TRUE(p.pool.SlotEquals(before, slot)) << what << ": slot " << slot;
    }
  }
}

TEST_P(GatedDelta, MatchesTheDoublePrecisionRecurrenceAtEveryLength) {
  for (int32_t length : {0, 1, 2, 15, 16, 17, 63, 64, 65, 130, 200}) {
    for (const DeltaDims& dims : {kOdd, kReal, kTiny}) {
      for (bool initial : {false, true}) {
        Problem p(dims, DType::kF32, DType::kF32, {{length, 3, initial}}, 100 + length);
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
      Problem p(kOdd, act, state, kMixed, 21, 3);
      CheckAgainstReference(kernel(act), p, "mixed batch, seed 21, act " + std::to_string(static_cast<int>(act)) + ", state " +
                                                std::to_string(static_cast<int>(state)));
    }
  }
}

// A narrow state after 150 tokens is the fp32 state of the same call, rounded once.
TEST_P(GatedDelta, NarrowStatesAreRoundedOncePerCall) {
  for (DType narrow : {DType::kBf16, DType::kF16}) {
    Problem wide(kOdd, DType::kF32, DType::kF32, {{150, 2, false}}, 4), p(kOdd, DType::kF32, narrow, {{150, 2, false}}, 4);
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
  void (*apply)(Problem&);
  double amplification = 1;
};

TEST_P(GatedDelta, ExtremesStayFiniteAndCorrect) {
  const Extreme extremes[] = {
      {"g = -20 a step", [](Problem& p) { 
         p.a_log.assign(p.a_log.size(), std::log(20.0f));
         p.dt_bias.assign(p.dt_bias.size(), 0.54132485f);  // softplus = 1
         for (int64_t t = 0; t < p.a.rows(); ++t) p.a.FillRow(t, 0); }},
      {"g = -inf", [](Problem& p) { p.a_log.assign(p.a_log.size(), 100.0f); }},
      {"no decay", [](Problem& p) { p.a_log.assign(p.a_log.size(), -std::numeric_limits<float>::infinity()); }},
      {"decay from nothing to everything within a chunk", [](Problem& p) {
         for (int64_t t = 0; t < p.a.rows(); ++t) p.a.FillRow(t, t % 7 == 3 ? 300.0f : -30.0f); }},
      {"zero keys", [](Problem& p) { for (int64_t t = 0; t < p.k.rows(); ++t) p.k.FillRow(t, 0); }},
      {"zero queries", [](Problem& p) { for (int64_t t = 0; t < p.q.rows(); ++t) p.q.FillRow(t, 0); }},
      {"one repeated key, beta near 1", [](Problem& p) {
         for (int64_t t = 0; t < p.k.rows(); ++t) p.k.FillRow(t, 1), p.b.FillRow(t, 12); }},
      {"beta = 0", [](Problem& p) { for (int64_t t = 0; t < p.b.rows(); ++t) p.b.FillRow(t, -200); }},
      {"beta up to 2", [](Problem& p) { p.beta_scale = 2; for (int64_t t = 0; t < p.b.rows(); ++t) p.b.FillRow(t, t % 3 ? 20.0f : 0.0f); }},
      {"repeated keys, beta 2, no decay", [](Problem& p) {
         p.beta_scale = 2;
         p.a_log.assign(p.a_log.size(), -std::numeric_limits<float>::infinity());
         for (int64_t t = 0; t < p.k.rows(); ++t) p.k.FillRow(t, 1), p.b.FillRow(t, 20); },
       // Every step reflects the state along the same axis: no error ever fades, and the triangular system adds each row to all later ones.
       kChunkRows},
      {"large activations", [](Problem& p) { std::mt19937 rng(1); p.k.FillNormal(rng, 1e4f), p.q.FillNormal(rng, 1e4f); }},
  };
  for (const Extreme& extreme : extremes) {
    for (bool initial : {false, true}) {
      Problem p(kOdd, DType::kF32, DType::kF32, {{100, 3, initial}}, 31);
      extreme.apply(p);
      CheckAgainstReference(kernel(DType::kF32), p, std::string(extreme.name) + ", seed 31", extreme.amplification);
    }
  }
}

// The same tokens in pieces, each form, and pieces that switch form: prefill(n) + decode(m) = prefill(n + m).
TEST_P(GatedDelta, AnySplitEqualsOneCallWithinRounding) {
  Problem whole(kOdd, DType::kF32, DType::kF32, {{200, 2, true}}, 8);
  whole.Run(kernel(DType::kF32));
  for (const std::vector<int32_t>& pieces :
       {std::vector<int32_t>{64, 64, 64, 8}, {1, 2, 3, 63, 65, 66}, {130, 1, 1, 1, 67}, {199, 1}, {16, 0, 17, 100, 67}}) {
    for (bool alternate : {false, true}) {
      Problem p(kOdd, DType::kF32, DType::kF32, {{200, 2, true}}, 8);
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
      Problem one(dims, DType::kBf16, DType::kF32, sequences, 12);
      one.Run(kernel(DType::kBf16));
      for (int threads : {2, 3, 7, 40}) {
        Problem many(dims, DType::kBf16, DType::kF32, sequences, 12, threads);
        many.Run(kernel(DType::kBf16));
        EXPECT_EQ(one.out.bytes(), many.out.bytes()) << threads << " threads";
        EXPECT_EQ(one.pool.bytes(), many.pool.bytes()) << threads << " threads";
      }
    }
  }
}

TEST_P(GatedDelta, ASequenceGivesTheSameBytesAloneAndInABatch) {
  Problem together(kOdd, DType::kBf16, DType::kF16, kMixed, 13, 2), alone(kOdd, DType::kBf16, DType::kF16, kMixed, 13, 2);
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

class GatedDeltaDot : public ::testing::TestWithParam<Isa> {
 protected:
  const GatedDeltaKernels& kernels() const { return GetParam() == Isa::kAvx2 ? GatedDeltaAvx2() : GatedDeltaAvx512Bf16(); }
};

TEST_P(GatedDeltaDot, MixedBatchesOfEveryShapeMatchWithinBf16OperandsAndTouchNothingElse) {
  for (const DeltaDims& dims : {kOdd, kReal, kTiny}) {
    for (DType state : {DType::kF32, DType::kBf16, DType::kF16}) {
      Problem p(dims, DType::kBf16, state, kMixed, 41, 3);
      CheckAgainstReference(kernels().chunked_bf16_dot, p, "dot form, seed 41, Dk " + std::to_string(dims.head_k_dim), kDotAmplification);
    }
  }
}

TEST_P(GatedDeltaDot, RelativeRmsErrorStaysBelowFourThousandths) {
  Problem exact(kReal, DType::kBf16, DType::kF32, {{300, 2, true}}, 43), p(kReal, DType::kBf16, DType::kF32, {{300, 2, true}}, 43);
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
      Problem p(kOdd, DType::kBf16, DType::kF32, {{100, 3, true}}, 44);
      for (int64_t t = 0; t < p.k.rows(); ++t) p.a.FillRow(t, t % 7 ? a : 2.0f), p.k.FillRow(t, key), p.b.FillRow(t, 20);
      CheckAgainstReference(kernels().chunked_bf16_dot, p, "dot form, a " + std::to_string(a) + ", seed 44", 4 * kDotAmplification);
    }
  }
}

TEST_P(GatedDeltaDot, ResultsDoNotDependOnTheNumberOfThreads) {
  Problem one(kReal, DType::kBf16, DType::kF32, kMixed, 12);
  one.Run(kernels().chunked_bf16_dot);
  for (int threads : {2, 7, 40}) {
    Problem many(kReal, DType::kBf16, DType::kF32, kMixed, 12, threads);
    many.Run(kernels().chunked_bf16_dot);
    EXPECT_EQ(one.out.bytes(), many.out.bytes()) << threads << " threads";
    EXPECT_EQ(one.pool.bytes(), many.pool.bytes()) << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, GatedDeltaDot, ::testing::ValuesIn(TestedIsas()), IsaTestName());

std::string FormTestName(const ::testing::TestParamInfo<std::tuple<Isa, Form>>& info) {
  return std::string(IsaName(std::get<0>(info.param))) + (std::get<1>(info.param) == Form::kRecurrent ? "_recurrent" : "_chunked");
}
INSTANTIATE_TEST_SUITE_P(EveryIsa, GatedDelta,
                         ::testing::Combine(::testing::ValuesIn(TestedIsas()), ::testing::Values(Form::kRecurrent, Form::kChunked)),
                         FormTestName);

}  // namespace
}  // namespace rt::kernels
