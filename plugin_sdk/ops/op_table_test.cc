#include "plugin_sdk/ops/op_table.h"

#include <rt/plugin/op_defs.h>

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace rt::ops {
namespace {

TensorInfo Bf16(std::vector<int64_t> dims) { return {true, RT_DTYPE_BF16, std::move(dims)}; }
TensorInfo F32(std::vector<int64_t> dims) { return {true, RT_DTYPE_F32, std::move(dims)}; }

constexpr rt_attrs_mixer kMixer = {sizeof(rt_attrs_mixer), 2, 4, 8, 6, 4, RT_GATE_SOFTPLUS_DECAY, 1, RT_ACT_SILU, 0, 1, 1e-6f, 1e-6f, 0};
constexpr rt_attrs_attention kAttention = {sizeof(rt_attrs_attention), 4, 2, 8, 4, RT_QK_NORM_PER_HEAD, RT_ACT_SIGMOID, 1e-6f, 1, 0.35f, 1e4};
constexpr rt_attrs_norm kNorm = {sizeof(rt_attrs_norm), 1e-6f, 1, 0};
constexpr rt_attrs_none kNone = {sizeof(rt_attrs_none), 0};
constexpr rt_attrs_mla kMla = {sizeof(rt_attrs_mla), 4, 12, 8, 6, 10, 1e-6f, 0.25f};
constexpr rt_attrs_moe kMoe = {sizeof(rt_attrs_moe), 6, 2, 3, 2, RT_ROUTER_SIGMOID, 1, 2.5f};

OpInstance Mixer() {
  const int64_t T = RT_DIM_TOKENS;
  OpInstance op;
  op.op = RT_OP_LINEAR_MIXER;
  op.inputs = {Bf16({T, 2 * 16 + 24}), Bf16({T, 24}), Bf16({T, 4}), Bf16({T, 4})};
  op.weights = {F32({56, 1, 4}), F32({4}), F32({4}), F32({6})};
  op.outputs = {Bf16({T, 24})};
  op.caches = {{RT_CACHE_CONV, RT_DTYPE_BF16, 0, 0, {3, 56}}, {RT_CACHE_RECURRENT, RT_DTYPE_F32, RT_STATE_LAYOUT_VPANEL16, 0, {4, 8, 6}}};
  op.attrs = &kMixer;
  return op;
}

OpInstance Attention() {
  const int64_t T = RT_DIM_TOKENS;
  OpInstance op;
  op.op = RT_OP_ATTENTION_MIXER;
  op.inputs = {Bf16({T, 64}), Bf16({T, 16}), Bf16({T, 16})};
  op.weights = {F32({8}), F32({8})};
  op.outputs = {Bf16({T, 32})};
  op.caches = {{RT_CACHE_KEY, RT_DTYPE_BF16, RT_KV_LAYOUT_HND, 16, {2, 8}}, {RT_CACHE_VALUE, RT_DTYPE_BF16, RT_KV_LAYOUT_HND, 16, {2, 8}}};
  op.attrs = &kAttention;
  return op;
}

OpInstance Mlp() {
  const int64_t T = RT_DIM_TOKENS;
  OpInstance op;
  op.op = RT_OP_GATED_MLP;
  op.inputs = {Bf16({T, 10})};
  op.weights = {Bf16({30, 10}), Bf16({30, 10}), Bf16({10, 30})};
  op.outputs = {Bf16({T, 10})};
  op.attrs = &kNone;
  return op;
}

OpInstance AddNorm() {
  const int64_t T = RT_DIM_TOKENS;
  OpInstance op;
  op.op = RT_OP_ADD_RMS_NORM;
  op.inputs = {F32({T, 10}), Bf16({T, 10})};
  op.weights = {F32({10})};
  op.outputs = {F32({T, 10}), Bf16({T, 10})};
  op.attrs = &kNorm;
  return op;
}

OpInstance Mla() {
  const int64_t T = RT_DIM_TOKENS;
  OpInstance op;
  op.op = RT_OP_MLA_MIXER;
  op.inputs = {Bf16({T, 4 * 14}), Bf16({T, 18})};
  op.weights = {F32({12}), Bf16({4 * 18, 12})};
  op.outputs = {Bf16({T, 40})};
  op.caches = {{RT_CACHE_LATENT, RT_DTYPE_BF16, RT_KV_LAYOUT_HND, 16, {18}}};
  op.attrs = &kMla;
  return op;
}

OpInstance Moe() {
  const int64_t T = RT_DIM_TOKENS;
  OpInstance op;
  op.op = RT_OP_MOE_BLOCK;
  op.inputs = {Bf16({T, 10})};
  op.weights = {F32({6, 10}), Bf16({6 * 8, 10}), Bf16({6 * 8, 10}), Bf16({6 * 10, 8}), F32({6}), Bf16({5, 10}), Bf16({5, 10}), Bf16({10, 5})};
  op.outputs = {Bf16({T, 10})};
  op.attrs = &kMoe;
  return op;
}

int64_t Column(const OpInstance& op, uint32_t column) {
  for (const auto& c : ProblemColumns(*FindOp(op.op, 1), op)) {
    if (c.column == column) return c.value;
  }
  return -1;
}

TEST(OpTable, CompositesOfTheContractPassTheirOwnChecks) {
  for (const OpInstance& op : {Mixer(), Attention(), Mlp(), AddNorm(), Mla(), Moe()}) {
    const Status status = CheckInstance(*FindOp(op.op, 1), op);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
}

TEST(OpTable, WrongShapeNamesTheTensorAndBothShapes) {
  OpInstance op = Mixer();
  op.inputs[1] = Bf16({RT_DIM_TOKENS, 23});
  EXPECT_EQ(CheckInstance(*FindOp(op.op, 1), op).message(), "linear_mixer.z: expected shape [T, 24], got [T, 23]");
}

TEST(OpTable, HeadCountsThatDoNotDivideAreRefused) {
  rt_attrs_mixer attrs = kMixer;
  attrs.num_v_heads = 3;
  OpInstance op = Mixer();
  op.attrs = &attrs;
  EXPECT_EQ(CheckInstance(*FindOp(op.op, 1), op).message(), "linear_mixer: num_v_heads: expected a multiple of num_k_heads = 2, got 3");
}

TEST(OpTable, AGateOfAnotherWidthThanTheKeysIsRefused) {
  rt_attrs_mixer attrs = kMixer;
  attrs.gate_width = 4;
  OpInstance op = Mixer();
  op.attrs = &attrs;
  EXPECT_EQ(CheckInstance(*FindOp(op.op, 1), op).message(), "linear_mixer: gate_width: expected 1 or head_k_dim = 8, got 4");
  attrs.gate_width = 1;
  attrs.gate_bound = -5;
  EXPECT_EQ(CheckInstance(*FindOp(op.op, 1), op).message(), "linear_mixer: gate_bound: expected 0 for an unbounded gate, got -5.000000");
  attrs.gate_form = RT_GATE_BOUNDED_SIGMOID;
  EXPECT_TRUE(CheckInstance(*FindOp(op.op, 1), op).ok());
  EXPECT_EQ(Column(op, RT_COL_GATE_BOUND_MILLI), -5000);
}

TEST(OpTable, RoutersThatCannotChooseEnoughExpertsAreRefused) {
  rt_attrs_moe attrs = kMoe;
  OpInstance op = Moe();
  op.attrs = &attrs;
  attrs.topk_groups = 1;
  attrs.experts_per_token = 3;
  EXPECT_EQ(CheckInstance(*FindOp(op.op, 1), op).message(), "moe_block: topk_groups: 1 groups of 2 experts hold fewer than 3");
  attrs = kMoe;
  attrs.num_groups = 4;
  EXPECT_EQ(CheckInstance(*FindOp(op.op, 1), op).message(), "moe_block: num_groups: expected a divisor of 6 experts, got 4");
  attrs = kMoe;
  op.weights[6] = {};
  EXPECT_EQ(CheckInstance(*FindOp(op.op, 1), op).message(), "moe_block: shared_gate, shared_up and shared_down: expected all or none");
}

TEST(OpTable, OptionalPartsOfAMixtureMayBeAbsent) {
  OpInstance op = Moe();
  op.weights.resize(4);
  EXPECT_TRUE(CheckInstance(*FindOp(op.op, 1), op).ok());
  const auto d = Decompose(op);
  ASSERT_TRUE(d.ok());
  ASSERT_EQ(d->pieces.size(), 2u);
  EXPECT_EQ(d->pieces[1].inputs[3].kind, PieceRef::Kind::kAbsent);
}

TEST(OpTable, AttributesOfTheWrongSizeAreRefused) {
  OpInstance op = Mixer();
  op.attrs = &kNone;
  EXPECT_EQ(CheckInstance(*FindOp(op.op, 1), op).message(), "linear_mixer: attributes of 56 bytes expected, got 8");
}

TEST(OpTable, ProblemCarriesStateDtypeLayoutAndHeads) {
  EXPECT_EQ(Column(Mixer(), RT_COL_STATE_DTYPE), RT_DTYPE_F32);
  EXPECT_EQ(Column(Mixer(), RT_COL_STATE_LAYOUT), RT_STATE_LAYOUT_VPANEL16);
  EXPECT_EQ(Column(Mixer(), RT_COL_HEAD_RATIO), 2);
  EXPECT_EQ(Column(Mixer(), RT_COL_BETA_SCALE_MILLI), 1000);
  EXPECT_EQ(Column(Attention(), RT_COL_KV_BLOCK_SIZE), 16);
  EXPECT_EQ(ColumnValueText(RT_COL_STATE_LAYOUT, RT_STATE_LAYOUT_VPANEL16), "VPANEL16");
}

// Instance of a piece with the composite's tensors and the decomposition's temporaries filled in.
OpInstance Resolve(const OpInstance& composite, const Decomposition& d, const Piece& piece) {
  OpInstance op;
  op.op = piece.op;
  op.attrs = piece.attrs.data();
  const auto tensor = [&](PieceRef ref) -> TensorInfo {
    switch (ref.kind) {
      case PieceRef::Kind::kInput: return composite.inputs.at(ref.index);
      case PieceRef::Kind::kWeight: return composite.weights.at(ref.index);
      case PieceRef::Kind::kOutput: return composite.outputs.at(ref.index);
      case PieceRef::Kind::kTemp: return d.temps.at(ref.index);
      default: return {};
    }
  };
  for (PieceRef ref : piece.inputs) op.inputs.push_back(tensor(ref));
  for (PieceRef ref : piece.weights) op.weights.push_back(tensor(ref));
  for (PieceRef ref : piece.outputs) op.outputs.push_back(tensor(ref));
  for (PieceRef ref : piece.caches) op.caches.push_back(composite.caches.at(ref.index));
  return op;
}

TEST(Decomposition, EveryPieceIsAValidOpAndEveryTensorOfTheCompositeIsUsed) {
  for (const OpInstance& op : {Mixer(), Attention(), Mlp(), AddNorm(), Mla(), Moe()}) {
    const auto d = Decompose(op);
    ASSERT_TRUE(d.ok()) << op.op;
    std::map<PieceRef::Kind, std::set<uint32_t>> used;
    std::set<uint32_t> written;
    for (const Piece& piece : d->pieces) {
      const OpDef* def = FindOp(piece.op, 1);
      ASSERT_NE(def, nullptr) << piece.op;
      // A piece may be a composite of plain ops (the shared expert), never deeper.
      if (def->composite) {
        const auto inner = Decompose(Resolve(op, *d, piece));
        ASSERT_TRUE(inner.ok()) << piece.op;
        for (const Piece& part : inner->pieces) EXPECT_FALSE(FindOp(part.op, 1)->composite) << part.op;
      }
      const Status status = CheckInstance(*def, Resolve(op, *d, piece));
      EXPECT_TRUE(status.ok()) << op.op << ": " << status.ToString();
      for (const auto* list : {&piece.inputs, &piece.weights, &piece.outputs, &piece.caches}) {
        for (PieceRef ref : *list) used[ref.kind].insert(ref.index);
      }
      for (PieceRef ref : piece.inputs) {
        if (ref.kind == PieceRef::Kind::kTemp) {
          EXPECT_TRUE(written.count(ref.index)) << "temporary read before it is written";
        }
      }
      for (PieceRef ref : piece.outputs) {
        if (ref.kind == PieceRef::Kind::kTemp) written.insert(ref.index);
      }
    }
    EXPECT_EQ(used[PieceRef::Kind::kInput].size(), op.inputs.size()) << op.op;
    EXPECT_EQ(used[PieceRef::Kind::kWeight].size(), op.weights.size()) << op.op;
    EXPECT_EQ(used[PieceRef::Kind::kOutput].size(), op.outputs.size()) << op.op;
    EXPECT_EQ(used[PieceRef::Kind::kCache].size(), op.caches.size()) << op.op;
    EXPECT_EQ(written.size(), d->temps.size()) << op.op;
  }
}

TEST(Decomposition, OnlyCompositesDecompose) {
  for (const OpDef* def : AllOps()) {
    if (def->composite) continue;
    OpInstance op;
    op.op = def->name;
    EXPECT_EQ(Decompose(op).status().code(), Code::kUnsupported) << def->name;
  }
}

}  // namespace
}  // namespace rt::ops
