#include "kernels/causal_conv1d/causal_conv1d.h"

#include <numeric>

#include "kernels/common/kernel_testing.h"

namespace rt::kernels {
namespace {

constexpr int64_t kSlots = 6;

class CausalConv1d : public ::testing::TestWithParam<Isa> {
 protected:
  CausalConv1dFn kernel(DType act) const {
    const CausalConv1dKernels& table = GetParam() == Isa::kAvx2 ? CausalConv1dAvx2() : CausalConv1dAvx512Bf16();
    return act == DType::kF32 ? table.f32 : table.bf16;
  }
};

struct Sequence {
  int32_t length;
  int32_t slot;
  bool has_initial;
};

struct Problem {
  Problem(DType act, int64_t channels, int64_t width, std::vector<Sequence> sequences, uint32_t seed)
      : dtype(act), cu_seqlens{0}, weight(channels * width), packed(weight.size()), x(act, Total(sequences), channels, channels + 3),
        out(act, Total(sequences), channels, channels + 5), state(act, kSlots * (width - 1), channels, channels) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    for (float& w : weight) w = 0.5f * normal(rng);
    PackCausalConv1dWeight(weight.data(), DType::kF32, static_cast<int32_t>(channels), static_cast<int32_t>(width), packed.data());
    x.FillNormal(rng, 1.0f);
    // Only states that will be read hold numbers; all others are poison.
    for (int64_t r = 0; r < state.rows(); ++r) state.FillRow(r, std::numeric_limits<float>::quiet_NaN());
    for (const Sequence& s : sequences) {
      cu_seqlens.push_back(cu_seqlens.back() + s.length);
      slots.push_back(s.slot);
      has_initial.push_back(s.has_initial);
      for (int64_t j = 0; s.slot >= 0 && s.has_initial && j < width - 1; ++j) {
        for (int64_t c = 0; c < channels; ++c) state.Set(s.slot * (width - 1) + j, c, normal(rng));
      }
    }
    params = {x.data(), x.stride(), packed.data(), out.data(), out.stride(), state.data(), (width - 1) * channels * SizeOf(act),
              {static_cast<int32_t>(sequences.size()), cu_seqlens.data(), slots.data(), has_initial.data()},
              static_cast<int32_t>(channels), static_cast<int32_t>(width)};
  }
  static int64_t Total(const std::vector<Sequence>& sequences) {
    return std::accumulate(sequences.begin(), sequences.end(), int64_t{0}, [](int64_t n, const Sequence& s) { return n + s.length; });
  }

  DType dtype;
  std::vector<int32_t> cu_seqlens, slots;
  std::vector<uint8_t> has_initial;
  std::vector<float> weight, packed;
  TestMatrix x, out, state;
  CausalConv1dParams params;
};

// Raw input of token t >= -(width-1) of sequence s, from the state as it was before the call.
double Input(const Problem& p, const TestMatrix& old_state, size_t s, int64_t t, int64_t c) {
  if (t >= 0) return p.x.Get(p.cu_seqlens[s] + t, c);
  if (!p.has_initial[s]) return 0;
  const int64_t window = p.params.width - 1;
  return old_state.Get(p.slots[s] * window + window + t, c);
}

void CheckAgainstFormula(CausalConv1dFn kernel, Problem& p, const std::string& what) {
  const TestMatrix old_state = p.state;
  ASSERT_EQ(kernel(p.params, SerialParallel()), 0);
  const int64_t width = p.params.width;
  const int64_t channels = p.params.channels;
  std::vector<bool> touched(kSlots, false);
  ErrorReport report(what);
  for (size_t s = 0; s < p.slots.size(); ++s) {
    const int64_t n = p.cu_seqlens[s + 1] - p.cu_seqlens[s];
    for (int64_t t = 0; t < n; ++t) {
      for (int64_t c = 0; c < channels; ++c) {
        const double got = p.out.Get(p.cu_seqlens[s] + t, c);
        if (p.slots[s] < 0) {
          ASSERT_EQ(got, 0) << what;
          continue;
        }
        double sum = 0, size = 0;
        for (int64_t j = 0; j < width; ++j) {
          const double term = p.weight[c * width + j] * Input(p, old_state, s, t - (width - 1) + j, c);
          sum += term;
          size += std::fabs(term);
        }
        const double want = sum / (1 + std::exp(-sum));
        // width roundings of the sum (|silu'| <= 1.1), the 2.5 ulp silu, one rounding of the result.
        report.Add(t * channels + c, got, want, 1.1 * size * width * 0x1p-24 + std::fabs(want) * (5 * 0x1p-24 + RoundingOf(p.dtype)) + 1e-37);
      }
    }
    if (p.slots[s] < 0 || n == 0) continue;
    touched[p.slots[s]] = true;
    for (int64_t j = 0; j < width - 1; ++j) {
      for (int64_t c = 0; c < channels; ++c) {
        ASSERT_EQ(p.state.Get(p.slots[s] * (width - 1) + j, c), Input(p, old_state, s, n - (width - 1) + j, c)) << what;
      }
    }
  }
  EXPECT_TRUE(report.Within());
  EXPECT_TRUE(p.out.BordersIntact()) << what;
  EXPECT_TRUE(p.state.BordersIntact()) << what;
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    if (touched[slot]) continue;
    const int64_t slot_bytes = p.params.state_slot_stride_bytes;
    const int64_t at = TestMatrix::kBorder + slot * slot_bytes;
    EXPECT_EQ(std::memcmp(p.state.bytes().data() + at, old_state.bytes().data() + at, slot_bytes), 0) << what << ": slot " << slot;
  }
}

