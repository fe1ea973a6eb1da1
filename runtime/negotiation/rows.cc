// Judging one row against one problem, and one op against all rows.
#include "runtime/negotiation/negotiation.h"
#include "runtime/negotiation/rows.h"

#include <rt/plugin/plugin.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace rt {
namespace {

std::string ConstraintText(const rt_constraint& c) {
  switch (c.kind) {
    case RT_CONSTRAINT_SET: {
      std::string text;
      for (uint32_t i = 0; i < c.num_values; ++i) text += (i > 0 ? "|" : "") + ops::ColumnValueText(c.column, c.values[i]);
      return text;
    }
    case RT_CONSTRAINT_RANGE: return fmt::format("{}..{}", c.lo, c.hi);
    case RT_CONSTRAINT_MULTIPLE: return c.hi > 0 ? fmt::format("multiple of {} up to {}", c.lo, c.hi) : fmt::format("multiple of {}", c.lo);
    default: return "any";
  }
}

bool Holds(const rt_constraint& c, int64_t value) {
  switch (c.kind) {
    case RT_CONSTRAINT_ANY: return true;
    case RT_CONSTRAINT_SET: return std::find(c.values, c.values + c.num_values, value) != c.values + c.num_values;
    case RT_CONSTRAINT_RANGE: return c.lo <= value && value <= c.hi;
    case RT_CONSTRAINT_MULTIPLE: return c.lo > 0 && value > 0 && value % c.lo == 0 && (c.hi == 0 || value <= c.hi);
    default: return false;  // unknown kind: refuse
  }
}

const rt_constraint* FindConstraint(const rt_row& row, uint32_t column) {
  const char* at = reinterpret_cast<const char*>(row.constraints);
  for (uint32_t i = 0; i < row.num_constraints; ++i, at += row.constraint_stride) {
    const auto* c = reinterpret_cast<const rt_constraint*>(at);
    if (c->column == column) return c;
  }
  return nullptr;
}

}  // namespace

bool MatchesName(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') {
    for (size_t i = 0; i <= name.size(); ++i) {
      if (MatchesName(pattern.substr(1), name.substr(i))) return true;
    }
    return false;
  }
  return !name.empty() && pattern[0] == name[0] && MatchesName(pattern.substr(1), name.substr(1));
}

std::vector<std::string> FilterRow(const rt_row& row, const std::vector<rt_column_value>& columns) {
  std::vector<std::string> reasons;
  for (const rt_column_value& want : columns) {
    const rt_constraint* c = FindConstraint(row, want.column);
    const char* name = ops::ColumnName(want.column);
    if (c == nullptr) {
      reasons.push_back(fmt::format("{}: the row does not speak of it (asked {})", name, ops::ColumnValueText(want.column, want.value)));
    } else if (!Holds(*c, want.value)) {
      reasons.push_back(fmt::format("{}: supports {}, asked {}", name, ConstraintText(*c), ops::ColumnValueText(want.column, want.value)));
    }
  }
  return reasons;
}

std::string RequestFor(const NegotiationPolicy& policy, std::string_view op, uint32_t phase, uint32_t kind) {
  const auto exact = policy.pins.find(fmt::format("{}.{}", op, ops::PhaseName(phase)));
  if (exact != policy.pins.end()) return exact->second;
  const auto any = policy.pins.find(std::string(op));
  if (any != policy.pins.end()) return any->second;
  if (kind == RT_KIND_ATTENTION) return policy.attention_backend;
  if (kind == RT_KIND_LINEAR_ATTENTION) return policy.linear_attention_backend;
  return "auto";
}

