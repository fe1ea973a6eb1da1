#include "runtime/program/program.h"

#include <rt/plugin/model.hpp>

#include <gtest/gtest.h>

#include <random>

namespace rt {
namespace {

constexpr int64_t T = RT_DIM_TOKENS, R = RT_DIM_ROWS;
constexpr rt_attrs_norm kNorm = {sizeof(rt_attrs_norm), 1e-6f, 1, 0};

// embedding -> norm -> {a, b, c} -> silu_mul(a, b) -> gated_mlp -> gather -> logits; c feeds nothing but an add.
Result<Program> SmallProgram() {
  ProgramRecorder recorder([](std::string_view) { return true; });
  plugin::ProgramBuilder b(recorder.table());
  const auto ids = b.Input(RT_INPUT_TOKEN_IDS), rows = b.Input(RT_INPUT_SAMPLED_ROWS);
  const auto table = b.Weight("embed", {32, 8});
  const auto x = b.Value("x", T, 8, RT_VALUE_F32), h = b.Value("h", T, 8);
  b.Op(RT_OP_EMBEDDING, "embed", {ids}, {table}, {x});
  b.Op(RT_OP_RMS_NORM, "norm", {x}, {b.Weight("norm", {8}, {RT_WEIGHT_F32})}, {h}, {}, kNorm);
  const auto va = b.Value("a", T, 8), vb = b.Value("b", T, 8), vc = b.Value("c", T, 8), m = b.Value("m", T, 8), y = b.Value("y", T, 8);
  b.Op(RT_OP_LINEAR, "a", {h}, {b.Weight("wa", {8, 8})}, {va});
  b.Op(RT_OP_LINEAR, "b", {h}, {b.Weight("wb", {8, 8})}, {vb});
  b.Op(RT_OP_LINEAR, "c", {h}, {b.Weight("wc", {8, 8})}, {vc});
  b.Op(RT_OP_SILU_MUL, "mul", {va, vb}, {}, {m});
  b.Op(RT_OP_GATED_MLP, "mlp", {m}, {b.Weight("gate", {20, 8}), b.Weight("up", {20, 8}), b.Weight("down", {8, 20})}, {y});
  b.Op(RT_OP_ADD, "add", {x, y}, {}, {x});
  b.Op(RT_OP_ADD, "add_c", {x, vc}, {}, {x});
  const auto last = b.Value("last", R, 8, RT_VALUE_F32), act = b.Value("act", R, 8), logits = b.Value("logits", R, 32, RT_VALUE_F32);
  b.Op(RT_OP_GATHER_ROWS, "gather", {x, rows}, {}, {last});
  b.Op(RT_OP_RMS_NORM, "final", {last}, {b.Weight("final", {8}, {RT_WEIGHT_F32})}, {act}, {}, kNorm);
  b.Op(RT_OP_LINEAR, "lm_head", {act}, {table}, {logits});
  b.Output(RT_OUTPUT_LOGITS, 0, logits);
  b.Info({0, 32, 8, 1, 128, 0});
  if (!b.status().ok()) return b.status();
  return recorder.Finish();
}

TEST(Program, BuilderRecordsAValidProgramAndSharesTiedWeights) {
  const auto program = SmallProgram();
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  EXPECT_EQ(program->ops.size(), 12u);
  EXPECT_EQ(program->ops.front().weights, program->ops.back().weights);
}

TEST(Program, AWeightOfSeveralTensorsStacksThemAndChecksTheirRows) {
  ProgramRecorder recorder([](std::string_view) { return true; });
  plugin::ProgramBuilder b(recorder.table());
  const std::vector<plugin::ProgramBuilder::WeightPart> parts = {{"q", 6}, {"k", 2}};
  const auto x = b.Value("x", T, 4), y = b.Value("y", T, 8), last = b.Value("last", R, 8), logits = b.Value("logits", R, 8, RT_VALUE_F32);
  plugin::ProgramBuilder::WeightOptions options;
  options.parts = parts;
  const auto qk = b.Weight("qk", {8, 4}, options);
  b.Op(RT_OP_EMBEDDING, "embed", {b.Input(RT_INPUT_TOKEN_IDS)}, {b.Weight("embed", {8, 4})}, {x});
  b.Op(RT_OP_LINEAR, "qk", {x}, {qk}, {y});
  b.Op(RT_OP_GATHER_ROWS, "gather", {y, b.Input(RT_INPUT_SAMPLED_ROWS)}, {}, {last});
  b.Op(RT_OP_LINEAR, "head", {last}, {b.Weight("head", {8, 8})}, {logits});
  b.Output(RT_OUTPUT_LOGITS, 0, logits);
  b.Info({0, 8, 4, 1, 16, 0});
  ASSERT_TRUE(b.status().ok()) << b.status().ToString();
  const auto program = recorder.Finish();
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  const std::vector<WeightPart> expected = {{"q", {6, 4}}, {"k", {2, 4}}};
  EXPECT_EQ(program->weights[qk].parts, expected);

  b.Weight("rk", {9, 4}, options);
  EXPECT_EQ(b.status().message(), "weight rk: parts of 8 rows, expected 9");
}

TEST(Program, MergeMakesOneProductPerInputAndLeavesTiedWeightsAlone) {
  Program program = SmallProgram().value();
  ProgramDTypes dtypes;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].op == RT_OP_GATED_MLP) {
      ASSERT_TRUE(ExpandComposite(&program, i, dtypes).ok());
    }
  }
  EXPECT_EQ(MergeLinears(&program), 3);  // a+b+c and gate+up
  int products = 0;
  for (const ProgramOp& op : program.ops) products += op.op == RT_OP_LINEAR;
  EXPECT_EQ(products, 4);  // a+b+c, gate+up, down, lm_head
  const ProgramValue& vb = program.values[program.ops[3].inputs[1]];
  ASSERT_NE(vb.view_of, kNoId);
  EXPECT_EQ(vb.column_offset, 8);
  EXPECT_EQ(program.values[vb.view_of].dims, (std::vector<int64_t>{T, 24}));
  const ProgramWeight& merged = program.weights[program.ops[2].weights[0]];
  EXPECT_EQ(merged.name, "wa + wb + wc");
  EXPECT_EQ(merged.dims, (std::vector<int64_t>{24, 8}));
  ASSERT_EQ(merged.parts.size(), 3u);
  EXPECT_EQ(merged.parts[2].tensor, "wc");
  EXPECT_EQ(program.ops.front().weights, program.ops.back().weights) << "tied weight split";
}

