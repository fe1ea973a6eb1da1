// Causal multi-head latent attention over a paged cache of compressed rows, without rotation.
//
// A cached row is [c ; e]: L compressed features and De key features, shared by all heads. Per head h of N, with
// W_uk [Dn, L] and W_uv [Dv, L] from the expansion weight and the query q = [q_n (Dn) ; q_e (De)]:
//   k = [W_uk c ; e],  v = W_uv c,  o = sum_s softmax_s(scale q · k_s) v_s over the tokens s up to the query's own
//                                                     DeepSeek-AI 2024, arXiv:2405.04434, section 2.1, eqs. 9-19
// New rows are [rms_norm(a[:L]) * w ; a[L:]], rounded to the activation dtype when they enter the cache.
//
// Two orders of the same sums:
//   absorbed  scores (W_uk^T q_n) · c + q_e · e, output W_uv (sum_s p_s c_s). Every head reads the same rows: 2 L + De
//             multiply-adds a (query, row, head), nothing to expand. For one or a few queries a sequence.
//   expanded  forms k and v of a tile of rows, a head at a time: (Dn + Dv) L multiply-adds a (row, head), then only
//             Dn + De + Dv a (query, row, head). For many queries a sequence. A tile at a time, so the workspace does not
//             grow with the context.
// Queries, scores, probabilities, expanded keys and values and all sums are fp32; the softmax is the online form of
// Milakov & Gimelshein 2018 (arXiv:1805.02867), algorithm 3.
//
// Absorbed work: per wave of kWaveTokens tokens, heads absorb their queries (W_uk is read once a wave), items (token,
// segment of the context, heads) attend, heads merge their segments and apply W_uv. Cuts of the context depend on its
// length alone. Expanded work: items (sequence, head, up to kMaxQueries queries); tiles of rows lie at multiples of
// kExpandTile. A query's result depends neither on its batch nor on the number of threads; expanded, nor on how a prompt
// is split into steps.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/parallel.h"
#include "kernels/common/types.h"

namespace rt::kernels {

struct LatentAttentionShape {
  int32_t num_heads;      // N
  int32_t latent_dim;     // L
  int32_t qk_nope_dim;    // Dn
  int32_t qk_shared_dim;  // De, may be 0
  int32_t v_dim;          // Dv
  float scale;            // of the score
  float norm_eps;
};

// dtype "act" is the kernel's activation dtype, fp32 or bf16.
struct LatentAttentionArgs {
  LatentAttentionShape shape;

  int32_t num_sequences;        // B
  const int32_t* cu_seqlens;    // [B + 1] first row of each sequence in q, kv_a and out; need not begin at 0
  const int32_t* context_lens;  // [B] tokens cached before this step
  const int32_t* block_table;   // [B, max_blocks] block ids; a first entry < 0 marks padding: nothing is cached, its rows
                                // become zeros
  int64_t max_blocks;

  const void* q;  // [T, N * (Dn + De)] act
  int64_t q_stride;
  const void* kv_a;  // [T, L + De] act: raw, or cached as they are if kv_norm is null
  int64_t kv_a_stride;
  const float* kv_norm;  // [L], null = rows are normalised already
  const void* kv_b;      // [N * (Dn + Dv), L] act, dense: per head Dn rows of W_uk, then Dv rows of W_uv
  void* out;             // [T, N * Dv] act
  int64_t out_stride;

  void* cache_base;  // block i at cache_base + i * block_stride_bytes, [block_size][L + De] act
  int64_t block_stride_bytes;
  int32_t block_size;

  void* workspace;  // the form's workspace bytes, 64-byte aligned; contents are not kept
};

struct LatentNormArgs {
  LatentAttentionShape shape;
  int64_t num_rows;
  const void* kv_a;  // [num_rows, L + De] act
  int64_t kv_a_stride;
  const float* kv_norm;  // [L]
  void* out;             // [num_rows, L + De] act; may be kv_a
  int64_t out_stride;
};

// For calls of at most max_tokens rows.
size_t AbsorbedLatentWorkspaceBytes(const LatentAttentionShape& shape, int64_t max_tokens, int num_threads);
size_t ExpandedLatentWorkspaceBytes(const LatentAttentionShape& shape, int64_t max_tokens, int num_threads);

// Return 0. Bytes of the cache past a sequence's tokens are never read; other blocks are never written.
using LatentAttentionFn = int (*)(const LatentAttentionArgs& args, const Parallel& parallel);
using LatentNormFn = int (*)(const LatentNormArgs& args, const Parallel& parallel);

struct LatentAttentionKernels {
  LatentAttentionFn absorbed_f32;
  LatentAttentionFn absorbed_bf16;
  LatentAttentionFn expanded_f32;
  LatentAttentionFn expanded_bf16;
  LatentNormFn norm_f32;
  LatentNormFn norm_bf16;
};

const LatentAttentionKernels& LatentAttentionAvx512Bf16();
const LatentAttentionKernels& LatentAttentionAvx2();

}  // namespace rt::kernels
