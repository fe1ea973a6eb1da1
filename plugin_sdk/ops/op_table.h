// The executable side of op_defs.h: which tensors an op takes, how its shapes are checked, which capability columns describe it, and
// how a composite falls apart. One table for negotiation, `explain`, planning and the conformance suite.
#pragma once

#include <rt/plugin/model.h>
#include <rt/plugin/status.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rt::ops {

// One tensor of an op instance. Token and row dimensions are symbolic (RT_DIM_*).
struct TensorInfo {
  bool present = false;
  uint32_t dtype = RT_DTYPE_NONE;  // resolved RT_DTYPE_*
  std::vector<int64_t> dims;

  int64_t back() const { return dims.empty() ? 0 : dims.back(); }
};

struct CacheInfo {
  uint32_t role = 0;    // RT_CACHE_*
  uint32_t dtype = RT_DTYPE_NONE;
  uint32_t layout = 0;  // RT_STATE_LAYOUT_* or RT_KV_LAYOUT_*
  int64_t block_size = 0;  // per-token caches
  std::vector<int64_t> dims;
};

// An op with everything known but the batch.
struct OpInstance {
  std::string_view op;
  uint32_t version = 1;
  std::vector<TensorInfo> inputs, weights, outputs;
  std::vector<CacheInfo> caches;
  const void* attrs = nullptr;  // starts with struct_size

  template <typename T>
  const T& attrs_as() const {
    return *static_cast<const T*>(attrs);
  }
};

struct OpDef {
  const char* name;
  uint32_t version;
  uint32_t kind;       // component kind that provides it: RT_KIND_OPS, RT_KIND_ATTENTION, RT_KIND_LINEAR_ATTENTION
  bool phased;         // planned once per step phase; otherwise RT_PHASE_ALL
  bool composite;      // Decompose() knows its pieces
  size_t attrs_bytes;  // sizeof of its attribute struct
  int num_inputs, num_weights, num_outputs, num_caches;  // upper bounds; see `required_*`
  int required_inputs, required_weights, required_outputs;
  int inplace_input;   // outputs[0] overwrites this input; -1 = none
  Status (*check)(const OpInstance& op);  // shapes and attributes, with the op's name in the message
  void (*columns)(const OpInstance& op, std::vector<rt_column_value>* out);
};

// Null when unknown.
const OpDef* FindOp(std::string_view name, uint32_t version);
std::vector<const OpDef*> AllOps();

// Counts, attribute size, then the op's own shape rules.
Status CheckInstance(const OpDef& def, const OpInstance& op);
std::vector<rt_column_value> ProblemColumns(const OpDef& def, const OpInstance& op);

const char* ColumnName(uint32_t column);        // "head_k_dim"; "?" when unknown
std::string ColumnValueText(uint32_t column, int64_t value);  // dtypes, layouts and enums by name
const char* DTypeName(uint32_t dtype);          // "float32", "bfloat16", ...
uint32_t DTypeFromName(std::string_view name);  // RT_DTYPE_NONE when unknown
int64_t DTypeBytes(uint32_t dtype);
const char* StateLayoutName(uint32_t layout);
const char* PhaseName(uint32_t phase);          // "decode", "verify", "prefill", "all"

// A tensor of a piece: of the composite, or a temporary of the decomposition.
struct PieceRef {
  enum class Kind { kAbsent, kInput, kWeight, kOutput, kCache, kTemp } kind = Kind::kAbsent;
  uint32_t index = 0;
};

struct Piece {
  std::string op;
  std::vector<PieceRef> inputs, weights, outputs, caches;
  std::vector<std::byte> attrs;
};

struct Decomposition {
  std::vector<TensorInfo> temps;
  std::vector<Piece> pieces;  // in execution order
};

// The one decomposition table. Unsupported when the op is not a composite.
Result<Decomposition> Decompose(const OpInstance& op);

}  // namespace rt::ops
