// Start-up negotiation: which plugin row runs each op of a program, in which state dtype and layout, and why.
// A pure function of (program, plugin rows, user policy); it allocates no device memory and runs no kernel.
//
// Order: user pin -> deny -> availability -> row constraints -> supports() -> joint feasibility (state and KV layout agree between
// prefill, decode and cache) -> score. State dtypes are final before layouts and geometry are.
#pragma once

#include "runtime/program/program.h"

#include <rt/plugin/backend.h>
#include <rt/plugin/status.hpp>

#include <map>
#include <string>
#include <vector>

namespace rt {

// A component that offers rows. Tables and ctx stay valid for the life of the process.
struct KernelProvider {
  std::string plugin;     // plugin name
  std::string component;  // component name within it
  uint32_t kind = 0;      // RT_KIND_OPS, RT_KIND_ATTENTION or RT_KIND_LINEAR_ATTENTION
  rt_plugin_ctx* ctx = nullptr;
  const rt_op_api* ops = nullptr;
  const rt_backend_api* backend = nullptr;  // both attention kinds
};

struct NegotiationPolicy {
  bool strict = false;          // every downgrade is an error
  bool allow_fallback = false;  // negotiation.fallback: an explicit request that cannot be met becomes a WARN instead of an error
  std::map<std::string, std::string> pins;   // "op" or "op.phase" -> kernel or plugin name
  std::vector<std::string> deny;             // kernel or plugin names; '*' matches any run of characters
  std::string attention_backend = "auto";         // plugin or kernel name
  std::string linear_attention_backend = "auto";
  // RT_DTYPE_*; RT_DTYPE_NONE = auto
  uint32_t state_dtype = RT_DTYPE_NONE, conv_dtype = RT_DTYPE_NONE, kv_dtype = RT_DTYPE_NONE;
  int64_t kv_block_size = 16;
};

enum class Verdict { kChosen, kEligible, kRefused, kUnavailable, kDenied, kNotRequested };
const char* VerdictName(Verdict verdict);

struct Candidate {
  size_t provider = 0;  // index into the providers
  uint32_t row_idx = 0;
  std::string plugin, kernel;
  int32_t score = 0;
  Verdict verdict = Verdict::kRefused;
  uint32_t unavailable = RT_UNAVAILABLE_NONE;
  std::vector<std::string> reasons;  // every reason, not only the first
  uint32_t guarantees = 0;           // RT_ROW_*
};

// One distinct problem and what became of it.
struct Decision {
  std::string op;
  uint32_t version = 1;
  uint32_t phase = RT_PHASE_ALL;
  std::vector<rt_column_value> columns;
  std::vector<std::byte> attrs;
  std::string requested = "auto";
  int chosen = -1;          // index into candidates; -1 with `decomposed`: its pieces run instead
  bool decomposed = false;
  std::vector<Candidate> candidates;
  int num_ops = 0;          // ops of the program that share this problem
};

// dtype of the caches of one role.
struct CacheDecision {
  uint32_t role = 0;
  std::string name;         // "recurrent_state", "conv_state", "kv"
  uint32_t requested = RT_DTYPE_NONE, model_default = RT_DTYPE_NONE, chosen = RT_DTYPE_NONE;
  uint32_t model_set = 0, kernel_set = 0;  // bits 1 << RT_DTYPE_*
  std::string decided_by;   // "user", "model", "compute dtype", "fallback"
  uint32_t layout = 0;      // RT_STATE_LAYOUT_* or RT_KV_LAYOUT_*
  int num_caches = 0;
};

enum class Severity { kInfo, kWarn };
struct Finding {
  Severity severity = Severity::kInfo;
  bool downgrade = false;  // an error under strict
  std::string text;
};

// One entry of the executable list.
struct Stage {
  ProgramOp op;
  uint32_t phase = RT_PHASE_ALL;
  uint32_t kind = RT_KIND_OPS;
  size_t decision = 0;
};

struct NegotiationResult {
  ProgramDTypes dtypes;
  std::vector<Stage> stages;       // in execution order
  std::vector<Decision> decisions;
  std::vector<CacheDecision> caches;
  std::vector<Finding> findings;
};

// Rewrites `program` (composites without a row are expanded, linears merged) and chooses a row for every op. Errors name the op, the
// failed columns and every candidate.
Result<NegotiationResult> Negotiate(Program* program, uint32_t act_dtype, const std::vector<KernelProvider>& providers, const NegotiationPolicy& policy, rt_device_ref device);

// Chooses for one op outside a model's program (sample, select_ids); same rules.
Result<Decision> NegotiateOp(const ops::OpInstance& op, uint32_t phase, const std::vector<KernelProvider>& providers, const NegotiationPolicy& policy, rt_device_ref device);

// Reasons why a row's constraints do not hold; empty = they do.
std::vector<std::string> FilterRow(const rt_row& row, const std::vector<rt_column_value>& columns);

// Reports. One line per op kind and phase; the whole table as text and as JSON.
std::vector<std::string> SummaryLines(const NegotiationResult& result);
std::string ReportText(const NegotiationResult& result);
std::string ReportJson(const NegotiationResult& result);

}  // namespace rt
