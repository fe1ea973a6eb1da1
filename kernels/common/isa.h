// What the running CPU can do; answers never change within a process.
#pragma once

#include "kernels/common/types.h"

namespace rt::kernels {

// True when every instruction of the level is available (CPU and operating system).
bool CpuSupports(Isa isa);

// True when VDPBF16PS does more multiply-adds per cycle than fp32 FMA, so that rounding chunk operands to bf16 buys speed. AMD (Zen 4
// and later) issues two 512-bit-equivalent dots where it issues one FMA: 234 against 117 GFLOP/s a core measured on Zen 4. Intel cores
// (measured on Emerald Rapids: 80 against 165 GFLOP/s) are twice as fast with fp32 FMA, which is also exact.
bool CpuPrefersBf16Dot();

// "avx2", "avx512bf16": the names used in kernel names, rows and reports.
const char* IsaName(Isa isa);

}  // namespace rt::kernels
