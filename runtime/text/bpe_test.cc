#include "runtime/text/bpe.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace rt {
namespace {

std::array<int32_t, 256> ByteIds() {
  std::array<int32_t, 256> ids;
  for (int32_t byte = 0; byte < 256; ++byte) ids[static_cast<size_t>(byte)] = byte;
  return ids;
}

// The definition, one merge at a time over the whole word.
std::vector<int32_t> Reference(const std::vector<BpeMerger::Merge>& merges, std::string_view word) {
  std::vector<int32_t> ids;
  for (const char c : word) ids.push_back(static_cast<uint8_t>(c));
  for (bool merged = true; merged;) {
    merged = false;
    for (const BpeMerger::Merge& merge : merges) {
      for (size_t i = 0; i + 1 < ids.size() && !merged; ++i) {
        if (ids[i] != merge.left || ids[i + 1] != merge.right) continue;
        ids[i] = merge.merged;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        merged = true;
      }
      if (merged) break;
    }
  }
  return ids;
}

// Random merges over a small alphabet, so that they overlap and compete.
std::vector<BpeMerger::Merge> RandomMerges(std::mt19937* random, int count) {
  std::vector<BpeMerger::Merge> merges;
  const auto symbol = [&](int known) -> int32_t {
    const auto pick = static_cast<int32_t>((*random)() % static_cast<uint32_t>(3 + known));
    return pick < 3 ? 'a' + pick : 256 + pick - 3;
  };
  for (int i = 0; i < count; ++i) merges.push_back({symbol(i), symbol(i), 256 + i});
  return merges;
}

TEST(Bpe, ShortAndLongWordsFollowTheDefinition) {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    const std::vector<BpeMerger::Merge> merges = RandomMerges(&random, 1 + static_cast<int>(random() % 20));
    const BpeMerger merger(merges, ByteIds());
    std::string word(1 + random() % 130, ' ');
    for (char& c : word) c = static_cast<char>('a' + random() % 3);
    std::vector<int32_t> ids;
    merger.Encode(word, &ids);
    ASSERT_EQ(ids, Reference(merges, word)) << "round " << round << " word " << word;
  }
}

TEST(Bpe, OfTwoMergesOfTheSamePairTheFirstCounts) {
  const BpeMerger merger({{'a', 'b', 256}, {'a', 'b', 257}}, ByteIds());
  std::vector<int32_t> ids;
  merger.Encode("ab", &ids);
  EXPECT_EQ(ids, std::vector<int32_t>{256});
}

TEST(Bpe, NoMergesGiveBytesAndAnEmptyWordGivesNothing) {
  const BpeMerger merger({}, ByteIds());
  std::vector<int32_t> ids;
  merger.Encode("", &ids);
  merger.Encode("hi", &ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{'h', 'i'}));
}

TEST(Bpe, AMegabyteWithoutAWordBorderIsMerged) {
  const BpeMerger merger({{'a', 'a', 256}, {256, 256, 257}, {257, 257, 258}}, ByteIds());
  std::vector<int32_t> ids;
  merger.Encode(std::string(1 << 20, 'a'), &ids);
  EXPECT_EQ(ids, std::vector<int32_t>(1 << 17, 258));
}

}  // namespace
}  // namespace rt
