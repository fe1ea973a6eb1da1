#include "plugin_sdk/ops/op_table.h"

#include <rt/plugin/op_defs.h>

#include <algorithm>
#include <cmath>

namespace rt::ops {
namespace {

std::string DimsText(const std::vector<int64_t>& dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i > 0) text += ", ";
    text += dims[i] == RT_DIM_TOKENS ? "T" : dims[i] == RT_DIM_ROWS ? "R" : std::to_string(dims[i]);
  }
  return text + "]";
}

// Shape rules read as: Expect(op, "z", op.inputs[1], {T, n}).
class Checker {
 public:
  explicit Checker(const OpInstance& op) : op_(op) {}
  Checker& Shape(const char* name, const TensorInfo& tensor, std::vector<int64_t> dims) {
    if (status_.ok() && tensor.present && tensor.dims != dims) {
      status_ = {Code::kInvalidArgument, std::string(op_.op) + "." + name + ": expected shape " + DimsText(dims) + ", got " + DimsText(tensor.dims)};
    }
    return *this;
  }
  Checker& That(bool ok, const std::string& text) {
    if (status_.ok() && !ok) status_ = {Code::kInvalidArgument, std::string(op_.op) + ": " + text};
    return *this;
  }
  Status status() const { return status_; }

 private:
  const OpInstance& op_;
  Status status_;
};

using Columns = std::vector<rt_column_value>;
void Put(Columns* out, uint32_t column, int64_t value) { out->push_back({column, 0, value}); }

int64_t Rows(const TensorInfo& tensor) { return tensor.dims.empty() ? 0 : tensor.dims[0]; }

// ---- dense and row-wise ops ----

Status CheckSelectIds(const OpInstance& op) {
  return Checker(op).Shape("host_ids", op.inputs[0], {RT_DIM_TOKENS}).Shape("src", op.inputs[1], {RT_DIM_TOKENS}).Shape("ids", op.outputs[0], {RT_DIM_TOKENS}).status();
}
void ColumnsNone(const OpInstance&, Columns*) {}

Status CheckEmbedding(const OpInstance& op) {
  return Checker(op)
      .That(op.weights[0].dims.size() == 2, "table: expected [V, H], got " + DimsText(op.weights[0].dims))
      .Shape("ids", op.inputs[0], {RT_DIM_TOKENS})
      .Shape("x", op.outputs[0], {RT_DIM_TOKENS, op.weights[0].back()})
      .status();
}
void ColumnsEmbedding(const OpInstance& op, Columns* out) {
  Put(out, RT_COL_WEIGHT_DTYPE, op.weights[0].dtype);
  Put(out, RT_COL_OUT_DTYPE, op.outputs[0].dtype);
  Put(out, RT_COL_WIDTH, op.outputs[0].back());
}

Status CheckNorm(const OpInstance& op) {
  const auto& attrs = op.attrs_as<rt_attrs_norm>();
  const int64_t width = op.inputs[0].back();
  Checker check(op);
  check.That(attrs.eps > 0, "eps: expected > 0, got " + std::to_string(attrs.eps)).Shape("w", op.weights[0], {width});
  for (const TensorInfo& t : op.inputs) check.Shape("input", t, op.inputs[0].dims);
  for (const TensorInfo& t : op.outputs) check.Shape("output", t, op.inputs[0].dims);
  return check.status();
}
void ColumnsNorm(const OpInstance& op, Columns* out) {
  Put(out, RT_COL_IN_DTYPE, op.inputs.back().dtype);
  Put(out, RT_COL_OUT_DTYPE, op.outputs.back().dtype);
  Put(out, RT_COL_WIDTH, op.inputs[0].back());
  Put(out, RT_COL_WEIGHT_OFFSET_MILLI, std::lround(1000 * op.attrs_as<rt_attrs_norm>().weight_offset));
}

Status CheckElementwise(const OpInstance& op) {
  Checker check(op);
  for (const TensorInfo& t : op.inputs) check.Shape("input", t, op.inputs[0].dims);
  return check.Shape("output", op.outputs[0], op.inputs[0].dims).status();
}
void ColumnsElementwise(const OpInstance& op, Columns* out) {
  Put(out, RT_COL_IN_DTYPE, op.inputs.back().dtype);
  Put(out, RT_COL_OUT_DTYPE, op.outputs[0].dtype);
  Put(out, RT_COL_WIDTH, op.inputs[0].back());
}

Status CheckLinear(const OpInstance& op) {
  return Checker(op)
      .That(op.weights[0].dims.size() == 2, "w: expected [N, K], got " + DimsText(op.weights[0].dims))
      .Shape("x", op.inputs[0], {Rows(op.inputs[0]), op.weights[0].back()})
      .Shape("y", op.outputs[0], {Rows(op.inputs[0]), op.weights[0].dims.empty() ? 0 : op.weights[0].dims[0]})
      .status();
}
void ColumnsLinear(const OpInstance& op, Columns* out) {
  Put(out, RT_COL_IN_DTYPE, op.inputs[0].dtype);
  Put(out, RT_COL_WEIGHT_DTYPE, op.weights[0].dtype);
  Put(out, RT_COL_OUT_DTYPE, op.outputs[0].dtype);
  Put(out, RT_COL_IN_FEATURES, op.weights[0].dims[1]);
  Put(out, RT_COL_OUT_FEATURES, op.weights[0].dims[0]);
}

