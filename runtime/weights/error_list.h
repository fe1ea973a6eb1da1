// Several findings as one Status: a broken checkpoint is described once and wholly, not one restart at a
// time.
#pragma once

#include <rt/plugin/status.hpp>

#include <string>

namespace rt::weights {

// Keeps the first kMaxListed messages and counts the rest; the code is that of the first.
class ErrorList {
 public:
  static constexpr size_t kMaxListed = 10;

  void Add(Code code, const std::string& message) {
    if (count_ == 0) code_ = code;
    if (count_ < kMaxListed) text_ += (count_ ? "; " : "") + message;
    ++count_;
  }
  void Add(const Status& status) {
    if (!status.ok()) Add(status.code(), status.message());
  }

  size_t count() const { return count_; }
  bool empty() const { return count_ == 0; }
  // "a; b; and 3 more"
  std::string Text() const {
    return count_ > kMaxListed ? text_ + "; and " + std::to_string(count_ - kMaxListed) + " more" : text_;
  }
  Status ToStatus() const { return empty() ? Status::Ok() : Status(code_, Text()); }

 private:
  Code code_ = Code::kOk;
  size_t count_ = 0;
  std::string text_;
};

}  // namespace rt::weights
