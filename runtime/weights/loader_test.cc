#include "runtime/weights/loader.h"

#include "runtime/weights/checkpoint_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace rt::weights {
namespace {

constexpr float kInf = INFINITY;

// One buffer an item, with guard bytes around it that must keep their value.
class Buffers {
 public:
  explicit Buffers(const LoadPlan& plan) {
    for (const LoadPlan::Item& item : plan.items())
      storage_.emplace_back(item.bytes + 2 * kGuard, std::byte{0xa5});
    for (auto& s : storage_) targets_.push_back(std::span(s).subspan(kGuard, s.size() - 2 * kGuard));
  }
  ~Buffers() {
    for (const auto& s : storage_) {
      for (size_t i = 0; i < kGuard; ++i) {
        EXPECT_EQ(s[i], std::byte{0xa5}) << "byte " << i << " before a target";
        EXPECT_EQ(s[s.size() - 1 - i], std::byte{0xa5}) << "byte " << i << " after a target";
      }
    }
  }
  const std::vector<std::span<std::byte>>& targets() const { return targets_; }

 private:
  static constexpr size_t kGuard = 64;
  std::vector<std::vector<std::byte>> storage_;
  std::vector<std::span<std::byte>> targets_;
};

float F32At(std::span<const std::byte> bytes, size_t index) {
  float value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

uint16_t Bf16At(std::span<const std::byte> bytes, size_t index) {
  uint16_t bits;
  std::memcpy(&bits, bytes.data() + index * sizeof bits, sizeof bits);
  return bits;
}

Checkpoint OpenSingle(const CheckpointFolder& folder, const std::vector<FixtureTensor>& tensors) {
  folder.Write("model.safetensors", SafetensorsFile(tensors));
  auto opened = Checkpoint::Open(folder.path());
  EXPECT_TRUE(opened.ok()) << opened.status().ToString();
  return std::move(*opened);
}

TEST(LoadWeights, PartsOfAMergedMatrixLandInTheirRows) {
  const CheckpointFolder folder;
  const Checkpoint checkpoint = OpenSingle(
      folder, {CountingTensor("k", {1, 4}), CountingTensor("q", {3, 4}), CountingTensor("v", {2, 4})});
  const auto plan = LoadPlan::FromCheckpoint(checkpoint,
                                             {{.name = "q", .shape = {3, 4}, .dtype = DType::kF32},
                                              {.name = "k", .shape = {1, 4}, .dtype = DType::kF32},
                                              {.name = "v", .shape = {2, 4}, .dtype = DType::kF32}},
                                             {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  std::vector<std::byte> merged(plan->total_bytes());  // [3 + 1 + 2, 4], F32
  std::vector<std::span<std::byte>> targets;
  size_t row_start = 0;
  for (const LoadPlan::Item& item : plan->items()) {
    targets.push_back(std::span(merged).subspan(row_start, item.bytes));
    row_start += item.bytes;
  }
  ASSERT_TRUE(LoadWeights(*plan, targets, {}).ok());
  for (size_t i = 0; i < 24; ++i) {
    const size_t part_start = i < 12 ? 0 : i < 16 ? 12 : 16;
    EXPECT_EQ(F32At(merged, i), static_cast<float>(i - part_start + 1)) << "element " << i;
  }
}

// 3 M elements span several chunks; odd sizes before them shift the alignment.
TEST(LoadWeights, LargeTensorsConvertAlikeOnAnyNumberOfThreads) {
  const CheckpointFolder folder;
  std::vector<float> values(3'000'001);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(std::sin(static_cast<double>(i)));
  const Checkpoint checkpoint = OpenSingle(folder, {MakeTensor<uint8_t>("odd", DType::kU8, {3}, {1, 2, 3}),
                                                    MakeTensor("big", DType::kF32, {3'000'001}, values)});
  const auto plan = LoadPlan::FromCheckpoint(
      checkpoint, {{.name = "big", .shape = {3'000'001}}, {.name = "odd", .shape = {3}, .dtype = DType::kU8}},
      {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  std::vector<uint16_t> expected(values.size()), got(values.size());
  std::transform(values.begin(), values.end(), expected.begin(), Bf16FromF32);
  for (const int num_threads : {1, 2, 5}) {
    const Buffers buffers(*plan);
    ASSERT_TRUE(LoadWeights(*plan, buffers.targets(), {.num_threads = num_threads, .progress = {}}).ok());
    std::memcpy(got.data(), buffers.targets()[0].data(), buffers.targets()[0].size());
    const auto [at, unused] = std::mismatch(got.begin(), got.end(), expected.begin());
    EXPECT_EQ(at, got.end()) << "element " << at - got.begin() << ", " << num_threads << " threads";
    EXPECT_EQ(buffers.targets()[1][2], std::byte{3});
  }
}

TEST(LoadWeights, ProgressNeverRunsBackwardsAndEndsAtTheTotal) {
  const CheckpointFolder folder;
  const Checkpoint checkpoint =
      OpenSingle(folder, {CountingTensor("a", {4'000'000}), CountingTensor("b", {})});
  const auto plan = LoadPlan::FromCheckpoint(
      checkpoint, {{.name = "a", .shape = {4'000'000}}, {.name = "b", .shape = {}}}, {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const Buffers buffers(*plan);
  std::vector<uint64_t> seen;
  const auto progress = [&](uint64_t done, uint64_t total) {
    EXPECT_EQ(total, 16'000'004u);
    seen.push_back(done);
  };
  ASSERT_TRUE(LoadWeights(*plan, buffers.targets(), {.num_threads = 2, .progress = progress}).ok());
  ASSERT_FALSE(seen.empty());
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(seen.back(), 16'000'004u);
}

TEST(LoadWeights, EmptyTensorsLoad) {
  const CheckpointFolder folder;
  const Checkpoint checkpoint = OpenSingle(folder, {CountingTensor("none", {0, 8})});
  const auto plan = LoadPlan::FromCheckpoint(checkpoint, {{.name = "none", .shape = {0, 8}}}, {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const Buffers buffers(*plan);
  EXPECT_TRUE(LoadWeights(*plan, buffers.targets(), {}).ok());
}

TEST(LoadWeights, TargetOfAnotherSizeIsRefusedBeforeAnyWrite) {
  const CheckpointFolder folder;
  const Checkpoint checkpoint = OpenSingle(folder, {CountingTensor("a", {2}), CountingTensor("b", {3})});
  const auto plan =
      LoadPlan::FromCheckpoint(checkpoint, {{.name = "a", .shape = {2}}, {.name = "b", .shape = {3}}}, {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  std::vector<std::byte> memory(8, std::byte{7});
  const std::vector<std::span<std::byte>> targets = {std::span(memory).first(4), std::span(memory).last(4)};
  EXPECT_EQ(LoadWeights(*plan, targets, {}).status().message(),
            "load: tensor b: expected a target of 6 bytes, got 4");
  EXPECT_EQ(LoadWeights(*plan, {}, {}).status().message(), "load: expected 2 targets, got 0");
  EXPECT_EQ(memory, std::vector<std::byte>(8, std::byte{7}));
}

TEST(LoadWeights, FileShrunkSinceOpeningIsAnErrorNotASignal) {
  const CheckpointFolder folder;
  const Checkpoint checkpoint = OpenSingle(folder, {CountingTensor("a", {1'000'000})});
  const auto plan = LoadPlan::FromCheckpoint(checkpoint, {{.name = "a", .shape = {1'000'000}}}, {});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const Buffers buffers(*plan);
  std::filesystem::resize_file(folder.path() / "model.safetensors", 4096);
  const auto loaded = LoadWeights(*plan, buffers.targets(), {});
  EXPECT_EQ(loaded.status().code(), Code::kDataLoss);
}

// What LoadWeights says of one tensor [2, 3] with these values under a rule.
Result<std::vector<std::string>> LoadGate(const std::vector<float>& values, FiniteRule rule,
                                          int64_t elements_per_head, DType stored) {
  const CheckpointFolder folder;
  FixtureTensor tensor = MakeTensor("layers.0.A_log", DType::kF32, {2, 3}, values);
  if (stored == DType::kBf16) {
    std::vector<uint16_t> narrow;
    for (const float v : values) narrow.push_back(Bf16FromF32(v));
    tensor = MakeTensor("layers.0.A_log", DType::kBf16, {2, 3}, narrow);
  }
  const Checkpoint checkpoint = OpenSingle(folder, {tensor});
  const auto plan = LoadPlan::FromCheckpoint(checkpoint,
                                             {{.name = "layers.0.A_log",
                                               .shape = {2, 3},
                                               .dtype = DType::kF32,
                                               .finite = rule,
                                               .elements_per_head = elements_per_head}},
                                             {});
  EXPECT_TRUE(plan.ok()) << plan.status().ToString();
  const Buffers buffers(*plan);
  auto loaded = LoadWeights(*plan, buffers.targets(), {});
  if (!loaded.ok()) {
    const std::string prefix = folder.path().string() + ": ";
    EXPECT_TRUE(loaded.status().message().starts_with(prefix));
    return Status(loaded.status().code(), loaded.status().message().substr(prefix.size()));
  }
  return loaded;
}

TEST(GateParameters, NaNAndPlusInfinityAreErrorsNamingTensorAndIndex) {
  for (const DType stored : {DType::kF32, DType::kBf16}) {
    EXPECT_EQ(LoadGate({0, 1, NAN, 0, kInf, 0}, FiniteRule::kGateParameter, 1, stored).status().ToString(),
              "DATA_LOSS: tensor layers.0.A_log: NaN at [0, 2]; tensor layers.0.A_log: +inf at [1, 1]");
  }
}

TEST(GateParameters, MinusInfinityIsAWarningNamingTheHead) {
  for (const DType stored : {DType::kF32, DType::kBf16}) {
    const auto loaded = LoadGate({0, -kInf, 0, 0, -kInf, 0}, FiniteRule::kGateParameter, 1, stored);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    EXPECT_EQ(
        *loaded,
        std::vector<std::string>{
            "tensor layers.0.A_log: -inf at heads 1, 4: decay is exactly 1 there, the state never forgets"});
  }
}

TEST(GateParameters, HeadOfAWideGateIsCountedInItsElements) {
  const auto loaded = LoadGate({0, 0, 0, -kInf, -kInf, 0}, FiniteRule::kGateParameter, 3, DType::kF32);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_EQ(*loaded,
            std::vector<std::string>{
                "tensor layers.0.A_log: -inf at head 1: decay is exactly 1 there, the state never forgets"});
}

TEST(GateParameters, FiniteValuesPassSilently) {
  const auto loaded = LoadGate({0, 1, 2, -3, 4, 5}, FiniteRule::kStrict, 1, DType::kF32);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_TRUE(loaded->empty());
}

TEST(GateParameters, StrictRuleRefusesMinusInfinityToo) {
  EXPECT_EQ(LoadGate({0, 1, 2, -kInf, 4, 5}, FiniteRule::kStrict, 1, DType::kF32).status().ToString(),
            "DATA_LOSS: tensor layers.0.A_log: -inf at [1, 0]");
}

TEST(GateParameters, WithoutARuleNothingIsLookedAt) {
  EXPECT_TRUE(LoadGate({NAN, kInf, 0, 0, 0, 0}, FiniteRule::kAny, 1, DType::kF32).ok());
}

// Every tensor of the shipped model, kept in F32: bit for bit what the scalar conversion says.
TEST(LoadWeights, ShippedTinyModelLoadsWhole) {
  const auto checkpoint = Checkpoint::Open(std::filesystem::path(RT_ZOO_DIR) / "tiny-gdn");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().ToString();
  std::vector<WeightRequest> requests;
  for (const CheckpointTensor& t : checkpoint->tensors()) {
    if (t.name.starts_with("mtp.")) continue;
    const bool gate = t.name.ends_with("A_log") || t.name.ends_with("dt_bias");
    requests.push_back({.name = t.name,
                        .shape = t.shape,
                        .dtype = DType::kF32,
                        .finite = gate ? FiniteRule::kGateParameter : FiniteRule::kStrict});
  }
  const auto plan = LoadPlan::FromCheckpoint(*checkpoint, requests, {"mtp.*"});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  EXPECT_EQ(plan->items().size() + plan->skipped().size(), checkpoint->tensors().size());
  const Buffers buffers(*plan);
  const auto loaded = LoadWeights(*plan, buffers.targets(), {.num_threads = 2, .progress = {}});
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  EXPECT_TRUE(loaded->empty());
  for (size_t i = 0; i < plan->items().size(); ++i) {
    const LoadPlan::Item& item = plan->items()[i];
    const auto stored = item.source->data;
    uint64_t wrong = 0;
    for (uint64_t e = 0; e < item.elements; ++e) {
      const float expected =
          item.source->dtype == DType::kF32 ? F32At(stored, e) : F32FromBf16(Bf16At(stored, e));
      wrong += F32At(buffers.targets()[i], e) != expected;
    }
    EXPECT_EQ(wrong, 0u) << item.request.name;
  }
}

TEST(RandomWeights, PlanFillsTheSameBytesOnAnyNumberOfThreads) {
  const auto plan =
      LoadPlan::Random(7, {{.name = "w", .shape = {5'000'011}},
                           {.name = "norm", .shape = {33}, .dtype = DType::kF32, .init = Init::kOne}});
  ASSERT_TRUE(plan.ok()) << plan.status().ToString();
  const Buffers one(*plan), four(*plan);
  ASSERT_TRUE(LoadWeights(*plan, one.targets(), {.num_threads = 1, .progress = {}}).ok());
  ASSERT_TRUE(LoadWeights(*plan, four.targets(), {.num_threads = 4, .progress = {}}).ok());
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(std::memcmp(one.targets()[i].data(), four.targets()[i].data(), one.targets()[i].size()), 0)
        << "item " << i;
  }
}

}  // namespace
}  // namespace rt::weights
