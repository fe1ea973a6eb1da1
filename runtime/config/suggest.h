// "did you mean": the known name nearest to a mistyped one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace rt {

// Number of single-character insertions, deletions, substitutions and swaps of neighbours that turn a into b.
size_t EditDistance(std::string_view a, std::string_view b);

// The nearest of `known` within a distance of a third of the name's length (at least 1, at most 4); empty if
// none is near. The first of equally near names wins.
std::string NearestName(std::string_view name, const std::vector<std::string>& known);

// `; did you mean "x"?`, or nothing.
std::string DidYouMean(std::string_view name, const std::vector<std::string>& known);

}  // namespace rt