const std::vector<Sequence> kMixed = {{3, -1, false}, {1, 4, true}, {0, 2, true}, {2, 0, true}, {1, -1, true},
                                      {5, 3, false}, {17, 1, true}, {0, 5, false}, {2, -1, false}};

TEST_P(CausalConv1d, MatchesTheFormulaForEveryWidthAndOddChannelCounts) {
  for (DType act : {DType::kF32, DType::kBf16}) {
    for (int64_t channels : {1, 16, 77, 624, 1030}) {
      for (int64_t width = kMinConvWidth; width <= kMaxConvWidth; ++width) {
        Problem p(act, channels, width, kMixed, 7);
        CheckAgainstFormula(kernel(act), p, "conv seed 7, channels " + std::to_string(channels) + ", width " + std::to_string(width));
      }
    }
  }
}

// Byte for byte: any split of a sequence into calls gives the same outputs and the same window.
TEST_P(CausalConv1d, AnySplitOfASequenceGivesTheSameBytes) {
  for (DType act : {DType::kF32, DType::kBf16}) {
    Problem whole(act, 40, 4, {{23, 2, true}}, 5);
    Problem pieces(act, 40, 4, {{23, 2, true}}, 5);
    kernel(act)(whole.params, SerialParallel());
    int32_t done = 0;
    for (int32_t n : {1, 0, 2, 3, 1, 9, 7}) {
      const std::vector<int32_t> cu = {0, n};
      CausalConv1dParams part = pieces.params;
      part.x = static_cast<char*>(pieces.x.data()) + done * pieces.x.stride() * SizeOf(act);
      part.out = static_cast<char*>(pieces.out.data()) + done * pieces.out.stride() * SizeOf(act);
      part.batch.cu_seqlens = cu.data();
      kernel(act)(part, SerialParallel());
      done += n;
    }
    ASSERT_EQ(done, 23);
    EXPECT_EQ(whole.out.bytes(), pieces.out.bytes());
    EXPECT_EQ(whole.state.bytes(), pieces.state.bytes());
  }
}

TEST_P(CausalConv1d, ResultsDoNotDependOnThreadsOrBatchMates) {
  for (DType act : {DType::kF32, DType::kBf16}) {
    Problem one(act, 1030, 4, kMixed, 9), many(act, 1030, 4, kMixed, 9), alone(act, 1030, 4, kMixed, 9);
    kernel(act)(one.params, SerialParallel());
    int threads = 3;
    kernel(act)(many.params, FakeParallel(&threads));
    EXPECT_EQ(one.out.bytes(), many.out.bytes());
    EXPECT_EQ(one.state.bytes(), many.state.bytes());
    for (size_t s = 0; s < alone.slots.size(); ++s) {
      CausalConv1dParams single = alone.params;
      const std::vector<int32_t> cu = {0, alone.cu_seqlens[s + 1] - alone.cu_seqlens[s]};
      single.x = static_cast<char*>(alone.x.data()) + alone.cu_seqlens[s] * alone.x.stride() * SizeOf(act);
      single.out = static_cast<char*>(alone.out.data()) + alone.cu_seqlens[s] * alone.out.stride() * SizeOf(act);
      single.batch = {1, cu.data(), &alone.slots[s], &alone.has_initial[s]};
      kernel(act)(single, SerialParallel());
    }
    EXPECT_EQ(one.out.bytes(), alone.out.bytes());
    EXPECT_EQ(one.state.bytes(), alone.state.bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, CausalConv1d, ::testing::ValuesIn(TestedIsas()), IsaTestName());

}  // namespace
}  // namespace rt::kernels