Status CheckGatedMlp(const OpInstance& op) {
  const int64_t hidden = op.inputs[0].back(), inner = op.weights[0].dims.empty() ? 0 : op.weights[0].dims[0];
  return Checker(op)
      .Shape("gate", op.weights[0], {inner, hidden})
      .Shape("up", op.weights[1], {inner, hidden})
      .Shape("down", op.weights[2], {op.outputs[0].back(), inner})
      .status();
}
void ColumnsGatedMlp(const OpInstance& op, Columns* out) {
  Put(out, RT_COL_IN_DTYPE, op.inputs[0].dtype);
  Put(out, RT_COL_WEIGHT_DTYPE, op.weights[0].dtype);
  Put(out, RT_COL_OUT_DTYPE, op.outputs[0].dtype);
  Put(out, RT_COL_IN_FEATURES, op.weights[0].dims[1]);
  Put(out, RT_COL_WIDTH, op.weights[0].dims[0]);
}

Status CheckGatherRows(const OpInstance& op) {
  return Checker(op).Shape("rows", op.inputs[1], {RT_DIM_ROWS}).Shape("y", op.outputs[0], {RT_DIM_ROWS, op.inputs[0].back()}).status();
}
void ColumnsGatherRows(const OpInstance& op, Columns* out) {
  Put(out, RT_COL_IN_DTYPE, op.inputs[0].dtype);
  Put(out, RT_COL_OUT_DTYPE, op.outputs[0].dtype);
  Put(out, RT_COL_WIDTH, op.inputs[0].back());
}

// ---- linear attention ----

Status CheckMixerAttrs(const OpInstance& op) {
  const auto& a = op.attrs_as<rt_attrs_mixer>();
  return Checker(op)
      .That(a.num_k_heads > 0 && a.num_v_heads > 0 && a.head_k_dim > 0 && a.head_v_dim > 0, "head counts and widths: expected > 0")
      .That(a.num_k_heads == 0 || a.num_v_heads % a.num_k_heads == 0, "num_v_heads: expected a multiple of num_k_heads = " + std::to_string(a.num_k_heads) + ", got " + std::to_string(a.num_v_heads))
      .That(a.conv_width >= 2, "conv_width: expected >= 2, got " + std::to_string(a.conv_width))
      .That(a.gate_width == 1 || a.gate_width == a.head_k_dim, "gate_width: expected 1 or head_k_dim = " + std::to_string(a.head_k_dim) + ", got " + std::to_string(a.gate_width))
      .That(a.gate_form != RT_GATE_BOUNDED_SIGMOID || a.gate_bound < 0, "gate_bound: expected < 0 for a bounded gate, got " + std::to_string(a.gate_bound))
      .That(a.gate_form == RT_GATE_BOUNDED_SIGMOID || a.gate_bound == 0, "gate_bound: expected 0 for an unbounded gate, got " + std::to_string(a.gate_bound))
      .status();
}

int64_t MixerChannels(const rt_attrs_mixer& a) { return 2LL * a.num_k_heads * a.head_k_dim + 1LL * a.num_v_heads * a.head_v_dim; }
int64_t MixerValues(const rt_attrs_mixer& a) { return 1LL * a.num_v_heads * a.head_v_dim; }

Status CheckMixer(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckMixerAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_mixer>();
  const int64_t heads = a.num_v_heads;
  return Checker(op)
      .Shape("qkv", op.inputs[0], {RT_DIM_TOKENS, MixerChannels(a)})
      .Shape("z", op.inputs[1], {RT_DIM_TOKENS, MixerValues(a)})
      .Shape("b", op.inputs[2], {RT_DIM_TOKENS, heads})
      .Shape("a", op.inputs[3], {RT_DIM_TOKENS, heads * a.gate_width})
      .Shape("conv", op.weights[0], {MixerChannels(a), 1, a.conv_width})
      .Shape("A_log", op.weights[1], {heads})
      .Shape("dt_bias", op.weights[2], {heads * a.gate_width})
      .Shape("norm", op.weights[3], {a.head_v_dim})
      .Shape("y", op.outputs[0], {RT_DIM_TOKENS, MixerValues(a)})
      .status();
}

