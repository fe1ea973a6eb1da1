// The decomposition table is right: every composite equals its pieces, over a mixed step with padding, fresh
// states, zero lengths and poisoned unused memory, and over a second step that continues from the first one's
// caches.
#include "plugin_sdk/oracle/op_oracle.h"

#include "plugin_sdk/oracle/layout.h"
#include "plugin_sdk/oracle/test_values.h"

#include <rt/plugin/op_defs.h>

#include <cstring>
#include <limits>

namespace rt::oracle {
namespace {

using ops::OpInstance;
using ops::TensorInfo;

constexpr double kExact = 1e-12;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t T = RT_DIM_TOKENS;

TensorInfo F32(std::vector<int64_t> dims) { return {true, RT_DTYPE_F32, std::move(dims)}; }

// A decode row, a padding row of one token, a sequence of length 0, a fresh prefill, a prefill that
// continues.
StepMeta FirstStep() {
  StepMeta meta;
  meta.cu_seqlens = {0, 1, 2, 2, 9, 12};
  meta.context_lens = {5, 0, 3, 0, 2};
  meta.positions = {5, 0, 0, 1, 2, 3, 4, 5, 6, 2, 3, 4};
  meta.block_tables = {{3, 7}, {8}, {5}, {1, 0, -1}, {6, 2}};
  meta.state_slot_ids = {4, -1, 0, 2, 5};
  meta.has_initial_state = {1, 0, 1, 0, 1};
  return meta;
}

// Each sequence one token further, in another order of rows.
StepMeta SecondStep() {
  StepMeta meta;
  meta.cu_seqlens = {0, 1, 2, 3};
  meta.context_lens = {7, 6, 5};
  meta.positions = {7, 6, 5};
  meta.block_tables = {{1, 0}, {3, 7}, {6, 2}};
  meta.state_slot_ids = {2, 4, 5};
  meta.has_initial_state = {1, 1, 1};
  return meta;
}

// Values of a tensor for a step of `num_tokens`.
Values Fill(const TensorInfo& info, int64_t num_tokens, uint64_t seed) {
  int64_t count = 1;
  for (const int64_t dim : info.dims) count *= dim == T ? num_tokens : dim;
  return Random(count, seed);
}

std::vector<Values> FillAll(const std::vector<TensorInfo>& infos, int64_t num_tokens, uint64_t seed) {
  std::vector<Values> all;
  for (const TensorInfo& info : infos) all.push_back(Fill(info, num_tokens, seed++));
  return all;
}

// Equal bits where both are NaN (poison that must stay), close elsewhere.
void ExpectSameCache(const Values& found, const Values& expected) {
  ASSERT_EQ(found.size(), expected.size());
  Values a, b;
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(std::isnan(found[i]), std::isnan(expected[i])) << "at " << i;
    if (std::isnan(found[i])) continue;
    a.push_back(found[i]);
    b.push_back(expected[i]);
  }
  ExpectClose(a, b, kExact);
}

void ExpectCompositeEqualsPieces(const OpInstance& op, std::vector<Values> caches) {
  const ops::OpDef* def = ops::FindOp(op.op, 1);
  ASSERT_NE(def, nullptr);
  const Status valid = ops::CheckInstance(*def, op);
  ASSERT_TRUE(valid.ok()) << valid.ToString();
  OpTensors whole, pieces;
  whole.caches = pieces.caches = std::move(caches);
  whole.weights = FillAll(op.weights, 0, 900);
  uint64_t seed = 1;
  for (const StepMeta& meta : {FirstStep(), SecondStep()}) {
    SCOPED_TRACE(testing::Message() << op.op << ", step of " << meta.num_tokens() << " tokens");
    whole.inputs = FillAll(op.inputs, meta.num_tokens(), seed += 100);
    pieces.inputs = whole.inputs;
    pieces.weights = whole.weights;
    const Status a = EvaluateOp(op, meta, whole), b = EvaluateDecomposed(op, meta, pieces);
    ASSERT_TRUE(a.ok()) << a.ToString();
    ASSERT_TRUE(b.ok()) << b.ToString();
    for (std::size_t i = 0; i < op.outputs.size(); ++i)
      ExpectClose(pieces.outputs[i], whole.outputs[i], kExact);
    for (std::size_t i = 0; i < op.caches.size(); ++i) ExpectSameCache(pieces.caches[i], whole.caches[i]);
  }
}

OpInstance Mixer(const rt_attrs_mixer& a, uint32_t layout) {
  const int64_t values = a.num_v_heads * a.head_v_dim, channels = 2 * a.num_k_heads * a.head_k_dim + values,
                heads = a.num_v_heads;
  OpInstance op;
  op.op = RT_OP_LINEAR_MIXER;
  op.inputs = {F32({T, channels}), F32({T, values}), F32({T, heads}), F32({T, heads * a.gate_width})};
  op.weights = {F32({channels, 1, a.conv_width}), F32({heads}), F32({heads * a.gate_width}),
                F32({a.head_v_dim})};
  op.outputs = {F32({T, values})};
  op.caches = {{RT_CACHE_CONV, RT_DTYPE_F32, 0, 0, {a.conv_width - 1, channels}},
               {RT_CACHE_RECURRENT, RT_DTYPE_F32, layout, 0, {heads, a.head_k_dim, a.head_v_dim}}};
  op.attrs = &a;
  return op;
}

// Six slots; those that no sequence may read hold NaN: 1, 3 (free), 2 (fresh). Padding lanes of the layout
// are zero.
std::vector<Values> MixerCaches(const rt_attrs_mixer& a, StateLayout layout) {
  const StateShape shape{a.num_v_heads, a.head_k_dim, a.head_v_dim};
  const int64_t channels = 2 * a.num_k_heads * a.head_k_dim + a.num_v_heads * a.head_v_dim;
  std::vector<Values> caches(2);
  for (int slot = 0; slot < 6; ++slot) {
    const bool poisoned = slot == 1 || slot == 2 || slot == 3;
    Values window = Random((a.conv_width - 1) * channels, 20 + slot);
    Values state = ConvertState(shape, StateLayout::kKV, layout,
                                Random(StateElements(StateLayout::kKV, shape), 40 + slot));
    if (poisoned) std::fill(window.begin(), window.end(), kNaN);
    if (poisoned) std::fill(state.begin(), state.end(), kNaN);
    caches[0].insert(caches[0].end(), window.begin(), window.end());
    caches[1].insert(caches[1].end(), state.begin(), state.end());
  }
  return caches;
}

constexpr rt_attrs_mixer kScalarGate = {
    sizeof(rt_attrs_mixer), 2, 6, 8, 18, 4, RT_GATE_SOFTPLUS_DECAY, 1, RT_ACT_SILU, 0, 2, 1e-6f, 1e-6f, 0};
constexpr rt_attrs_mixer kChannelGate = {
    sizeof(rt_attrs_mixer), 3,  3, 8,     6,     4, RT_GATE_BOUNDED_SIGMOID, 8,
    RT_ACT_SIGMOID,         -5, 1, 1e-6f, 1e-5f, 0};

TEST(OpOracle, LinearMixerEqualsItsPiecesInEveryStateLayout) {
  for (const auto& [id, layout] : {std::pair<uint32_t, StateLayout>{RT_STATE_LAYOUT_KV, StateLayout::kKV},
                                   {RT_STATE_LAYOUT_VK, StateLayout::kVK},
                                   {RT_STATE_LAYOUT_VPANEL16, StateLayout::kVPanel16}}) {
    ExpectCompositeEqualsPieces(Mixer(kScalarGate, id), MixerCaches(kScalarGate, layout));
  }
}

TEST(OpOracle, LinearMixerWithABoundedGateAChannelEqualsItsPieces) {
  ExpectCompositeEqualsPieces(Mixer(kChannelGate, RT_STATE_LAYOUT_VPANEL16),
                              MixerCaches(kChannelGate, StateLayout::kVPanel16));
}

TEST(OpOracle, PaddingRowsAreZeroAndUnownedSlotsKeepTheirBits) {
  const OpInstance op = Mixer(kScalarGate, RT_STATE_LAYOUT_VPANEL16);
  OpTensors t;
  t.caches = MixerCaches(kScalarGate, StateLayout::kVPanel16);
  const std::vector<Values> before = t.caches;
  t.inputs = FillAll(op.inputs, FirstStep().num_tokens(), 3);
  t.weights = FillAll(op.weights, 0, 900);
  ASSERT_TRUE(EvaluateOp(op, FirstStep(), t).ok());
  const int64_t width = kScalarGate.num_v_heads * kScalarGate.head_v_dim;
  for (int64_t i = 0; i < width; ++i) EXPECT_EQ(t.outputs[0][width + i], 0.0) << "padding row, " << i;
  for (const double y : t.outputs[0]) ASSERT_TRUE(std::isfinite(y));
  for (int cache = 0; cache < 2; ++cache) {
    const std::size_t unit = before[cache].size() / 6;
    for (const int slot : {0, 1, 3}) {  // zero length, free, free
      EXPECT_EQ(
          std::memcmp(&before[cache][slot * unit], &t.caches[cache][slot * unit], unit * sizeof(double)), 0)
          << slot;
    }
  }
}

OpInstance Attention(const rt_attrs_attention& a) {
  const int64_t q = a.num_q_heads * a.head_dim, kv = a.num_kv_heads * a.head_dim;
  OpInstance op;
  op.op = RT_OP_ATTENTION_MIXER;
  op.inputs = {F32({T, a.output_gate == RT_ACT_NONE ? q : 2 * q}), F32({T, kv}), F32({T, kv})};
  if (a.qk_norm == RT_QK_NORM_PER_HEAD) op.weights = {F32({a.head_dim}), F32({a.head_dim})};
  op.outputs = {F32({T, q})};
  op.caches = {{RT_CACHE_KEY, RT_DTYPE_F32, RT_KV_LAYOUT_HND, 4, {a.num_kv_heads, a.head_dim}},
               {RT_CACHE_VALUE, RT_DTYPE_F32, RT_KV_LAYOUT_HND, 4, {a.num_kv_heads, a.head_dim}}};
  op.attrs = &a;
  return op;
}

// Nine blocks of four tokens. Context rows hold numbers, everything else NaN.
std::vector<Values> AttentionCaches(const rt_attrs_attention& a) {
  const int64_t row = a.head_dim, block = a.num_kv_heads * 4 * row;
  std::vector<Values> caches(2, Values(9 * block, kNaN));
  const StepMeta meta = FirstStep();
  uint64_t seed = 500;
  for (int64_t b = 0; b < meta.num_sequences(); ++b) {
    for (int64_t token = 0; token < meta.context_lens[b]; ++token) {
      for (int64_t h = 0; h < a.num_kv_heads; ++h) {
        const int64_t at = meta.block_tables[b][token / 4] * block + (h * 4 + token % 4) * row;
        for (Values& cache : caches) {
          const Values values = Random(row, seed++);
          std::copy(values.begin(), values.end(), cache.begin() + at);
        }
      }
    }
  }
  return caches;
}

TEST(OpOracle, AttentionMixerEqualsItsPieces) {
  rt_attrs_attention a = {
      sizeof(rt_attrs_attention), 6, 2, 8, 4, RT_QK_NORM_PER_HEAD, RT_ACT_SIGMOID, 1e-6f, 1, 0.35f, 1e4};
  ExpectCompositeEqualsPieces(Attention(a), AttentionCaches(a));
  a.output_gate = RT_ACT_NONE;
  ExpectCompositeEqualsPieces(Attention(a), AttentionCaches(a));
  a.qk_norm = RT_QK_NORM_NONE;
  a.rotary_dim = 0;
  ExpectCompositeEqualsPieces(Attention(a), AttentionCaches(a));
}

TEST(OpOracle, GatedMlpAndAddRmsNormEqualTheirPieces) {
  const rt_attrs_none none = {sizeof(rt_attrs_none), 0};
  OpInstance mlp;
  mlp.op = RT_OP_GATED_MLP;
  mlp.inputs = {F32({T, 10})};
  mlp.weights = {F32({30, 10}), F32({30, 10}), F32({10, 30})};
  mlp.outputs = {F32({T, 10})};
  mlp.attrs = &none;
  ExpectCompositeEqualsPieces(mlp, {});
  const rt_attrs_norm norm = {sizeof(rt_attrs_norm), 1e-6f, 1, 0};
  OpInstance add_norm;
  add_norm.op = RT_OP_ADD_RMS_NORM;
  add_norm.inputs = {F32({T, 10}), F32({T, 10})};
  add_norm.weights = {F32({10})};
  add_norm.outputs = {F32({T, 10}), F32({T, 10})};
  add_norm.attrs = &norm;
  ExpectCompositeEqualsPieces(add_norm, {});
}

TEST(OpOracle, MlaMixerEqualsItsPieces) {
  const rt_attrs_mla a = {sizeof(rt_attrs_mla), 3, 10, 6, 4, 5, 1e-6f, 0.3f};
  OpInstance op;
  op.op = RT_OP_MLA_MIXER;
  op.inputs = {F32({T, 30}), F32({T, 14})};
  op.weights = {F32({10}), F32({33, 10})};
  op.outputs = {F32({T, 15})};
  op.caches = {{RT_CACHE_LATENT, RT_DTYPE_F32, RT_KV_LAYOUT_HND, 4, {14}}};
  op.attrs = &a;
  Values cache;  // nine blocks; those that hold no earlier token are poisoned
  for (int block = 0; block < 9; ++block) {
    Values rows = Random(4 * 14, 70 + block);
    if (block == 0 || block == 1 || block == 2 || block == 4) std::fill(rows.begin(), rows.end(), kNaN);
    cache.insert(cache.end(), rows.begin(), rows.end());
  }
  ExpectCompositeEqualsPieces(op, {cache});
}

TEST(OpOracle, MoeBlockEqualsItsPiecesWithAndWithoutItsOptionalParts) {
  const rt_attrs_moe a = {sizeof(rt_attrs_moe), 8, 3, 4, 2, RT_ROUTER_SIGMOID, 1, 2.5f};
  OpInstance op;
  op.op = RT_OP_MOE_BLOCK;
  op.inputs = {F32({T, 6})};
  op.weights = {F32({8, 6}), F32({8 * 5, 6}), F32({8 * 5, 6}), F32({8 * 6, 5}), F32({8}), F32({7, 6}), F32({7, 6}), F32({6, 7})};
  op.outputs = {F32({T, 6})};
  op.attrs = &a;
  ExpectCompositeEqualsPieces(op, {});
  op.weights.resize(5);
  ExpectCompositeEqualsPieces(op, {});
  op.weights.resize(4);
  rt_attrs_moe softmax = a;
  softmax.router_score = RT_ROUTER_SOFTMAX;
  softmax.renormalize = 0;
  op.attrs = &softmax;
  ExpectCompositeEqualsPieces(op, {});
}

TEST(OpOracle, AnExpertThatDoesNotExistIsNamed) {
  const rt_attrs_moe a = {sizeof(rt_attrs_moe), 2, 1, 1, 1, RT_ROUTER_SIGMOID, 1, 1};
  OpInstance op;
  op.op = RT_OP_MOE_EXPERTS;
  op.inputs = {F32({T, 2}), F32({T, 1}), F32({T, 1})};
  op.weights = {F32({4, 2}), F32({4, 2}), F32({4, 2})};
  op.outputs = {F32({T, 2})};
  op.attrs = &a;
  OpTensors t{{{1, 2}, {2}, {1}}, {Values(8, 1.0), Values(8, 1.0), Values(8, 1.0)}, {}, {}};
  EXPECT_NE(EvaluateOp(op, SecondStep(), t).message().find("expert 2 of 2"), std::string::npos);
}

TEST(OpOracle, EveryOpOfTheTableButSampleHasAReference) {
  for (const ops::OpDef* def : ops::AllOps()) {
    // Those are run above, through their composites.
    const bool piece = std::string_view(def->name).substr(0, 4) == "moe_";
    if (def->composite || def->kind != RT_KIND_OPS || piece) continue;
    OpInstance op;
    op.op = def->name;
    op.inputs.resize(3, F32({T, 2}));
    op.weights.resize(1, F32({2, 2}));
    op.outputs.resize(1, F32({T, 2}));
    const rt_attrs_norm attrs = {sizeof(rt_attrs_norm), 1e-6f, 1, 0};
    op.attrs = &attrs;
    OpTensors t{{{0, 1}, {1, 0}, {1, 1}}, {{3, 4}}, {}, {}};
    if (op.op == RT_OP_EMBEDDING || op.op == RT_OP_LINEAR) t.weights[0] = {3, 4, 5, 6};
    if (op.op == RT_OP_GATHER_ROWS) t.inputs[1] = {0};
    const Status status = EvaluateOp(op, SecondStep(), t);
    EXPECT_EQ(status.code(), op.op == RT_OP_SAMPLE ? Code::kUnsupported : Code::kOk) << status.ToString();
  }
}

TEST(OpOracle, SelectIdsTakesTheDeviceIdWhereASourceIsNamed) {
  OpInstance op;
  op.op = RT_OP_SELECT_IDS;
  op.outputs = {F32({T})};
  OpTensors t{{{10, 11, 12}, {-1, 1, 0}, {20, 21}}, {}, {}, {}};
  ASSERT_TRUE(EvaluateOp(op, {}, t).ok());
  EXPECT_EQ(t.outputs[0], (Values{10, 21, 20}));
  t.inputs[1][0] = 2;
  EXPECT_EQ(EvaluateOp(op, {}, t).ToString(), "INVALID_ARGUMENT: select_ids: src past device_ids");
}

TEST(OpOracle, IdsOutsideTheirCacheAreNamed) {
  const OpInstance op = Mixer(kScalarGate, RT_STATE_LAYOUT_KV);
  OpTensors t;
  t.caches = MixerCaches(kScalarGate, StateLayout::kKV);
  t.inputs = FillAll(op.inputs, 3, 3);
  t.weights = FillAll(op.weights, 0, 900);
  StepMeta meta = SecondStep();
  meta.state_slot_ids[1] = 6;
  EXPECT_EQ(EvaluateOp(op, meta, t).ToString(),
            "INVALID_ARGUMENT: linear_mixer: state slot 6 past the cache");

  const rt_attrs_attention a = {
      sizeof(rt_attrs_attention), 6, 2, 8, 4, RT_QK_NORM_PER_HEAD, RT_ACT_SIGMOID, 1e-6f, 1, 0.35f, 1e4};
  const OpInstance attention = Attention(a);
  OpTensors u{FillAll(attention.inputs, 3, 3), FillAll(attention.weights, 0, 9), {}, AttentionCaches(a)};
  meta.block_tables[1] = {3};
  EXPECT_EQ(EvaluateOp(attention, meta, u).ToString(),
            "INVALID_ARGUMENT: attention_mixer: sequence 1: no block for tokens from 4");
}

}  // namespace
}  // namespace rt::oracle
