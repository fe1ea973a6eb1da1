// rt::Status and rt::Result<T>: how every C++ part of the project reports errors (not part of the ABI).
#pragma once

#include <rt/plugin/status.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace rt {

// Codes are those of status.h; a message says which thing, what was expected and what was found.
enum class Code : int32_t {
  kOk = RT_OK,
  kInvalidArgument = RT_INVALID_ARGUMENT,
  kNotFound = RT_NOT_FOUND,
  kUnsupported = RT_UNSUPPORTED,
  kFailedPrecondition = RT_FAILED_PRECONDITION,
  kResourceExhausted = RT_RESOURCE_EXHAUSTED,
  kDataLoss = RT_DATA_LOSS,
  kUnavailable = RT_UNAVAILABLE,
  kDeadlineExceeded = RT_DEADLINE_EXCEEDED,
  kCancelled = RT_CANCELLED,
  kInternal = RT_INTERNAL,
  kDeviceLost = RT_DEVICE_LOST,
  kBadStruct = RT_BAD_STRUCT,
  kUnsupportedStruct = RT_UNSUPPORTED_STRUCT,
  kAlreadyExists = RT_ALREADY_EXISTS,
};

inline const char* CodeName(Code code) {
  switch (code) {
    case Code::kOk: return "OK";
    case Code::kInvalidArgument: return "INVALID_ARGUMENT";
    case Code::kNotFound: return "NOT_FOUND";
    case Code::kUnsupported: return "UNSUPPORTED";
    case Code::kFailedPrecondition: return "FAILED_PRECONDITION";
    case Code::kResourceExhausted: return "RESOURCE_EXHAUSTED";
    case Code::kDataLoss: return "DATA_LOSS";
    case Code::kUnavailable: return "UNAVAILABLE";
    case Code::kDeadlineExceeded: return "DEADLINE_EXCEEDED";
    case Code::kCancelled: return "CANCELLED";
    case Code::kInternal: return "INTERNAL";
    case Code::kDeviceLost: return "DEVICE_LOST";
    case Code::kBadStruct: return "BAD_STRUCT";
    case Code::kUnsupportedStruct: return "UNSUPPORTED_STRUCT";
    case Code::kAlreadyExists: return "ALREADY_EXISTS";
  }
  return "UNKNOWN";
}

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }

  bool ok() const { return code_ == Code::kOk; }
  explicit operator bool() const { return ok(); }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // "what: message", so that each layer can name what it was doing.
  Status Annotate(const std::string& what) const {
    return ok() ? *this : Status(code_, what + ": " + message_);
  }
  std::string ToString() const { return ok() ? "OK" : std::string(CodeName(code_)) + ": " + message_; }

 private:
  Code code_ = Code::kOk;
  std::string message_;
};

// A value or the Status that says why there is none. A Status given to the constructor must not be OK.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                // NOLINT: implicit on purpose
  Result(Status status) : value_(std::move(status)) {}         // NOLINT
  Result(Code code, std::string message) : value_(Status(code, std::move(message))) {}

  bool ok() const { return std::holds_alternative<T>(value_); }
  explicit operator bool() const { return ok(); }
  Status status() const { return ok() ? Status() : std::get<Status>(value_); }

  T& value() & { return std::get<T>(value_); }
  const T& value() const& { return std::get<T>(value_); }
  T&& value() && { return std::get<T>(std::move(value_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> value_;
};

}  // namespace rt

#define RT_RETURN_IF_ERROR(expr)                   \
  do {                                             \
    ::rt::Status rt_status_ = (expr);              \
    if (!rt_status_.ok()) return rt_status_;       \
  } while (0)

#define RT_CONCAT_INNER_(a, b) a##b
#define RT_CONCAT_(a, b) RT_CONCAT_INNER_(a, b)
// RT_ASSIGN_OR_RETURN(auto x, MakeX());
#define RT_ASSIGN_OR_RETURN(decl, expr)                                  \
  auto RT_CONCAT_(rt_result_, __LINE__) = (expr);                        \
  if (!RT_CONCAT_(rt_result_, __LINE__).ok()) return RT_CONCAT_(rt_result_, __LINE__).status(); \
  decl = std::move(RT_CONCAT_(rt_result_, __LINE__)).value()
