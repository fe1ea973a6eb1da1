#include "plugin_sdk/oracle/op_oracle.h"

#include "plugin_sdk/oracle/attention.h"
#include "plugin_sdk/oracle/dense.h"
#include "plugin_sdk/oracle/latent_attention.h"
#include "plugin_sdk/oracle/layout.h"
#include "plugin_sdk/oracle/linear_attention.h"
#include "plugin_sdk/oracle/moe.h"

#include <rt/plugin/op_defs.h>

#include <algorithm>
#include <string>

namespace rt::oracle {
namespace {

using ops::OpInstance;

int64_t Size(const Values& values) { return static_cast<int64_t>(values.size()); }

// ---- dense and row-wise ops ----

NormShape Rows(const Values& x, int64_t width) { return {Size(x) / width, width}; }

NormParams NormOf(const OpInstance& op) {
  const auto& a = op.attrs_as<rt_attrs_norm>();
  return {a.eps, a.weight_offset};
}

Status Select(const OpInstance&, const StepMeta&, OpTensors& t) {
  Values ids = t.inputs[0];
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const double source = t.inputs[1][i];
    if (source >= Size(t.inputs[2])) return {Code::kInvalidArgument, "src past device_ids"};
    if (source >= 0) ids[i] = t.inputs[2][static_cast<std::size_t>(source)];
  }
  t.outputs[0] = std::move(ids);
  return Status::Ok();
}

// Rows of `table` [n, width] named by `indices`.
Status Pick(const Values& indices, const Values& table, int64_t width, Values& out) {
  out.clear();
  for (const double index : indices) {
    if (index < 0 || (index + 1) * width > Size(table)) {
      return {Code::kInvalidArgument,
              "row " + std::to_string(static_cast<int64_t>(index)) + " past the table"};
    }
    const auto row = table.begin() + static_cast<int64_t>(index) * width;
    out.insert(out.end(), row, row + width);
  }
  return Status::Ok();
}

Status EvalEmbedding(const OpInstance& op, const StepMeta&, OpTensors& t) {
  return Pick(t.inputs[0], t.weights[0], op.weights[0].back(), t.outputs[0]);
}

Status EvalGatherRows(const OpInstance& op, const StepMeta&, OpTensors& t) {
  return Pick(t.inputs[1], t.inputs[0], op.inputs[0].back(), t.outputs[0]);
}

Status EvalRmsNorm(const OpInstance& op, const StepMeta&, OpTensors& t) {
  t.outputs[0] = RmsNorm(Rows(t.inputs[0], Size(t.weights[0])), NormOf(op), t.inputs[0], t.weights[0]);
  return Status::Ok();
}

Status EvalAddRmsNorm(const OpInstance& op, const StepMeta&, OpTensors& t) {
  t.outputs[0] = t.inputs[0];
  t.outputs[1] =
      AddRmsNorm(Rows(t.inputs[0], Size(t.weights[0])), NormOf(op), t.outputs[0], t.inputs[1], t.weights[0]);
  return Status::Ok();
}

Status EvalAdd(const OpInstance&, const StepMeta&, OpTensors& t) {
  t.outputs[0] = Add(t.inputs[0], t.inputs[1]);
  return Status::Ok();
}

Status EvalLinear(const OpInstance& op, const StepMeta&, OpTensors& t) {
  const int64_t out_features = op.weights[0].dims[0], in_features = op.weights[0].dims[1];
  t.outputs[0] =
      Linear({Size(t.inputs[0]) / in_features, in_features, out_features}, t.inputs[0], t.weights[0]);
  return Status::Ok();
}

Status EvalSiluMul(const OpInstance&, const StepMeta&, OpTensors& t) {
  t.outputs[0] = SiluMul(t.inputs[0], t.inputs[1]);
  return Status::Ok();
}

Status EvalSigmoidGate(const OpInstance&, const StepMeta&, OpTensors& t) {
  t.outputs[0] = SigmoidGate(t.inputs[0], t.inputs[1]);
  return Status::Ok();
}

Status EvalGatedMlp(const OpInstance& op, const StepMeta&, OpTensors& t) {
  const int64_t inner = op.weights[0].dims[0], hidden = op.weights[0].dims[1];
  const MlpShape shape{Size(t.inputs[0]) / hidden, hidden, inner};
  t.outputs[0] = GatedMlp(shape, t.inputs[0], t.weights[0], t.weights[1], t.weights[2]);
  return Status::Ok();
}

// ---- linear attention ----

LinearMixerParams MixerOf(const OpInstance& op, int64_t num_tokens) {
  const auto& a = op.attrs_as<rt_attrs_mixer>();
  LinearMixerParams p;
  p.shape = {num_tokens, a.num_k_heads, a.num_v_heads, a.head_k_dim, a.head_v_dim, a.gate_width};
  p.num_taps = a.conv_width;
  p.gates.form = a.gate_form == RT_GATE_BOUNDED_SIGMOID ? GateForm::kBoundedSigmoid : GateForm::kSoftplus;
  p.gates.lower_bound = a.gate_bound;
  p.gates.beta_scale = a.beta_scale;
  p.l2_norm_eps = a.l2_eps;
  p.norm_eps = a.norm_eps;
  p.norm_gate = a.output_gate == RT_ACT_SIGMOID ? NormGate::kSigmoid : NormGate::kSilu;
  return p;
}

StateShape StateShapeOf(const LinearMixerParams& p) {
  return {p.shape.num_v_heads, p.shape.head_k_dim, p.shape.head_v_dim};
}

Result<StateLayout> LayoutOf(const ops::CacheInfo& cache) {
  switch (cache.layout) {
    case RT_STATE_LAYOUT_KV:
      return StateLayout::kKV;
    case RT_STATE_LAYOUT_VK:
      return StateLayout::kVK;
    case RT_STATE_LAYOUT_VPANEL16:
      return StateLayout::kVPanel16;
    default:
      return {Code::kUnsupported, "state layout " + std::to_string(cache.layout) + " has no reference"};
  }
}

// One sequence's unit of a cache [num_slots, unit].
Result<MutableView> Unit(Values& cache, int64_t unit, int32_t slot) {
  if (slot < 0 || (slot + 1) * unit > Size(cache)) {
    return {Code::kInvalidArgument, "state slot " + std::to_string(slot) + " past the cache"};
  }
  return MutableView(cache).subspan(slot * unit, unit);
}

// Runs body(sequence, first token, number of tokens, slot) for each sequence that has tokens and is not
// padding.
template <typename Body>
Status ForEachStateful(const StepMeta& meta, Body body) {
  for (int64_t b = 0; b < meta.num_sequences(); ++b) {
    const int64_t first = meta.cu_seqlens[b], count = meta.cu_seqlens[b + 1] - first;
    if (count > 0 && meta.state_slot_ids[b] >= 0)
      RT_RETURN_IF_ERROR(body(b, first, count, meta.state_slot_ids[b]));
  }
  return Status::Ok();
}

View RowsOf(const Values& x, int64_t width, int64_t first, int64_t count) {
  return View(x).subspan(first * width, count * width);
}

void PutRows(const Values& rows, int64_t width, int64_t first, Values& out) {
  std::copy(rows.begin(), rows.end(), out.begin() + first * width);
}

// A slot's convolution window, zero without initial state.
Result<Values> LoadWindow(const LinearMixerParams& p, Values& cache, int32_t slot, bool has_initial) {
  const int64_t unit = (p.num_taps - 1) * p.ConvChannels();
  RT_ASSIGN_OR_RETURN(const MutableView stored, Unit(cache, unit, slot));
  return has_initial ? Values(stored.begin(), stored.end()) : Values(unit, 0.0);
}

// A slot's recurrent state as [Hv, Dk, Dv], zero without initial state.
Result<Values> LoadState(const LinearMixerParams& p, StateLayout layout, Values& cache, int32_t slot,
                         bool has_initial) {
  const StateShape shape = StateShapeOf(p);
  RT_ASSIGN_OR_RETURN(const MutableView stored, Unit(cache, StateElements(layout, shape), slot));
  if (!has_initial) return Values(StateElements(StateLayout::kKV, shape), 0.0);
  return ConvertState(shape, layout, StateLayout::kKV, stored);
}

void StoreWindow(const Values& window, Values& cache, int32_t slot) {
  PutRows(window, Size(window), slot, cache);
}

void StoreState(const LinearMixerParams& p, StateLayout layout, const Values& state, Values& cache,
                int32_t slot) {
  const Values stored = ConvertState(StateShapeOf(p), StateLayout::kKV, layout, state);
  PutRows(stored, Size(stored), slot, cache);
}

Status EvalLinearMixer(const OpInstance& op, const StepMeta& meta, OpTensors& t) {
  LinearMixerParams p = MixerOf(op, 0);
  const int64_t values = p.shape.num_v_heads * p.shape.head_v_dim, heads = p.shape.num_v_heads;
  RT_ASSIGN_OR_RETURN(const StateLayout layout, LayoutOf(op.caches[1]));
  t.outputs[0].assign(meta.num_tokens() * values, 0.0);
  return ForEachStateful(meta, [&](int64_t b, int64_t first, int64_t count, int32_t slot) -> Status {
    p.shape.num_tokens = count;
    const bool has_initial = meta.has_initial_state[b] != 0;
    LinearMixerState state;
    RT_ASSIGN_OR_RETURN(state.conv, LoadWindow(p, t.caches[0], slot, has_initial));
    RT_ASSIGN_OR_RETURN(state.recurrent, LoadState(p, layout, t.caches[1], slot, has_initial));
    const LinearMixerInputs in{RowsOf(t.inputs[0], p.ConvChannels(), first, count),
                               RowsOf(t.inputs[1], values, first, count),
                               RowsOf(t.inputs[3], heads * p.shape.gate_width, first, count),
                               RowsOf(t.inputs[2], heads, first, count)};
    const Values y = LinearMixer(p, {t.weights[0], t.weights[1], t.weights[2], t.weights[3]}, in, state);
    PutRows(y, values, first, t.outputs[0]);
    StoreWindow(state.conv, t.caches[0], slot);
    StoreState(p, layout, state.recurrent, t.caches[1], slot);
    return Status::Ok();
  });
}

Status EvalConv(const OpInstance& op, const StepMeta& meta, OpTensors& t) {
  const LinearMixerParams p = MixerOf(op, 0);
  const int64_t channels = p.ConvChannels();
  t.outputs[0].assign(meta.num_tokens() * channels, 0.0);
  return ForEachStateful(meta, [&](int64_t b, int64_t first, int64_t count, int32_t slot) -> Status {
    RT_ASSIGN_OR_RETURN(Values window, LoadWindow(p, t.caches[0], slot, meta.has_initial_state[b] != 0));
    const View x = RowsOf(t.inputs[0], channels, first, count);
    PutRows(CausalConv1dSilu({count, channels, p.num_taps}, x, t.weights[0], window), channels, first,
            t.outputs[0]);
    StoreWindow(window, t.caches[0], slot);
    return Status::Ok();
  });
}

// Columns [first, first + count) of rows [n, width].
Values Columns(View rows, int64_t width, int64_t first, int64_t count) {
  Values part;
  for (int64_t at = first; at < static_cast<int64_t>(rows.size()); at += width) {
    part.insert(part.end(), rows.begin() + at, rows.begin() + at + count);
  }
  return part;
}

Status EvalDelta(const OpInstance& op, const StepMeta& meta, OpTensors& t) {
  LinearMixerParams p = MixerOf(op, 0);
  const DeltaShape& s = p.shape;
  const int64_t values = s.num_v_heads * s.head_v_dim, keys = s.num_k_heads * s.head_k_dim,
                channels = p.ConvChannels();
  RT_ASSIGN_OR_RETURN(const StateLayout layout, LayoutOf(op.caches[0]));
  t.outputs[0].assign(meta.num_tokens() * values, 0.0);
  return ForEachStateful(meta, [&](int64_t b, int64_t first, int64_t count, int32_t slot) -> Status {
    p.shape.num_tokens = count;
    RT_ASSIGN_OR_RETURN(Values state,
                        LoadState(p, layout, t.caches[0], slot, meta.has_initial_state[b] != 0));
    const View u = RowsOf(t.inputs[0], channels, first, count);
    const NormShape key_rows{count * s.num_k_heads, s.head_k_dim};
    const double q_scale = 1.0 / std::sqrt(static_cast<double>(s.head_k_dim));
    const Values q = L2Norm(key_rows, p.l2_norm_eps, q_scale, Columns(u, channels, 0, keys));
    const Values k = L2Norm(key_rows, p.l2_norm_eps, 1.0, Columns(u, channels, keys, keys));
    const Values v = Columns(u, channels, 2 * keys, values);
    const Gates gates =
        ComputeGates({count, s.num_v_heads, s.gate_width}, p.gates,
                     RowsOf(t.inputs[2], s.num_v_heads * s.gate_width, first, count),
                     RowsOf(t.inputs[1], s.num_v_heads, first, count), t.weights[0], t.weights[1]);
    PutRows(GatedDeltaRecurrent(s, {q, k, v, gates.g, gates.beta}, state), values, first, t.outputs[0]);
    StoreState(p, layout, state, t.caches[0], slot);
    return Status::Ok();
  });
}

Status EvalGatedRmsNorm(const OpInstance& op, const StepMeta&, OpTensors& t) {
  const LinearMixerParams p = MixerOf(op, 0);
  t.outputs[0] = GatedRmsNorm(Rows(t.inputs[0], p.shape.head_v_dim), p.norm_eps, p.norm_gate, t.inputs[0],
                              t.inputs[1], t.weights[0]);
  return Status::Ok();
}

// ---- attention ----

Result<GatedAttentionParams> AttentionOf(const OpInstance& op) {
  const auto& a = op.attrs_as<rt_attrs_attention>();
  if (a.qk_norm != RT_QK_NORM_NONE && a.qk_norm != RT_QK_NORM_PER_HEAD) {
    return {Code::kUnsupported, "qk_norm " + std::to_string(a.qk_norm) + " has no reference"};
  }
  GatedAttentionParams p;
  p.heads = {a.num_q_heads, a.num_kv_heads, a.head_dim, a.scale};
  p.rotary_dim = a.rotary_dim;
  p.rope_theta = a.rope_theta;
  p.has_qk_norm = a.qk_norm == RT_QK_NORM_PER_HEAD;
  p.qk_norm = {a.norm_eps, a.norm_weight_offset};
  p.has_output_gate = a.output_gate != RT_ACT_NONE;
  return p;
}

View NormWeight(const OpTensors& t, std::size_t index) {
  return t.weights.size() > index ? View(t.weights[index]) : View();
}

Status EvalQkNormRope(const OpInstance& op, const StepMeta& meta, OpTensors& t) {
  RT_ASSIGN_OR_RETURN(const GatedAttentionParams p, AttentionOf(op));
  QkNormRope result =
      ApplyQkNormRope(p, t.inputs[0], t.inputs[1], NormWeight(t, 0), NormWeight(t, 1), meta.positions);
  t.outputs[0] = std::move(result.q);
  t.outputs[1] = std::move(result.k);
  if (p.has_output_gate) t.outputs[2] = std::move(result.gate);
  return Status::Ok();
}

Result<PagedShape> PagesOf(const OpInstance& op, const AttentionShape& heads, const OpTensors& t) {
  const ops::CacheInfo& cache = op.caches[0];
  if (cache.layout != RT_KV_LAYOUT_HND) {
    return {Code::kUnsupported, "key/value layout " + std::to_string(cache.layout) + " has no reference"};
  }
  const int64_t block = heads.num_kv_heads * cache.block_size * heads.head_dim;
  return PagedShape{heads, Size(t.caches[0]) / block, cache.block_size};
}

// Whether the table of sequence b names a block for every token up to `end`.
Status CheckBlocks(int64_t num_blocks, int64_t block_size, const StepMeta& meta, int64_t b, int64_t end) {
  const std::vector<int32_t>& table = meta.block_tables[b];
  for (int64_t i = 0; i * block_size < end; ++i) {
    if (i < static_cast<int64_t>(table.size()) && table[i] >= 0 && table[i] < num_blocks) continue;
    return {Code::kInvalidArgument,
            "sequence " + std::to_string(b) + ": no block for tokens from " + std::to_string(i * block_size)};
  }
  return Status::Ok();
}

// Runs body(sequence, first token, number of tokens, block table, context length) for each sequence that has
// tokens.
template <typename Body>
Status ForEachPaged(int64_t num_blocks, int64_t block_size, const StepMeta& meta, Body body) {
  for (int64_t b = 0; b < meta.num_sequences(); ++b) {
    const int64_t first = meta.cu_seqlens[b], count = meta.cu_seqlens[b + 1] - first,
                  context = meta.context_lens[b];
    if (count == 0) continue;
    RT_RETURN_IF_ERROR(CheckBlocks(num_blocks, block_size, meta, b, context + count));
    body(first, count, meta.block_tables[b], context);
  }
  return Status::Ok();
}

Status EvalPagedAttention(const OpInstance& op, const StepMeta& meta, OpTensors& t) {
  RT_ASSIGN_OR_RETURN(const GatedAttentionParams p, AttentionOf(op));
  RT_ASSIGN_OR_RETURN(const PagedShape pages, PagesOf(op, p.heads, t));
  const int64_t q_width = p.heads.num_q_heads * p.heads.head_dim,
                kv_width = p.heads.num_kv_heads * p.heads.head_dim;
  t.outputs[0].assign(meta.num_tokens() * q_width, 0.0);
  return ForEachPaged(
      pages.num_blocks, pages.block_size, meta, [&](int64_t first, int64_t count, const std::vector<int32_t>& table, int64_t context) {
        WritePagedKeyValue(pages, table, context, RowsOf(t.inputs[1], kv_width, first, count),
                           RowsOf(t.inputs[2], kv_width, first, count), t.caches[0], t.caches[1]);
        const View q = RowsOf(t.inputs[0], q_width, first, count);
        PutRows(PagedCausalAttention(pages, table, context, q, t.caches[0], t.caches[1]), q_width, first,
                t.outputs[0]);
      });
}

// The first `context` tokens of a sequence, [context, Nkv, d].
Values GatherPages(const PagedShape& pages, const std::vector<int32_t>& table, int64_t context,
                   const Values& pool) {
  Values rows;
  for (int64_t token = 0; token < context; ++token) {
    for (int64_t h = 0; h < pages.heads.num_kv_heads; ++h) {
      const int64_t head = table[token / pages.block_size] * pages.heads.num_kv_heads + h;
      const auto row =
          pool.begin() + (head * pages.block_size + token % pages.block_size) * pages.heads.head_dim;
      rows.insert(rows.end(), row, row + pages.heads.head_dim);
    }
  }
  return rows;
}

Status EvalAttentionMixer(const OpInstance& op, const StepMeta& meta, OpTensors& t) {
  RT_ASSIGN_OR_RETURN(const GatedAttentionParams p, AttentionOf(op));
  RT_ASSIGN_OR_RETURN(const PagedShape pages, PagesOf(op, p.heads, t));
  const int64_t q_width = p.heads.num_q_heads * p.heads.head_dim,
                kv_width = p.heads.num_kv_heads * p.heads.head_dim;
  const int64_t in_width = p.has_output_gate ? 2 * q_width : q_width;
  t.outputs[0].assign(meta.num_tokens() * q_width, 0.0);
  return ForEachPaged(
      pages.num_blocks, pages.block_size, meta, [&](int64_t first, int64_t count, const std::vector<int32_t>& table, int64_t context) {
        KeyValueCache cache{GatherPages(pages, table, context, t.caches[0]),
                            GatherPages(pages, table, context, t.caches[1])};
        const auto positions = std::span(meta.positions).subspan(first, count);
        const Values y = GatedAttention(p, RowsOf(t.inputs[0], in_width, first, count),
                                        RowsOf(t.inputs[1], kv_width, first, count),
                                        RowsOf(t.inputs[2], kv_width, first, count), NormWeight(t, 0),
                                        NormWeight(t, 1), positions, cache);
        PutRows(y, q_width, first, t.outputs[0]);
        WritePagedKeyValue(pages, table, context, RowsOf(cache.k, kv_width, context, count),
                           RowsOf(cache.v, kv_width, context, count), t.caches[0], t.caches[1]);
      });
}

// ---- latent attention ----

LatentShape LatentOf(const OpInstance& op) {
  const auto& a = op.attrs_as<rt_attrs_mla>();
  return {a.num_heads, a.latent_dim, a.qk_nope_dim, a.qk_shared_dim, a.v_dim, a.scale};
}

Status EvalLatentNorm(const OpInstance& op, const StepMeta&, OpTensors& t) {
  t.outputs[0] = LatentNorm(LatentOf(op), op.attrs_as<rt_attrs_mla>().norm_eps, t.inputs[0], t.weights[0]);
  return Status::Ok();
}

// `rows` [T, L+De] are normalised. The cache [num_blocks, block_size, L+De] has one row a token, so every key/value layout is the same.
Status LatentAttention(const OpInstance& op, const StepMeta& meta, const Values& rows, View kv_b, OpTensors& t) {
  const LatentShape s = LatentOf(op);
  const int64_t block_size = op.caches[0].block_size, num_blocks = Size(t.caches[0]) / (block_size * s.row());
  t.outputs[0].assign(meta.num_tokens() * s.out_width(), 0.0);
  return ForEachPaged(num_blocks, block_size, meta,
                      [&](int64_t first, int64_t count, const std::vector<int32_t>& table, int64_t context) {
                        const auto place = [&](int64_t token) {
                          return (table[token / block_size] * block_size + token % block_size) * s.row();
                        };
                        for (int64_t i = 0; i < count; ++i) {
                          const View row = RowsOf(rows, s.row(), first + i, 1);
                          std::copy(row.begin(), row.end(), t.caches[0].begin() + place(context + i));
                        }
                        Values known;
                        for (int64_t token = 0; token < context + count; ++token) {
                          const auto row = t.caches[0].begin() + place(token);
                          known.insert(known.end(), row, row + s.row());
                        }
                        PutRows(ExpandedLatentAttention(s, RowsOf(t.inputs[0], s.q_width(), first, count), known, kv_b),
                                s.out_width(), first, t.outputs[0]);
                      });
}

Status EvalMlaAttention(const OpInstance& op, const StepMeta& meta, OpTensors& t) {
  return LatentAttention(op, meta, t.inputs[1], t.weights[0], t);
}

Status EvalMlaMixer(const OpInstance& op, const StepMeta& meta, OpTensors& t) {
  const Values rows = LatentNorm(LatentOf(op), op.attrs_as<rt_attrs_mla>().norm_eps, t.inputs[1], t.weights[0]);
  return LatentAttention(op, meta, rows, t.weights[1], t);
}

// ---- mixtures of experts ----

const Values& OptionalWeight(const OpTensors& t, std::size_t i) {
  static const Values absent;
  return i < t.weights.size() ? t.weights[i] : absent;
}

Routing RouteTokens(const OpInstance& op, View x, View router, View bias) {
  const auto& a = op.attrs_as<rt_attrs_moe>();
  RouterParams p;
  p.num_experts = a.num_experts;
  p.experts_per_token = a.experts_per_token;
  p.num_groups = a.num_groups;
  p.topk_groups = a.topk_groups;
  p.score = a.router_score == RT_ROUTER_SOFTMAX ? RouterScore::kSoftmax : RouterScore::kSigmoid;
  p.renormalize = a.renormalize != 0;
  p.routed_scale = a.routed_scale;
  return Route(p, op.inputs[0].back(), x, router, bias);
}

// `gate` is the index of the experts' first weight.
Values ExpertSum(const OpInstance& op, const OpTensors& t, std::size_t gate, View ids, View weights) {
  const auto& a = op.attrs_as<rt_attrs_moe>();
  const int64_t hidden = op.inputs[0].back();
  const ExpertsShape shape{a.num_experts, a.experts_per_token, hidden, op.weights[gate].dims[0] / a.num_experts};
  return Experts(shape, t.inputs[0], ids, weights, t.weights[gate], t.weights[gate + 1], t.weights[gate + 2]);
}

Status EvalMoeRouter(const OpInstance& op, const StepMeta&, OpTensors& t) {
  const Routing routing = RouteTokens(op, t.inputs[0], t.weights[0], OptionalWeight(t, 1));
  t.outputs[0].assign(routing.ids.begin(), routing.ids.end());
  t.outputs[1] = routing.weights;
  return Status::Ok();
}

Status EvalMoeExperts(const OpInstance& op, const StepMeta&, OpTensors& t) {
  const auto& a = op.attrs_as<rt_attrs_moe>();
  for (const double id : t.inputs[1]) {
    if (id < 0 || id >= a.num_experts) return {Code::kInvalidArgument, "expert " + std::to_string(static_cast<int64_t>(id)) + " of " + std::to_string(a.num_experts)};
  }
  t.outputs[0] = ExpertSum(op, t, 0, t.inputs[1], t.inputs[2]);
  if (t.inputs.size() > 3 && !t.inputs[3].empty()) t.outputs[0] = Add(t.outputs[0], t.inputs[3]);
  return Status::Ok();
}

Status EvalMoeBlock(const OpInstance& op, const StepMeta&, OpTensors& t) {
  const Routing routing = RouteTokens(op, t.inputs[0], t.weights[0], OptionalWeight(t, 4));
  t.outputs[0] = ExpertSum(op, t, 1, Values(routing.ids.begin(), routing.ids.end()), routing.weights);
  if (OptionalWeight(t, 5).empty()) return Status::Ok();
  const int64_t hidden = op.inputs[0].back();
  const MlpShape shared{Size(t.inputs[0]) / hidden, hidden, op.weights[5].dims[0]};
  t.outputs[0] = Add(t.outputs[0], GatedMlp(shared, t.inputs[0], t.weights[5], t.weights[6], t.weights[7]));
  return Status::Ok();
}

struct Reference {
  const char* op;
  Status (*evaluate)(const OpInstance& op, const StepMeta& meta, OpTensors& tensors);
};

constexpr Reference kReferences[] = {
    {RT_OP_SELECT_IDS, Select},
    {RT_OP_EMBEDDING, EvalEmbedding},
    {RT_OP_RMS_NORM, EvalRmsNorm},
    {RT_OP_ADD_RMS_NORM, EvalAddRmsNorm},
    {RT_OP_ADD, EvalAdd},
    {RT_OP_LINEAR, EvalLinear},
    {RT_OP_SILU_MUL, EvalSiluMul},
    {RT_OP_GATED_MLP, EvalGatedMlp},
    {RT_OP_GATHER_ROWS, EvalGatherRows},
    {RT_OP_LINEAR_MIXER, EvalLinearMixer},
    {RT_OP_CAUSAL_CONV1D, EvalConv},
    {RT_OP_GATED_DELTA_RULE, EvalDelta},
    {RT_OP_GATED_RMS_NORM, EvalGatedRmsNorm},
    {RT_OP_ATTENTION_MIXER, EvalAttentionMixer},
    {RT_OP_QK_NORM_ROPE, EvalQkNormRope},
    {RT_OP_PAGED_ATTENTION, EvalPagedAttention},
    {RT_OP_SIGMOID_GATE, EvalSigmoidGate},
    {RT_OP_MLA_MIXER, EvalMlaMixer},
    {RT_OP_LATENT_NORM, EvalLatentNorm},
    {RT_OP_MLA_ATTENTION, EvalMlaAttention},
    {RT_OP_MOE_BLOCK, EvalMoeBlock},
    {RT_OP_MOE_ROUTER, EvalMoeRouter},
    {RT_OP_MOE_EXPERTS, EvalMoeExperts},
};

using Kind = ops::PieceRef::Kind;

// The instance of a piece, and its tensors moved out of (or copied from) the composite's.
class PieceRun {
 public:
  PieceRun(const OpInstance& composite, const ops::Decomposition& d, OpTensors& tensors,
           std::vector<Values>& temps)
      : composite_(composite), decomposition_(d), tensors_(tensors), temps_(temps) {}