TEST(Program, LiveValuesNeverShareMemory) {
  Program program = SmallProgram().value();
  MergeLinears(&program);
  std::vector<const ProgramOp*> order;
  for (const ProgramOp& op : program.ops) order.push_back(&op);
  const ProgramDTypes dtypes;
  const MemoryPlan plan = PlanMemory(program, order, dtypes, {40, 3}, {program.logits});
  // Simulate: each op stamps its outputs' bytes with the value's id and checks that inputs still carry theirs.
  std::vector<int> memory(static_cast<size_t>(plan.total_bytes), -1);
  const auto each_byte = [&](uint32_t id, auto&& f) {
    const auto& v = program.values[id];
    const auto& slot = plan.values[id];
    ASSERT_GE(slot.offset_bytes, 0) << v.name;
    const int64_t size = ops::DTypeBytes(ResolveValueDType(v.dtype, dtypes.act)), width = v.dims.size() < 2 ? 1 : v.dims[1];
    for (int64_t row = 0; row < slot.rows; ++row) {
      for (int64_t i = 0; i < width * size; ++i) f(memory.at(static_cast<size_t>(slot.offset_bytes + row * slot.row_stride * size + i)));
    }
  };
  const auto root = [&](uint32_t id) { return program.values[id].view_of == kNoId ? id : program.values[id].view_of; };
  for (size_t id = 0; id < program.values.size(); ++id) {
    if (program.values[id].input != 0) each_byte(static_cast<uint32_t>(id), [&](int& byte) { byte = static_cast<int>(id); });
  }
  for (const ProgramOp* op : order) {
    for (uint32_t id : op->inputs) each_byte(id, [&](int& byte) { EXPECT_EQ(byte, static_cast<int>(root(id))) << op->label; });
    for (uint32_t id : op->outputs) each_byte(id, [&](int& byte) { byte = static_cast<int>(root(id)); });
  }
  each_byte(program.logits, [&](int& byte) { EXPECT_EQ(byte, static_cast<int>(program.logits)); });
}

