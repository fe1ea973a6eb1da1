#include "kernels/common/simd_test_kernels_impl.h"

namespace rt::kernels {
const SimdTestKernels& SimdTestAvx2() { return TestTable(); }
}  // namespace rt::kernels
