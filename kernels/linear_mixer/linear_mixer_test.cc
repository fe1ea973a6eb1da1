#include "kernels/linear_mixer/linear_mixer.h"

#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/common/thread_pool.h"
#include "kernels/gated_delta/delta_testing.h"

namespace rt::kernels {
namespace {

constexpr DeltaDims kOdd = {2, 6, 96, 40};
constexpr DeltaDims kReal = {2, 4, 128, 128};
constexpr int64_t kSlots = 8;

const std::vector<TestSequence> kMixed = {{3, -1, false}, {1, 4, true}, {0, 2, true}, {70, 0, true}, {1, -1, true}, {1, 6, false},
                                          {5, 3, false}, {9, 7, true}, {17, 1, true}, {0, 5, false}, {2, -1, false}};

class LinearMixer : public ::testing::TestWithParam<std::tuple<Isa, GateKind>> {
 protected:
  LinearMixerFn kernel(DType act) const {
    const LinearMixerKernels& table = std::get<0>(GetParam()) == Isa::kAvx2 ? LinearMixerAvx2() : LinearMixerAvx512Bf16();
    return act == DType::kF32 ? table.f32 : table.bf16_fma;
  }
  GateKind gate() const { return std::get<1>(GetParam()); }
};

struct Problem {
  Problem(const DeltaDims& shape, DType act, DType state_dtype, std::vector<TestSequence> sequences, uint32_t seed, GateKind gate, int64_t width = 4)
      : act(act), dims(WithGates(shape, gate)), gate(gate), list(sequences), batch(sequences), width(width), key_channels(dims.num_k_heads * dims.head_k_dim),
        value_channels(dims.num_v_heads * dims.head_v_dim), channels(2 * key_channels + value_channels),
        // One merged projection row: q | k | v | z | a | b.
        gate_column(channels + value_channels), beta_column(gate_column + int64_t{dims.num_v_heads} * dims.gate_width),
        merged(act, TotalTokens(list), beta_column + dims.num_v_heads, beta_column + dims.num_v_heads + 5),
        out(act, TotalTokens(list), value_channels, value_channels + 3), conv_state(act, kSlots * (width - 1), channels, channels),
        weight(channels * width), packed(weight.size()), norm_weight(dims.head_v_dim), pool(dims, state_dtype, kSlots) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    merged.FillNormal(rng, 1.5f);
    for (float& w : weight) w = 0.5f * normal(rng);
    for (float& w : norm_weight) w = 1 + 0.3f * normal(rng);
    PackCausalConv1dWeight(weight.data(), DType::kF32, static_cast<int32_t>(channels), static_cast<int32_t>(width), packed.data());
    for (int32_t h = 0; h < dims.num_v_heads; ++h) {
      a_log.push_back(normal(rng) - 1.0f);
      for (int32_t c = 0; c < dims.gate_width; ++c) dt_bias.push_back(normal(rng) - 1.0f);
    }
    for (int64_t r = 0; r < conv_state.rows(); ++r) conv_state.FillRow(r, std::numeric_limits<float>::quiet_NaN());
    for (const TestSequence& s : list) {
      if (s.slot < 0 || !s.has_initial) continue;
      pool.FillSlot(s.slot, rng, 0.3f);
      for (int64_t j = 0; j < width - 1; ++j) {
        for (int64_t c = 0; c < channels; ++c) conv_state.Set(s.slot * (width - 1) + j, c, normal(rng));
      }
    }
  }
  LinearMixerParams params(int threads) {
    workspace.assign(LinearMixerWorkspaceBytes(dims, threads) + 64, static_cast<char>(0xff));
    char* m = static_cast<char*>(merged.data());
    const auto column = [&](int64_t c) { return m + c * SizeOf(act); };
    const int64_t s = merged.stride();
    return {column(0), s, column(key_channels), s, column(2 * key_channels), s, column(channels), s,
            {column(gate_column), s, column(beta_column), s, a_log.data(), dt_bias.data(), 1.0f, FormOf(gate),
             FormOf(gate) == GateForm::kSoftplus ? 0 : kTestBound},
            packed.data(), static_cast<int32_t>(width), conv_state.data(), (width - 1) * channels * SizeOf(act), pool.view(),
            norm_weight.data(), 1e-6f, 1e-6f, GateActivation::kSilu, out.data(), out.stride(), batch.view(), dims,
            reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64)};
  }
  void Run(LinearMixerFn kernel, int threads = 1) { ASSERT_EQ(kernel(params(threads), FakeParallel(&threads)), 0); }
  // One sequence [row, row + n) on its own.
  void RunOne(LinearMixerFn kernel, int64_t row, int32_t n, const int32_t* slot, const uint8_t* has_initial) {
    const std::vector<int32_t> cu = {0, n};
    LinearMixerParams part = params(1);
    const auto skip = [&](const void* x, int64_t stride) { return static_cast<const char*>(x) + row * stride * SizeOf(act); };
    part.q = skip(part.q, part.q_stride), part.k = skip(part.k, part.k_stride), part.v = skip(part.v, part.v_stride);
    part.z = skip(part.z, part.z_stride);
    part.gates.a = skip(part.gates.a, part.gates.a_stride), part.gates.b = skip(part.gates.b, part.gates.b_stride);
    part.out = static_cast<char*>(part.out) + row * part.out_stride * SizeOf(act);
    part.batch = {1, cu.data(), slot, has_initial};
    ASSERT_EQ(kernel(part, SerialParallel()), 0);
  }

