// "Did you mean": the known name nearest to a mistyped one.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace rt::server {

// Levenshtein distance: single-character insertions, deletions, replacements.
inline size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t above = row[j + 1];
      row[j + 1] = std::min({above + 1, row[j] + 1, diagonal + (a[i] == b[j] ? 0 : 1)});
      diagonal = above;
    }
  }
  return row.back();
}

// The nearest of `known`, or "" when none is within a third of the name's length (at least 1, at most 3 edits).
template <typename Names>
std::string NearestName(std::string_view name, const Names& known) {
  constexpr size_t kLongestNameTried = 64;  // no field is that long; keeps hostile names cheap
  if (name.size() > kLongestNameTried) return "";
  size_t best_distance = std::clamp<size_t>(name.size() / 3, 1, 3) + 1;
  std::string best;
  for (const std::string_view candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = std::string(candidate);
    }
  }
  return best;
}

}  // namespace rt::server
