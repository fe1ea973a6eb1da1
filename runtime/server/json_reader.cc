#include "runtime/server/json_reader.h"

#include <algorithm>
#include <exception>
#include <vector>

namespace rt::server {
namespace {

constexpr size_t kMaxParserMessageBytes = 200;
constexpr size_t kExcerptBytes = 60;

// Builds the document from parser events, so that depth and duplicate keys are seen before they cost anything.
class DocumentBuilder : public nlohmann::json_sax<Json> {
 public:
  explicit DocumentBuilder(int max_depth) : max_depth_(static_cast<size_t>(max_depth)) {}

  bool null() override { return Add(nullptr) != nullptr; }
  bool boolean(bool value) override { return Add(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return Add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return Add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return Add(value) != nullptr; }
  bool string(string_t& value) override { return Add(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return Fail("binary values are not JSON"); }

  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool key(string_t& name) override {
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    const auto& members = open_.back()->get_ref<const Json::object_t&>();
    std::vector<std::string_view> names;
    names.reserve(members.size());
    for (const auto& member : members) names.push_back(member.first);
    std::sort(names.begin(), names.end());
    const auto twice = std::adjacent_find(names.begin(), names.end());
    if (twice != names.end()) {
      return Fail("duplicate key \"" + TruncateUtf8(std::string(*twice), kExcerptBytes) + "\" in one object");
    }
    open_.pop_back();
    return true;
  }
  bool end_array() override {
    open_.pop_back();
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    std::string text = error.what();
    // nlohmann prefixes its own identifiers: "[json.exception.parse_error.101] parse error at line 1, …".
    if (const size_t end = text.find("] "); end != std::string::npos) text.erase(0, end + 2);
    return Fail("not valid JSON: " + TruncateUtf8(std::move(text), kMaxParserMessageBytes));
  }

  Json TakeDocument() { return std::move(root_); }
  const std::string& error() const { return error_; }

 private:
  bool Fail(std::string message) {
    error_ = std::move(message);
    return false;
  }

  Json* Add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // Appended without ordered_map's linear search; end_object() finds duplicates.
    auto& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(std::move(key_), std::move(value));
    return &members.back().second;
  }

  bool Open(Json container) {
    if (open_.size() >= max_depth_) return Fail("nested deeper than " + std::to_string(max_depth_) + " levels");
    open_.push_back(Add(std::move(container)));
    return true;
  }

  const size_t max_depth_;
  Json root_;
  std::vector<Json*> open_;  // a container does not grow while one of its children is open, so these stay valid
  std::string key_;
  std::string error_;
};

}  // namespace

Result<Json> ParseStrictJson(std::string_view text, int max_depth) {
  DocumentBuilder builder(max_depth);
  try {
    if (Json::sax_parse(text.begin(), text.end(), &builder)) return builder.TakeDocument();
  } catch (const std::exception& e) {
    return Status(Code::kInvalidArgument, std::string("not valid JSON: ") + e.what());
  }
  return Status(Code::kInvalidArgument, builder.error());
}

std::string DumpJson(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string TruncateUtf8(std::string text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  text.resize(end);
  return text + "…";
}

std::string JsonExcerpt(const Json& value) {
  // Large containers are described, not dumped.
  if (value.is_array() && value.size() > 16) return "an array of " + std::to_string(value.size());
  if (value.is_object() && value.size() > 16) return "an object of " + std::to_string(value.size()) + " keys";
  return TruncateUtf8(DumpJson(value), kExcerptBytes);
}

}  // namespace rt::server