  DType act;
  DeltaDims dims;
  GateKind gate;
  std::vector<TestSequence> list;
  TestBatch batch;
  int64_t width, key_channels, value_channels, channels, gate_column, beta_column;
  TestMatrix merged, out, conv_state;
  std::vector<float> weight, packed, a_log, dt_bias, norm_weight;
  TestStatePool pool;
  std::vector<char> workspace;
};

// Raw conv input of sequence s at token t >= -(width-1).
double Input(const Problem& p, const TestMatrix& old_window, size_t s, int64_t t, int64_t c) {
  if (t >= 0) return p.merged.Get(p.batch.cu_seqlens[s] + t, c);
  return p.list[s].has_initial ? old_window.Get(p.list[s].slot * (p.width - 1) + p.width - 1 + t, c) : 0.0;
}

std::vector<double> ConvSilu(const Problem& p, const TestMatrix& old_window, size_t s, int64_t t, int64_t first, int64_t count) {
  std::vector<double> u(count);
  for (int64_t c = 0; c < count; ++c) {
    double sum = 0;
    for (int64_t j = 0; j < p.width; ++j) sum += p.weight[(first + c) * p.width + j] * Input(p, old_window, s, t - (p.width - 1) + j, first + c);
    u[c] = sum / (1 + std::exp(-sum));
  }
  return u;
}

void CheckSequenceHead(const Problem& p, const TestMatrix& old_window, const TestStatePool& old_pool, size_t s, int32_t h, ErrorReport* outputs,
                       ErrorReport* states) {
  const int32_t hk = p.dims.num_k_heads, hv = p.dims.num_v_heads, dk = p.dims.head_k_dim, dv = p.dims.head_v_dim;
  const auto [length, slot, has_initial] = p.list[s];
  DeltaReference reference(dk, dv);
  for (int64_t i = 0; has_initial && i < int64_t{dk} * dv; ++i) reference.state[i] = old_pool.Get(slot, h, i / dv, i % dv);
  const int64_t key_head = h / (hv / hk);
  DeltaGates gates = {};
  gates.form = FormOf(p.gate);
  gates.bound = kTestBound;
  for (int64_t t = 0; t < length; ++t) {
    const int64_t row = p.batch.cu_seqlens[s] + t;
    std::vector<double> g;
    for (int64_t c = int64_t{h} * p.dims.gate_width; c < (h + int64_t{1}) * p.dims.gate_width; ++c) {
      g.push_back(GateF64(gates, p.merged.Get(row, p.gate_column + c), p.a_log[h], p.dt_bias[c]));
    }
    const std::vector<double> o = reference.Step(
        ConvSilu(p, old_window, s, t, key_head * dk, dk), ConvSilu(p, old_window, s, t, p.key_channels + key_head * dk, dk),
        ConvSilu(p, old_window, s, t, 2 * p.key_channels + int64_t{h} * dv, dv),
        g, BetaF64(p.merged.Get(row, p.beta_column + h), 1.0), 1e-6);
    const double mean = std::inner_product(o.begin(), o.end(), o.begin(), 0.0) / dv;
    for (int64_t i = 0; i < dv; ++i) {
      const double z = p.merged.Get(row, p.channels + int64_t{h} * dv + i);
      const double factor = p.norm_weight[i] * z / (1 + std::exp(-z)) / std::sqrt(mean + 1e-6);
      // The norm divides by the row's own size: an error of 64 epsilon of the largest o (as in gated_delta_test, o up to 4 here) grows by
      // the same factor as o itself; then one rounding of the result.
      const double tolerance = 64 * 0x1p-24 * 4 * std::fabs(factor) + std::fabs(o[i] * factor) * (64 * 0x1p-24 + RoundingOf(p.act)) + 1e-30;
      outputs->Add(row * p.value_channels + int64_t{h} * dv + i, p.out.Get(row, int64_t{h} * dv + i), o[i] * factor, tolerance);
    }
  }
  for (int64_t i = 0; i < int64_t{dk} * dv; ++i) {
    const double want = reference.state[i];
    states->Add(i, p.pool.Get(slot, h, i / dv, i % dv), want,
                64 * 0x1p-24 * 4 + RoundingOf(p.pool.dtype()) * std::fabs(want));
  }
}

