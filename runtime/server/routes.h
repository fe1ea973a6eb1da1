// The route table: which handler a method and target mean, or the 404/405 that says what exists.
#pragma once

#include "runtime/server/api_error.h"

#include <string>
#include <string_view>

namespace rt::server {

enum class RouteId { kChat, kCompletions, kModels, kModel, kHealth, kReady, kKernels, kMetrics };

struct RouteMatch {
  RouteId id = RouteId::kHealth;
  const char* name = "";    // the pattern, e.g. "/v1/models/{id}": label of metrics
  std::string argument;     // kModel: the percent-decoded id
  bool takes_body = false;  // POST of JSON
  MaybeError error;         // 404 or 405; then only name ("unmatched") and allow are meaningful
  const char* allow = "";   // 405: value of the Allow header
};

// `target` as in the request line; a query string is ignored. HEAD is served like GET.
RouteMatch MatchRoute(std::string_view method, std::string_view target);

}  // namespace rt::server
