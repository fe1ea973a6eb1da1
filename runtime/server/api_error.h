// An error as a client of the OpenAI-compatible API sees it: HTTP status and the {"error": {...}} body.
#pragma once

#include <rt/plugin/status.hpp>

#include <optional>
#include <string>

namespace rt::server {

struct ApiError {
  int http_status = 400;
  std::string message;  // names the parameter, what was expected, what was found
  std::string param;    // e.g. "messages[2].content"; empty = null in the body
  std::string code;     // e.g. "unknown_field"; empty = null in the body
};

// Checks return this: nullopt = passed.
using MaybeError = std::optional<ApiError>;

// Which HTTP status a Status of the engine or of the text service becomes: what the caller can do decides.
int HttpStatusOf(Code code);

// `param` names the request field when the Status is about one.
ApiError ErrorFromStatus(const Status& status, std::string param = "");

// {"error":{"message":…,"type":…,"param":…,"code":…}}; `type` follows from the HTTP status.
std::string ErrorBody(const ApiError& error);

}  // namespace rt::server

#define RT_SERVER_RETURN_IF_ERROR(expr)                                              \
  do {                                                                               \
    if (::rt::server::MaybeError rt_api_error_ = (expr)) return rt_api_error_;        \
  } while (0)
