// Strict JSON for request bodies, and the one way JSON is written by the server.
#pragma once

#include <rt/plugin/status.hpp>

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace rt::server {

// Keeps the order of keys: chat templates print tool definitions in the order the client wrote them.
using Json = nlohmann::ordered_json;

// One RFC 8259 text. Refused beyond the grammar: a key twice in one object, nesting deeper than `max_depth`, numbers
// beyond the range of double, invalid UTF-8. Integers beyond 64 bits become doubles. Errors: kInvalidArgument.
Result<Json> ParseStrictJson(std::string_view text, int max_depth);

// Compact; bytes that are not UTF-8 become U+FFFD instead of an exception.
std::string DumpJson(const Json& value);

// The value as it appears in an error message: compact, cut after about 60 bytes.
std::string JsonExcerpt(const Json& value);

// `text` cut to at most `max_bytes` at a character border, "…" appended when cut.
std::string TruncateUtf8(std::string text, size_t max_bytes);

}  // namespace rt::server