void PutState(const OpInstance& op, Columns* out) {
  for (const CacheInfo& cache : op.caches) {
    if (cache.role == RT_CACHE_CONV) Put(out, RT_COL_CONV_DTYPE, cache.dtype);
    if (cache.role == RT_CACHE_RECURRENT) {
      Put(out, RT_COL_STATE_DTYPE, cache.dtype);
      Put(out, RT_COL_STATE_LAYOUT, cache.layout);
    }
  }
}
void PutHeads(const OpInstance& op, Columns* out) {
  const auto& a = op.attrs_as<rt_attrs_mixer>();
  Put(out, RT_COL_HEAD_K_DIM, a.head_k_dim);
  Put(out, RT_COL_HEAD_V_DIM, a.head_v_dim);
  Put(out, RT_COL_NUM_K_HEADS, a.num_k_heads);
  Put(out, RT_COL_NUM_V_HEADS, a.num_v_heads);
  Put(out, RT_COL_HEAD_RATIO, a.num_v_heads / a.num_k_heads);
}
void PutGates(const OpInstance& op, Columns* out) {
  const auto& a = op.attrs_as<rt_attrs_mixer>();
  Put(out, RT_COL_GATE_FORM, a.gate_form);
  Put(out, RT_COL_GATE_WIDTH, a.gate_width);
  Put(out, RT_COL_GATE_BOUND_MILLI, std::lround(1000 * a.gate_bound));
  Put(out, RT_COL_BETA_SCALE_MILLI, std::lround(1000 * a.beta_scale));
}
void PutActs(const OpInstance& op, Columns* out) {
  Put(out, RT_COL_IN_DTYPE, op.inputs[0].dtype);
  Put(out, RT_COL_OUT_DTYPE, op.outputs[0].dtype);
}

void ColumnsMixer(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  PutState(op, out);
  PutHeads(op, out);
  PutGates(op, out);
  Put(out, RT_COL_CONV_WIDTH, op.attrs_as<rt_attrs_mixer>().conv_width);
  Put(out, RT_COL_OUTPUT_GATE, op.attrs_as<rt_attrs_mixer>().output_gate);
}

Status CheckConv(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckMixerAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_mixer>();
  return Checker(op)
      .Shape("x", op.inputs[0], {RT_DIM_TOKENS, MixerChannels(a)})
      .Shape("conv", op.weights[0], {MixerChannels(a), 1, a.conv_width})
      .Shape("u", op.outputs[0], {RT_DIM_TOKENS, MixerChannels(a)})
      .status();
}
void ColumnsConv(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  PutState(op, out);
  Put(out, RT_COL_CONV_WIDTH, op.attrs_as<rt_attrs_mixer>().conv_width);
  Put(out, RT_COL_WIDTH, op.inputs[0].back());
}

Status CheckDelta(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckMixerAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_mixer>();
  return Checker(op)
      .Shape("u", op.inputs[0], {RT_DIM_TOKENS, MixerChannels(a)})
      .Shape("b", op.inputs[1], {RT_DIM_TOKENS, a.num_v_heads})
      .Shape("a", op.inputs[2], {RT_DIM_TOKENS, 1LL * a.num_v_heads * a.gate_width})
      .Shape("o", op.outputs[0], {RT_DIM_TOKENS, MixerValues(a)})
      .status();
}
void ColumnsDelta(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  PutState(op, out);
  PutHeads(op, out);
  PutGates(op, out);
}

Status CheckGatedNorm(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckMixerAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_mixer>();
  const std::vector<int64_t> dims = {RT_DIM_TOKENS, MixerValues(a)};
  return Checker(op).Shape("o", op.inputs[0], dims).Shape("z", op.inputs[1], dims).Shape("norm", op.weights[0], {a.head_v_dim}).Shape("y", op.outputs[0], dims).status();
}
void ColumnsGatedNorm(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  Put(out, RT_COL_HEAD_V_DIM, op.attrs_as<rt_attrs_mixer>().head_v_dim);
  Put(out, RT_COL_OUTPUT_GATE, op.attrs_as<rt_attrs_mixer>().output_gate);
}

// ---- attention ----

Status CheckAttentionAttrs(const OpInstance& op) {
  const auto& a = op.attrs_as<rt_attrs_attention>();
  return Checker(op)
      .That(a.num_q_heads > 0 && a.num_kv_heads > 0 && a.head_dim > 0, "head counts and head_dim: expected > 0")
      .That(a.num_kv_heads == 0 || a.num_q_heads % a.num_kv_heads == 0, "num_q_heads: expected a multiple of num_kv_heads = " + std::to_string(a.num_kv_heads) + ", got " + std::to_string(a.num_q_heads))
      .That(a.rotary_dim <= a.head_dim && a.rotary_dim % 2 == 0, "rotary_dim: expected an even number <= head_dim, got " + std::to_string(a.rotary_dim))
      .That(a.rotary_dim == 0 || a.rope_theta > 0, "rope_theta: expected > 0, got " + std::to_string(a.rope_theta))
      .status();
}
int64_t QWidth(const rt_attrs_attention& a) { return 1LL * a.num_q_heads * a.head_dim; }
int64_t KvWidth(const rt_attrs_attention& a) { return 1LL * a.num_kv_heads * a.head_dim; }
int64_t QGateWidth(const rt_attrs_attention& a) { return QWidth(a) * (a.output_gate == RT_ACT_NONE ? 1 : 2); }