void CheckAgainstReference(LinearMixerFn kernel, Problem& p, int threads, const std::string& what) {
  const TestMatrix old_window = p.conv_state;
  const TestStatePool old_pool = p.pool;
  p.Run(kernel, threads);
  ErrorReport outputs(what + ", output"), states(what + ", state");
  std::vector<bool> written(kSlots, false);
  for (size_t s = 0; s < p.list.size(); ++s) {
    const auto [length, slot, has_initial] = p.list[s];
    if (slot < 0) {
      for (int64_t t = 0; t < length; ++t) {
        for (int64_t c = 0; c < p.value_channels; ++c) ASSERT_EQ(p.out.Get(p.batch.cu_seqlens[s] + t, c), 0) << what;
      }
      continue;
    }
    if (length == 0) continue;
    written[slot] = true;
    for (int32_t h = 0; h < p.dims.num_v_heads; ++h) CheckSequenceHead(p, old_window, old_pool, s, h, &outputs, &states);
    for (int64_t j = 0; j < p.width - 1; ++j) {
      for (int64_t c = 0; c < p.channels; ++c) {
        ASSERT_EQ(p.conv_state.Get(slot * (p.width - 1) + j, c), Input(p, old_window, s, length - (p.width - 1) + j, c)) << what;
      }
    }
    EXPECT_TRUE(p.pool.TailLanesAreZero(slot)) << what;
  }
  EXPECT_TRUE(outputs.Within());
  EXPECT_TRUE(states.Within());
  EXPECT_TRUE(p.out.BordersIntact()) << what;
  EXPECT_TRUE(p.pool.BordersIntact()) << what;
  EXPECT_TRUE(p.conv_state.BordersIntact()) << what;
  const int64_t window_bytes = (p.width - 1) * p.channels * SizeOf(p.act);
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    if (written[slot]) continue;
    EXPECT_TRUE(p.pool.SlotEquals(old_pool, slot)) << what << ": slot " << slot;
    const int64_t at = TestMatrix::kBorder + slot * window_bytes;
    EXPECT_EQ(std::memcmp(p.conv_state.bytes().data() + at, old_window.bytes().data() + at, window_bytes), 0) << what << ": slot " << slot;
  }
}

TEST_P(LinearMixer, MatchesTheComposedFormulasForEveryDtypeAndShape) {
  for (const DeltaDims& dims : {kOdd, kReal}) {
    for (DType act : {DType::kF32, DType::kBf16}) {
      for (DType state : {DType::kF32, DType::kBf16, DType::kF16}) {
        Problem p(dims, act, state, kMixed, 51, gate());
        CheckAgainstReference(kernel(act), p, 2, "mixer, seed 51, Dk " + std::to_string(dims.head_k_dim) + ", act " +
                                                     std::to_string(static_cast<int>(act)) + ", state " + std::to_string(static_cast<int>(state)));
      }
    }
  }
}

TEST_P(LinearMixer, MatchesAtEveryLengthAroundTheChunkBorders) {
  for (int32_t length : {1, 2, 8, 9, 15, 16, 17, 63, 64, 65, 130, 200}) {
    for (bool initial : {false, true}) {
      Problem p(kOdd, DType::kF32, DType::kF32, {{length, 3, initial}}, 60 + length, gate(), length % 2 ? 4 : 3);
      CheckAgainstReference(kernel(DType::kF32), p, 1, "mixer, length " + std::to_string(length) + ", seed " + std::to_string(60 + length));
    }
  }
}

