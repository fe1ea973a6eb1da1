// The parts of the executor that need no plugin: where caches lie in their units, and what a step's metadata says.
#include "runtime/executor/cache_layout.h"
#include "runtime/executor/step_inputs.h"
#include "runtime/executor/weight_traffic.h"

#include <rt/plugin/op_defs.h>

#include <gtest/gtest.h>

namespace rt {
namespace {

ProgramCache Cache(uint32_t role, std::vector<int64_t> dims) {
  ProgramCache cache;
  cache.role = role;
  cache.extent = role == RT_CACHE_KEY || role == RT_CACHE_VALUE ? RT_CACHE_PER_TOKENS : RT_CACHE_PER_SEQUENCE;
  cache.dims = std::move(dims);
  return cache;
}

TEST(CacheLayout, UnitsHoldEveryLayerAlignedAndNothingOverlaps) {
  Program program;
  program.caches = {Cache(RT_CACHE_CONV, {3, 216}), Cache(RT_CACHE_RECURRENT, {6, 24, 20}), Cache(RT_CACHE_KEY, {2, 24}), Cache(RT_CACHE_VALUE, {2, 24}), Cache(RT_CACHE_RECURRENT, {6, 24, 20})};
  ProgramDTypes dtypes;
  dtypes.caches = {{RT_DTYPE_BF16, 0, 0}, {RT_DTYPE_F32, RT_STATE_LAYOUT_VPANEL16, 0}, {RT_DTYPE_BF16, RT_KV_LAYOUT_HND, 16}, {RT_DTYPE_BF16, RT_KV_LAYOUT_HND, 16}, {RT_DTYPE_F16, RT_STATE_LAYOUT_KV, 0}};
  const CacheLayout layout = LayOutCaches(program, dtypes, 16);
  EXPECT_EQ(layout.entries[0].bytes, 3 * 216 * 2);
  EXPECT_EQ(layout.entries[1].bytes, 6 * 2 * 24 * 16 * 4) << "two panels of 16 lanes hold 20 values";
  EXPECT_EQ(layout.entries[4].bytes, 6 * 24 * 20 * 2);
  EXPECT_EQ(layout.entries[2].bytes, 2 * 24 * 16 * 2);
  EXPECT_EQ(layout.entries[2].offset_bytes, 0) << "blocks and slots are units of their own";
  int64_t slot_end = 0;
  for (size_t i : {0u, 1u, 4u}) {
    EXPECT_EQ(layout.entries[i].offset_bytes % 64, 0);
    EXPECT_GE(layout.entries[i].offset_bytes, slot_end);
    slot_end = layout.entries[i].offset_bytes + layout.entries[i].bytes;
  }
  EXPECT_GE(layout.geometry.state_slot_bytes, slot_end);
  EXPECT_EQ(layout.geometry.kv_block_bytes, 2 * 1536);

  // Far slots: offsets are 64-bit.
  char base = 0;
  const auto views = BindViews(program, dtypes, layout, {int64_t{1} << 20, int64_t{1} << 22, 0}, &base);
  EXPECT_EQ(views[1].unit_stride_bytes * 5000, int64_t{5000} << 22);
  EXPECT_EQ(views[3].unit_stride_bytes, int64_t{1} << 20);
}

ProgramWeight Weight(std::vector<int64_t> dims) {
  ProgramWeight weight;
  weight.dims = std::move(dims);
  return weight;
}
ProgramOp Reader(const char* op, std::vector<uint32_t> weights) {
  ProgramOp reader;
  reader.op = op;
  reader.weights = std::move(weights);
  return reader;
}

TEST(WeightTraffic, AStepReadsTheExpertsThatItsTokensChoose) {
  const rt_attrs_moe attrs = {sizeof attrs, 8, 2, 1, 1, RT_ROUTER_SIGMOID, 1, 1.0f};
  Program program;
  for (int i = 0; i < 8; ++i) program.weights.push_back(Weight({100, 1}));
  ProgramOp experts = Reader(RT_OP_MOE_EXPERTS, {0, 1, 2}), block = Reader(RT_OP_MOE_BLOCK, {3, 4, 5, 6, kNoId, 7, 7, 7});
  for (ProgramOp* op : {&experts, &block}) op->attrs.assign(reinterpret_cast<const std::byte*>(&attrs), reinterpret_cast<const std::byte*>(&attrs) + sizeof attrs);
  const std::vector<uint64_t> bytes(8, 6400);
  program.ops = {experts};
  EXPECT_EQ(StepWeightBytes(program, bytes, 1), 3 * 1600u) << "two of eight experts";
  EXPECT_EQ(StepWeightBytes(program, bytes, 2), 3 * 2800u) << "the second token finds a quarter of its experts read already";
  EXPECT_EQ(StepWeightBytes(program, bytes, 1000), 3 * 6400u);
  program.ops = {block};
  EXPECT_EQ(StepWeightBytes(program, bytes, 1), 6400u + 3 * 1600u + 6400u) << "the router and the shared expert are read whole";
}

TEST(WeightTraffic, EveryWeightCountsOnceAndAnEmbeddingByItsRows) {
  Program program;
  program.weights = {Weight({50, 4}), Weight({4, 4})};
  program.ops = {Reader(RT_OP_EMBEDDING, {0}), Reader(RT_OP_LINEAR, {1}), Reader(RT_OP_LINEAR, {1})};
  EXPECT_EQ(StepWeightBytes(program, {800, 64}, 1), 16u + 64u);
  EXPECT_EQ(StepWeightBytes(program, {800, 64}, 3), 48u + 64u);
  EXPECT_EQ(StepWeightBytes(program, {800, 64}, 500), 800u + 64u);
  program.ops.push_back(Reader(RT_OP_LINEAR, {0}));  // tied: the head reads all of it
  EXPECT_EQ(StepWeightBytes(program, {800, 64}, 1), 800u + 64u);
}

// Nothing is copied on a device whose memory the host can reach.
Device HostDevice() {
  Device device;
  device.info.memory_is_host = 1;
  return device;
}

StepSequence Row(StepKind kind, const std::vector<int32_t>& tokens, int32_t cached, const std::vector<int32_t>& blocks, int32_t slot) {
  StepSequence s;
  s.kind = kind;
  s.num_tokens = static_cast<int32_t>(tokens.size());
  s.token_ids = tokens;
  s.num_cached_tokens = cached;
  s.block_table = blocks;
  s.state_slot_id = slot;
  s.has_initial_state = cached > 0;
  s.samples = true;
  return s;
}

TEST(StepInputs, MetadataSaysWhereEveryTokenIs) {
  const std::vector<int32_t> one = {7}, three = {1, 2, 3}, blocks_a = {4, 9}, blocks_b = {0};
  StepPlan plan;
  plan.sequences = {Row(StepKind::kDecode, one, 17, blocks_a, 3), Row(StepKind::kPrefill, three, 0, blocks_b, 1)};
  plan.sequences[0].token_ids = {};
  plan.sequences[0].pending_row = 2;
  StepInputs inputs;
  ASSERT_TRUE(inputs.Prepare(plan, 16, HostDevice(), nullptr).ok());
  const rt_step_meta& m = inputs.meta;
  EXPECT_EQ(m.num_tokens, 4);
  EXPECT_EQ(m.num_decode_sequences, 1);
  EXPECT_EQ(m.num_prefill_tokens, 3);
  EXPECT_EQ(m.max_context, 18);
  EXPECT_EQ(std::vector<int32_t>(m.cu_seqlens, m.cu_seqlens + 3), (std::vector<int32_t>{0, 1, 4}));
  EXPECT_EQ(std::vector<int32_t>(m.positions, m.positions + 4), (std::vector<int32_t>{17, 0, 1, 2}));
  EXPECT_EQ(std::vector<int32_t>(m.block_table, m.block_table + 4), (std::vector<int32_t>{4, 9, 0, -1}));
  EXPECT_EQ(std::vector<uint8_t>(m.has_initial_state, m.has_initial_state + 2), (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(inputs.token_sources.host, (std::vector<int32_t>{2, -1, -1, -1}));
  EXPECT_EQ(inputs.sampled_rows.host, (std::vector<int32_t>{0, 3}));
  EXPECT_TRUE(inputs.any_pending);
}

TEST(StepInputs, PlansThatBreakTheirRulesAreRefused) {
  const std::vector<int32_t> one = {7}, two = {1, 2}, block = {0};
  const auto message = [&](std::vector<StepSequence> rows) {
    StepPlan plan;
    plan.sequences = std::move(rows);
    StepInputs inputs;
    return inputs.Prepare(plan, 16, HostDevice(), nullptr).message();
  };
  EXPECT_EQ(message({Row(StepKind::kPrefill, two, 0, block, 0), Row(StepKind::kDecode, one, 1, block, 1)}), "step plan: rows are not ordered decode, verify, prefill");
  EXPECT_EQ(message({Row(StepKind::kDecode, one, 16, block, 0)}), "step plan: 1 blocks do not hold 17 tokens");
  StepSequence wrong = Row(StepKind::kPrefill, two, 0, block, 0);
  wrong.num_tokens = 3;
  EXPECT_EQ(message({wrong}), "step plan: token_ids and num_tokens disagree");
  StepSequence lost = Row(StepKind::kDecode, one, 1, block, 0);
  lost.token_ids = {};
  EXPECT_EQ(message({lost}), "step plan: a row without token ids must be one pending token");
}

TEST(SampleInputs, ListsAreConcatenatedAndBansAreBiasOfMinusInfinity) {
  SamplingParams plain, biased;
  biased.logit_bias = {{5, 1.5f}};
  biased.num_logprobs = 3;
  const std::vector<int32_t> one = {7}, block = {0}, history = {1, 2}, counts = {0, 2}, banned = {9};
  const std::vector<uint8_t> prompt = {1, 0};
  StepPlan plan;
  plan.sequences = {Row(StepKind::kDecode, one, 1, block, 0), Row(StepKind::kDecode, one, 1, block, 1)};
  plan.sequences[0].sample.params = &plain;
  plan.sequences[1].sample.params = &biased;
  plan.sequences[1].sample.history_ids = history;
  plan.sequences[1].sample.history_output_counts = counts;
  plan.sequences[1].sample.history_in_prompt = prompt;
  plan.sequences[1].sample.banned_ids = banned;
  SampleInputs inputs;
  ASSERT_TRUE(inputs.Prepare(plan, HostDevice(), nullptr).ok());
  EXPECT_EQ(inputs.history_offsets.host, (std::vector<int32_t>{0, 0, 2}));
  EXPECT_EQ(inputs.bias_offsets.host, (std::vector<int32_t>{0, 0, 2}));
  EXPECT_EQ(inputs.bias_ids.host, (std::vector<int32_t>{5, 9}));
  EXPECT_EQ(inputs.bias_values.host[1], -std::numeric_limits<float>::infinity());
  EXPECT_EQ(inputs.num_top.host, (std::vector<int32_t>{0, 3}));
}

}  // namespace
}  // namespace rt
