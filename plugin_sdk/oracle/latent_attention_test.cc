// The two orders of latent attention agree, and with ordinary attention where they must.
#include "plugin_sdk/oracle/latent_attention.h"

#include "plugin_sdk/oracle/attention.h"
#include "plugin_sdk/oracle/test_values.h"

namespace rt::oracle {
namespace {

constexpr LatentShape kShape = {3, 10, 6, 4, 5, 0.3};

TEST(OracleLatentAttention, AbsorbedEqualsExpanded) {
  for (const int64_t shared : {4, 0}) {
    LatentShape s = kShape;
    s.qk_shared_dim = shared;
    const Values q = Random(7 * s.q_width(), 1), rows = Random(12 * s.row(), 2), kv_b = Random(33 * 10, 3);
    ExpectClose(AbsorbedLatentAttention(s, q, rows, kv_b), ExpandedLatentAttention(s, q, rows, kv_b), 1e-12);
  }
}

TEST(OracleLatentAttention, WithIdentityExpansionItIsMultiQueryAttention) {
  const LatentShape s = {2, 4, 4, 0, 4, 0.5};
  Values kv_b;  // W_uk = W_uv = identity for both heads
  for (int block = 0; block < 4; ++block) {
    for (int i = 0; i < 4; ++i) {
      for (int j = 0; j < 4; ++j) kv_b.push_back(i == j ? 1.0 : 0.0);
    }
  }
  const Values q = Random(3 * 8, 4), rows = Random(5 * 4, 5);
  ExpectClose(ExpandedLatentAttention(s, q, rows, kv_b), CausalAttention({2, 1, 4, 0.5}, q, rows, rows), 1e-12);
}

TEST(OracleLatentAttention, TheNormSparesTheSharedFeatures) {
  const LatentShape s = {1, 2, 1, 2, 1, 1.0};
  const Values y = LatentNorm(s, 0.0, Values{3, 4, 5, 6}, Values{1, 2});
  const double root = std::sqrt(12.5);
  ExpectClose(y, Values{3 / root, 8 / root, 5, 6}, 1e-15);
}

TEST(OracleLatentAttention, ARowOfTheFutureChangesNothing) {
  const Values q = Random(2 * kShape.q_width(), 6), kv_b = Random(33 * 10, 7);
  Values rows = Random(4 * kShape.row(), 8);
  const Values before = ExpandedLatentAttention(kShape, q, rows, kv_b);
  for (int64_t i = 3 * kShape.row(); i < 4 * kShape.row(); ++i) rows[i] += 1;
  const Values after = ExpandedLatentAttention(kShape, q, rows, kv_b);
  const auto first = [](const Values& v) { return Values(v.begin(), v.begin() + kShape.out_width()); };
  EXPECT_EQ(first(before), first(after));
  EXPECT_NE(before, after);
}

}  // namespace
}  // namespace rt::oracle
