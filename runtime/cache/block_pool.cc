#include "runtime/cache/block_pool.h"

#include <algorithm>
#include <string>

namespace rt {

BlockPool::BlockPool(SlabArena* arena, int32_t block_size_tokens)
    : arena_(arena),
      block_size_tokens_(block_size_tokens),
      refs_(arena->geometry().max_units(UnitKind::kKvBlock), 0) {}

int32_t BlockPool::Alloc() {
  const int32_t id = arena_->Alloc(UnitKind::kKvBlock);
  if (id >= 0) refs_[id] = 1;
  return id;
}

Status BlockPool::AddRef(int32_t block_id) {
  if (block_id < 0 || block_id >= static_cast<int64_t>(refs_.size()) || refs_[block_id] == 0)
    return {Code::kInternal,
            "block pool: reference to KV block " + std::to_string(block_id) + " that is free"};
  ++refs_[block_id];
  return Status::Ok();
}

Status BlockPool::Release(int32_t block_id) {
  if (block_id < 0 || block_id >= static_cast<int64_t>(refs_.size()) || refs_[block_id] == 0)
    return {Code::kInternal, "block pool: release of KV block " + std::to_string(block_id) + " that is free"};
  if (--refs_[block_id] > 0) return Status::Ok();
  return arena_->Free(UnitKind::kKvBlock, block_id);
}

Status BlockPool::CheckConsistency() const {
  int64_t used = 0;
  for (int32_t id = 0; id < static_cast<int32_t>(refs_.size()); ++id) {
    const bool in_use = arena_->IsUsed(UnitKind::kKvBlock, id);
    if (in_use != (refs_[id] > 0))
      return {Code::kInternal, "block pool: KV block " + std::to_string(id) + " has " +
                                   std::to_string(refs_[id]) + " references and is " +
                                   (in_use ? "in use" : "free") + " in the arena"};
    used += in_use ? 1 : 0;
  }
  if (used != num_used())
    return {Code::kInternal, "block pool: " + std::to_string(used) + " blocks in use, the arena counts " +
                                 std::to_string(num_used())};
  return Status::Ok();
}

int64_t BlockTable::Missing(int64_t num_tokens) const {
  return std::max<int64_t>(0, pool_->BlocksFor(num_tokens) - static_cast<int64_t>(ids_.size()));
}

bool BlockTable::Grow(int64_t num_tokens) {
  const int64_t missing = Missing(num_tokens);
  if (missing == 0) return true;
  if (missing > pool_->num_available()) return false;
  for (int64_t i = 0; i < missing; ++i) ids_.push_back(pool_->Alloc());
  return true;
}

Status BlockTable::Clear() {
  Status first;
  // Last block first, so that a table that shrinks and grows again finds its slabs in the same order.
  while (!ids_.empty()) {
    const Status status = pool_->Release(ids_.back());
    if (first.ok()) first = status;
    ids_.pop_back();
  }
  return first;
}

}  // namespace rt
