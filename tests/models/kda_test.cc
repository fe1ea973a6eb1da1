// The Kimi Delta Attention model plugin: both dialects of the configuration, refusals by name, and the program it emits.
#include "models/kda/kda_arch.h"
#include "models/kda/kda_program.h"
#include "tests/models/model_testing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace rt {
namespace {

using models::kda::Sizes;
using nlohmann::json;

const std::string kTinyFolder = std::string(RT_TESTDATA_DIR) + "/models/tiny-kda";
const std::string kMicroFolder = std::string(RT_TESTDATA_DIR) + "/models/micro/kimi_linear";

models::kda::Arch Arch() { return models::kda::ParseArch(testing::ShippedArch("kda/arch/kimi_linear.yaml").json).value(); }
json TinyConfig() { return testing::ReadJson(kTinyFolder + "/config.json"); }
json MicroConfig() { return testing::ReadJson(kMicroFolder + "/config.json"); }

Sizes Parsed(const json& config) {
  const auto sizes = models::kda::ParseSizes(Arch(), config.dump());
  if (sizes.ok()) return *sizes;
  ADD_FAILURE() << sizes.status().ToString();
  return {};
}
std::string SizesError(const json& config) {
  const auto sizes = models::kda::ParseSizes(Arch(), config.dump());
  return sizes.ok() ? "accepted" : sizes.status().message();
}
std::string With(json config, const std::string& pointer, json value) {
  config[json::json_pointer(pointer)] = std::move(value);
  return SizesError(config);
}

Result<Program> Build(const json& config, const std::set<std::string>& tensors, bool random = false) {
  const models::kda::Arch arch = Arch();
  RT_ASSIGN_OR_RETURN(const Sizes sizes, models::kda::ParseSizes(arch, config.dump()));
  return testing::RecordProgram(tensors, [&](plugin::ProgramBuilder* b) { return models::kda::BuildProgram(arch, sizes, random, b); });
}

const ProgramOp& OpOf(const Program& program, const std::string& label) {
  const auto found = std::find_if(program.ops.begin(), program.ops.end(), [&](const ProgramOp& op) { return op.label == label; });
  if (found == program.ops.end()) throw std::runtime_error("no op " + label);
  return *found;
}
template <typename Attrs>
Attrs AttrsOf(const ProgramOp& op) {
  Attrs attrs;
  EXPECT_EQ(op.attrs.size(), sizeof attrs);
  std::memcpy(&attrs, op.attrs.data(), sizeof attrs);
  return attrs;
}
std::vector<std::string> Tensors(const ProgramWeight& weight) {
  std::vector<std::string> names;
  for (const WeightPart& part : weight.parts) names.push_back(part.tensor);
  return names;
}

// The published dialect of micro/kimi_linear, which is stored as transformers writes it.
json PublishedDialect(json config) {
  config["linear_attn_config"] = {{"num_heads", config["linear_num_heads"]}, {"head_dim", config["linear_head_dim"]},
                                  {"short_conv_kernel_size", config["linear_conv_kernel_dim"]}, {"kda_layers", {1, 2, 3}}, {"full_attn_layers", {4}}};
  config["first_k_dense_replace"] = 1;
  for (const char* key : {"linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", "layer_types", "mlp_layer_types", "qk_head_dim"}) config.erase(key);
  return config;
}

TEST(KdaConfig, BothDialectsGiveTheSameSizes) {
  for (const json& config : {MicroConfig(), PublishedDialect(MicroConfig())}) {
    const Sizes s = Parsed(config);
    EXPECT_EQ(s.num_heads, 3);
    EXPECT_EQ(s.head_dim, 40);
    EXPECT_EQ(s.conv_width, 4);
    EXPECT_EQ(s.layer_types, (std::vector<std::string>{"linear_attention", "linear_attention", "linear_attention", "full_attention"}));
    EXPECT_EQ(s.is_sparse, (std::vector<bool>{false, true, true, true}));
    EXPECT_EQ(s.q_rank, 24);
    EXPECT_EQ(s.num_groups, 2);
    EXPECT_EQ(s.max_context, 4096);
    EXPECT_EQ(s.gate_form, uint32_t{RT_GATE_SOFTPLUS_DECAY});
  }
}

TEST(KdaConfig, LayerListsCountFromOne) {
  const Sizes s = Parsed(TinyConfig());
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(s.layer_types[i], i == 3 || i == 7 ? "full_attention" : "linear_attention") << "layer " << i << " from 0";
  EXPECT_FALSE(s.is_sparse[0]);
  EXPECT_TRUE(s.is_sparse[1]);
}

TEST(KdaConfig, ExplicitLayerTypesWinOverListsAndEveryFourthIsTheDefault) {
  json config = TinyConfig();
  config["layer_types"] = std::vector<std::string>(8, "full_attention");
  EXPECT_EQ(Parsed(config).layer_types[0], "full_attention");
  config.erase("layer_types");
  const auto listed = Parsed(config).layer_types;
  config["linear_attn_config"].erase("kda_layers");
  config["linear_attn_config"].erase("full_attn_layers");
  EXPECT_EQ(Parsed(config).layer_types, listed);
}

TEST(KdaConfig, ListsThatDoNotCoverEachLayerOnceAreRefusedByName) {
  const auto with = [](json kda, json full) {
    json config = TinyConfig();
    config["linear_attn_config"]["kda_layers"] = std::move(kda);
    config["linear_attn_config"]["full_attn_layers"] = std::move(full);
    return SizesError(config);
  };
  EXPECT_EQ(with({1, 2, 3, 5, 6, 7}, {4}), "config.json.linear_attn_config.kda_layers: layer 8 is neither here nor in full_attn_layers");
  EXPECT_EQ(with({1, 2, 3, 5, 6, 7}, {4, 7, 8}), "config.json.linear_attn_config.full_attn_layers: layer 7 is listed twice in kda_layers and full_attn_layers");
  EXPECT_EQ(with({1, 1, 2, 3, 5, 6, 7}, {4, 8}), "config.json.linear_attn_config.kda_layers: layer 1 is listed twice in kda_layers and full_attn_layers");
  EXPECT_EQ(with({0, 1, 2, 4, 5, 6}, {3, 7}), "config.json.linear_attn_config.kda_layers: expected layers from 1 to 8 (num_hidden_layers), found 0");
  EXPECT_EQ(with({1, 2, 3, 5, 6, 7}, {4, 9}), "config.json.linear_attn_config.full_attn_layers: expected layers from 1 to 8 (num_hidden_layers), found 9");
  EXPECT_EQ(with("all", {4, 8}), "config.json.linear_attn_config.kda_layers: expected a list of integers, found \"all\"");
}

TEST(KdaConfig, SparseLayersFollowTheListOrFirstAndFrequency) {
  json config = TinyConfig();
  config["first_k_dense_replace"] = 3;
  config["moe_layer_freq"] = 2;
  EXPECT_EQ(Parsed(config).is_sparse, (std::vector<bool>{false, false, false, false, true, false, true, false}));
  config["mlp_layer_types"] = {"sparse", "dense", "dense", "dense", "dense", "dense", "dense", "sparse"};
  EXPECT_EQ(Parsed(config).is_sparse, (std::vector<bool>{true, false, false, false, false, false, false, true}));
  config["mlp_layer_types"] = {"sparse"};
  EXPECT_EQ(SizesError(config), "config.json.mlp_layer_types: expected 8 entries (num_hidden_layers), found 1");
}

TEST(KdaConfig, AliasesAreReadAndMustAgree) {
  json config = TinyConfig();
  for (const auto& [from, to] : {std::pair("num_experts", "n_routed_experts"), {"num_experts_per_token", "num_experts_per_tok"}, {"num_shared_experts", "n_shared_experts"},
                                 {"num_expert_group", "n_group"}, {"moe_renormalize", "norm_topk_prob"}, {"model_max_length", "max_position_embeddings"}}) {
    config[to] = config[from];
    config.erase(from);
  }
  const Sizes s = Parsed(config), listed = Parsed(TinyConfig());
  EXPECT_EQ(s.num_experts, listed.num_experts);
  EXPECT_EQ(s.experts_per_token, listed.experts_per_token);
  EXPECT_EQ(s.num_shared_experts, listed.num_shared_experts);
  EXPECT_EQ(s.max_context, listed.max_context);
  EXPECT_EQ(With(config, "/num_experts", 9), "config.json.n_routed_experts: disagrees with num_experts");
}

TEST(KdaConfig, ALowerBoundSelectsTheBoundedGate) {
  for (const char* pointer : {"/linear_attn_config/gate_lower_bound", "/gate_lower_bound", "/linear_lower_bound"}) {
    json config = TinyConfig();
    config[json::json_pointer(pointer)] = -5;
    const Sizes s = Parsed(config);
    EXPECT_EQ(s.gate_form, uint32_t{RT_GATE_BOUNDED_SIGMOID}) << pointer;
    EXPECT_EQ(s.gate_bound, -5) << pointer;
    config[json::json_pointer(pointer)] = nullptr;
    EXPECT_EQ(Parsed(config).gate_form, uint32_t{RT_GATE_SOFTPLUS_DECAY}) << pointer;
  }
  EXPECT_EQ(With(TinyConfig(), "/linear_attn_config/gate_lower_bound", 0.5),
            "config.json.linear_attn_config.gate_lower_bound: expected from -5 to below 0, found 0.500000");
}

TEST(KdaConfig, WhatIsNotServedIsRefusedByName) {
  const json tiny = TinyConfig();
  EXPECT_EQ(With(tiny, "/mla_use_nope", false), "config.json.mla_use_nope: expected true, found false: rotated latent attention is not served");
  EXPECT_EQ(With(tiny, "/quantization_config", json::object()), "config.json.quantization_config: quantized checkpoints are not served yet");
  EXPECT_EQ(With(tiny, "/mla_use_output_gate", true), "config.json.mla_use_output_gate: expected false, found true");
  EXPECT_EQ(With(tiny, "/linear_attn_config/use_full_rank_gate", true), "config.json.linear_attn_config.use_full_rank_gate: expected false, found true");
  EXPECT_EQ(With(tiny, "/attn_res_block_size", 12), "config.json.attn_res_block_size: expected nothing: not part of this architecture");
  EXPECT_EQ(With(tiny, "/hidden_act", "situ"), "config.json.hidden_act: expected silu, found situ");
  EXPECT_EQ(With(tiny, "/num_key_value_heads", 2), "config.json.num_key_value_heads: expected num_attention_heads = 4, found 2");
  EXPECT_EQ(With(tiny, "/qk_head_dim", 64), "config.json.qk_head_dim: expected qk_nope_head_dim + qk_rope_head_dim = 96, found 64");
  EXPECT_EQ(With(tiny, "/moe_router_activation_func", "relu"), "config.json.moe_router_activation_func: expected sigmoid or softmax, found relu");
  EXPECT_EQ(With(tiny, "/num_expert_group", 3), "config.json.num_expert_group: expected a divisor of 8 experts, found 3");
  EXPECT_EQ(With(tiny, "/num_experts_per_token", 9), "config.json.num_experts_per_token: expected an integer from 1 to 8, found 9");
  EXPECT_EQ(With(MicroConfig(), "/num_expert_group", 8), "config.json.topk_group: 1 groups hold 1 experts, fewer than the 2 of a token");
  EXPECT_EQ(With(tiny, "/linear_attn_config/num_heads", 1 << 30),
            "config.json.linear_attn_config: heads * head_dim of linear attention: expected at most 2147483647, found 1073741824 * 128");
  json no_rank = tiny;
  no_rank.erase("kv_lora_rank");
  EXPECT_EQ(SizesError(no_rank), "config.json.kv_lora_rank: expected an integer, found nothing");
}

TEST(KdaConfig, UnknownKeysOfAnArchitectureFileAreErrors) {
  json arch = json::parse(testing::ShippedArch("kda/arch/kimi_linear.yaml").json);
  arch["tensors"]["experts"]["gate"] = "experts.w1";
  EXPECT_EQ(models::kda::ParseArch(arch.dump()).status().message(), "arch.tensors.experts.gate: expected {e} where the expert's number stands");
  arch["tensors"]["experts"]["gates"] = "x";
  EXPECT_EQ(models::kda::ParseArch(arch.dump()).status().message(), "arch.tensors.experts.gates: unknown key");
}

TEST(KdaProgram, EveryTensorOfTheCheckpointIsNamedOnce) {
  const std::set<std::string> tensors = testing::IndexedTensors(kTinyFolder);
  const auto program = Build(TinyConfig(), tensors);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  std::set<std::string> named;
  for (const ProgramWeight& w : program->weights) {
    for (const WeightPart& part : w.parts) EXPECT_TRUE(named.insert(part.tensor).second) << part.tensor;
  }
  EXPECT_EQ(named, tensors);
  EXPECT_EQ(program->caches.size(), 6u * 2 + 2u);
  EXPECT_EQ(program->hidden.size(), 8u);
}

TEST(KdaProgram, LinearLayersStackTheirStreamsAndDecayEveryChannel) {
  json config = TinyConfig();
  config["linear_attn_config"]["gate_lower_bound"] = -5;
  const Program program = Build(config, testing::IndexedTensors(kTinyFolder)).value();
  const ProgramOp& op = OpOf(program, "layers.0.linear_attn");
  EXPECT_EQ(op.op, RT_OP_LINEAR_MIXER);
  const auto attrs = AttrsOf<rt_attrs_mixer>(op);
  EXPECT_EQ(attrs.gate_width, 128u);
  EXPECT_EQ(attrs.head_k_dim, 128u);
  EXPECT_EQ(attrs.num_k_heads, 2u);
  EXPECT_EQ(attrs.gate_form, uint32_t{RT_GATE_BOUNDED_SIGMOID});
  EXPECT_EQ(attrs.gate_bound, -5.0f);
  EXPECT_EQ(attrs.output_gate, uint32_t{RT_ACT_SIGMOID});
  EXPECT_EQ(attrs.norm_eps, 1e-5f);
  const std::string self = "model.layers.0.self_attn.";
  const ProgramWeight& conv = program.weights[op.weights[0]];
  EXPECT_EQ(conv.dims, (std::vector<int64_t>{768, 1, 4}));
  EXPECT_EQ(Tensors(conv), (std::vector<std::string>{self + "q_conv1d.weight", self + "k_conv1d.weight", self + "v_conv1d.weight"}));
  const ProgramWeight& a_log = program.weights[op.weights[1]];
  EXPECT_EQ(a_log.flags, uint32_t{RT_WEIGHT_CHECK_FINITE | RT_WEIGHT_ANY_SHAPE});
  const ProgramWeight& dt_bias = program.weights[op.weights[2]];
  EXPECT_EQ(dt_bias.dims, (std::vector<int64_t>{256}));
  EXPECT_EQ(dt_bias.elements_per_head, 128u);
  EXPECT_EQ(dt_bias.dtype, uint32_t{RT_WEIGHT_F32});
  const ProgramOp& qkv = OpOf(program, "layers.0.qkv_proj");
  EXPECT_EQ(Tensors(program.weights[qkv.weights[0]]), (std::vector<std::string>{self + "q_proj.weight", self + "k_proj.weight", self + "v_proj.weight"}));
  EXPECT_EQ(op.inputs[0], qkv.outputs[0]);
  EXPECT_EQ(op.inputs[1], OpOf(program, "layers.0.g_b_proj").outputs[0]) << "the output gate comes from g";
  EXPECT_EQ(op.inputs[3], OpOf(program, "layers.0.f_b_proj").outputs[0]) << "the decay comes from f";
  EXPECT_EQ(program.caches[op.caches[0]].dims, (std::vector<int64_t>{3, 768}));
  EXPECT_EQ(program.caches[op.caches[1]].dims, (std::vector<int64_t>{2, 128, 128}));
}

TEST(KdaProgram, LatentLayersKeepOneRowATokenAndTakeQueriesOfEitherRank) {
  const Program tiny = Build(TinyConfig(), testing::IndexedTensors(kTinyFolder)).value();
  const ProgramOp& op = OpOf(tiny, "layers.3.self_attn");
  EXPECT_EQ(op.op, RT_OP_MLA_MIXER);
  EXPECT_EQ(op.inputs[0], OpOf(tiny, "layers.3.q_proj").outputs[0]);
  const ProgramCache& cache = tiny.caches[op.caches[0]];
  EXPECT_EQ(cache.role, uint32_t{RT_CACHE_LATENT});
  EXPECT_EQ(cache.extent, uint32_t{RT_CACHE_PER_TOKENS});
  EXPECT_EQ(cache.rollback, uint32_t{RT_ROLLBACK_TRUNCATE});
  EXPECT_EQ(cache.dims, (std::vector<int64_t>{160}));
  const auto attrs = AttrsOf<rt_attrs_mla>(op);
  EXPECT_EQ(attrs.norm_eps, 1e-6f);
  EXPECT_NEAR(attrs.scale, 1 / std::sqrt(96.0), 1e-7);

  const Program micro = Build(MicroConfig(), {"model.embed_tokens.weight"}).value();
  const ProgramOp& norm = OpOf(micro, "layers.3.q_a_norm");
  EXPECT_EQ(AttrsOf<rt_attrs_norm>(norm).eps, 1e-6f);
  EXPECT_EQ(OpOf(micro, "layers.3.q_b_proj").inputs[0], norm.outputs[0]);
  EXPECT_EQ(OpOf(micro, "layers.3.self_attn").inputs[0], OpOf(micro, "layers.3.q_b_proj").outputs[0]);
}

TEST(KdaProgram, ExpertsAreStackedGateUpDownAndRoutedInFloat32) {
  const Program program = Build(MicroConfig(), {"model.embed_tokens.weight"}).value();
  const ProgramOp& op = OpOf(program, "layers.1.moe");
  EXPECT_EQ(op.op, RT_OP_MOE_BLOCK);
  const auto weight = [&](size_t i) { return program.weights[op.weights.at(i)]; };
  EXPECT_EQ(weight(0).dtype, uint32_t{RT_WEIGHT_F32});
  EXPECT_EQ(weight(4).dtype, uint32_t{RT_WEIGHT_F32});
  EXPECT_EQ(weight(1).dims, (std::vector<int64_t>{8 * 40, 72}));
  EXPECT_EQ(weight(3).dims, (std::vector<int64_t>{8 * 72, 40}));
  const std::string block = "model.layers.1.block_sparse_moe.";
  EXPECT_EQ(weight(1).parts[5].tensor, block + "experts.5.w1.weight") << "gate";
  EXPECT_EQ(weight(2).parts[5].tensor, block + "experts.5.w3.weight") << "up";
  EXPECT_EQ(weight(3).parts[5].tensor, block + "experts.5.w2.weight") << "down";
  EXPECT_EQ(weight(5).name, block + "shared_experts.gate_proj.weight");
  const auto attrs = AttrsOf<rt_attrs_moe>(op);
  EXPECT_EQ(attrs.num_groups, 2u);
  EXPECT_EQ(attrs.topk_groups, 1u);
  EXPECT_EQ(attrs.experts_per_token, 2u);
  EXPECT_EQ(attrs.router_score, uint32_t{RT_ROUTER_SIGMOID});
  EXPECT_EQ(attrs.renormalize, 1u);
  EXPECT_FLOAT_EQ(attrs.routed_scale, 2.446f);
}

TEST(KdaProgram, TheDenseLayerIsFoundUnderEitherName) {
  const auto gate = [](const std::set<std::string>& tensors, bool random) {
    const Program program = Build(MicroConfig(), tensors, random).value();
    return program.weights[OpOf(program, "layers.0.mlp").weights[0]].name;
  };
  const std::string published = "model.layers.0.mlp.gate_proj.weight", resaved = "model.layers.0.block_sparse_moe.gate_proj.weight";
  EXPECT_EQ(gate({"model.embed_tokens.weight", published}, false), published);
  EXPECT_EQ(gate({"model.embed_tokens.weight", resaved}, false), resaved);
  EXPECT_EQ(gate({}, true), published);
}

TEST(KdaProgram, ExpertsAndSharedExpertsMayBeAbsent) {
  json config = TinyConfig();
  config["num_shared_experts"] = 0;
  EXPECT_EQ(OpOf(Build(config, {}, true).value(), "layers.1.moe").weights.at(5), kNoId);
  config["num_experts"] = nullptr;
  EXPECT_EQ(OpOf(Build(config, {}, true).value(), "layers.1.mlp").op, RT_OP_GATED_MLP);
}

TEST(KdaProgram, DraftLayersOfTheCheckpointAreSkipped) {
  json config = TinyConfig();
  EXPECT_TRUE(Build(config, {}, true)->skip.empty());
  config["num_nextn_predict_layers"] = 1;
  EXPECT_EQ(Build(config, {}, true)->skip, std::vector<std::string>{"model.layers.8.*"});
}

}  // namespace
}  // namespace rt
