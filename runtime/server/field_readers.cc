#include "runtime/server/field_readers.h"

#include "runtime/config/suggest.h"

#include <cmath>
#include <limits>
#include <sstream>

namespace rt::server {
namespace {

// Doubles hold every integer up to here; beyond, 1e300 would be "an integer" nobody meant.
constexpr double kLargestExactInteger = 9007199254740992.0;  // 2^53

ApiError RangeError(std::string_view field, const std::string& range, const Json& value) {
  return {400, std::string(field) + ": expected " + range + ", got " + JsonExcerpt(value), std::string(field),
          "invalid_value"};
}

std::string ShortNumber(float value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

ApiError TypeError(std::string_view field, std::string_view what, const Json& value) {
  return {400, std::string(field) + ": expected " + std::string(what) + ", got " + JsonExcerpt(value),
          std::string(field), "invalid_type"};
}

ApiError UnsupportedValue(std::string_view field, const Json& value, std::string_view hint) {
  return {400, std::string(field) + ": " + JsonExcerpt(value) + " is not supported; " + std::string(hint),
          std::string(field), "unsupported_value"};
}

ApiError UnknownField(std::string_view where, std::string_view name, const std::vector<std::string_view>& known) {
  const std::string full = std::string(where) + TruncateUtf8(std::string(name), 80);
  std::vector<std::string> full_names;
  for (const std::string_view known_name : known) full_names.push_back(std::string(where).append(known_name));
  std::string message = "unknown field \"" + full + "\"" + DidYouMean(std::string(where).append(name), full_names);
  return {400, std::move(message), full, "unknown_field"};
}

MaybeError ReadBool(std::string_view field, const Json& value, bool* out) {
  if (!value.is_boolean()) return TypeError(field, "true or false", value);
  *out = value.get<bool>();
  return {};
}

MaybeError ReadString(std::string_view field, const Json& value, std::string* out) {
  if (!value.is_string()) return TypeError(field, "a string", value);
  *out = value.get<std::string>();
  return {};
}

MaybeError ReadInt(std::string_view field, const Json& value, int64_t low, int64_t high, int64_t* out) {
  const std::string range = "an integer in [" + std::to_string(low) + ", " + std::to_string(high) + "]";
  if (!value.is_number()) return TypeError(field, range, value);
  int64_t number = 0;
  if (value.is_number_float()) {
    const double real = value.get<double>();
    if (real != std::trunc(real)) return TypeError(field, range, value);
    if (std::fabs(real) > kLargestExactInteger) return RangeError(field, range, value);
    number = static_cast<int64_t>(real);
  } else if (value.is_number_unsigned()) {
    const uint64_t natural = value.get<uint64_t>();
    if (natural > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return RangeError(field, range, value);
    number = static_cast<int64_t>(natural);
  } else {
    number = value.get<int64_t>();
  }
  if (number < low || number > high) return RangeError(field, range, value);
  *out = number;
  return {};
}

MaybeError ReadInt32(std::string_view field, const Json& value, int32_t low, int32_t high, int32_t* out) {
  int64_t wide = 0;
  RT_SERVER_RETURN_IF_ERROR(ReadInt(field, value, low, high, &wide));
  *out = static_cast<int32_t>(wide);
  return {};
}

MaybeError ReadFloat(std::string_view field, const Json& value, FloatRange range, float* out) {
  const bool unbounded = range.high == std::numeric_limits<float>::max();
  const std::string expected = std::string("a number in ") + (range.open_low ? "(" : "[") + ShortNumber(range.low) +
                               ", " + (unbounded ? "inf)" : ShortNumber(range.high) + "]");
  if (!value.is_number()) return TypeError(field, expected, value);
  const float number = static_cast<float>(value.get<double>());
  const bool above_low = range.open_low ? number > range.low : number >= range.low;
  if (!above_low || !(number <= range.high)) return RangeError(field, expected, value);
  *out = number;
  return {};
}

std::string IndexedName(std::string_view field, size_t index) {
  return std::string(field) + "[" + std::to_string(index) + "]";
}

std::string MemberName(std::string_view field, std::string_view key) {
  return std::string(field) + "." + TruncateUtf8(std::string(key), 80);
}

}  // namespace rt::server