namespace {

void Judge(Candidate* candidate, const KernelProvider& provider, const rt_row& row, const rt_problem& problem, const Decision& decision, const NegotiationPolicy& policy) {
  for (const std::string& pattern : policy.deny) {
    if (MatchesName(pattern, candidate->kernel) || MatchesName(pattern, candidate->plugin)) {
      candidate->verdict = Verdict::kDenied;
      candidate->reasons = {"denied by negotiation.deny: " + pattern};
      return;
    }
  }
  const bool requested = decision.requested == "auto" || MatchesName(decision.requested, candidate->kernel) || MatchesName(decision.requested, candidate->plugin);
  if (row.unavailable != RT_UNAVAILABLE_NONE) {
    candidate->verdict = Verdict::kUnavailable;
    candidate->unavailable = row.unavailable;
    candidate->reasons = {std::string(plugin::View(row.unavailable_reason))};
    return;
  }
  candidate->reasons = FilterRow(row, decision.columns);
  if (candidate->reasons.empty()) {
    rt_verdict verdict = {};
    verdict.struct_size = sizeof verdict;
    const int32_t code = provider.ops->supports(provider.ctx, candidate->row_idx, &problem, &verdict);
    if (code != RT_OK) {
      candidate->reasons = {fmt::format("supports() failed: {}", CodeName(static_cast<Code>(code)))};
    } else if (verdict.ok == 0) {
      candidate->reasons = {fmt::format("{}: {}", verdict.column == 0 ? "supports()" : ops::ColumnName(verdict.column), verdict.text)};
    } else {
      candidate->score += std::clamp(verdict.score_adjust, -99, 99);
    }
  }
  if (!candidate->reasons.empty()) {
    candidate->verdict = Verdict::kRefused;
  } else if (!requested) {
    candidate->verdict = Verdict::kNotRequested;
    candidate->reasons = {"the configuration asks for " + decision.requested};
  } else {
    candidate->verdict = Verdict::kEligible;
  }
}

bool Better(const Candidate& a, const Candidate& b) {
  if (a.score != b.score) return a.score > b.score;
  return std::tie(a.plugin, a.kernel) < std::tie(b.plugin, b.kernel);
}

}  // namespace

Decision JudgeRows(const ops::OpDef& def, const ops::OpInstance& op, uint32_t phase, const std::vector<KernelProvider>& providers, const NegotiationPolicy& policy, rt_device_ref device) {
  Decision decision;
  decision.op = def.name;
  decision.version = def.version;
  decision.phase = phase;
  decision.columns = ops::ProblemColumns(def, op);
  const auto* attrs = static_cast<const std::byte*>(op.attrs);
  decision.attrs.assign(attrs, attrs + def.attrs_bytes);
  decision.requested = RequestFor(policy, decision.op, phase, def.kind);
  const rt_problem problem = MakeProblem(decision, device);
  for (size_t p = 0; p < providers.size(); ++p) {
    const KernelProvider& provider = providers[p];
    if (provider.kind != def.kind) continue;
    const rt_row* rows = nullptr;
    uint32_t count = 0, stride = 0;
    if (provider.ops->rows(provider.ctx, &rows, &count, &stride) != RT_OK) continue;
    for (uint32_t r = 0; r < count; ++r) {
      const auto& row = *reinterpret_cast<const rt_row*>(reinterpret_cast<const char*>(rows) + size_t{r} * stride);
      if (plugin::View(row.op) != decision.op || row.op_version != decision.version || (row.phases & phase) != phase) continue;
      Candidate candidate;
      candidate.provider = p;
      candidate.row_idx = r;
      candidate.plugin = provider.plugin;
      candidate.kernel = std::string(plugin::View(row.kernel));
      candidate.score = row.score;
      candidate.guarantees = row.guarantees;
      Judge(&candidate, provider, row, problem, decision, policy);
      decision.candidates.push_back(std::move(candidate));
    }
  }
  std::stable_sort(decision.candidates.begin(), decision.candidates.end(), Better);
  for (size_t i = 0; i < decision.candidates.size(); ++i) {
    if (decision.candidates[i].verdict != Verdict::kEligible) continue;
    decision.candidates[i].verdict = Verdict::kChosen;
    decision.chosen = static_cast<int>(i);
    break;
  }
  return decision;
}

rt_problem MakeProblem(const Decision& decision, rt_device_ref device) {
  return {sizeof(rt_problem), decision.phase, plugin::Str(decision.op), decision.version, static_cast<uint32_t>(decision.columns.size()), decision.columns.data(), decision.attrs.data(), device};
}

std::string CandidatesText(const Decision& decision) {
  if (decision.candidates.empty()) return "no loaded plugin offers " + decision.op;
  std::string text;
  for (const Candidate& c : decision.candidates) {
    std::string reasons;
    for (const std::string& r : c.reasons) reasons += (reasons.empty() ? "" : "; ") + r;
    text += fmt::format("{}{} ({}): {}{}", text.empty() ? "" : " | ", c.kernel, c.plugin, VerdictName(c.verdict), reasons.empty() ? "" : ", " + reasons);
  }
  return text;
}

}  // namespace rt
