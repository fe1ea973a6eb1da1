#include "runtime/cache/block_pool.h"

#include <gtest/gtest.h>

namespace rt {
namespace {

SlabGeometry Geometry(int32_t num_slabs) {
  SlabGeometry g;
  g.unit_bytes = {256, 1024};
  g.stride_bytes = {256, 1024};
  g.units_per_slab = {4, 1};
  g.slab_bytes = 1024;
  g.num_slabs = num_slabs;
  return g;
}

TEST(BlockPool, ABlockIsFreeOnlyAfterItsLastReference) {
  SlabArena arena(Geometry(2));
  BlockPool pool(&arena, 16);
  const int32_t id = pool.Alloc();
  ASSERT_TRUE(pool.AddRef(id).ok());
  ASSERT_TRUE(pool.Release(id).ok());
  EXPECT_EQ(pool.num_used(), 1);
  ASSERT_TRUE(pool.Release(id).ok());
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_EQ(pool.Release(id).code(), Code::kInternal);
  EXPECT_EQ(pool.AddRef(id).code(), Code::kInternal);
  EXPECT_TRUE(pool.CheckConsistency().ok());
}

TEST(BlockPool, ATableGrowsByWholeBlocksAndAllOrNothing) {
  SlabArena arena(Geometry(2));
  BlockPool pool(&arena, 16);
  BlockTable table(&pool);
  EXPECT_TRUE(table.Grow(1));
  EXPECT_EQ(table.ids().size(), 1u);
  EXPECT_TRUE(table.Grow(16));
  EXPECT_EQ(table.ids().size(), 1u);
  EXPECT_TRUE(table.Grow(17));
  EXPECT_EQ(table.ids().size(), 2u);
  EXPECT_FALSE(table.Grow(16 * 8 + 1));
  EXPECT_EQ(table.ids().size(), 2u);
  EXPECT_EQ(pool.num_used(), 2);
  EXPECT_TRUE(table.Grow(16 * 8));
  EXPECT_TRUE(table.Clear().ok());
  EXPECT_EQ(pool.num_used(), 0);
  EXPECT_EQ(pool.num_available(), 8);
}

TEST(BlockPool, SpansIntoAReservedTableStayValidWhileItGrows) {
  SlabArena arena(Geometry(8));
  BlockPool pool(&arena, 16);
  BlockTable table(&pool);
  table.Reserve(16 * 32);
  ASSERT_TRUE(table.Grow(1));
  const int32_t* first = table.ids().data();
  ASSERT_TRUE(table.Grow(16 * 32));
  EXPECT_EQ(table.ids().data(), first);
  ASSERT_TRUE(table.Clear().ok());
}

TEST(BlockPool, AModelWithoutAttentionNeedsNoBlocks) {
  SlabGeometry g = Geometry(2);
  g.units_per_slab[0] = 0;
  g.stride_bytes[0] = 0;
  SlabArena arena(g);
  BlockPool pool(&arena, 16);
  BlockTable table(&pool);
  EXPECT_TRUE(table.Grow(100000));
  EXPECT_TRUE(table.ids().empty());
}

}  // namespace
}  // namespace rt
