#include "runtime/weights/load_plan.h"

#include "runtime/weights/checkpoint_fixture.h"
#include "runtime/weights/name_match.h"

#include <gtest/gtest.h>

namespace rt::weights {
namespace {

using Requests = std::vector<WeightRequest>;

// The two-shard checkpoint of the fixture: a [2, 3], b [4], c [5], all F32.
class LoadPlanTest : public testing::Test {
 protected:
  LoadPlanTest() { folder_.WriteTwoShards(); }

  Result<LoadPlan> Plan(const Requests& requests, const std::vector<std::string>& skip = {}) {
    auto opened = Checkpoint::Open(folder_.path());
    if (!opened.ok()) return opened.status();
    checkpoint_.emplace(std::move(*opened));
    return LoadPlan::FromCheckpoint(*checkpoint_, requests, skip);
  }

  void ExpectRefused(const Requests& requests, const std::vector<std::string>& skip, Code code,
                     const std::string& message) {
    const auto plan = Plan(requests, skip);
    ASSERT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), code);
    EXPECT_EQ(plan.status().message(), folder_.path().string() + ": " + message);
  }

  CheckpointFolder folder_;
  std::optional<Checkpoint> checkpoint_;
};

TEST_F(LoadPlanTest, EveryTensorRequestedOrSkippedIsAPlan) {
  const auto plan = Plan({{.name = "a", .shape = {2, 3}}, {.name = "c", .shape = {5}, .dtype = DType::kF32}},
                         {"b*", "mtp.*"});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  ASSERT_EQ(plan->items().size(), 2u);
  EXPECT_EQ(plan->items()[0].bytes, 12u);  // BF16 in memory
  EXPECT_EQ(plan->items()[1].bytes, 20u);
  EXPECT_EQ(plan->total_bytes(), 32u);
  EXPECT_EQ(plan->skipped(), std::vector<std::string>{"b"});
}

TEST_F(LoadPlanTest, TensorOfTwoUsersIsOneItem) {
  const auto plan = Plan({{.name = "a", .shape = {2, 3}},
                          {.name = "b", .shape = {4}},
                          {.name = "c", .shape = {5}},
                          {.name = "a", .shape = {2, 3}}});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->items().size(), 3u);
  EXPECT_EQ(plan->item_of(0), plan->item_of(3));
  EXPECT_NE(plan->item_of(0), plan->item_of(1));
}

TEST_F(LoadPlanTest, AnyShapeTakesEveryShapeOfTheSameCountAndNoOther) {
  WeightRequest a = {.name = "a", .shape = {6}};
  a.any_shape = true;
  EXPECT_TRUE(Plan({a, {.name = "b", .shape = {4}}, {.name = "c", .shape = {5}}}).ok());
  a.shape = {7};
  EXPECT_FALSE(Plan({a, {.name = "b", .shape = {4}}, {.name = "c", .shape = {5}}}).ok());
}

TEST_F(LoadPlanTest, OneTensorInTwoTypesIsTwoItems) {
  const auto plan = Plan(
      {{.name = "a", .shape = {2, 3}}, {.name = "a", .shape = {2, 3}, .dtype = DType::kF32}}, {"b", "c"});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->items().size(), 2u);
  EXPECT_EQ(plan->total_bytes(), 12u + 24u);
}

TEST_F(LoadPlanTest, SharedTensorKeepsTheStrictestRule) {
  const auto plan =
      Plan({{.name = "a", .shape = {2, 3}}, {.name = "a", .shape = {2, 3}, .finite = FiniteRule::kStrict}},
           {"b", "c"});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->items()[0].request.finite, FiniteRule::kStrict);
}

TEST_F(LoadPlanTest, AbsentTensorIsNamed) {
  ExpectRefused({{.name = "a", .shape = {2, 3}}, {.name = "model.norm.weight", .shape = {5}}}, {"b", "c"},
                Code::kNotFound, "1 tensor absent that the model needs: model.norm.weight");
}

TEST_F(LoadPlanTest, ManyAbsentTensorsAreListedUpToTenAndCounted) {
  Requests requests;
  for (int i = 0; i < 14; ++i) requests.push_back({.name = "layer." + std::to_string(i), .shape = {1}});
  const std::string message = Plan(requests, {"a", "b", "c"}).status().message();
  EXPECT_NE(message.find("14 tensors absent that the model needs: layer.0; layer.1; "), std::string::npos)
      << message;
  EXPECT_NE(message.find("layer.9; and 4 more"), std::string::npos) << message;
}

