#pragma once

#include "kernels/common/simd.h"
#include "kernels/elementwise/elementwise.h"

namespace rt::kernels {
inline namespace RT_ISA_NS {

template <class T>
int SiluMul(const SiluMulArgs& args, const Parallel& parallel) {
  // An exponential and a division an element: about eight times the cost of an addition.
  ParallelForCost(parallel, args.num_rows, args.size * 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const T* gate = static_cast<const T*>(args.gate) + row * args.gate_stride;
      const T* up = static_cast<const T*>(args.up) + row * args.up_stride;
      T* y = static_cast<T*>(args.y) + row * args.y_stride;
      int64_t i = 0;
      for (; i + kLanes <= args.size; i += kLanes) Store(Silu(Load(gate + i)) * Load(up + i), y + i);
      const int n = static_cast<int>(args.size - i);
      if (n > 0) StoreN(Silu(LoadN(gate + i, n)) * LoadN(up + i, n), y + i, n);
    }
  });
  return 0;
}

template <class T>
int Embedding(const EmbeddingArgs& args, const Parallel& parallel) {
  ParallelForCost(parallel, args.num_tokens, args.size, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* out = args.out + t * args.out_stride;
      const int64_t id = args.ids[t];
      const bool known = id >= 0 && id < args.vocab_size;
      const T* row = static_cast<const T*>(args.table) + (known ? id : 0) * args.size;
      for (int64_t i = 0; i < args.size; i += kLanes) {
        StoreUpTo(known ? LoadUpTo(row + i, args.size - i) : Zero(), out + i, args.size - i);
      }
    }
  });
  return 0;
}

template <class T>
int Add(const AddArgs& args, const Parallel& parallel) {
  ParallelForCost(parallel, args.num_rows, args.size, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      float* residual = args.residual + row * args.residual_stride;
      const T* delta = static_cast<const T*>(args.delta) + row * args.delta_stride;
      for (int64_t i = 0; i < args.size; i += kLanes) {
        const int64_t n = args.size - i;
        StoreUpTo(LoadUpTo(residual + i, n) + LoadUpTo(delta + i, n), residual + i, n);
      }
    }
  });
  return 0;
}

template <class T>
int SigmoidGate(const SigmoidGateArgs& args, const Parallel& parallel) {
  ParallelForCost(parallel, args.num_rows, args.size * 8, [&](int64_t begin, int64_t end, int) {
    for (int64_t row = begin; row < end; ++row) {
      const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
      const T* gate = static_cast<const T*>(args.gate) + row * args.gate_stride;
      T* y = static_cast<T*>(args.y) + row * args.y_stride;
      for (int64_t i = 0; i < args.size; i += kLanes) {
        const int64_t n = args.size - i;
        StoreUpTo(LoadUpTo(x + i, n) * Sigmoid(LoadUpTo(gate + i, n)), y + i, n);
      }
    }
  });
  return 0;
}

constexpr ElementwiseKernels kElementwiseKernels{SiluMul<float>,     SiluMul<bf16>,    Embedding<float>,
                                                 Embedding<bf16>,    Add<float>,       Add<bf16>,
                                                 SigmoidGate<float>, SigmoidGate<bf16>};

}  // namespace RT_ISA_NS
}  // namespace rt::kernels