TEST(Program, MemoryIsReused) {
  Program program = SmallProgram().value();
  std::vector<const ProgramOp*> order;
  for (const ProgramOp& op : program.ops) order.push_back(&op);
  const MemoryPlan plan = PlanMemory(program, order, ProgramDTypes(), {1000, 4}, {program.logits});
  int64_t sum = 0;
  for (const auto& slot : plan.values) sum += slot.rows * slot.row_stride * 2;
  EXPECT_LT(plan.total_bytes, sum);
}

// Each mistake of a model plugin is refused with the label and what was wrong.
std::string Mistake(const std::function<void(plugin::ProgramBuilder&)>& build) {
  ProgramRecorder recorder([](std::string_view) { return false; });
  plugin::ProgramBuilder b(recorder.table());
  build(b);
  return b.status().ok() ? recorder.Finish().status().message() : b.status().message();
}

TEST(Program, MistakesOfModelPluginsAreNamed) {
  EXPECT_EQ(Mistake([](auto&) {}), "the model did not state its info");
  EXPECT_EQ(Mistake([](auto& b) { b.Info({0, 0, 8, 1, 128, 0}); }), "model info: vocab_size, hidden_size and max_context: expected > 0");
  EXPECT_EQ(Mistake([](auto& b) { b.Value("v", 5, 4); }), "value v: expected shape [T or R, n > 0], got [5, 4]");
  EXPECT_EQ(Mistake([](auto& b) { b.Weight("w", {4, 0}); }), "weight w: expected positive dims, got [4, 0]");
  EXPECT_EQ(Mistake([](auto& b) {
              b.Weight("w", {4, 4});
              b.Weight("w", {4, 5});
            }),
            "weight w: asked for as [4, 4] and as [4, 5]");
  EXPECT_EQ(Mistake([](auto& b) { b.Op("warp_drive", "layers.0", {}, {}, {}); }), "layers.0: unknown op warp_drive version 1");
  EXPECT_EQ(Mistake([](auto& b) { b.Op(RT_OP_ADD, "l", {7, 8}, {}, {7}); }), "l: inputs[0]: unknown id 7");
  EXPECT_EQ(Mistake([](auto& b) {
              const auto x = b.Value("x", T, 4), y = b.Value("y", T, 4);
              b.Op(RT_OP_LINEAR, "l", {x}, {b.Weight("w", {4, 4})}, {y});
            }),
            "l: linear reads value x before it is written");
  EXPECT_EQ(Mistake([](auto& b) {
              const auto ids = b.Input(RT_INPUT_TOKEN_IDS);
              b.Op(RT_OP_EMBEDDING, "e", {ids}, {b.Weight("w", {9, 4})}, {b.Value("x", T, 5)});
            }),
            "e: embedding.x: expected shape [T, 4], got [T, 5]");
  EXPECT_EQ(Mistake([](auto& b) {
              rt_cache_desc c = {};
              c.role = RT_CACHE_KEY;
              c.extent = RT_CACHE_PER_SEQUENCE;
              b.Cache(c, "k", {2, 8});
            }),
            "cache k: extent does not fit its role");
  EXPECT_EQ(Mistake([](auto& b) {
              b.Info({0, 9, 8, 1, 128, 0});
              const auto ids = b.Input(RT_INPUT_TOKEN_IDS);
              const auto x = b.Value("x", T, 4);
              b.Op(RT_OP_EMBEDDING, "e", {ids}, {b.Weight("w", {9, 4})}, {x});
              b.Output(RT_OUTPUT_LOGITS, 0, x);
            }),
            "logits: expected float32 [R, 9], got [T, 4]");
}

}  // namespace
}  // namespace rt
