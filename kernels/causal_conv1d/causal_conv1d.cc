#include "kernels/causal_conv1d/causal_conv1d.h"

namespace rt::kernels {
namespace {

template <class T>
void Pack(const T* weight, int64_t channels, int64_t width, float* packed) {
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < width; ++j) packed[j * channels + c] = ToFloat(weight[c * width + j]);
  }
}

}  // namespace

void PackCausalConv1dWeight(const void* weight, DType dtype, int32_t channels, int32_t width, float* packed) {
  switch (dtype) {
    case DType::kF32: return Pack(static_cast<const float*>(weight), channels, width, packed);
    case DType::kBf16: return Pack(static_cast<const bf16*>(weight), channels, width, packed);
    case DType::kF16: return Pack(static_cast<const f16*>(weight), channels, width, packed);
  }
}

}  // namespace rt::kernels
