// One thread's scratch memory for the delta rule, shared by all ISA levels and by the size functions.
#pragma once

#include "kernels/gated_delta/gated_delta.h"

namespace rt::kernels {

// Tokens a chunk holds. 64 halves the state traffic of 32 and keeps the triangular terms (quadratic in it) below a quarter of the work.
constexpr int64_t kDeltaChunk = 64;
// Panels of 16 value channels a chunk tile works on at once.
constexpr int64_t kDeltaTilePanels = 2;

// bf16 operands of the chunk form where products run on VDPBF16PS: pairs along the summed index lie side by side, one 32-bit broadcast or
// lane each.
struct DeltaPackedScratch {
  int64_t key_stride;  // bf16 of a row of keys and queries: Dk rounded up to 32, tail zero
  bf16* keys;          // [chunk][key_stride]
  bf16* queries;       // [chunk][key_stride]
  bf16* keys_t;        // [chunk/16][key_stride/2][16 tokens][2]
  bf16* key_pairs;     // [chunk/2][key_stride][2]: tokens 2i and 2i + 1
  bf16* scores;        // [chunk][chunk]
  bf16* u;             // [tile panels][chunk/2][16][2]
  bf16* state;         // [tile panels][ceil(Dk/2)][16][2]
};

// Gates with a value per key channel, of one value head; absent where gate_width is 1.
struct DeltaChannelScratch {
  float* decay;        // [chunk, key_stride] g, then e^g in place
  float* keys;         // [chunk, key_stride] recurrent: k e^g; chunk: k e^G
  float* queries;      // the same of q
  float* later_keys;   // [chunk/16][key_stride][16] k_j e^(sum of g after j), transposed
  float* block_gate;   // [key_stride] sum of g over the 16 rows at hand
  float* total_gate;   // [key_stride] sum of g over all finished rows
  float* end_decay;    // [key_stride] e^(G_end)
};

// All row strides are multiples of 16 floats, every array starts on a 64-byte border. Group = one key head and its value heads.
struct DeltaScratch {
  int64_t key_stride;    // floats of a row of keys and queries: Dk rounded up to 16, tail zero
  int64_t value_stride;  // floats of a row of values: Dv rounded up to 16, tail zero
  float* keys;           // [chunk, key_stride] normalised
  float* queries;        // [chunk, key_stride] normalised and scaled
  float* keys_t;         // [chunk/16][key_stride][16]: keys transposed to panels
  float* key_key;        // [chunk, chunk] k_i . k_j, blocks at and below the diagonal
  float* query_key;      // [chunk, chunk] q_i . k_j
  float* neg_lower;      // [chunk, chunk] -L of one value head
  float* scores;         // [chunk, chunk] P of one value head
  float* u;              // [tile panels][chunk][16]
  float* values;         // [heads of a group][chunk, value_stride]; overwritten by o
  float* state;          // [heads of a group][panels][Dk][16]: fp32 copy of a narrow state
  // Per token of one value head, [chunk] each.
  float* gate;           // g
  float* beta;
  float* exp_g;          // chunk: e^G; recurrent: e^g
  float* tail_decay;     // chunk: e^(G_end - G)
  float* key_dot_query;  // recurrent: k_i . q_i, shared by the heads of a group
  double* running_g;     // chunk: G
  DeltaPackedScratch packed;
  DeltaChannelScratch channel;

  RT_ALWAYS_INLINE int64_t head_value_floats() const { return kDeltaChunk * value_stride; }
};

RT_ALWAYS_INLINE int64_t DeltaStateFloats(const DeltaDims& dims) { return DeltaStatePanels(dims) * dims.head_k_dim * 16; }

// Lays the arrays out from `base` (64-byte aligned; null only counts) and returns the bytes used. `scratch` may be null.
size_t LayOutDeltaScratch(const DeltaDims& dims, char* base, DeltaScratch* scratch);

}  // namespace rt::kernels
