// Byte-pair encoding of one word: start from single bytes, then always merge the pair of lowest rank (the leftmost of
// equals) until no pair is in the table. Source: Sennrich et al. 2016 (arXiv:1508.07909), algorithm 1.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace rt {

class BpeMerger {
 public:
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t merged;
  };

  static constexpr int32_t kNoToken = -1;

  // `merges` in rank order (first wins); `byte_ids[b]` is the token of the single byte b or kNoToken for a byte that
  // well-formed UTF-8 never holds. Of two merges of the same pair the first counts.
  BpeMerger(const std::vector<Merge>& merges, const std::array<int32_t, 256>& byte_ids);

  // Appends the tokens of `word` to *ids. Short words are merged in place in O(n^2) steps on a few cache lines; long
  // ones by a heap in O(n log n), so that a megabyte without a word border stays fast. Both give the same tokens.
  void Encode(std::string_view word, std::vector<int32_t>* ids) const;

 private:
  static constexpr uint32_t kNoRank = UINT32_MAX;

  struct Entry {
    uint64_t pair;  // left << 32 | right; kEmpty when unused
    uint32_t rank;
    int32_t merged;
  };
  static constexpr uint64_t kEmpty = UINT64_MAX;

  const Entry* Find(int32_t left, int32_t right) const;
  size_t SlotOf(uint64_t pair) const { return static_cast<size_t>(pair * 0x9E3779B97F4A7C15ull >> shift_); }
  void EncodeShort(std::string_view word, std::vector<int32_t>* ids) const;
  void EncodeLong(std::string_view word, std::vector<int32_t>* ids) const;

  std::vector<Entry> table_;  // open addressing, at most half full
  int shift_ = 63;
  std::array<int32_t, 256> byte_ids_;
};

}  // namespace rt
