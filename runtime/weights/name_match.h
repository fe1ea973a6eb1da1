// Tensor names: patterns that skip them, and the nearest known one for messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rt::weights {

// Whether the whole name fits the pattern: `*` stands for any run of characters (dots too, possibly none),
// `?` for one.
bool GlobMatches(std::string_view pattern, std::string_view name);

// The candidate with the fewest single-character edits from `name` (first of equals), if those are at most a
// third of its length; empty otherwise.
std::string_view NearestName(std::string_view name, const std::vector<std::string_view>& candidates);

}  // namespace rt::weights
