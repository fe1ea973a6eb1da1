// Compiled once per ISA level.
#pragma once

#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/causal_conv1d/conv_rows.h"
#include "kernels/common/work_split.h"

namespace rt::kernels::inline RT_ISA_NS {

// Channels of one work item: 1 KiB of bf16 a row, so that a row's lines follow each other and a decode step still has parallel work.
constexpr int64_t kConvItemChannels = 512;

template <class Act>
void ConvItem(const CausalConv1dParams& params, int32_t sequence, int64_t first_channel) {
  const int64_t row = params.batch.cu_seqlens[sequence];
  const int64_t n = params.batch.cu_seqlens[sequence + 1] - row;
  const int64_t channels = Min<int64_t>(kConvItemChannels, params.channels - first_channel);
  Act* out = static_cast<Act*>(params.out) + row * params.out_stride + first_channel;
  const int64_t slot = params.batch.state_slot_ids[sequence];
  if (slot < 0) {
    for (int64_t t = 0; t < n; ++t) std::memset(static_cast<void*>(out + t * params.out_stride), 0, channels * sizeof(Act));
    return;
  }
  Act* state = reinterpret_cast<Act*>(static_cast<char*>(params.state) + slot * params.state_slot_stride_bytes) + first_channel;
  const ConvSource<Act> source = {static_cast<const Act*>(params.x) + row * params.x_stride + first_channel, params.x_stride,
                                  params.batch.has_initial_state[sequence] ? state : nullptr, params.channels, params.width};
  ConvRows(source, params.weight + first_channel, params.channels, channels, 0, n, out, params.out_stride);
  UpdateConvState(source, n, channels, state);
}

template <class Act>
int RunCausalConv1d(const CausalConv1dParams& params, const Parallel& parallel) {
  const int32_t parts = static_cast<int32_t>(CeilDiv(params.channels, kConvItemChannels));
  ParallelRun(parallel, [&](int thread, int num_threads) {
    ForEachItem(params.batch, parts, 1, thread, num_threads,
                [&](int32_t sequence, int32_t part) { ConvItem<Act>(params, sequence, part * kConvItemChannels); });
  });
  return 0;
}

inline const CausalConv1dKernels& CausalConv1dTable() {
  static constexpr CausalConv1dKernels kTable = {RunCausalConv1d<float>, RunCausalConv1d<bf16>};
  return kTable;
}

}  // namespace rt::kernels::inline RT_ISA_NS
