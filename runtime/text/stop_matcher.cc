#include "runtime/text/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace rt {
namespace {

std::vector<uint32_t> Borders(std::string_view text) {
  std::vector<uint32_t> border(text.size(), 0);
  for (size_t i = 1; i < text.size(); ++i) {
    size_t k = border[i - 1];
    while (k > 0 && text[i] != text[k]) k = border[k - 1];
    if (text[i] == text[k]) ++k;
    border[i] = static_cast<uint32_t>(k);
  }
  return border;
}

}  // namespace

Result<StopMatcher> StopMatcher::Create(std::vector<std::string> stops) {
  StopMatcher matcher;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (stops[i].empty()) return {Code::kInvalidArgument, "stop[" + std::to_string(i) + "]: expected text, found \"\""};
    std::vector<uint32_t> border = Borders(stops[i]);
    matcher.patterns_.push_back({std::move(stops[i]), std::move(border), 0});
  }
  return matcher;
}

std::string StopMatcher::Push(std::string_view text) {
  if (stopped()) return {};
  if (patterns_.empty()) return std::string(text);
  std::string seen = std::exchange(held_, {});
  for (const char c : text) {
    seen.push_back(c);
    size_t longest = 0;
    for (size_t p = 0; p < patterns_.size(); ++p) {
      Pattern& pattern = patterns_[p];
      while (pattern.state > 0 && pattern.text[pattern.state] != c) pattern.state = pattern.border[pattern.state - 1];
      if (pattern.text[pattern.state] == c) ++pattern.state;
      if (pattern.state == pattern.text.size() && pattern.state > longest) {
        longest = pattern.state;
        matched_ = static_cast<int>(p);
      }
    }
    if (stopped()) {
      seen.resize(seen.size() - longest);
      return seen;
    }
  }
  size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.state);
  held_ = seen.substr(seen.size() - keep);
  seen.resize(seen.size() - keep);
  return seen;
}

std::string StopMatcher::Finish() {
  for (Pattern& pattern : patterns_) pattern.state = 0;
  return stopped() ? std::string() : std::exchange(held_, {});
}

}  // namespace rt
