#include "runtime/config/suggest.h"

#include <algorithm>

namespace rt {

size_t EditDistance(std::string_view a, std::string_view b) {
  // Three rows of the optimal-string-alignment table: two back (for swaps), one back, current.
  std::vector<size_t> two_back(b.size() + 1), one_back(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) one_back[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      row[j] = std::min({one_back[j] + 1, row[j - 1] + 1, one_back[j - 1] + (same ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], two_back[j - 2] + 1);
    }
    std::swap(two_back, one_back);
    std::swap(one_back, row);
  }
  return one_back[b.size()];
}

std::string NearestName(std::string_view name, const std::vector<std::string>& known) {
  constexpr size_t kLongestName = 128;  // the table is quadratic, and nobody mistypes a longer name
  if (name.empty() || name.size() > kLongestName) return {};
  const size_t reach = std::clamp<size_t>(name.size() / 3, 1, 4);
  std::string best;
  size_t best_distance = reach + 1;
  for (const std::string& candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string DidYouMean(std::string_view name, const std::vector<std::string>& known) {
  const std::string nearest = NearestName(name, known);
  return nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?";
}

}  // namespace rt
