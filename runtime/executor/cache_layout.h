// Where each named cache lies inside its unit: all attention layers' keys and values inside a KV block, all recurrent layers' windows and
// states inside a state slot.
#pragma once

#include "runtime/engine/step_plan.h"
#include "runtime/program/program.h"

#include <rt/plugin/ops.h>

#include <vector>

namespace rt {

struct CacheLayout {
  struct Entry {
    int64_t offset_bytes = 0;  // within the unit
    int64_t bytes = 0;         // of this cache in one unit
  };
  std::vector<Entry> entries;  // per program cache
  CacheGeometry geometry;
};

// Bytes of one cache in one unit, for its dtype and layout.
int64_t CacheUnitBytes(const ProgramCache& cache, const CacheChoice& choice);
CacheLayout LayOutCaches(const Program& program, const ProgramDTypes& dtypes, int64_t block_size_tokens);
// Views over an arena at `base`.
std::vector<rt_cache_view> BindViews(const Program& program, const ProgramDTypes& dtypes, const CacheLayout& layout, const CacheBinding& binding, void* base);

}  // namespace rt
