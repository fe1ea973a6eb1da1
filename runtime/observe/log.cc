#include "runtime/observe/log.h"

#include <nlohmann/json.hpp>
#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string_view>
#include <utility>

namespace rt {
namespace {

constexpr std::pair<const char*, spdlog::level::level_enum> kLevels[] = {
    {"trace", spdlog::level::trace}, {"debug", spdlog::level::debug}, {"info", spdlog::level::info},
    {"warn", spdlog::level::warn},   {"error", spdlog::level::err},   {"off", spdlog::level::off},
};

// UTC with milliseconds, as ISO 8601 writes it.
std::string Timestamp(spdlog::log_clock::time_point time) {
  const auto since_epoch = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  const std::time_t seconds = static_cast<std::time_t>(since_epoch / 1000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  char date[32];
  const size_t length = std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
  char milliseconds[8];
  std::snprintf(milliseconds, sizeof(milliseconds), ".%03dZ", static_cast<int>(since_epoch % 1000));
  return std::string(date, length) + milliseconds;
}

// {"time": …, "level": …, "message": …}, one a line whatever the message holds.
class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const auto text = [](spdlog::string_view_t view) { return std::string_view(view.data(), view.size()); };
    const nlohmann::ordered_json object = {{"time", Timestamp(message.time)},
                                           {"level", text(spdlog::level::to_string_view(message.level))},
                                           {"message", text(message.payload)}};
    const std::string json = object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    line.append(json.data(), json.data() + json.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonFormatter>(); }
};

}  // namespace

Status InitLogging(const LogOptions& options) {
  const bool json = options.format == "json";
  if (!json && options.format != "text") {
    return {Code::kInvalidArgument, "log format: expected text or json, got \"" + options.format + "\""};
  }
  for (const auto& [name, level] : kLevels) {
    if (options.level != name) continue;
    // Colours only on a terminal; files and pipes get plain lines.
    auto logger = std::make_shared<spdlog::logger>("rt", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    logger->set_level(level);
    if (json) {
      logger->set_formatter(std::make_unique<JsonFormatter>());
    } else {
      logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %v");
    }
    logger->flush_on(spdlog::level::warn);
    spdlog::set_default_logger(std::move(logger));
    return {};
  }
  return {Code::kInvalidArgument,
          "log level: expected trace, debug, info, warn, error or off, got \"" + options.level + "\""};
}

}  // namespace rt
