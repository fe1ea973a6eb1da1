#include "kernels/common/simd_test_kernels_impl.h"

namespace rt::kernels {
const SimdTestKernels& SimdTestAvx512Bf16() { return TestTable(); }
}  // namespace rt::kernels
