// Typed reading of request fields: each reader says which field, what was expected and what was found.
#pragma once

#include "runtime/server/api_error.h"
#include "runtime/server/json_reader.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace rt::server {

// `field`: expected `what`, got `value`.
ApiError TypeError(std::string_view field, std::string_view what, const Json& value);
// A well-formed value that this server does not serve; `hint` ends the sentence.
ApiError UnsupportedValue(std::string_view field, const Json& value, std::string_view hint);
// A key that is not one of `known`, with the nearest known one. `where` prefixes the name: "messages[0].".
ApiError UnknownField(std::string_view where, std::string_view name, const std::vector<std::string_view>& known);

MaybeError ReadBool(std::string_view field, const Json& value, bool* out);
MaybeError ReadString(std::string_view field, const Json& value, std::string* out);

// An integer in [low, high]. A number written with a fraction or an exponent is an integer if its value is one and a
// double holds it exactly (1e3 and 8.0 are, 8.5 is not); true and "8" are not numbers.
MaybeError ReadInt(std::string_view field, const Json& value, int64_t low, int64_t high, int64_t* out);
MaybeError ReadInt32(std::string_view field, const Json& value, int32_t low, int32_t high, int32_t* out);

// A finite number in [low, high]; `open_low`: low itself is refused. Checked after rounding to float.
struct FloatRange {
  float low;
  float high;
  bool open_low = false;
};
MaybeError ReadFloat(std::string_view field, const Json& value, FloatRange range, float* out);

// "name[3]", "name.key": names of parts of a field in messages and `param`.
std::string IndexedName(std::string_view field, size_t index);
std::string MemberName(std::string_view field, std::string_view key);

}  // namespace rt::server
