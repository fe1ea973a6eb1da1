// JSON of outside files: what nlohmann-json lets pass and a checkpoint must not have is an error here.
#pragma once

#include <nlohmann/json.hpp>
#include <rt/plugin/status.hpp>

#include <string_view>

namespace rt::weights {

// Parses one JSON document. Errors: bad syntax or UTF-8, nesting deeper than `max_depth` (an object or array
// counts one), and a name that occurs twice in one object (the library would keep the last value). `what`
// opens each message.
Result<nlohmann::json> ParseStrictJson(std::string_view text, int max_depth, std::string_view what);

}  // namespace rt::weights
