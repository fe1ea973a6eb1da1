// Gated causal attention over a paged KV cache, from raw projections to the input of the output projection.
//
// Per token t of a sequence, query head h and its key/value head g = h / (Nq / Nkv):
//   q = rotary(norm(q_raw)),  k = rotary(norm(k_raw)),  v as projected; k and v are appended to the cache
//   o = sum_s softmax_s(scale q · k_s) v_s over the cached tokens s = 0 .. t             Vaswani et al. 2017,
//   eq. 1 out = o * sigmoid(gate)
// norm: per head over head_dim, x rsqrt(mean(x^2) + eps) (offset + w). rotary: half-split pairs (i, i + R/2)
// of the first R features (Su et al. 2021, eq. 34); the rest passes through. The softmax is the online form
// of Milakov & Gimelshein 2018, algorithm 3. q, scores, probabilities and sums are fp32; keys and values are
// rounded to the activation dtype when they enter the cache.
//
// One block of the cache holds, per key/value head, block_size rows of head_dim: [Nkv][block_size][d], keys
// and values apart.
//
// Work. First all new keys and values are written, then items (sequence, key/value head, up to 64 query rows)
// are attended to: the query heads of one key/value head stay together, so cached rows are read once a group.
// One new token (decode) leaves few items, so its context is cut into segments whose partial softmaxes are
// merged in order. Cuts depend on the sequence's own lengths alone: a row's result depends neither on its
// batch nor on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/parallel.h"
#include "kernels/common/types.h"

namespace rt::kernels {

struct AttentionShape {
  int32_t num_q_heads;   // Nq, a multiple of Nkv
  int32_t num_kv_heads;  // Nkv
  int32_t head_dim;      // d
  int32_t rotary_dim;    // R, even, <= d; 0 = no rotation
  bool output_gate;      // q rows hold, per head, d of q and then d of gate
  float scale;
  const float* q_norm;  // [d], null = no q/k norm
  const float* k_norm;  // [d]
  float norm_weight_offset;
  float norm_eps;
};

// dtype "act" is the kernel's activation dtype, fp32 or bf16.
struct AttentionArgs {
  AttentionShape shape;

  int32_t num_sequences;      // B
  const int32_t* cu_seqlens;  // [B + 1] first row of each sequence in q, k, v, out, rotary; need not begin at
                              // 0. Equal ends: no rows
  const int32_t* context_lens;  // [B] tokens cached before this step
  const int32_t* block_table;   // [B, max_blocks] block ids; a first entry < 0 marks padding: nothing is
                                // cached, its rows become zeros
  int64_t max_blocks;

  const void* q;  // [T, Nq * d * (1 or 2)] act
  int64_t q_stride;
  const void* k;  // [T, Nkv * d] act
  int64_t k_stride;
  const void* v;  // [T, Nkv * d] act
  int64_t v_stride;
  const float* rotary;  // [T, R], see RotaryTable; null if R = 0
  void* out;            // [T, Nq * d] act
  int64_t out_stride;

  void* key_base;  // block i's keys at key_base + i * key_block_stride_bytes, [Nkv][block_size][d] act
  int64_t key_block_stride_bytes;
  void* value_base;
  int64_t value_block_stride_bytes;
  int32_t block_size;

  void* workspace;  // AttentionWorkspaceBytes, 64-byte aligned; contents are not kept
};

// For at most max_sequences sequences in one call.
size_t AttentionWorkspaceBytes(const AttentionShape& shape, int64_t max_sequences, int num_threads);

// Returns 0. Bytes of the cache past a sequence's tokens are never read; other blocks are never written.
using AttentionFn = int (*)(const AttentionArgs& args, const Parallel& parallel);

struct AttentionKernels {
  AttentionFn f32;
  AttentionFn bf16;
};

const AttentionKernels& AttentionAvx512Bf16();
const AttentionKernels& AttentionAvx2();

// table[t] = cos(angle_0) .. cos(angle_{R/2-1}), sin(angle_0) .. sin(angle_{R/2-1}); angle_i = position_t *
// theta^(-2i/R). Computed once a step for all layers. Angles, sines and cosines are taken in double
// precision: positions of 10^6 are exact to an ulp of fp32. positions [num_tokens] -> table [num_tokens,
// rotary_dim].
int RotaryTable(int64_t num_tokens, const int32_t* positions, int32_t rotary_dim, double theta, float* table,
                const Parallel& parallel);

}  // namespace rt::kernels