TEST_F(LoadPlanTest, UnknownTensorIsNamedWithTheNearestAbsentOne) {
  folder_.Write(CheckpointFolder::kSecond, SafetensorsFile({CountingTensor("model.norm.wieght", {5})}));
  folder_.WriteIndex({{"a", CheckpointFolder::kFirst},
                      {"b", CheckpointFolder::kFirst},
                      {"model.norm.wieght", CheckpointFolder::kSecond}});
  ExpectRefused({{.name = "a", .shape = {2, 3}},
                 {.name = "b", .shape = {4}},
                 {.name = "model.norm.weight", .shape = {5}}},
                {}, Code::kNotFound,
                "1 tensor absent that the model needs: model.norm.weight; 1 tensor unknown, neither used by "
                "the model nor skipped by a "
                "pattern: model.norm.wieght (model-00002-of-00002.safetensors; nearest name in use: "
                "model.norm.weight)");
}

TEST_F(LoadPlanTest, WrongShapeNamesBoth) {
  ExpectRefused({{.name = "a", .shape = {3, 2}}}, {"b", "c"}, Code::kInvalidArgument,
                "tensor a (model-00001-of-00002.safetensors): expected shape [3, 2], found [2, 3]");
}

TEST_F(LoadPlanTest, WrongDtypeNamesBoth) {
  ExpectRefused({{.name = "a", .shape = {2, 3}, .accepted = {DType::kBf16, DType::kF16}}}, {"b", "c"},
                Code::kInvalidArgument,
                "tensor a (model-00001-of-00002.safetensors): expected BF16 or F16, found F32");
}

TEST_F(LoadPlanTest, StoredTypeThatCannotBeConvertedIsRefused) {
  ExpectRefused(
      {{.name = "a", .shape = {2, 3}, .dtype = DType::kI64}}, {"b", "c"}, Code::kInvalidArgument,
      "tensor a (model-00001-of-00002.safetensors): expected a type that converts to I64, found F32");
}

TEST_F(LoadPlanTest, FiniteRuleOnATypeWithoutACheckIsRefused) {
  folder_.Write(CheckpointFolder::kSecond,
                SafetensorsFile({MakeTensor<double>("c", DType::kF64, {1}, {0.5})}));
  ExpectRefused({{.name = "c", .shape = {1}, .dtype = DType::kF64, .finite = FiniteRule::kStrict}},
                {"a", "b"}, Code::kUnsupported,
                "tensor c (model-00002-of-00002.safetensors): NaN and infinities are looked for in BF16, F16 "
                "and F32, found F64");
}

TEST_F(LoadPlanTest, TensorBothRequestedAndSkippedIsAContradiction) {
  ExpectRefused({{.name = "a", .shape = {2, 3}}}, {"b", "?"}, Code::kInvalidArgument,
                "tensor a is used by the model and skipped by the pattern ?");
}

TEST_F(LoadPlanTest, RequestsThatDisagreeInShapeAreRefused) {
  ExpectRefused({{.name = "a", .shape = {2, 3}}, {.name = "a", .shape = {6}}}, {"b", "c"},
                Code::kInvalidArgument, "tensor a: requested as [2, 3] and as [6]");
}

TEST_F(LoadPlanTest, RandomWeightsNeedAFloatType) {
  EXPECT_EQ(LoadPlan::Random(1, {{.name = "h", .shape = {2}, .dtype = DType::kI64}}).status().message(),
            "random weights: tensor h: expected BF16 or F32, got I64");
  EXPECT_EQ(LoadPlan::Random(1, {{.name = "h", .shape = {-2}}}).status().message(),
            "random weights: tensor h: cannot be requested as BF16 [-2] with 1 elements per head");
}

TEST(NameMatch, StarCrossesDotsAndMatchesNothingToo) {
  EXPECT_TRUE(GlobMatches("mtp.*", "mtp.layers.0.mlp.up_proj.weight"));
  EXPECT_TRUE(GlobMatches("mtp.*", "mtp."));
  EXPECT_FALSE(GlobMatches("mtp.*", "model.mtp.fc"));
  EXPECT_TRUE(GlobMatches("*.visual.*", "model.visual.blocks.0.attn.qkv.weight"));
  EXPECT_FALSE(GlobMatches("*.visual.*", "visual.x"));
  EXPECT_TRUE(GlobMatches("*a*b", "xaxbxab"));
  EXPECT_FALSE(GlobMatches("*a*b", "xaxbx"));
  EXPECT_TRUE(GlobMatches("layers.?.w", "layers.3.w"));
  EXPECT_FALSE(GlobMatches("layers.?.w", "layers.13.w"));
  EXPECT_TRUE(GlobMatches("", ""));
  EXPECT_FALSE(GlobMatches("", "a"));
}

TEST(NameMatch, NearestNameNeedsToBeNear) {
  const std::vector<std::string_view> names = {"model.norm.weight", "model.embed_tokens.weight",
                                               "lm_head.weight"};
  EXPECT_EQ(NearestName("model.norm.wieght", names), "model.norm.weight");
  EXPECT_EQ(NearestName("model.embed_token.weight", names), "model.embed_tokens.weight");
  EXPECT_EQ(NearestName("vision.patch.bias", names), "");
  EXPECT_EQ(NearestName("lm_head.weight", {}), "");
}

}  // namespace
}  // namespace rt::weights
