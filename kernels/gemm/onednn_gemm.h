// The product of gemm.h for many rows, by oneDNN's matmul on the same plain weights.
//
// Primitives have fixed shapes: M is cut into buckets (the last one padded up), N into one slice a thread.
// All are created in Create, none later; a thread runs its slice's primitive alone (libgomp is told to use
// one thread) with its own scratchpad from the workspace.
//
// When to use it: where it measures faster than the kernels of gemm.h, which it does not on Emerald Rapids
// for bf16 (README.md has the figures). Rows of one bucket size have equal bits; rows of different buckets,
// or of gemm.h's kernels, need not.
//
// Instruction sets: the process's oneDNN is held to AVX512_CORE_BF16 or AVX2, as the level says; it never
// picks AMX on its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/gemm/gemm.h"

namespace rt::kernels {

class OneDnnGemm {
 public:
  struct Options {
    int64_t n;
    int64_t k;
    DType dtype;  // of x and W: kF32, or kBf16 at the AVX512-BF16 level
    Isa isa;
    std::vector<int64_t> m_buckets;  // ascending, positive
    int num_threads;                 // of the Parallel that Run will get
  };

  // Null with `*error` set where oneDNN refuses. oneDNN has no bf16 below AVX-512 (status "unimplemented").
  // The instruction-set limit is one a process: creating plans for two levels is an error.
  static std::unique_ptr<OneDnnGemm> Create(const Options& options, std::string* error);
  ~OneDnnGemm();

  size_t workspace_bytes() const;
  // oneDNN primitives created by this process so far.
  static int64_t num_primitives_created();

  // As GemmFn: any args.m >= 0; args.n, args.k as created; y fp32, or bf16 if `y` says so; accumulate needs
  // fp32. args.workspace has workspace_bytes(). Returns 0, or oneDNN's status.
  int Run(const GemmArgs& args, DType y, const Parallel& parallel) const;

 private:
  struct Impl;
  explicit OneDnnGemm(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace rt::kernels
