// What negotiation decided, for people and for machines.
#include "runtime/negotiation/negotiation.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace rt {
namespace {

using nlohmann::json;

const CacheDecision* FindCache(const NegotiationResult& result, uint32_t role) {
  for (const CacheDecision& d : result.caches) {
    if (d.role == role) return &d;
  }
  return nullptr;
}

std::string Facts(const NegotiationResult& result, const Decision& d) {
  std::string text;
  for (const rt_column_value& c : d.columns) {
    const bool tells = c.column == RT_COL_HEAD_K_DIM || c.column == RT_COL_HEAD_V_DIM || c.column == RT_COL_HEAD_RATIO || c.column == RT_COL_HEAD_DIM ||
                       c.column == RT_COL_STATE_DTYPE || c.column == RT_COL_STATE_LAYOUT || c.column == RT_COL_KV_DTYPE || c.column == RT_COL_IN_DTYPE;
    if (!tells) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", ops::ColumnName(c.column), ops::ColumnValueText(c.column, c.value));
    if (c.column == RT_COL_STATE_DTYPE) {
      if (const CacheDecision* cache = FindCache(result, RT_CACHE_RECURRENT)) text += fmt::format(" (decided by {})", cache->decided_by);
    }
  }
  return text;
}

std::string ColumnsText(const Decision& d) {
  std::string text;
  for (const rt_column_value& c : d.columns) text += fmt::format("{}{}={}", text.empty() ? "" : " ", ops::ColumnName(c.column), ops::ColumnValueText(c.column, c.value));
  return text;
}

std::string Layout(const CacheDecision& d) {
  if (d.role == RT_CACHE_RECURRENT) return ops::StateLayoutName(d.layout);
  if (d.role == RT_CACHE_LATENT) return "rows";  // one row a token: every order of heads is the same
  return d.role == RT_CACHE_KEY ? ops::ColumnValueText(RT_COL_KV_LAYOUT, d.layout) : "window";
}

std::string DTypeOrAuto(uint32_t dtype) { return dtype == RT_DTYPE_NONE ? "auto" : ops::DTypeName(dtype); }

json SetJson(uint32_t set) {
  json list = json::array();
  for (uint32_t dtype = 1; dtype < 32; ++dtype) {
    if (set & (1u << dtype)) list.push_back(ops::DTypeName(dtype));
  }
  return list;
}

std::string Chosen(const Decision& d) {
  if (d.chosen >= 0) return d.candidates[static_cast<size_t>(d.chosen)].kernel + " of " + d.candidates[static_cast<size_t>(d.chosen)].plugin;
  return d.decomposed ? "its pieces" : "nothing";
}

}  // namespace

std::vector<std::string> SummaryLines(const NegotiationResult& result) {
  std::vector<std::string> lines;
  for (const CacheDecision& c : result.caches) {
    lines.push_back(fmt::format("cache {}: {} {} ({} layers' caches; requested {}, model default {}, decided by {})", c.name, ops::DTypeName(c.chosen), Layout(c), c.num_caches,
                                DTypeOrAuto(c.requested), c.model_default == RT_DTYPE_NONE ? "compute dtype" : ops::DTypeName(c.model_default), c.decided_by));
  }
  // Problems of one op and phase that went to the same kernel share a line.
  std::vector<std::pair<std::string, int>> seen;
  for (const Decision& d : result.decisions) {
    const std::string key = fmt::format("{}/{}: {}", d.op, ops::PhaseName(d.phase), Chosen(d));
    if (std::any_of(seen.begin(), seen.end(), [&](const auto& s) { return s.first == key; })) continue;
    int ops = 0, problems = 0;
    for (const Decision& e : result.decisions) {
      if (fmt::format("{}/{}: {}", e.op, ops::PhaseName(e.phase), Chosen(e)) != key) continue;
      ops += e.num_ops;
      ++problems;
    }
    seen.emplace_back(key, ops);
    std::string line = fmt::format("{} (requested {}; {} ops, {} shapes", key, d.requested, ops, problems);
    const std::string facts = Facts(result, d);
    if (!facts.empty()) line += "; " + facts;
    lines.push_back(line + ")");
  }
  return lines;
}

