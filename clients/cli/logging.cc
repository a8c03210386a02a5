#include "clients/cli/logging.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace oar::cli {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

Logger make_logger(LogLevel level) {
  auto logger =
      std::make_shared<spdlog::logger>("oar", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_level(to_spdlog(level));
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %^%l%$ %v");
  logger->flush_on(spdlog::level::info);
  return {[logger](LogLevel at, std::string_view message) {
    logger->log(to_spdlog(at), spdlog::string_view_t(message.data(), message.size()));
  }};
}

}  // namespace oar::cli