Status CheckAttentionMixer(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckAttentionAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_attention>();
  Checker check(op);
  check.Shape("q", op.inputs[0], {RT_DIM_TOKENS, QGateWidth(a)})
      .Shape("k", op.inputs[1], {RT_DIM_TOKENS, KvWidth(a)})
      .Shape("v", op.inputs[2], {RT_DIM_TOKENS, KvWidth(a)})
      .Shape("y", op.outputs[0], {RT_DIM_TOKENS, QWidth(a)});
  for (const TensorInfo& w : op.weights) check.Shape("norm", w, {a.head_dim});
  const bool has_norms = op.weights.size() == 2 && op.weights[0].present && op.weights[1].present;
  return check.That(has_norms == (a.qk_norm == RT_QK_NORM_PER_HEAD), "q_norm and k_norm: expected exactly when qk_norm is per head").status();
}
void PutKv(const OpInstance& op, Columns* out) {
  for (const CacheInfo& cache : op.caches) {
    if (cache.role != RT_CACHE_KEY) continue;
    Put(out, RT_COL_KV_DTYPE, cache.dtype);
    Put(out, RT_COL_KV_LAYOUT, cache.layout);
    Put(out, RT_COL_KV_BLOCK_SIZE, cache.block_size);
  }
}
void PutAttentionHeads(const OpInstance& op, Columns* out) {
  const auto& a = op.attrs_as<rt_attrs_attention>();
  Put(out, RT_COL_HEAD_DIM, a.head_dim);
  Put(out, RT_COL_NUM_Q_HEADS, a.num_q_heads);
  Put(out, RT_COL_NUM_KV_HEADS, a.num_kv_heads);
  Put(out, RT_COL_Q_KV_RATIO, a.num_q_heads / a.num_kv_heads);
}
void PutQkPrep(const OpInstance& op, Columns* out) {
  const auto& a = op.attrs_as<rt_attrs_attention>();
  Put(out, RT_COL_ROTARY_DIM, a.rotary_dim);
  Put(out, RT_COL_QK_NORM, a.qk_norm);
  Put(out, RT_COL_WEIGHT_OFFSET_MILLI, std::lround(1000 * a.norm_weight_offset));
  Put(out, RT_COL_OUTPUT_GATE, a.output_gate);
}
void ColumnsAttentionMixer(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  PutKv(op, out);
  PutAttentionHeads(op, out);
  PutQkPrep(op, out);
}

Status CheckQkNormRope(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckAttentionAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_attention>();
  return Checker(op)
      .Shape("q", op.inputs[0], {RT_DIM_TOKENS, QGateWidth(a)})
      .Shape("k", op.inputs[1], {RT_DIM_TOKENS, KvWidth(a)})
      .Shape("q'", op.outputs[0], {RT_DIM_TOKENS, QWidth(a)})
      .Shape("k'", op.outputs[1], {RT_DIM_TOKENS, KvWidth(a)})
      .status();
}
void ColumnsQkNormRope(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  PutAttentionHeads(op, out);
  PutQkPrep(op, out);
}
Status CheckPagedAttention(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckAttentionAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_attention>();
  return Checker(op)
      .Shape("q'", op.inputs[0], {RT_DIM_TOKENS, QWidth(a)})
      .Shape("k'", op.inputs[1], {RT_DIM_TOKENS, KvWidth(a)})
      .Shape("v", op.inputs[2], {RT_DIM_TOKENS, KvWidth(a)})
      .Shape("o", op.outputs[0], {RT_DIM_TOKENS, QWidth(a)})
      .status();
}
void ColumnsPagedAttention(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  PutKv(op, out);
  PutAttentionHeads(op, out);
}

// ---- latent attention ----

int64_t MlaQWidth(const rt_attrs_mla& a) { return 1LL * a.num_heads * (a.qk_nope_dim + a.qk_shared_dim); }
int64_t MlaRowWidth(const rt_attrs_mla& a) { return 1LL * a.latent_dim + a.qk_shared_dim; }
int64_t MlaOutWidth(const rt_attrs_mla& a) { return 1LL * a.num_heads * a.v_dim; }
int64_t MlaExpandRows(const rt_attrs_mla& a) { return 1LL * a.num_heads * (a.qk_nope_dim + a.v_dim); }

Status CheckMlaAttrs(const OpInstance& op) {
  const auto& a = op.attrs_as<rt_attrs_mla>();
  return Checker(op).That(a.num_heads > 0 && a.latent_dim > 0 && a.qk_nope_dim > 0 && a.v_dim > 0, "num_heads, latent_dim, qk_nope_dim and v_dim: expected > 0").status();
}
void PutLatent(const OpInstance& op, Columns* out) {
  for (const CacheInfo& cache : op.caches) {
    Put(out, RT_COL_KV_DTYPE, cache.dtype);
    Put(out, RT_COL_KV_LAYOUT, cache.layout);
    Put(out, RT_COL_KV_BLOCK_SIZE, cache.block_size);
  }
}
void PutMlaHeads(const OpInstance& op, Columns* out) {
  const auto& a = op.attrs_as<rt_attrs_mla>();
  Put(out, RT_COL_WEIGHT_DTYPE, op.weights.back().dtype);
  Put(out, RT_COL_NUM_Q_HEADS, a.num_heads);
  Put(out, RT_COL_QK_NOPE_DIM, a.qk_nope_dim);
  Put(out, RT_COL_V_DIM, a.v_dim);
}
void PutMlaRow(const OpInstance& op, Columns* out) {
  const auto& a = op.attrs_as<rt_attrs_mla>();
  Put(out, RT_COL_LATENT_DIM, a.latent_dim);
  Put(out, RT_COL_QK_SHARED_DIM, a.qk_shared_dim);
}

