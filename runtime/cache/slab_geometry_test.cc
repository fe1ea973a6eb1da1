#include "runtime/cache/slab_geometry.h"

#include <gtest/gtest.h>

#include <random>

namespace rt {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

struct Model {
  const char* name;
  int64_t kv_block_bytes;    // 16 tokens, all attention layers, K and V
  int64_t state_slot_bytes;  // recurrent state in fp32 + conv windows in bf16, all linear layers
};

// layers * 2 * kv_heads * head_dim * 2 bytes * 16 tokens; layers * (heads * dk * dv * 4 + conv channels * 3 *
// 2).
const Model kModels[] = {
    {"tiny (2 attention, 6 linear layers)", 2 * 2 * 2 * 64 * 2 * 16, 6 * (4 * 128 * 128 * 4 + 1024 * 3 * 2)},
    {"0.8B class (6 + 18)", 6 * 2 * 2 * 256 * 2 * 16, 18 * (16 * 128 * 128 * 4 + 6144 * 3 * 2)},
    {"35B-A3B class (10 + 30)", 10 * 2 * 2 * 256 * 2 * 16, 30 * (32 * 128 * 128 * 4 + 8192 * 3 * 2)},
    {"bf16 state, fp32 KV", 8 * 2 * 4 * 128 * 4 * 64, 24 * (16 * 128 * 128 * 2 + 6144 * 3 * 2)},
};

TEST(SlabGeometry, PaddingOfPublishedModelShapesIsAtMostTwoPercent) {
  for (const Model& model : kModels) {
    const auto geometry = PlanSlabs({model.kv_block_bytes, model.state_slot_bytes, 64, 4096 * kMiB});
    ASSERT_TRUE(geometry.ok()) << model.name << ": " << geometry.status().ToString();
    EXPECT_LE(geometry->padding(UnitKind::kKvBlock), kMaxPadding) << model.name;
    EXPECT_LE(geometry->padding(UnitKind::kStateSlot), kMaxPadding) << model.name;
    EXPECT_LE(geometry->slab_bytes, 1024 * kMiB) << model.name;
  }
}

TEST(SlabGeometry, EverySlabIsAWholeNumberOfUnitsOfEitherKindForRandomSizes) {
  const uint64_t seed = 20260101;
  std::mt19937_64 random(seed);
  constexpr int64_t kLeast = 1000;  // alignments: 64 KB where units start at multiples of 64 bytes
  double worst = 0.0;
  for (int trial = 0; trial < 3000; ++trial) {
    const int64_t alignment = int64_t{1} << (random() % 9);
    const int64_t kv = alignment * kLeast + static_cast<int64_t>(random() % (1 << (10 + random() % 12)));
    const int64_t state = alignment * kLeast + static_cast<int64_t>(random() % (1 << (10 + random() % 14)));
    const int64_t arena = int64_t{1} << 36;
    const auto planned = PlanSlabs({kv, state, alignment, arena});
    ASSERT_TRUE(planned.ok()) << "seed " << seed << " trial " << trial << ": " << planned.status().ToString();
    const SlabGeometry& g = *planned;
    for (const UnitKind kind : {UnitKind::kKvBlock, UnitKind::kStateSlot}) {
      ASSERT_EQ(g.stride(kind) * g.per_slab(kind), g.slab_bytes) << "trial " << trial;
      ASSERT_EQ(g.stride(kind) % alignment, 0) << "trial " << trial;
      ASSERT_GE(g.stride(kind), kind == UnitKind::kKvBlock ? kv : state) << "trial " << trial;
      worst = std::max(worst, g.padding(kind));
    }
    ASSERT_LE(g.arena_bytes(), arena);
    ASSERT_GT(g.arena_bytes(), arena - g.slab_bytes);
  }
  EXPECT_LE(worst, 0.03) << "units of at least kLeast alignments must fit within the padding bound, seed "
                         << seed;
}

TEST(SlabGeometry, TinyPoolsPreferSmallSlabsOverSmallPadding) {
  const auto geometry = PlanSlabs({65536, 100000, 64, 400000});
  ASSERT_TRUE(geometry.ok());
  EXPECT_GE(geometry->num_slabs, 3);
}

TEST(SlabGeometry, AModelWithOneKindOfCacheHasOneUnitASlabAndNoOtherUnits) {
  const auto kv_only = PlanSlabs({1000, 0, 64, 102400});
  ASSERT_TRUE(kv_only.ok());
  EXPECT_EQ(kv_only->stride(UnitKind::kKvBlock), 1024);
  EXPECT_EQ(kv_only->max_units(UnitKind::kKvBlock), 100);
  EXPECT_EQ(kv_only->max_units(UnitKind::kStateSlot), 0);
  const auto state_only = PlanSlabs({0, 4096, 4096, 40960});
  ASSERT_TRUE(state_only.ok());
  EXPECT_EQ(state_only->max_units(UnitKind::kStateSlot), 10);
}

TEST(SlabGeometry, IdsStayBelowTwoToThe31EvenForHugeArenas) {
  const auto geometry = PlanSlabs({64, 64 * 1000, 64, int64_t{1} << 44});
  ASSERT_TRUE(geometry.ok());
  const int64_t most = int64_t{geometry->num_slabs} * geometry->per_slab(UnitKind::kKvBlock);
  EXPECT_LE(most, (int64_t{1} << 31) - 1);
}

TEST(SlabGeometry, SizesThatMakeNoSenseAreNamed) {
  EXPECT_EQ(PlanSlabs({-1, 1, 64, 100}).status().message(), "kv_block_bytes: expected 0 to 1 TiB, got -1");
  EXPECT_EQ(PlanSlabs({0, 0, 64, 100}).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(PlanSlabs({1, 1, 48, 100}).status().message(),
            "alignment_bytes: expected a power of two up to 2 MiB, got 48");
  EXPECT_EQ(PlanSlabs({1, 1, 64, 0}).status().code(), Code::kInvalidArgument);
  const Status too_small = PlanSlabs({4096, 8192, 64, 8000}).status();
  EXPECT_EQ(too_small.code(), Code::kResourceExhausted);
  EXPECT_NE(too_small.message().find("8192 bytes, got 8000 bytes"), std::string::npos) << too_small.message();
}

}  // namespace
}  // namespace rt
