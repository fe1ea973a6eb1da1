#include "kernels/gated_delta/gated_delta.h"

#include "kernels/gated_delta/delta_scratch.h"

namespace rt::kernels {

size_t LayOutDeltaScratch(const DeltaDims& dims, char* base, DeltaScratch* scratch) {
  const int64_t group = dims.num_v_heads / dims.num_k_heads;
  DeltaScratch s{};
  s.key_stride = (dims.head_k_dim + 15) / 16 * 16;
  s.value_stride = (dims.head_v_dim + 15) / 16 * 16;
  size_t used = 0;
  const auto take = [&](int64_t floats) {
    float* at = base == nullptr ? nullptr : reinterpret_cast<float*>(base + used);
    used += (static_cast<size_t>(floats) * sizeof(float) + 63) / 64 * 64;
    return at;
  };
  s.keys = take(kDeltaChunk * s.key_stride);
  s.queries = take(kDeltaChunk * s.key_stride);
  s.keys_t = take(kDeltaChunk * s.key_stride);
  s.key_key = take(kDeltaChunk * kDeltaChunk);
  s.query_key = take(kDeltaChunk * kDeltaChunk);
  s.neg_lower = take(kDeltaChunk * kDeltaChunk);
  s.scores = take(kDeltaChunk * kDeltaChunk);
  s.u = take(kDeltaTilePanels * kDeltaChunk * 16);
  s.values = take(group * kDeltaChunk * s.value_stride);
  s.state = take(group * DeltaStateFloats(dims));
  s.gate = take(kDeltaChunk);
  s.beta = take(kDeltaChunk);
  s.exp_g = take(kDeltaChunk);
  s.tail_decay = take(kDeltaChunk);
  s.key_dot_query = take(kDeltaChunk);
  s.running_g = reinterpret_cast<double*>(take(2 * kDeltaChunk));
  const auto take_packed = [&](int64_t count) { return reinterpret_cast<bf16*>(take((count + 1) / 2)); };
  DeltaPackedScratch& packed = s.packed;
  packed.key_stride = (dims.head_k_dim + 31) / 32 * 32;
  packed.keys = take_packed(kDeltaChunk * packed.key_stride);
  packed.queries = take_packed(kDeltaChunk * packed.key_stride);
  packed.keys_t = take_packed(kDeltaChunk * packed.key_stride);
  packed.key_pairs = take_packed(kDeltaChunk * packed.key_stride);
  packed.scores = take_packed(kDeltaChunk * kDeltaChunk);
  packed.u = take_packed(kDeltaTilePanels * kDeltaChunk * 16);
  packed.state = take_packed(kDeltaTilePanels * packed.key_stride * 16);
  if (dims.channel_gates()) {
    for (float** array : {&s.channel.decay, &s.channel.keys, &s.channel.queries, &s.channel.later_keys}) *array = take(kDeltaChunk * s.key_stride);
    for (float** array : {&s.channel.block_gate, &s.channel.total_gate, &s.channel.end_decay}) *array = take(s.key_stride);
  }
  if (scratch != nullptr) *scratch = s;
  return used;
}

size_t GatedDeltaWorkspaceBytes(const DeltaDims& dims, int num_threads) {
  return LayOutDeltaScratch(dims, nullptr, nullptr) * static_cast<size_t>(num_threads);
}

}  // namespace rt::kernels