std::string ReportText(const NegotiationResult& result) {
  std::string text;
  for (const CacheDecision& c : result.caches) {
    text += fmt::format("cache  {:<16} {:<9} layout {:<9} requested {:<9} decided by {}\n", c.name, ops::DTypeName(c.chosen), Layout(c), DTypeOrAuto(c.requested), c.decided_by);
  }
  for (size_t i = 0; i < result.decisions.size(); ++i) {
    const Decision& d = result.decisions[i];
    text += fmt::format("\nP{} {}/{}  {}  x{}  requested {}\n", i, d.op, ops::PhaseName(d.phase), ColumnsText(d), d.num_ops, d.requested);
    if (d.decomposed) text += "  runs as its pieces\n";
    if (d.candidates.empty()) text += "  no loaded plugin offers this op\n";
    for (const Candidate& c : d.candidates) {
      std::string verdict = VerdictName(c.verdict);
      if (c.verdict == Verdict::kChosen) std::transform(verdict.begin(), verdict.end(), verdict.begin(), [](char ch) { return static_cast<char>(std::toupper(ch)); });
      std::string reasons;
      for (const std::string& r : c.reasons) reasons += (reasons.empty() ? "" : "; ") + r;
      text += fmt::format("  {:<12} {:<36} {:>4}  {:<13} {}\n", c.plugin, c.kernel, c.score, verdict, reasons);
    }
  }
  if (!result.findings.empty()) text += "\n";
  for (const Finding& f : result.findings) text += fmt::format("{}{}  {}\n", f.severity == Severity::kWarn ? "WARN" : "INFO", f.downgrade ? " (downgrade)" : "", f.text);
  return text;
}

std::string ReportJson(const NegotiationResult& result) {
  json root;
  root["caches"] = json::array();
  for (const CacheDecision& c : result.caches) {
    root["caches"].push_back({{"name", c.name},
                              {"dtype", ops::DTypeName(c.chosen)},
                              {"layout", Layout(c)},
                              {"requested", DTypeOrAuto(c.requested)},
                              {"model_default", c.model_default == RT_DTYPE_NONE ? "compute" : ops::DTypeName(c.model_default)},
                              {"model_set", SetJson(c.model_set)},
                              {"kernel_set", SetJson(c.kernel_set)},
                              {"decided_by", c.decided_by},
                              {"count", c.num_caches}});
  }
  root["decisions"] = json::array();
  for (const Decision& d : result.decisions) {
    json columns = json::object();
    for (const rt_column_value& c : d.columns) columns[ops::ColumnName(c.column)] = ops::ColumnValueText(c.column, c.value);
    json candidates = json::array();
    for (const Candidate& c : d.candidates) {
      candidates.push_back({{"plugin", c.plugin}, {"kernel", c.kernel}, {"row", c.row_idx}, {"score", c.score}, {"verdict", VerdictName(c.verdict)}, {"reasons", c.reasons}});
    }
    json chosen;
    if (d.chosen >= 0) chosen = {{"plugin", d.candidates[static_cast<size_t>(d.chosen)].plugin}, {"kernel", d.candidates[static_cast<size_t>(d.chosen)].kernel}};
    root["decisions"].push_back({{"op", d.op}, {"phase", ops::PhaseName(d.phase)}, {"columns", columns}, {"requested", d.requested}, {"chosen", chosen}, {"decomposed", d.decomposed}, {"ops", d.num_ops}, {"candidates", candidates}});
  }
  root["findings"] = json::array();
  for (const Finding& f : result.findings) root["findings"].push_back({{"severity", f.severity == Severity::kWarn ? "warn" : "info"}, {"downgrade", f.downgrade}, {"text", f.text}});
  return root.dump(2);
}

}  // namespace rt
