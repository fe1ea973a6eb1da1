// Compiled once per ISA level.
#pragma once

#include <type_traits>

#include "kernels/causal_conv1d/conv_rows.h"
#include "kernels/common/isa.h"
#include "kernels/common/work_split.h"
#include "kernels/gated_delta/delta_group.h"
#include "kernels/gated_rms_norm/gated_norm_row.h"
#include "kernels/linear_mixer/linear_mixer.h"

namespace rt::kernels::inline RT_ISA_NS {

// Channels [first, first + width) of one head's q, k or v: its inputs and its place in the conv window and weights.
template <class Act>
struct HeadChannels {
  ConvSource<Act> source;
  const float* weight;
  Act* state;
  int64_t width;
};

// The convolution before the delta rule and the gated norm after it, for one (sequence, key head).
template <class Act>
class MixerIo {
 public:
  MixerIo(const LinearMixerParams& params, const DeltaItem& item) : params_(params), item_(item) {
    const DeltaDims& dims = params.dims;
    key_channels_ = static_cast<int64_t>(dims.num_k_heads) * dims.head_k_dim;
    channels_ = 2 * key_channels_ + static_cast<int64_t>(dims.num_v_heads) * dims.head_v_dim;
    window_ = reinterpret_cast<Act*>(static_cast<char*>(params.conv_state) + item.slot * params.conv_state_slot_stride_bytes);
  }

  void Load(int64_t t0, int64_t n, const DeltaScratch& s) const {
    Convolve(Query(), t0, n, s.queries, s.key_stride);
    Convolve(Key(), t0, n, s.keys, s.key_stride);
    for (int32_t head = item_.first_head; head < item_.last_head; ++head) {
      Convolve(Value(head), t0, n, s.values + head * s.head_value_floats(), s.value_stride);
    }
  }

  void Store(int64_t t0, int64_t n, int32_t head, const float* o) const {
    const int64_t width = params_.dims.head_v_dim;
    const int64_t column = ValueHead(head) * width;
    const int64_t stride = RoundUp(width, kLanes);
    const int64_t row = item_.first_token + t0;
    const Act* z = static_cast<const Act*>(params_.z) + row * params_.z_stride + column;
    Act* out = static_cast<Act*>(params_.out) + row * params_.out_stride + column;
    for (int64_t i = 0; i < n; ++i, o += stride, z += params_.z_stride, out += params_.out_stride) {
      GatedNormRow(o, z, params_.norm_weight, width, params_.norm_eps, params_.gate_activation, out);
    }
  }

  // After the last token: the windows of this item's channels, which no other item reads.
  void UpdateWindows() const {
    Update(Query());
    Update(Key());
    for (int32_t head = item_.first_head; head < item_.last_head; ++head) Update(Value(head));
  }

 private:
  int64_t ValueHead(int32_t head) const { return static_cast<int64_t>(item_.k_head) * item_.group() + head; }
  HeadChannels<Act> Query() const {
    const int64_t column = item_.k_head * static_cast<int64_t>(params_.dims.head_k_dim);
    return Channels(params_.q, params_.q_stride, column, column, params_.dims.head_k_dim);
  }
  HeadChannels<Act> Key() const {
    const int64_t column = item_.k_head * static_cast<int64_t>(params_.dims.head_k_dim);
    return Channels(params_.k, params_.k_stride, column, key_channels_ + column, params_.dims.head_k_dim);
  }
  HeadChannels<Act> Value(int32_t head) const {
    const int64_t column = ValueHead(head) * params_.dims.head_v_dim;
    return Channels(params_.v, params_.v_stride, column, 2 * key_channels_ + column, params_.dims.head_v_dim);
  }
  HeadChannels<Act> Channels(const void* x, int64_t stride, int64_t column, int64_t channel, int64_t width) const {
    const Act* inputs = static_cast<const Act*>(x) + item_.first_token * stride + column;
    Act* state = window_ + channel;
    return {{inputs, stride, item_.has_initial_state ? state : nullptr, channels_, params_.conv_width},
            params_.conv_weight + channel, state, width};
  }
  void Convolve(const HeadChannels<Act>& head, int64_t t0, int64_t n, float* out, int64_t out_stride) const {
    ConvRows(head.source, head.weight, channels_, head.width, t0, n, out, out_stride);
  }
  void Update(const HeadChannels<Act>& head) const { UpdateConvState(head.source, item_.num_tokens, head.width, head.state); }

  const LinearMixerParams& params_;
  const DeltaItem& item_;
  int64_t key_channels_, channels_;
  Act* window_;
};

template <class Act, class Math>
void RunMixerItem(const LinearMixerParams& params, int32_t sequence, int32_t k_head, const DeltaScratch& scratch) {
  DeltaItem item = MakeDeltaItem(params, sequence, k_head);
  item.chunked = item.num_tokens > kMixerRecurrentTokens;
  if (item.slot < 0) return ZeroItemRows<Act>(params, item);
  const MixerIo<Act> io(params, item);
  RunDeltaItem<Act, Math>(item, scratch, io);
  io.UpdateWindows();
}

template <class Act, class Math>
int RunLinearMixer(const LinearMixerParams& params, const Parallel& parallel) {
  ParallelRun(parallel, [&](int thread, int num_threads) {
    const FlushSubnormals flush;
    DeltaScratch scratch;
    const size_t bytes = LayOutDeltaScratch(params.dims, nullptr, nullptr);
    LayOutDeltaScratch(params.dims, static_cast<char*>(params.workspace) + bytes * static_cast<size_t>(thread), &scratch);
    ForEachItem(params.batch, params.dims.num_k_heads, 4, thread, num_threads,
                [&](int32_t sequence, int32_t k_head) { RunMixerItem<Act, Math>(params, sequence, k_head, scratch); });
  });
  return 0;
}

inline const LinearMixerKernels& LinearMixerTable() {
  static const LinearMixerKernels table = {RunLinearMixer<float, FmaMath>,
                                           CpuPrefersBf16Dot() ? RunLinearMixer<bf16, DotMath> : RunLinearMixer<bf16, FmaMath>,
                                           RunLinearMixer<bf16, FmaMath>, RunLinearMixer<bf16, DotMath>};
  return table;
}

}  // namespace rt::kernels::inline RT_ISA_NS
