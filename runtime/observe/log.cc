#include "runtime/observe/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

namespace rt {
namespace {

constexpr std::pair<const char*, spdlog::level::level_enum> kLevels[] = {
    {"trace", spdlog::level::trace}, {"debug", spdlog::level::debug}, {"info", spdlog::level::info},
    {"warn", spdlog::level::warn},   {"error", spdlog::level::err},   {"off", spdlog::level::off},
};

}  // namespace

Status InitLogging(const LogOptions& options) {
  for (const auto& [name, level] : kLevels) {
    if (options.level != name) continue;
    // Colours only on a terminal; files and pipes get plain lines.
    auto logger = std::make_shared<spdlog::logger>("rt", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    logger->set_level(level);
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%-5l%$ %v");
    logger->flush_on(spdlog::level::warn);
    spdlog::set_default_logger(std::move(logger));
    return {};
  }
  return {Code::kInvalidArgument,
          "log level: expected trace, debug, info, warn, error or off, got \"" + options.level + "\""};
}

}  // namespace rt
