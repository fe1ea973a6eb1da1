// For kernel tests: run a test body on every ISA level this CPU has.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/common/isa.h"

namespace rt::kernels {

// The portable level is always tested; AVX512-BF16 where the CPU has it.
inline std::vector<Isa> TestedIsas() {
  std::vector<Isa> isas = {Isa::kAvx2};
  if (CpuSupports(Isa::kAvx512Bf16)) isas.push_back(Isa::kAvx512Bf16);
  return isas;
}

// Parameterised test name "avx2" or "avx512bf16".
struct IsaTestName {
  std::string operator()(const ::testing::TestParamInfo<Isa>& info) const { return IsaName(info.param); }
};

}  // namespace rt::kernels
