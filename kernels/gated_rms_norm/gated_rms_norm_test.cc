#include "kernels/gated_rms_norm/gated_rms_norm.h"

#include "kernels/common/kernel_testing.h"

namespace rt::kernels {
namespace {

struct Shape {
  int64_t tokens, heads, dim, gap;
};

class GatedRmsNorm : public ::testing::TestWithParam<Isa> {
 protected:
  GatedRmsNormFn kernel(DType act) const {
    const GatedRmsNormKernels& table = GetParam() == Isa::kAvx2 ? GatedRmsNormAvx2() : GatedRmsNormAvx512Bf16();
    return act == DType::kF32 ? table.f32 : table.bf16;
  }
};

struct Problem {
  Problem(DType act, const Shape& shape, uint32_t seed)
      : o(act, shape.tokens, shape.heads * shape.dim, shape.heads * shape.dim + shape.gap), z(o), out(o), weight(shape.dim) {
    std::mt19937 rng(seed);
    o.FillNormal(rng, 2.0f);
    z.FillNormal(rng, 3.0f);
    std::normal_distribution<float> normal(1.0f, 0.3f);
    for (float& w : weight) w = normal(rng);
    params = {o.data(), o.stride(), z.data(), z.stride(), weight.data(), out.data(), out.stride(), shape.tokens,
              static_cast<int32_t>(shape.heads), static_cast<int32_t>(shape.dim), 1e-6f, GateActivation::kSilu};
  }
  TestMatrix o, z, out;
  std::vector<float> weight;
  GatedRmsNormParams params;
};

double Reference(const Problem& p, int64_t t, int64_t head, int64_t d) {
  const int64_t dim = p.params.head_dim;
  double squares = 0;
  for (int64_t i = 0; i < dim; ++i) squares += std::pow(double{p.o.Get(t, head * dim + i)}, 2);
  const double gate = p.z.Get(t, head * dim + d);
  const double sigmoid = 1 / (1 + std::exp(-gate));
  return p.o.Get(t, head * dim + d) / std::sqrt(squares / dim + p.params.eps) * p.weight[d] *
         (p.params.activation == GateActivation::kSilu ? gate * sigmoid : sigmoid);
}

TEST_P(GatedRmsNorm, MatchesTheFormulaInDoublePrecision) {
  for (DType act : {DType::kF32, DType::kBf16}) {
    for (const Shape& shape : {Shape{5, 3, 128, 0}, Shape{7, 6, 40, 9}, Shape{3, 2, 7, 5}, Shape{1, 1, 1, 0}, Shape{0, 2, 16, 0}}) {
      for (GateActivation activation : {GateActivation::kSilu, GateActivation::kSigmoid}) {
        Problem p(act, shape, 11);
        p.params.activation = activation;
        ASSERT_EQ(kernel(act)(p.params, SerialParallel()), 0);
        ErrorReport report("gated norm, seed 11, head_dim " + std::to_string(shape.dim));
        for (int64_t t = 0; t < shape.tokens; ++t) {
          for (int64_t c = 0; c < shape.heads * shape.dim; ++c) {
            const double want = Reference(p, t, c / shape.dim, c % shape.dim);
            // One rounding of the result, and eight fp32 operations (sum, root, quotient, three products, the 2 ulp gate).
            report.Add(t * p.out.stride() + c, p.out.Get(t, c), want, std::fabs(want) * (RoundingOf(act) + 12 * 0x1p-24) + 1e-37);
          }
        }
        EXPECT_TRUE(report.Within());
        EXPECT_TRUE(p.out.BordersIntact());
      }
    }
  }
}

TEST_P(GatedRmsNorm, WorksInPlaceAndDoesNotDependOnThreads) {
  for (DType act : {DType::kF32, DType::kBf16}) {
    Problem one(act, {9, 6, 40, 3}, 3), many(act, {9, 6, 40, 3}, 3), in_place(act, {9, 6, 40, 3}, 3);
    int threads = 5;
    kernel(act)(one.params, SerialParallel());
    kernel(act)(many.params, FakeParallel(&threads));
    in_place.params.out = in_place.o.data();
    kernel(act)(in_place.params, SerialParallel());
    EXPECT_EQ(one.out.bytes(), many.out.bytes());
    EXPECT_EQ(one.out.bytes(), in_place.o.bytes());
  }
}

INSTANTIATE_TEST_SUITE_P(EveryIsa, GatedRmsNorm, ::testing::ValuesIn(TestedIsas()), IsaTestName());

}  // namespace
}  // namespace rt::kernels
