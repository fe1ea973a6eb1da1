// Compiled once per ISA level by simd_test_{avx2,avx512bf16}.cc.
#pragma once

#include "kernels/common/simd.h"
#include "kernels/common/simd_test_kernels.h"

namespace rt::kernels::inline RT_ISA_NS {

template <F32x16 (*kOp)(F32x16), class In, class Out>
void MapArray(const In* x, Out* y, int64_t n) {
  for (int64_t i = 0; i < n; i += kLanes) StoreUpTo(kOp(LoadUpTo(x + i, n - i)), y + i, n - i);
}

inline F32x16 Same(F32x16 x) { return x; }
inline F32x16 ExpOp(F32x16 x) { return Exp(x); }
inline F32x16 Exp2Op(F32x16 x) { return Exp2(x); }
inline F32x16 SigmoidOp(F32x16 x) { return Sigmoid(x); }
inline F32x16 SiluOp(F32x16 x) { return Silu(x); }
inline F32x16 SoftplusOp(F32x16 x) { return Softplus(x); }
inline F32x16 RsqrtOp(F32x16 x) { return Rsqrt(x); }

inline const SimdTestKernels& TestTable() {
  static const SimdTestKernels table = {
      MapArray<ExpOp, float, float>,
      MapArray<Exp2Op, float, float>,
      MapArray<SigmoidOp, float, float>,
      MapArray<SiluOp, float, float>,
      MapArray<SoftplusOp, float, float>,
      MapArray<RsqrtOp, float, float>,
      MapArray<Same, float, bf16>,
      MapArray<Same, bf16, float>,
      MapArray<Same, float, f16>,
      MapArray<Same, f16, float>,
      [](const float* x) { return ReduceAdd(Load(x)); },
      [](const float* x) { return ReduceMax(Load(x)); },
      [](const float* x, float* y) {
        F32x16 rows[16];
        for (int i = 0; i < 16; ++i) rows[i] = Load(x + 16 * i);
        Transpose16x16(rows);
        for (int i = 0; i < 16; ++i) Store(rows[i], y + 16 * i);
      },
      [](double a, const double* b, float* y) { Store(DifferenceF64(a, b), y); },
      [](const float* a, const float* b, const float* c, float* fma, float* fnma) {
        Store(Fma(Load(a), Load(b), Load(c)), fma);
        Store(Fnma(Load(a), Load(b), Load(c)), fnma);
      },
  };
  return table;
}

}  // namespace rt::kernels::inline RT_ISA_NS
