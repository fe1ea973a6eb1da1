#include "runtime/weights/strict_json.h"

#include <string>
#include <unordered_set>
#include <vector>

namespace rt::weights {
namespace {

// First pass over the events: no values are built, so hostile input costs no more than its length.
class Checker : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Checker(int max_depth) : max_depth_(max_depth) {}

  const std::string& error() const { return error_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return Enter(); }
  bool end_object() override { return Leave(); }
  bool start_array(std::size_t) override { return Enter(); }
  bool end_array() override { return Leave(); }

  bool key(string_t& name) override {
    if (names_.back().insert(name).second) return true;
    error_ = "name \"" + name + "\" occurs twice in one object";
    return false;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    error_ = "not JSON at byte " + std::to_string(position) + " (" + e.what() + ")";
    return false;
  }

 private:
  bool Enter() {
    if (static_cast<int>(names_.size()) == max_depth_) {
      error_ = "nested deeper than " + std::to_string(max_depth_);
      return false;
    }
    names_.emplace_back();
    return true;
  }

  bool Leave() {
    names_.pop_back();
    return true;
  }

  const int max_depth_;
  std::vector<std::unordered_set<std::string>> names_;  // one per open object or array
  std::string error_;
};

}  // namespace

Result<nlohmann::json> ParseStrictJson(std::string_view text, int max_depth, std::string_view what) {
  Checker checker(max_depth);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &checker)) {
    return {Code::kDataLoss, std::string(what) + ": " + checker.error()};
  }
  return nlohmann::json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
}

}  // namespace rt::weights
