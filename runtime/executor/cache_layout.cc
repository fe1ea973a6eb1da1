#include "runtime/executor/cache_layout.h"

namespace rt {
namespace {
constexpr int64_t kAlignment = 64;
int64_t Align(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
bool PerTokens(const ProgramCache& cache) { return cache.extent == RT_CACHE_PER_TOKENS; }
}  // namespace

int64_t CacheUnitBytes(const ProgramCache& cache, const CacheChoice& choice) {
  int64_t elements = 1;
  for (int64_t d : cache.dims) elements *= d;
  if (cache.role == RT_CACHE_RECURRENT && choice.layout == RT_STATE_LAYOUT_VPANEL16) {
    elements = cache.dims[0] * ((cache.dims[2] + 15) / 16) * cache.dims[1] * 16;
  }
  if (PerTokens(cache)) elements *= choice.block_size;
  return elements * ops::DTypeBytes(choice.dtype);
}

CacheLayout LayOutCaches(const Program& program, const ProgramDTypes& dtypes, int64_t block_size_tokens) {
  CacheLayout layout;
  layout.geometry.block_size_tokens = static_cast<int32_t>(block_size_tokens);
  layout.geometry.alignment_bytes = kAlignment;
  for (size_t i = 0; i < program.caches.size(); ++i) {
    const int64_t bytes = CacheUnitBytes(program.caches[i], dtypes.caches[i]);
    int64_t& unit = PerTokens(program.caches[i]) ? layout.geometry.kv_block_bytes : layout.geometry.state_slot_bytes;
    layout.entries.push_back({unit, bytes});
    unit += Align(bytes);
  }
  return layout;
}

std::vector<rt_cache_view> BindViews(const Program& program, const ProgramDTypes& dtypes, const CacheLayout& layout, const CacheBinding& binding, void* base) {
  std::vector<rt_cache_view> views;
  for (size_t i = 0; i < program.caches.size(); ++i) {
    const int64_t stride = PerTokens(program.caches[i]) ? binding.kv_block_stride_bytes : binding.state_slot_stride_bytes;
    views.push_back({sizeof(rt_cache_view), dtypes.caches[i].dtype, dtypes.caches[i].layout, 0, static_cast<char*>(base) + layout.entries[i].offset_bytes, stride, layout.entries[i].bytes});
  }
  return views;
}

}  // namespace rt
