#include "kernels/common/isa.h"

namespace rt::kernels {

bool CpuSupports(Isa isa) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (isa == Isa::kAvx2) return avx2;
  return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512bf16");
}

bool CpuPrefersBf16Dot() {
  __builtin_cpu_init();
  return CpuSupports(Isa::kAvx512Bf16) && __builtin_cpu_is("amd");
}

const char* IsaName(Isa isa) { return isa == Isa::kAvx2 ? "avx2" : "avx512bf16"; }

}  // namespace rt::kernels
