#include "kernels/sampling/sampling_impl.h"

namespace rt::kernels {

const SamplingKernels& SamplingAvx512Bf16() {
  static constexpr SamplingKernels kKernels{[](const SampleArgs& args, const Parallel& parallel) {
    return SampleWith(kSamplingPrimitives, args, parallel);
  }};
  return kKernels;
}

}  // namespace rt::kernels