TEST_P(LinearMixer, DecodeAfterPrefillEqualsOnePrefillWithinRounding) {
  Problem whole(kOdd, DType::kF32, DType::kF32, {{90, 2, false}}, 8, gate());
  whole.Run(kernel(DType::kF32));
  for (const std::vector<int32_t>& pieces : {std::vector<int32_t>{80, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 2, 3, 63, 21}, {64, 0, 26}}) {
    Problem p(kOdd, DType::kF32, DType::kF32, {{90, 2, false}}, 8, gate());
    int32_t done = 0;
    const int32_t slot = 2;
    for (int32_t n : pieces) {
      const uint8_t has_initial = done > 0;
      p.RunOne(kernel(DType::kF32), done, n, &slot, &has_initial);
      done += n;
    }
    ASSERT_EQ(done, 90);
    EXPECT_EQ(whole.conv_state.bytes(), p.conv_state.bytes());
    ErrorReport report("pieces against whole, seed 8");
    for (int64_t t = 0; t < 90; ++t) {
      for (int64_t c = 0; c < p.value_channels; ++c) {
        report.Add(t, p.out.Get(t, c), whole.out.Get(t, c), 64 * 0x1p-24 * (4 + std::fabs(whole.out.Get(t, c))));
      }
    }
    for (int64_t i = 0; i < int64_t{kOdd.head_k_dim} * kOdd.head_v_dim; ++i) {
      const int64_t d = i / kOdd.head_v_dim, v = i % kOdd.head_v_dim;
      report.Add(i, p.pool.Get(2, 5, d, v), whole.pool.Get(2, 5, d, v), 64 * 0x1p-24);
    }
    EXPECT_TRUE(report.Within());
  }
}

// Speculative verification must agree with plain decoding.
TEST_P(LinearMixer, AVerifyRunGivesTheSameBytesAsDecodingTokenByToken) {
  for (DType act : {DType::kF32, DType::kBf16}) {
    const int32_t length = static_cast<int32_t>(kMixerRecurrentTokens);
    Problem verify(kOdd, act, DType::kF32, {{length, 2, true}}, 9, gate()), decode(kOdd, act, DType::kF32, {{length, 2, true}}, 9, gate());
    verify.Run(kernel(act));
    for (int32_t t = 0; t < length; ++t) decode.RunOne(kernel(act), t, 1, &decode.batch.slots[0], &decode.batch.has_initial[0]);
    EXPECT_EQ(verify.out.bytes(), decode.out.bytes());
    EXPECT_EQ(verify.pool.bytes(), decode.pool.bytes());
    EXPECT_EQ(verify.conv_state.bytes(), decode.conv_state.bytes());
  }
}

TEST_P(LinearMixer, BytesDependNeitherOnThreadsNorOnBatchMates) {
  for (DType act : {DType::kF32, DType::kBf16}) {
    Problem one(kOdd, act, DType::kBf16, kMixed, 14, gate());
    one.Run(kernel(act));
    for (int threads : {2, 5, 33}) {
      Problem many(kOdd, act, DType::kBf16, kMixed, 14, gate());
      many.Run(kernel(act), threads);
      EXPECT_EQ(one.out.bytes(), many.out.bytes()) << threads << " threads";
      EXPECT_EQ(one.pool.bytes(), many.pool.bytes()) << threads << " threads";
      EXPECT_EQ(one.conv_state.bytes(), many.conv_state.bytes()) << threads << " threads";
    }
    std::string error;
    const auto pool = ThreadPool::Create({.num_threads = 3}, &error);  // real threads, for the thread sanitizer
    ASSERT_NE(pool, nullptr) << error;
    Problem real(kOdd, act, DType::kBf16, kMixed, 14, gate());
    kernel(act)(real.params(3), pool->parallel());
    EXPECT_EQ(one.out.bytes(), real.out.bytes());
    EXPECT_EQ(one.pool.bytes(), real.pool.bytes());
    EXPECT_EQ(one.conv_state.bytes(), real.conv_state.bytes());
    Problem alone(kOdd, act, DType::kBf16, kMixed, 14, gate());
    for (size_t s = kMixed.size(); s-- > 0;) {
      alone.RunOne(kernel(act), alone.batch.cu_seqlens[s], kMixed[s].length, &alone.batch.slots[s], &alone.batch.has_initial[s]);
    }
    EXPECT_EQ(one.out.bytes(), alone.out.bytes());
    EXPECT_EQ(one.pool.bytes(), alone.pool.bytes());
    EXPECT_EQ(one.conv_state.bytes(), alone.conv_state.bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, LinearMixer,
                         ::testing::Combine(::testing::ValuesIn(TestedIsas()),
                                            ::testing::Values(GateKind::kScalar, GateKind::kChannel, GateKind::kChannelBounded)),
                         [](const auto& info) {
                           return std::string(IsaName(std::get<0>(info.param))) + "_" + GateKindName(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace rt::kernels
