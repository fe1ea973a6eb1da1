#include "runtime/text/bpe.h"

#include <queue>

namespace rt {
namespace {

// Up to here the quadratic form is faster than the heap (measured crossover near 60 on a 2.1 GHz Emerald Rapids).
constexpr size_t kShortWordBytes = 48;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeMerger::BpeMerger(const std::vector<Merge>& merges, const std::array<int32_t, 256>& byte_ids) : byte_ids_(byte_ids) {
  int bits = 4;
  while ((size_t{1} << bits) < merges.size() * 2) ++bits;
  shift_ = 64 - bits;
  table_.assign(size_t{1} << bits, Entry{kEmpty, kNoRank, kNoToken});
  const size_t mask = table_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t key = PairKey(merges[rank].left, merges[rank].right);
    size_t slot = SlotOf(key);
    while (table_[slot].pair != kEmpty && table_[slot].pair != key) slot = (slot + 1) & mask;
    if (table_[slot].pair == kEmpty) table_[slot] = {key, static_cast<uint32_t>(rank), merges[rank].merged};
  }
}

const BpeMerger::Entry* BpeMerger::Find(int32_t left, int32_t right) const {
  const uint64_t key = PairKey(left, right);
  const size_t mask = table_.size() - 1;
  for (size_t slot = SlotOf(key);; slot = (slot + 1) & mask) {
    if (table_[slot].pair == key) return &table_[slot];
    if (table_[slot].pair == kEmpty) return nullptr;
  }
}

void BpeMerger::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  if (word.size() <= kShortWordBytes) {
    EncodeShort(word, ids);
  } else {
    EncodeLong(word, ids);
  }
}

void BpeMerger::EncodeShort(std::string_view word, std::vector<int32_t>* ids) const {
  int32_t symbol[kShortWordBytes];
  uint32_t rank[kShortWordBytes];  // of the pair (i, i + 1)
  int32_t merged[kShortWordBytes];
  size_t count = word.size();
  for (size_t i = 0; i < count; ++i) symbol[i] = byte_ids_[static_cast<uint8_t>(word[i])];
  const auto rate = [&](size_t i) {
    const Entry* entry = i + 1 < count ? Find(symbol[i], symbol[i + 1]) : nullptr;
    rank[i] = entry ? entry->rank : kNoRank;
    merged[i] = entry ? entry->merged : kNoToken;
  };
  for (size_t i = 0; i < count; ++i) rate(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (rank[i] < rank[best]) best = i;
    }
    if (rank[best] == kNoRank) break;
    symbol[best] = merged[best];
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbol[i] = symbol[i + 1];
      rank[i] = rank[i + 1];
      merged[i] = merged[i + 1];
    }
    rate(best);
    if (best > 0) rate(best - 1);
  }
  ids->insert(ids->end(), symbol, symbol + count);
}

void BpeMerger::EncodeLong(std::string_view word, std::vector<int32_t>* ids) const {
  struct Symbol {
    int32_t id;  // kNoToken once merged into its left neighbour
    int32_t prev;
    int32_t next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t pos;
    int32_t left;  // ids at the time of pushing: a candidate whose symbols changed since is stale
    int32_t right;
    int32_t merged;
    bool operator<(const Candidate& other) const {  // std::priority_queue keeps the largest on top
      return rank != other.rank ? rank > other.rank : pos > other.pos;
    }
  };
  const auto count = static_cast<int32_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)] = {byte_ids_[static_cast<uint8_t>(word[static_cast<size_t>(i)])], i - 1,
                                       i + 1 < count ? i + 1 : -1};
  }
  const auto at = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  std::vector<Candidate> storage;
  storage.reserve(word.size());
  std::priority_queue<Candidate> heap({}, std::move(storage));
  const auto push = [&](int32_t i) {
    if (i < 0 || at(i).next < 0) return;
    const int32_t right = at(at(i).next).id;
    if (const Entry* entry = Find(at(i).id, right)) heap.push({entry->rank, i, at(i).id, right, entry->merged});
  };
  for (int32_t i = 0; i < count; ++i) push(i);
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = at(top.pos);
    if (left.id != top.left || left.next < 0 || at(left.next).id != top.right) continue;
    Symbol& right = at(left.next);
    left.id = top.merged;
    right.id = kNoToken;
    left.next = right.next;
    if (left.next >= 0) at(left.next).prev = top.pos;
    push(top.pos);
    push(left.prev);
  }
  for (int32_t i = 0; i >= 0; i = at(i).next) ids->push_back(at(i).id);
}

}  // namespace rt
