#include "runtime/server/routes.h"

#include "runtime/config/suggest.h"
#include "runtime/server/json_reader.h"

#include <vector>

namespace rt::server {
namespace {

struct Route {
  RouteId id;
  const char* name;
  bool is_post;
};

constexpr Route kRoutes[] = {
    {RouteId::kChat, "/v1/chat/completions", true},
    {RouteId::kCompletions, "/v1/completions", true},
    {RouteId::kModels, "/v1/models", false},
    {RouteId::kModel, "/v1/models/{id}", false},
    {RouteId::kHealth, "/health", false},
    {RouteId::kReady, "/ready", false},
    {RouteId::kKernels, "/v1/runtime/kernels", false},
    {RouteId::kMetrics, "/metrics", false},
};

constexpr std::string_view kModelPrefix = "/v1/models/";

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string PercentDecode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 && HexDigit(text[i + 2]) >= 0;
    decoded += escape ? static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])) : text[i];
    if (escape) i += 2;
  }
  return decoded;
}

std::string_view PathOf(std::string_view target) {
  if (const size_t scheme = target.find("://"); scheme != std::string_view::npos && target.front() != '/') {
    const size_t path = target.find('/', scheme + 3);  // absolute form, as proxies send it
    target = path == std::string_view::npos ? "/" : target.substr(path);
  }
  return target.substr(0, target.find('?'));
}

bool Matches(const Route& route, std::string_view path) {
  if (route.id != RouteId::kModel) return path == route.name;
  return path.size() > kModelPrefix.size() && path.substr(0, kModelPrefix.size()) == kModelPrefix;
}

ApiError NoSuchPath(std::string_view path) {
  std::vector<std::string> known;
  for (const Route& route : kRoutes) known.emplace_back(route.name);
  return {404, "no such path: " + TruncateUtf8(std::string(path), 100) + DidYouMean(path, known), "", "not_found"};
}

}  // namespace

RouteMatch MatchRoute(std::string_view method, std::string_view target) {
  const std::string_view path = PathOf(target);
  RouteMatch match;
  for (const Route& route : kRoutes) {
    if (!Matches(route, path)) continue;
    match.id = route.id;
    match.name = route.name;
    match.takes_body = route.is_post;
    if (route.id == RouteId::kModel) match.argument = PercentDecode(path.substr(kModelPrefix.size()));
    match.allow = route.is_post ? "POST" : "GET, HEAD";
    const bool allowed = route.is_post ? method == "POST" : (method == "GET" || method == "HEAD");
    if (!allowed) {
      match.error = ApiError{405,
                             std::string(route.name) + ": expected " + match.allow + ", got " +
                                 TruncateUtf8(std::string(method), 20),
                             "", "method_not_allowed"};
    }
    return match;
  }
  match.name = "unmatched";
  match.error = NoSuchPath(path);
  return match;
}

}  // namespace rt::server
