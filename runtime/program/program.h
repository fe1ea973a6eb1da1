// A model's program: ops with named weights, symbolic sizes and caches, as a model plugin built it, plus the rewrites done on it.
#pragma once

#include "plugin_sdk/ops/op_table.h"

#include <rt/plugin/model.h>
#include <rt/plugin/status.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rt {

inline constexpr uint32_t kNoId = RT_NO_ID;

struct ProgramValue {
  std::string name;
  uint32_t dtype = RT_VALUE_ACT;  // RT_VALUE_*
  std::vector<int64_t> dims;      // dims[0] is RT_DIM_TOKENS, RT_DIM_ROWS or literal
  uint32_t input = 0;             // RT_INPUT_* or 0
  // After the GEMM merge: columns [column_offset, column_offset + dims[1]) of another value.
  uint32_t view_of = kNoId;
  int64_t column_offset = 0;
};

// Rows of a checkpoint tensor that make up (a part of) a weight.
struct WeightPart {
  std::string tensor;         // name in the checkpoint
  std::vector<int64_t> dims;  // as stored
  bool operator==(const WeightPart&) const = default;
};

struct ProgramWeight {
  std::string name;           // of the only part, or "a + b" for a merged weight
  uint32_t dtype = RT_WEIGHT_ACT;
  uint32_t flags = 0;         // RT_WEIGHT_CHECK_FINITE | RT_WEIGHT_ANY_SHAPE
  uint32_t init = RT_INIT_NORMAL;
  float init_offset = 0;
  uint32_t elements_per_head = 1;
  std::vector<int64_t> dims;
  std::vector<WeightPart> parts;  // concatenated along dims[0]
};

struct ProgramCache {
  std::string name;
  uint32_t role = 0, extent = 0, rollback = 0;
  uint32_t dtype_set = 0, default_dtype = RT_DTYPE_NONE;
  uint32_t layer = 0;
  std::vector<int64_t> dims;
};

struct ProgramOp {
  std::string op;
  uint32_t version = 1;
  std::string label;
  std::vector<uint32_t> inputs, weights, outputs, caches;  // ids; kNoId = absent optional
  std::vector<std::byte> attrs;
  // Decoder layer whose output is complete in Program::hidden once this op has run; -1 = none.
  int32_t completes_layer = -1;
};

struct Program {
  std::vector<ProgramValue> values;
  std::vector<ProgramWeight> weights;
  std::vector<ProgramCache> caches;
  std::vector<ProgramOp> ops;  // in execution order
  uint32_t logits = kNoId;
  std::map<uint32_t, uint32_t> hidden;  // decoder layer -> value; holds it right after the op that completes the layer
  rt_model_info info = {};
  std::vector<std::string> skip;   // globs of checkpoint tensors outside this program
  std::vector<std::string> notes;

  uint32_t AddValue(ProgramValue value);
};

// How symbolic dtypes and caches become concrete.
struct CacheChoice {
  uint32_t dtype = RT_DTYPE_NONE;
  uint32_t layout = 0;
  int64_t block_size = 0;
};
struct ProgramDTypes {
  uint32_t act = RT_DTYPE_BF16;         // compute dtype
  std::vector<CacheChoice> caches;      // per program cache
};
uint32_t ResolveValueDType(uint32_t value_dtype, uint32_t act);
uint32_t ResolveWeightDType(uint32_t weight_dtype, uint32_t act);

// View of one op with every dtype concrete; borrows the program.
ops::OpInstance Instantiate(const Program& program, const ProgramOp& op, const ProgramDTypes& dtypes);

// Records what a model plugin says through rt_builder; every call is validated. `has_tensor` answers for the checkpoint.
class ProgramRecorder {
 public:
  explicit ProgramRecorder(std::function<bool(std::string_view)> has_tensor);
  const rt_builder& table() const { return table_; }
  // Whole-program checks: every value is written before it is read, logits and info are set, nothing is left over.
  Result<Program> Finish();

 private:
  struct Calls;
  Status CheckOp(const ProgramOp& op);

  Program program_;
  std::vector<bool> written_;
  std::function<bool(std::string_view)> has_tensor_;
  rt_builder table_;
};

// Replaces op `op_idx` by the pieces of its decomposition (temporaries become values of the program).
Status ExpandComposite(Program* program, size_t op_idx, const ProgramDTypes& dtypes);
// The pieces of one op, as ops over the program's values; adds the temporaries.
Result<std::vector<ProgramOp>> ExpandPieces(Program* program, const ProgramOp& op, const ProgramDTypes& dtypes);

// Merges `linear` ops that read the same value into one product over the row-wise concatenated weights; their outputs become column
// views. The only rewrite. Weights with another user (tied embeddings) stay apart. Returns the number of products removed.
int MergeLinears(Program* program);

// Where each value lives in one activation arena, by liveness over the op order.
struct MemoryPlan {
  struct Slot {
    int64_t offset_bytes = -1;   // -1: not materialised (never used)
    int64_t row_stride = 0;      // elements between rows
    int64_t rows = 0;
  };
  std::vector<Slot> values;
  int64_t total_bytes = 0;
};
struct MemoryLimits {
  int64_t max_tokens = 0, max_rows = 0;
};
// `keep` lists values that must survive the whole step (logits, hidden states that were asked for).
MemoryPlan PlanMemory(const Program& program, const std::vector<const ProgramOp*>& order, const ProgramDTypes& dtypes, const MemoryLimits& limits, const std::vector<uint32_t>& keep);

// Human-readable listing, one op a line with shapes, dtypes, weights and caches.
std::string DumpProgram(const Program& program, const ProgramDTypes& dtypes);

}  // namespace rt