Status CheckMlaMixer(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckMlaAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_mla>();
  return Checker(op)
      .Shape("q", op.inputs[0], {RT_DIM_TOKENS, MlaQWidth(a)})
      .Shape("kv_a", op.inputs[1], {RT_DIM_TOKENS, MlaRowWidth(a)})
      .Shape("kv_norm", op.weights[0], {a.latent_dim})
      .Shape("kv_b", op.weights[1], {MlaExpandRows(a), a.latent_dim})
      .Shape("y", op.outputs[0], {RT_DIM_TOKENS, MlaOutWidth(a)})
      .status();
}
Status CheckLatentNorm(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckMlaAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_mla>();
  const std::vector<int64_t> row = {RT_DIM_TOKENS, MlaRowWidth(a)};
  return Checker(op).Shape("kv_a", op.inputs[0], row).Shape("kv_norm", op.weights[0], {a.latent_dim}).Shape("c", op.outputs[0], row).status();
}
Status CheckMlaAttention(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckMlaAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_mla>();
  return Checker(op)
      .Shape("q", op.inputs[0], {RT_DIM_TOKENS, MlaQWidth(a)})
      .Shape("c", op.inputs[1], {RT_DIM_TOKENS, MlaRowWidth(a)})
      .Shape("kv_b", op.weights[0], {MlaExpandRows(a), a.latent_dim})
      .Shape("y", op.outputs[0], {RT_DIM_TOKENS, MlaOutWidth(a)})
      .status();
}
void ColumnsMla(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  PutLatent(op, out);
  PutMlaHeads(op, out);
  PutMlaRow(op, out);
}
void ColumnsLatentNorm(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  PutMlaRow(op, out);
}

// ---- mixtures of experts ----

Status CheckMoeAttrs(const OpInstance& op) {
  const auto& a = op.attrs_as<rt_attrs_moe>();
  const auto text = [](uint32_t n) { return std::to_string(n); };
  const uint32_t groups = std::max(1u, a.num_groups);
  return Checker(op)
      .That(a.num_experts > 0 && a.experts_per_token > 0 && a.experts_per_token <= a.num_experts, "experts_per_token: expected 1.." + text(a.num_experts) + ", got " + text(a.experts_per_token))
      .That(a.num_groups > 0 && a.num_experts % groups == 0, "num_groups: expected a divisor of " + text(a.num_experts) + " experts, got " + text(a.num_groups))
      .That(a.topk_groups > 0 && a.topk_groups <= groups, "topk_groups: expected 1.." + text(groups) + ", got " + text(a.topk_groups))
      .That(a.topk_groups * (a.num_experts / groups) >= a.experts_per_token, "topk_groups: " + text(a.topk_groups) + " groups of " + text(a.num_experts / groups) + " experts hold fewer than " + text(a.experts_per_token))
      .That(a.router_score == RT_ROUTER_SIGMOID || a.router_score == RT_ROUTER_SOFTMAX, "router_score: unknown value " + text(a.router_score))
      .status();
}
// Whether weights [gate, up, down] starting at `first` fit E experts of one inner width.
Status CheckExperts(const OpInstance& op, size_t first) {
  const auto& a = op.attrs_as<rt_attrs_moe>();
  const int64_t experts = a.num_experts, hidden = op.inputs[0].back(), rows = op.weights[first].dims.empty() ? 0 : op.weights[first].dims[0];
  return Checker(op)
      .That(rows > 0 && rows % experts == 0, "gate: expected a multiple of " + std::to_string(experts) + " rows, got " + DimsText(op.weights[first].dims))
      .Shape("gate", op.weights[first], {rows, hidden})
      .Shape("up", op.weights[first + 1], {rows, hidden})
      .Shape("down", op.weights[first + 2], {experts * op.outputs[0].back(), rows / std::max<int64_t>(1, experts)})
      .status();
}
const TensorInfo* Optional(const std::vector<TensorInfo>& list, size_t i) { return i < list.size() && list[i].present ? &list[i] : nullptr; }

