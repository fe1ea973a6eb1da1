#include "plugin_sdk/oracle/layout.h"

#include "plugin_sdk/oracle/test_values.h"

namespace rt::oracle {
namespace {

TEST(OracleLayout, PanelsHoldSixteenValueChannelsAndZeroTheTail) {
  const StateShape shape{1, 2, 18};  // two panels, the second with two live lanes
  Values kv(2 * 18);
  for (int64_t i = 0; i < 36; ++i) kv[i] = 1 + static_cast<double>(i);
  const Values panel = ConvertState(shape, StateLayout::kKV, StateLayout::kVPanel16, kv);
  ASSERT_EQ(panel.size(), 2u * 2 * 16);
  EXPECT_EQ(panel[0], 1);             // panel 0, key 0, value 0
  EXPECT_EQ(panel[16], 19);           // panel 0, key 1, value 0
  EXPECT_EQ(panel[32 + 1], 18);       // panel 1, key 0, value 17
  EXPECT_EQ(panel[32 + 16 + 1], 36);  // panel 1, key 1, value 17
  EXPECT_EQ(std::count(panel.begin(), panel.end(), 0.0), 28);
}

TEST(OracleLayout, VkIsTheTranspose) {
  EXPECT_EQ(ConvertState({1, 2, 3}, StateLayout::kKV, StateLayout::kVK, Values{1, 2, 3, 4, 5, 6}),
            (Values{1, 4, 2, 5, 3, 6}));
}

TEST(OracleLayout, EveryRoundTripIsExact) {
  for (const StateShape& shape : {StateShape{3, 7, 16}, StateShape{2, 96, 40}, StateShape{1, 1, 1}}) {
    const Values kv = Random(shape.num_v_heads * shape.head_k_dim * shape.head_v_dim, 5);
    for (const StateLayout a : {StateLayout::kKV, StateLayout::kVK, StateLayout::kVPanel16}) {
      for (const StateLayout b : {StateLayout::kKV, StateLayout::kVK, StateLayout::kVPanel16}) {
        const Values there = ConvertState(shape, a, b, ConvertState(shape, StateLayout::kKV, a, kv));
        EXPECT_EQ(ConvertState(shape, b, StateLayout::kKV, there), kv);
      }
    }
  }
}

TEST(OracleLayout, GarbageInPaddingLanesIsDropped) {
  const StateShape shape{1, 1, 1};
  Values panel(16, 9.0);
  const Values clean = ConvertState(shape, StateLayout::kVPanel16, StateLayout::kVPanel16, panel);
  EXPECT_EQ(std::count(clean.begin(), clean.end(), 0.0), 15);
  EXPECT_EQ(clean[0], 9.0);
}

}  // namespace
}  // namespace rt::oracle
