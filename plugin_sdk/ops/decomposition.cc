// The one decomposition table. tests: the oracle of a composite equals its composed oracles (plugin_sdk/oracle).
#include "plugin_sdk/ops/op_table.h"

#include <rt/plugin/op_defs.h>

#include <cstring>

namespace rt::ops {
namespace {

using Kind = PieceRef::Kind;
PieceRef In(uint32_t i) { return {Kind::kInput, i}; }
PieceRef Weight(uint32_t i) { return {Kind::kWeight, i}; }
PieceRef Out(uint32_t i) { return {Kind::kOutput, i}; }
PieceRef Cache(uint32_t i) { return {Kind::kCache, i}; }
PieceRef Temp(uint32_t i) { return {Kind::kTemp, i}; }
PieceRef None() { return {}; }

template <typename T>
std::vector<std::byte> Bytes(const T& attrs) {
  std::vector<std::byte> bytes(sizeof attrs);
  std::memcpy(bytes.data(), &attrs, sizeof attrs);
  return bytes;
}
std::vector<std::byte> NoAttrs() { return Bytes(rt_attrs_none{sizeof(rt_attrs_none), 0}); }

TensorInfo Act(const OpInstance& op, int64_t width) { return {true, op.outputs.back().dtype, {RT_DIM_TOKENS, width}}; }

Decomposition AddRmsNorm(const OpInstance& op) {
  const auto attrs = Bytes(op.attrs_as<rt_attrs_norm>());
  return {{},
          {{RT_OP_ADD, {In(0), In(1)}, {}, {Out(0)}, {}, NoAttrs()},
           {RT_OP_RMS_NORM, {Out(0)}, {Weight(0)}, {Out(1)}, {}, attrs}}};
}

Decomposition GatedMlp(const OpInstance& op) {
  const int64_t inner = op.weights[0].dims[0];
  TensorInfo temp = Act(op, inner);
  temp.dims[0] = op.inputs[0].dims[0];
  return {{temp, temp, temp},
          {{RT_OP_LINEAR, {In(0)}, {Weight(0)}, {Temp(0)}, {}, NoAttrs()},
           {RT_OP_LINEAR, {In(0)}, {Weight(1)}, {Temp(1)}, {}, NoAttrs()},
           {RT_OP_SILU_MUL, {Temp(0), Temp(1)}, {}, {Temp(2)}, {}, NoAttrs()},
           {RT_OP_LINEAR, {Temp(2)}, {Weight(2)}, {Out(0)}, {}, NoAttrs()}}};
}

Decomposition LinearMixer(const OpInstance& op) {
  const auto attrs = Bytes(op.attrs_as<rt_attrs_mixer>());
  return {{Act(op, op.inputs[0].back()), Act(op, op.outputs[0].back())},
          {{RT_OP_CAUSAL_CONV1D, {In(0)}, {Weight(0)}, {Temp(0)}, {Cache(0)}, attrs},
           {RT_OP_GATED_DELTA_RULE, {Temp(0), In(2), In(3)}, {Weight(1), Weight(2)}, {Temp(1)}, {Cache(1)}, attrs},
           {RT_OP_GATED_RMS_NORM, {Temp(1), In(1)}, {Weight(3)}, {Out(0)}, {}, attrs}}};
}

Decomposition AttentionMixer(const OpInstance& op) {
  const auto& a = op.attrs_as<rt_attrs_attention>();
  const auto attrs = Bytes(a);
  const int64_t q_width = op.outputs[0].back(), kv_width = op.inputs[1].back();
  const bool gated = a.output_gate != RT_ACT_NONE;
  const PieceRef q_norm = op.weights.empty() ? None() : Weight(0), k_norm = op.weights.empty() ? None() : Weight(1);
  Decomposition d;
  d.temps = {Act(op, q_width), Act(op, kv_width)};
  if (gated) {
    d.temps.push_back(Act(op, q_width));  // gate
    d.temps.push_back(Act(op, q_width));  // attention output before the gate
  }
  d.pieces.push_back({RT_OP_QK_NORM_ROPE, {In(0), In(1)}, {q_norm, k_norm}, {Temp(0), Temp(1), gated ? Temp(2) : None()}, {}, attrs});
  d.pieces.push_back({RT_OP_PAGED_ATTENTION, {Temp(0), Temp(1), In(2)}, {}, {gated ? Temp(3) : Out(0)}, {Cache(0), Cache(1)}, attrs});
  if (gated) d.pieces.push_back({RT_OP_SIGMOID_GATE, {Temp(3), Temp(2)}, {}, {Out(0)}, {}, NoAttrs()});
  return d;
}

Decomposition MlaMixer(const OpInstance& op) {
  const auto attrs = Bytes(op.attrs_as<rt_attrs_mla>());
  return {{Act(op, op.inputs[1].back())},
          {{RT_OP_LATENT_NORM, {In(1)}, {Weight(0)}, {Temp(0)}, {}, attrs}, {RT_OP_MLA_ATTENTION, {In(0), Temp(0)}, {Weight(1)}, {Out(0)}, {Cache(0)}, attrs}}};
}

Decomposition MoeBlock(const OpInstance& op) {
  const auto& a = op.attrs_as<rt_attrs_moe>();
  const auto attrs = Bytes(a);
  const auto present = [&](uint32_t i) { return i < op.weights.size() && op.weights[i].present; };
  const TensorInfo ids = {true, RT_DTYPE_I32, {RT_DIM_TOKENS, a.experts_per_token}}, weights = {true, RT_DTYPE_F32, ids.dims};
  Decomposition d;
  d.temps = {ids, weights};
  d.pieces.push_back({RT_OP_MOE_ROUTER, {In(0)}, {Weight(0), present(4) ? Weight(4) : None()}, {Temp(0), Temp(1)}, {}, attrs});
  PieceRef shared = None();
  if (present(5)) {
    d.temps.push_back(Act(op, op.outputs[0].back()));
    shared = Temp(2);
    d.pieces.push_back({RT_OP_GATED_MLP, {In(0)}, {Weight(5), Weight(6), Weight(7)}, {shared}, {}, NoAttrs()});
  }
  d.pieces.push_back({RT_OP_MOE_EXPERTS, {In(0), Temp(0), Temp(1), shared}, {Weight(1), Weight(2), Weight(3)}, {Out(0)}, {}, attrs});
  return d;
}

}  // namespace

Result<Decomposition> Decompose(const OpInstance& op) {
  if (op.op == RT_OP_ADD_RMS_NORM) return AddRmsNorm(op);
  if (op.op == RT_OP_GATED_MLP) return GatedMlp(op);
  if (op.op == RT_OP_LINEAR_MIXER) return LinearMixer(op);
  if (op.op == RT_OP_ATTENTION_MIXER) return AttentionMixer(op);
  if (op.op == RT_OP_MLA_MIXER) return MlaMixer(op);
  if (op.op == RT_OP_MOE_BLOCK) return MoeBlock(op);
  return {Code::kUnsupported, std::string(op.op) + " is not a composite"};
}

}  // namespace rt::ops