Status CheckMoeBlock(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckMoeAttrs(op));
  RT_RETURN_IF_ERROR(CheckExperts(op, 1));
  const auto& a = op.attrs_as<rt_attrs_moe>();
  const int64_t hidden = op.inputs[0].back();
  Checker check(op);
  check.Shape("router", op.weights[0], {a.num_experts, hidden}).Shape("y", op.outputs[0], {RT_DIM_TOKENS, hidden});
  if (const TensorInfo* bias = Optional(op.weights, 4)) check.Shape("bias", *bias, {a.num_experts});
  const TensorInfo *gate = Optional(op.weights, 5), *up = Optional(op.weights, 6), *down = Optional(op.weights, 7);
  check.That((gate != nullptr) == (up != nullptr) && (gate != nullptr) == (down != nullptr), "shared_gate, shared_up and shared_down: expected all or none");
  if (gate != nullptr && up != nullptr && down != nullptr) {
    const int64_t inner = gate->dims.empty() ? 0 : gate->dims[0];
    check.Shape("shared_gate", *gate, {inner, hidden}).Shape("shared_up", *up, {inner, hidden}).Shape("shared_down", *down, {hidden, inner});
  }
  return check.status();
}
Status CheckMoeRouter(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckMoeAttrs(op));
  const auto& a = op.attrs_as<rt_attrs_moe>();
  const std::vector<int64_t> chosen = {RT_DIM_TOKENS, a.experts_per_token};
  Checker check(op);
  check.Shape("router", op.weights[0], {a.num_experts, op.inputs[0].back()}).Shape("ids", op.outputs[0], chosen).Shape("w", op.outputs[1], chosen);
  if (const TensorInfo* bias = Optional(op.weights, 1)) check.Shape("bias", *bias, {a.num_experts});
  return check.status();
}
Status CheckMoeExperts(const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckMoeAttrs(op));
  RT_RETURN_IF_ERROR(CheckExperts(op, 0));
  const auto& a = op.attrs_as<rt_attrs_moe>();
  const std::vector<int64_t> chosen = {RT_DIM_TOKENS, a.experts_per_token}, rows = {RT_DIM_TOKENS, op.inputs[0].back()};
  Checker check(op);
  check.Shape("ids", op.inputs[1], chosen).Shape("w", op.inputs[2], chosen).Shape("y", op.outputs[0], rows);
  if (const TensorInfo* shared = Optional(op.inputs, 3)) check.Shape("shared", *shared, rows);
  return check.status();
}
void PutRouting(const OpInstance& op, Columns* out) {
  const auto& a = op.attrs_as<rt_attrs_moe>();
  Put(out, RT_COL_NUM_EXPERTS, a.num_experts);
  Put(out, RT_COL_EXPERTS_PER_TOKEN, a.experts_per_token);
}
void PutRouter(const OpInstance& op, Columns* out) {
  const auto& a = op.attrs_as<rt_attrs_moe>();
  PutRouting(op, out);
  Put(out, RT_COL_NUM_EXPERT_GROUPS, a.num_groups);
  Put(out, RT_COL_ROUTER_SCORE, a.router_score);
  Put(out, RT_COL_IN_FEATURES, op.inputs[0].back());
}
// `gate` is the experts' first weight.
void PutExperts(const OpInstance& op, size_t gate, Columns* out) {
  const auto& a = op.attrs_as<rt_attrs_moe>();
  Put(out, RT_COL_WEIGHT_DTYPE, op.weights[gate].dtype);
  Put(out, RT_COL_WIDTH, op.weights[gate].dims[0] / a.num_experts);
}
void ColumnsMoeBlock(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  PutRouter(op, out);
  PutExperts(op, 1, out);
}
void ColumnsMoeRouter(const OpInstance& op, Columns* out) {
  Put(out, RT_COL_IN_DTYPE, op.inputs[0].dtype);
  PutRouter(op, out);
}
void ColumnsMoeExperts(const OpInstance& op, Columns* out) {
  PutActs(op, out);
  PutRouting(op, out);
  PutExperts(op, 0, out);
  Put(out, RT_COL_IN_FEATURES, op.inputs[0].back());
}

Status CheckSample(const OpInstance& op) {
  return Checker(op).That(op.inputs[0].dims.size() == 2, "logits: expected [R, V], got " + DimsText(op.inputs[0].dims)).status();
}
void ColumnsSample(const OpInstance& op, Columns* out) {
  Put(out, RT_COL_IN_DTYPE, op.inputs[0].dtype);
  Put(out, RT_COL_VOCAB_SIZE, op.inputs[0].back());
}

constexpr uint32_t kOps = RT_KIND_OPS, kAttention = RT_KIND_ATTENTION, kLinear = RT_KIND_LINEAR_ATTENTION;

