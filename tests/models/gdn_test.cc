// The Gated DeltaNet model plugin: configuration variants, refusals, and the program it emits.
#include "models/gdn/gdn_arch.h"
#include "models/gdn/gdn_program.h"
#include "tests/models/model_testing.h"

#include <rt/plugin/op_defs.h>

#include <gtest/gtest.h>

#include <set>

namespace rt {
namespace {

using nlohmann::json;

ArchFile ShippedArch() { return testing::ShippedArch("gdn/arch/qwen3_5.yaml"); }

models::gdn::Arch Arch() { return models::gdn::ParseArch(ShippedArch().json).value(); }

json TinyConfig() { return testing::ReadJson(std::string(RT_ZOO_DIR) + "/tiny-gdn/config.json"); }

std::string SizesError(const json& config) {
  const auto sizes = models::gdn::ParseSizes(Arch(), config.dump());
  return sizes.ok() ? "accepted" : sizes.status().message();
}

Result<Program> Build(const json& config, const std::set<std::string>& tensors, bool random = false) {
  const models::gdn::Arch arch = Arch();
  RT_ASSIGN_OR_RETURN(const models::gdn::Sizes sizes, models::gdn::ParseSizes(arch, config.dump()));
  return testing::RecordProgram(tensors, [&](plugin::ProgramBuilder* b) { return models::gdn::BuildProgram(arch, sizes, random, b); });
}

TEST(GdnConfig, OldNewAndNestedFormsGiveTheSameSizes) {
  const json flat = TinyConfig();
  json nested = {{"architectures", {"Qwen3_5ForConditionalGeneration"}}, {"model_type", "qwen3_5"}, {"tie_word_embeddings", flat["tie_word_embeddings"]}, {"text_config", flat}};
  json legacy = flat;
  legacy.erase("rope_parameters");
  legacy["rope_theta"] = 10000000;
  legacy["rope_scaling"] = nullptr;
  for (const json& config : {flat, nested, legacy}) {
    const auto s = models::gdn::ParseSizes(Arch(), config.dump());
    ASSERT_TRUE(s.ok()) << s.status().ToString();
    EXPECT_EQ(s->hidden_size, 256);
    EXPECT_EQ(s->rotary_dim, 16);
    EXPECT_EQ(s->rope_theta, 1e7);
    EXPECT_TRUE(s->tied);
    EXPECT_EQ(s->layer_types[3], "full_attention");
  }
}

TEST(GdnConfig, LayerPatternIsDerivedWhenNotListed) {
  json config = TinyConfig();
  const auto listed = models::gdn::ParseSizes(Arch(), config.dump())->layer_types;
  config.erase("layer_types");
  EXPECT_EQ(models::gdn::ParseSizes(Arch(), config.dump())->layer_types, listed);
}

TEST(GdnConfig, WhatIsNotServedIsRefusedByName) {
  const auto with = [](const char* key, json value) {
    json config = TinyConfig();
    config[key] = std::move(value);
    return SizesError(config);
  };
  EXPECT_EQ(with("num_experts", 8), "config.json.num_experts: expert layers are not part of this architecture file");
  EXPECT_EQ(with("num_experts", 0), "accepted");
  EXPECT_EQ(with("hidden_act", "gelu"), "config.json.hidden_act: expected silu, found gelu");
  EXPECT_EQ(with("attention_bias", true), "config.json.attention_bias: expected false, found true");
  EXPECT_EQ(with("quantization_config", json::object()), "config.json.quantization_config: quantized checkpoints are not served yet");
  EXPECT_EQ(with("hidden_size", "256"), "config.json.hidden_size: expected an integer, found \"256\"");
  EXPECT_EQ(with("hidden_size", 0), "config.json.hidden_size: expected an integer from 1 to 2147483647, found 0");
  EXPECT_EQ(with("rope_theta", 10000), "config.json.rope_theta: disagrees with rope_parameters.rope_theta");
  EXPECT_EQ(with("layer_types", json::array({"full_attention"})), "config.json.layer_types: expected 8 entries (num_hidden_layers), found 1");
  EXPECT_EQ(with("mamba_ssm_dtype", "int8"), "config.json.mamba_ssm_dtype: expected float32, bfloat16 or float16, found int8");
  EXPECT_EQ(with("rope_scaling", {{"type", "yarn"}}), "config.json.rope_scaling: only null is supported, found {\"type\":\"yarn\"}");
  json no_heads = TinyConfig();
  no_heads.erase("linear_num_key_heads");
  EXPECT_EQ(SizesError(no_heads), "config.json.linear_num_key_heads: expected an integer, found nothing");
}

TEST(GdnConfig, UnknownKeysOfAnArchitectureFileAreErrors) {
  json arch = json::parse(ShippedArch().json);
  arch["variations"]["betta_scale"] = 2;
  EXPECT_EQ(models::gdn::ParseArch(arch.dump()).status().message(), "arch.variations.betta_scale: unknown key");
}

TEST(GdnProgram, EveryTensorOfTheCheckpointIsNamedOnceOrSkipped) {
  const std::set<std::string> tensors = testing::IndexedTensors(std::string(RT_ZOO_DIR) + "/tiny-gdn");
  const auto program = Build(TinyConfig(), tensors);
  ASSERT_TRUE(program.ok()) << program.status().ToString();
  std::set<std::string> named;
  for (const ProgramWeight& w : program->weights) EXPECT_TRUE(named.insert(w.name).second) << w.name;
  for (const std::string& name : tensors) {
    if (name.rfind("mtp.", 0) == 0) continue;
    EXPECT_EQ(named.count(name), 1u) << name;
  }
  EXPECT_EQ(program->caches.size(), 6u * 2 + 2u * 2);
  EXPECT_EQ(program->hidden.size(), 8u);
}

TEST(GdnProgram, PrefixIsTheOneUnderWhichTheEmbeddingLies) {
  for (const std::string prefix : {"model.language_model.", "language_model.", "model."}) {
    const auto program = Build(TinyConfig(), {prefix + "embed_tokens.weight"});
    ASSERT_TRUE(program.ok()) << program.status().ToString();
    EXPECT_EQ(program->weights[0].name, prefix + "embed_tokens.weight");
  }
  EXPECT_EQ(Build(TinyConfig(), {}).status().message(),
            "the checkpoint has no token embedding; looked for model.language_model.embed_tokens.weight, language_model.embed_tokens.weight, model.embed_tokens.weight");
}

TEST(GdnProgram, UntiedHeadIsAWeightOfItsOwn) {
  json config = TinyConfig();
  config["tie_word_embeddings"] = false;
  const auto program = Build(config, {}, true);
  ASSERT_TRUE(program.ok());
  EXPECT_EQ(program->ops.back().op, RT_OP_LINEAR);
  EXPECT_EQ(program->weights[program->ops.back().weights[0]].name, "lm_head.weight");
}

TEST(ArchFiles, ArchitectureWinsOverModelTypeAndUnknownOnesNameTheNearest) {
  const std::vector<ArchFile> files = {ShippedArch()};
  EXPECT_EQ(FindArch(files, R"({"architectures":["Qwen3_5ForCausalLM"]})", "c")->name, "qwen3_5");
  EXPECT_EQ(FindArch(files, R"({"model_type":"qwen3_5_text"})", "c")->name, "qwen3_5");
  EXPECT_EQ(FindArch(files, R"({"model_type":"wrapper","text_config":{"model_type":"qwen3_5_text"}})", "c")->name, "qwen3_5");
  EXPECT_EQ(FindArch(files, R"({"architectures":["Qwen3_5ForCausalLN"],"model_type":"qwen3_5"})", "c").status().message(),
            "c: no architecture file serves Qwen3_5ForCausalLN; known: Qwen3_5ForCausalLM, Qwen3_5ForConditionalGeneration; nearest: Qwen3_5ForCausalLM");
  EXPECT_EQ(FindArch(files, "[]", "c").status().message(), "c: expected a JSON object");
}

TEST(ArchFiles, BrokenFilesAreNamed) {
  EXPECT_EQ(ParseArchFile("- a\n", "x.yaml").status().message(), "x.yaml: expected a mapping, found a list");
  EXPECT_EQ(ParseArchFile("name: a\nname: b\n", "x.yaml").status().message(), "x.yaml:2:1: duplicate key name");
  EXPECT_EQ(ParseArchFile("name: a\nplugin: p\n", "x.yaml").status().message(), "x.yaml: serves nothing: architectures and model_types are empty");
  EXPECT_EQ(ParseArchFile("name: a\nplugin: p\narchitectures: A\n", "x.yaml").status().message(), "x.yaml: architectures: expected a list of text");
}

}  // namespace
}  // namespace rt
