// KV blocks with reference counts, and the block table of one sequence. The naive cache gives each block one
// holder; a prefix cache adds references for shared ones. Same thread as the arena.
#pragma once

#include "runtime/cache/slab_arena.h"

#include <cstdint>
#include <span>
#include <vector>

namespace rt {

class BlockPool {
 public:
  // `arena` outlives the pool. A model without attention has no blocks: all counts are 0.
  BlockPool(SlabArena* arena, int32_t block_size_tokens);

  int32_t block_size_tokens() const { return block_size_tokens_; }
  bool has_blocks() const { return !refs_.empty(); }
  int64_t num_used() const { return arena_->num_used(UnitKind::kKvBlock); }
  int64_t num_available() const { return arena_->num_available(UnitKind::kKvBlock); }
  // Blocks that hold `num_tokens` tokens; 0 for a model without attention.
  int64_t BlocksFor(int64_t num_tokens) const {
    return has_blocks() ? (num_tokens + block_size_tokens_ - 1) / block_size_tokens_ : 0;
  }

  // A block with one reference, or -1.
  int32_t Alloc();
  // Internal when the block is free.
  Status AddRef(int32_t block_id);
  // Drops one reference; the last one frees the block.
  Status Release(int32_t block_id);
  int32_t num_refs(int32_t block_id) const { return refs_[block_id]; }

  // O(blocks): a block has references iff the arena has it in use.
  Status CheckConsistency() const;

 private:
  SlabArena* arena_;
  int32_t block_size_tokens_;
  std::vector<int32_t> refs_;  // [max KV blocks]
};

// The blocks of one sequence, in token order. Ids are only appended, and within the reserved capacity they
// never move in memory, so that a span handed to a step in flight stays valid.
class BlockTable {
 public:
  explicit BlockTable(BlockPool* pool) : pool_(pool) {}
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;
  // The holder calls Clear before; a table never outlives its pool.
  ~BlockTable() = default;

  void Reserve(int64_t max_tokens) { ids_.reserve(pool_->BlocksFor(max_tokens)); }
  // Makes room for `num_tokens` tokens in all. False: not enough blocks, nothing changed.
  bool Grow(int64_t num_tokens);
  // Blocks that Grow(num_tokens) would take.
  int64_t Missing(int64_t num_tokens) const;
  Status Clear();
  std::span<const int32_t> ids() const { return ids_; }

 private:
  BlockPool* pool_;
  std::vector<int32_t> ids_;
};

}  // namespace rt