constexpr OpDef kTable[] = {
    // name, version, kind, phased, composite, attrs, inputs, weights, outputs, caches, required inputs/weights/outputs, in place
    {RT_OP_SELECT_IDS, 1, kOps, false, false, sizeof(rt_attrs_none), 3, 0, 1, 0, 3, 0, 1, -1, CheckSelectIds, ColumnsNone},
    {RT_OP_EMBEDDING, 1, kOps, false, false, sizeof(rt_attrs_none), 1, 1, 1, 0, 1, 1, 1, -1, CheckEmbedding, ColumnsEmbedding},
    {RT_OP_RMS_NORM, 1, kOps, false, false, sizeof(rt_attrs_norm), 1, 1, 1, 0, 1, 1, 1, -1, CheckNorm, ColumnsNorm},
    {RT_OP_ADD_RMS_NORM, 1, kOps, false, true, sizeof(rt_attrs_norm), 2, 1, 2, 0, 2, 1, 2, 0, CheckNorm, ColumnsNorm},
    {RT_OP_ADD, 1, kOps, false, false, sizeof(rt_attrs_none), 2, 0, 1, 0, 2, 0, 1, 0, CheckElementwise, ColumnsElementwise},
    {RT_OP_LINEAR, 1, kOps, false, false, sizeof(rt_attrs_none), 1, 1, 1, 0, 1, 1, 1, -1, CheckLinear, ColumnsLinear},
    {RT_OP_SILU_MUL, 1, kOps, false, false, sizeof(rt_attrs_none), 2, 0, 1, 0, 2, 0, 1, -1, CheckElementwise, ColumnsElementwise},
    {RT_OP_GATED_MLP, 1, kOps, false, true, sizeof(rt_attrs_none), 1, 3, 1, 0, 1, 3, 1, -1, CheckGatedMlp, ColumnsGatedMlp},
    {RT_OP_GATHER_ROWS, 1, kOps, false, false, sizeof(rt_attrs_none), 2, 0, 1, 0, 2, 0, 1, -1, CheckGatherRows, ColumnsGatherRows},
    {RT_OP_LINEAR_MIXER, 1, kLinear, true, true, sizeof(rt_attrs_mixer), 4, 4, 1, 2, 4, 4, 1, -1, CheckMixer, ColumnsMixer},
    {RT_OP_CAUSAL_CONV1D, 1, kLinear, true, false, sizeof(rt_attrs_mixer), 1, 1, 1, 1, 1, 1, 1, -1, CheckConv, ColumnsConv},
    {RT_OP_GATED_DELTA_RULE, 1, kLinear, true, false, sizeof(rt_attrs_mixer), 3, 2, 1, 1, 3, 2, 1, -1, CheckDelta, ColumnsDelta},
    {RT_OP_GATED_RMS_NORM, 1, kLinear, true, false, sizeof(rt_attrs_mixer), 2, 1, 1, 0, 2, 1, 1, -1, CheckGatedNorm, ColumnsGatedNorm},
    {RT_OP_ATTENTION_MIXER, 1, kAttention, true, true, sizeof(rt_attrs_attention), 3, 2, 1, 2, 3, 0, 1, -1, CheckAttentionMixer, ColumnsAttentionMixer},
    {RT_OP_QK_NORM_ROPE, 1, kAttention, true, false, sizeof(rt_attrs_attention), 2, 2, 3, 0, 2, 0, 2, -1, CheckQkNormRope, ColumnsQkNormRope},
    {RT_OP_PAGED_ATTENTION, 1, kAttention, true, false, sizeof(rt_attrs_attention), 3, 0, 1, 2, 3, 0, 1, -1, CheckPagedAttention, ColumnsPagedAttention},
    {RT_OP_SIGMOID_GATE, 1, kAttention, true, false, sizeof(rt_attrs_none), 2, 0, 1, 0, 2, 0, 1, -1, CheckElementwise, ColumnsElementwise},
    {RT_OP_MLA_MIXER, 1, kAttention, true, true, sizeof(rt_attrs_mla), 2, 2, 1, 1, 2, 2, 1, -1, CheckMlaMixer, ColumnsMla},
    {RT_OP_LATENT_NORM, 1, kAttention, true, false, sizeof(rt_attrs_mla), 1, 1, 1, 0, 1, 1, 1, -1, CheckLatentNorm, ColumnsLatentNorm},
    {RT_OP_MLA_ATTENTION, 1, kAttention, true, false, sizeof(rt_attrs_mla), 2, 1, 1, 1, 2, 1, 1, -1, CheckMlaAttention, ColumnsMla},
    {RT_OP_MOE_BLOCK, 1, kOps, false, true, sizeof(rt_attrs_moe), 1, 8, 1, 0, 1, 4, 1, -1, CheckMoeBlock, ColumnsMoeBlock},
    {RT_OP_MOE_ROUTER, 1, kOps, false, false, sizeof(rt_attrs_moe), 1, 2, 2, 0, 1, 1, 2, -1, CheckMoeRouter, ColumnsMoeRouter},
    {RT_OP_MOE_EXPERTS, 1, kOps, false, false, sizeof(rt_attrs_moe), 4, 3, 1, 0, 3, 3, 1, -1, CheckMoeExperts, ColumnsMoeExperts},
    {RT_OP_SAMPLE, 1, kOps, false, false, sizeof(rt_attrs_sample), RT_SAMPLE_NUM_INPUTS, 0, RT_SAMPLE_NUM_OUTPUTS, 0, RT_SAMPLE_NUM_INPUTS, 0, RT_SAMPLE_NUM_OUTPUTS, -1, CheckSample, ColumnsSample},
};

Status CheckCount(const OpDef& def, const char* what, const std::vector<TensorInfo>& list, int required, int most) {
  if (static_cast<int>(list.size()) > most || static_cast<int>(list.size()) < required) {
    return {Code::kInvalidArgument, std::string(def.name) + ": expected " + std::to_string(required) + ".." + std::to_string(most) + " " + what + ", got " + std::to_string(list.size())};
  }
  for (int i = 0; i < required; ++i) {
    if (!list[i].present) return {Code::kInvalidArgument, std::string(def.name) + ": " + what + "[" + std::to_string(i) + "] is required"};
  }
  return Status::Ok();
}

}  // namespace

const OpDef* FindOp(std::string_view name, uint32_t version) {
  for (const OpDef& def : kTable) {
    if (name == def.name && version == def.version) return &def;
  }
  return nullptr;
}

