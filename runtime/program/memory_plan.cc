// Activation memory: liveness over the op order, then first fit by offset, largest first among equals in time.
#include "runtime/program/program.h"

#include <rt/plugin/op_defs.h>

#include <algorithm>

namespace rt {
namespace {

constexpr int64_t kAlignment = 64;  // cache line; also the ABI's alignment for workspaces

struct Interval {
  uint32_t value = 0;
  int64_t bytes = 0;
  int first = -1, last = -1;  // op positions, inclusive
};

uint32_t RootOf(const Program& program, uint32_t id) {
  while (program.values[id].view_of != kNoId) id = program.values[id].view_of;
  return id;
}

int64_t MaxRows(const ProgramValue& value, const MemoryLimits& limits) {
  const int64_t dim = value.dims.empty() ? 1 : value.dims[0];
  return dim == RT_DIM_TOKENS ? limits.max_tokens : dim == RT_DIM_ROWS ? limits.max_rows : dim;
}

std::vector<Interval> Liveness(const Program& program, const std::vector<const ProgramOp*>& order, const std::vector<uint32_t>& keep) {
  std::vector<Interval> live(program.values.size());
  for (size_t v = 0; v < live.size(); ++v) live[v].value = static_cast<uint32_t>(v);
  const int end = static_cast<int>(order.size());
  const auto touch = [&](uint32_t id, int at) {
    if (id == kNoId) return;
    Interval& i = live[RootOf(program, id)];
    if (i.first < 0) i.first = at;
    i.last = std::max(i.last, at);
  };
  for (int at = 0; at < end; ++at) {
    for (uint32_t id : order[static_cast<size_t>(at)]->inputs) touch(id, at);
    for (uint32_t id : order[static_cast<size_t>(at)]->outputs) touch(id, at);
  }
  for (size_t v = 0; v < program.values.size(); ++v) {
    if (program.values[v].input == 0) continue;
    live[v].first = 0;
    live[v].last = end;
  }
  for (uint32_t id : keep) {
    Interval& i = live[RootOf(program, id)];
    if (i.first >= 0) i.last = end;
  }
  return live;
}

}  // namespace

MemoryPlan PlanMemory(const Program& program, const std::vector<const ProgramOp*>& order, const ProgramDTypes& dtypes, const MemoryLimits& limits,
                      const std::vector<uint32_t>& keep) {
  MemoryPlan plan;
  plan.values.resize(program.values.size());
  std::vector<Interval> live = Liveness(program, order, keep);
  std::vector<Interval> todo;
  for (Interval& i : live) {
    const ProgramValue& value = program.values[i.value];
    MemoryPlan::Slot& slot = plan.values[i.value];
    slot.rows = MaxRows(value, limits);
    slot.row_stride = value.dims.size() < 2 ? 1 : value.dims[1];
    const int64_t bytes = slot.rows * slot.row_stride * ops::DTypeBytes(ResolveValueDType(value.dtype, dtypes.act));
    i.bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (i.first >= 0 && value.view_of == kNoId) todo.push_back(i);
  }
  // Largest first, ties in program order.
  std::sort(todo.begin(), todo.end(), [](const Interval& a, const Interval& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.value < b.value; });
  std::vector<Interval> placed;
  for (const Interval& i : todo) {
    std::vector<std::pair<int64_t, int64_t>> busy;
    for (const Interval& p : placed) {
      if (p.first <= i.last && i.first <= p.last) busy.emplace_back(plan.values[p.value].offset_bytes, plan.values[p.value].offset_bytes + p.bytes);
    }
    std::sort(busy.begin(), busy.end());
    int64_t offset = 0;
    for (const auto& [begin, stop] : busy) {
      if (offset + i.bytes <= begin) break;
      offset = std::max(offset, stop);
    }
    plan.values[i.value].offset_bytes = offset;
    plan.total_bytes = std::max(plan.total_bytes, offset + i.bytes);
    placed.push_back(i);
  }
  for (size_t v = 0; v < program.values.size(); ++v) {
    if (program.values[v].view_of == kNoId) continue;
    const MemoryPlan::Slot& root = plan.values[RootOf(program, static_cast<uint32_t>(v))];
    if (root.offset_bytes < 0) continue;
    plan.values[v] = root;
    plan.values[v].offset_bytes += program.values[v].column_offset * ops::DTypeBytes(ResolveValueDType(program.values[v].dtype, dtypes.act));
  }
  return plan;
}

}  // namespace rt