  Status Run(const ops::Piece& piece, const StepMeta& meta) {
    OpInstance op;
    op.op = piece.op;
    op.attrs = piece.attrs.data();
    OpTensors t;
    for (const auto& ref : piece.inputs) op.inputs.push_back(Info(ref)), t.inputs.push_back(Load(ref));
    for (const auto& ref : piece.weights) op.weights.push_back(Info(ref)), t.weights.push_back(Load(ref));
    for (const auto& ref : piece.outputs) op.outputs.push_back(Info(ref)), t.outputs.emplace_back();
    for (const auto& ref : piece.caches) {
      op.caches.push_back(composite_.caches[ref.index]);
      t.caches.push_back(std::move(tensors_.caches[ref.index]));
    }
    const Status status = EvaluateOp(op, meta, t);
    for (std::size_t i = 0; i < piece.caches.size(); ++i)
      tensors_.caches[piece.caches[i].index] = std::move(t.caches[i]);
    for (std::size_t i = 0; i < piece.outputs.size(); ++i) {
      if (Values* out = Find(piece.outputs[i])) *out = std::move(t.outputs[i]);
    }
    return status;
  }

 private:
  ops::TensorInfo Info(const ops::PieceRef& ref) const {
    switch (ref.kind) {
      case Kind::kInput:
        return composite_.inputs[ref.index];
      case Kind::kWeight:
        return composite_.weights[ref.index];
      case Kind::kOutput:
        return composite_.outputs[ref.index];
      case Kind::kTemp:
        return decomposition_.temps[ref.index];
      default:
        return {};
    }
  }
  Values* Find(const ops::PieceRef& ref) {
    switch (ref.kind) {
      case Kind::kInput:
        return &tensors_.inputs[ref.index];
      case Kind::kWeight:
        return &tensors_.weights[ref.index];
      case Kind::kOutput:
        return &tensors_.outputs[ref.index];
      case Kind::kTemp:
        return &temps_[ref.index];
      default:
        return nullptr;
    }
  }
  Values Load(const ops::PieceRef& ref) {
    const Values* values = Find(ref);
    return values != nullptr ? *values : Values();
  }

  const OpInstance& composite_;
  const ops::Decomposition& decomposition_;
  OpTensors& tensors_;
  std::vector<Values>& temps_;
};

}  // namespace

Status EvaluateOp(const OpInstance& op, const StepMeta& meta, OpTensors& tensors) {
  tensors.outputs.resize(op.outputs.size());
  for (const Reference& reference : kReferences) {
    if (op.op == reference.op) return reference.evaluate(op, meta, tensors).Annotate(reference.op);
  }
  return {Code::kUnsupported, std::string(op.op) + ": no reference"};
}

Status EvaluateDecomposed(const OpInstance& op, const StepMeta& meta, OpTensors& tensors) {
  RT_ASSIGN_OR_RETURN(const ops::Decomposition decomposition, ops::Decompose(op));
  tensors.outputs.resize(op.outputs.size());
  std::vector<Values> temps(decomposition.temps.size());
  PieceRun run(op, decomposition, tensors, temps);
  for (const ops::Piece& piece : decomposition.pieces) RT_RETURN_IF_ERROR(run.Run(piece, meta));
  return Status::Ok();
}

}  // namespace rt::oracle