std::vector<const OpDef*> AllOps() {
  std::vector<const OpDef*> all;
  for (const OpDef& def : kTable) all.push_back(&def);
  return all;
}

Status CheckInstance(const OpDef& def, const OpInstance& op) {
  RT_RETURN_IF_ERROR(CheckCount(def, "inputs", op.inputs, def.required_inputs, def.num_inputs));
  RT_RETURN_IF_ERROR(CheckCount(def, "weights", op.weights, def.required_weights, def.num_weights));
  RT_RETURN_IF_ERROR(CheckCount(def, "outputs", op.outputs, def.required_outputs, def.num_outputs));
  if (static_cast<int>(op.caches.size()) != def.num_caches) {
    return {Code::kInvalidArgument, std::string(def.name) + ": expected " + std::to_string(def.num_caches) + " caches, got " + std::to_string(op.caches.size())};
  }
  uint32_t attrs_bytes = 0;
  if (op.attrs != nullptr) attrs_bytes = *static_cast<const uint32_t*>(op.attrs);
  if (attrs_bytes != def.attrs_bytes) {
    return {Code::kInvalidArgument, std::string(def.name) + ": attributes of " + std::to_string(def.attrs_bytes) + " bytes expected, got " + std::to_string(attrs_bytes)};
  }
  return def.check(op);
}

std::vector<rt_column_value> ProblemColumns(const OpDef& def, const OpInstance& op) {
  std::vector<rt_column_value> columns;
  def.columns(op, &columns);
  return columns;
}

const char* ColumnName(uint32_t column) {
  switch (column) {
#define RT_NAME_(id, NAME, name, meaning) \
  case id:                                \
    return name;
    RT_COLUMNS(RT_NAME_)
#undef RT_NAME_
    default: return "?";
  }
}

namespace {
struct DTypeEntry {
  uint32_t id;
  const char* name;
  int64_t bytes;
};
constexpr DTypeEntry kDTypes[] = {{RT_DTYPE_F32, "float32", 4}, {RT_DTYPE_BF16, "bfloat16", 2}, {RT_DTYPE_F16, "float16", 2}, {RT_DTYPE_I32, "int32", 4},
                                  {RT_DTYPE_I64, "int64", 8},   {RT_DTYPE_U8, "uint8", 1},      {RT_DTYPE_U64, "uint64", 8},  {RT_DTYPE_F64, "float64", 8}};
}  // namespace

const char* DTypeName(uint32_t dtype) {
  for (const auto& entry : kDTypes) {
    if (entry.id == dtype) return entry.name;
  }
  return "none";
}
uint32_t DTypeFromName(std::string_view name) {
  for (const auto& entry : kDTypes) {
    if (name == entry.name) return entry.id;
  }
  return RT_DTYPE_NONE;
}
int64_t DTypeBytes(uint32_t dtype) {
  for (const auto& entry : kDTypes) {
    if (entry.id == dtype) return entry.bytes;
  }
  return 0;
}

const char* StateLayoutName(uint32_t layout) {
  switch (layout) {
    case RT_STATE_LAYOUT_KV: return "KV";
    case RT_STATE_LAYOUT_VK: return "VK";
    case RT_STATE_LAYOUT_VPANEL16: return "VPANEL16";
    default: return "?";
  }
}

const char* PhaseName(uint32_t phase) {
  switch (phase) {
    case RT_PHASE_DECODE: return "decode";
    case RT_PHASE_VERIFY: return "verify";
    case RT_PHASE_PREFILL: return "prefill";
    default: return "all";
  }
}

std::string ColumnValueText(uint32_t column, int64_t value) {
  switch (column) {
    case RT_COL_IN_DTYPE:
    case RT_COL_WEIGHT_DTYPE:
    case RT_COL_OUT_DTYPE:
    case RT_COL_STATE_DTYPE:
    case RT_COL_CONV_DTYPE:
    case RT_COL_KV_DTYPE: return DTypeName(static_cast<uint32_t>(value));
    case RT_COL_STATE_LAYOUT: return StateLayoutName(static_cast<uint32_t>(value));
    case RT_COL_KV_LAYOUT: return value == RT_KV_LAYOUT_HND ? "HND" : value == RT_KV_LAYOUT_NHD ? "NHD" : "?";
    case RT_COL_GATE_FORM: return value == RT_GATE_SOFTPLUS_DECAY ? "softplus_decay" : value == RT_GATE_BOUNDED_SIGMOID ? "bounded_sigmoid" : "?";
    case RT_COL_OUTPUT_GATE: return value == RT_ACT_NONE ? "none" : value == RT_ACT_SILU ? "silu" : value == RT_ACT_SIGMOID ? "sigmoid" : "?";
    case RT_COL_ROUTER_SCORE: return value == RT_ROUTER_SIGMOID ? "sigmoid" : value == RT_ROUTER_SOFTMAX ? "softmax" : "?";
    case RT_COL_QK_NORM: return value == RT_QK_NORM_NONE ? "none" : value == RT_QK_NORM_PER_HEAD ? "per_head" : value == RT_QK_NORM_WHOLE ? "whole" : "?";
    default: return std::to_string(value);
  }
}

}  // namespace rt::ops
