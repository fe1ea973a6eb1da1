#include "runtime/server/api_error.h"

#include "runtime/server/json_reader.h"

namespace rt::server {
namespace {

const char* ErrorType(int http_status) {
  if (http_status == 429) return "rate_limit_error";
  if (http_status >= 500) return "server_error";
  return "invalid_request_error";
}

Json StringOrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

std::string LowerCodeName(Code code) {
  std::string name = CodeName(code);
  for (char& c : name) c = (c >= 'A' && c <= 'Z') ? static_cast<char>(c - 'A' + 'a') : c;
  return name;
}

}  // namespace

int HttpStatusOf(Code code) {
  switch (code) {
    case Code::kInvalidArgument:
    case Code::kUnsupported:
    case Code::kUnavailable:  // an absent optional part (tokenizer, Jinja2): retrying the same request cannot help
      return 400;
    case Code::kNotFound: return 404;
    case Code::kResourceExhausted: return 429;
    case Code::kFailedPrecondition:
    case Code::kCancelled:
    case Code::kDeviceLost:
      return 503;
    default: return 500;
  }
}

ApiError ErrorFromStatus(const Status& status, std::string param) {
  return {HttpStatusOf(status.code()), status.message(), std::move(param), LowerCodeName(status.code())};
}

std::string ErrorBody(const ApiError& error) {
  Json body;
  body["error"] = {{"message", error.message},
                   {"type", ErrorType(error.http_status)},
                   {"param", StringOrNull(error.param)},
                   {"code", StringOrNull(error.code)}};
  return DumpJson(body);
}

}  // namespace rt::server
