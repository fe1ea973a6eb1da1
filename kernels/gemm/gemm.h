// y = x · Wᵀ for the linear layers of a model, weights exactly as in the checkpoint.
//
//   y[m, n] = sum_k x[m, k] * w[n, k]            x [M, K] (row stride), w [N, K] dense, y [M, N] (row stride)
//
// Nothing is prepacked: each weight has one resident copy, and tied embeddings share it.
//
// The kernel. Both operands are contiguous along K, so every output is a dot product taken along K in vector
// lanes: a register tile of MR x NR accumulators, one vector of each row a step, lanes added up once at the
// end. Few rows of x (up to kMaxStreamRows) stream the weights from memory at the speed of memory. More rows
// take W in superblocks that stay in L2 and x in blocks that stay in L1; MR + NR loads feed MR * NR
// multiply-adds, so the arithmetic is the limit.
//
// Two ways to multiply bf16 at the AVX-512 level: VDPBF16PS (Zen 4: twice the rate of fp32 FMA) and widening
// to fp32 (Emerald Rapids runs VDPBF16PS at half the rate of FMA: 80 against 160 GFLOP/s a core, measured).
// Widening is two exact integer operations a vector, done once a superblock.
//
// Order of operations. Each output is one chain of multiply-adds per lane in ascending k, then a fixed tree
// over the lanes. It does not depend on M, on the tile an output falls into, on the number of threads or on
// strides: a row of a prefill, of a batch and of a decode step get the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/parallel.h"
#include "kernels/common/types.h"

namespace rt::kernels {

struct GemmArgs {
  int64_t m;
  int64_t n;
  int64_t k;
  const void* x;     // [m, k] x dtype
  int64_t x_stride;  // elements between rows of x, >= k
  const void* w;     // [n, k] w dtype, dense
  void* y;           // [m, n] y dtype
  int64_t y_stride;  // elements between rows of y, >= n
  bool accumulate;   // y += x·Wᵀ; y must be fp32 (the residual stream)
  void* workspace;   // GemmWorkspaceBytes(parallel.num_threads) bytes, 64-byte aligned; contents are not kept
};

// Does not depend on the shape, so that one workspace serves every GEMM of a model.
size_t GemmWorkspaceBytes(int num_threads);

// m, n, k >= 0; k = 0 writes (or adds) zeros. Reads and writes nothing outside the named elements. Returns 0.
using GemmFn = int (*)(const GemmArgs& args, const Parallel& parallel);

// One way to multiply. Products of bf16 are exact in fp32 and accumulate in fp32; VDPBF16PS flushes
// denormals.
struct GemmKernels {
  GemmFn bf16_bf16_f32;   // x, w, y
  GemmFn bf16_bf16_bf16;  // y rounded to nearest even once
  GemmFn f32_f32_f32;
};

const GemmKernels& GemmAvx512Bf16Dot();   // bf16 by VDPBF16PS
const GemmKernels& GemmAvx512Bf16Wide();  // bf16 widened to fp32
const GemmKernels& GemmAvx512Bf16();  // the faster of the two on this CPU (by vendor, so always the same one)
const GemmKernels& GemmAvx2();

// The entry of `kernels` for these dtypes, or null if there is none.
GemmFn FindGemm(const GemmKernels& kernels, DType x, DType w, DType y);

}  // namespace rt::kernels
