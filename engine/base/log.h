// Events out of the engine. liboar never prints and links no logger: whoever embeds it installs a callback
// (the server and the command line put spdlog behind it). Nothing above kDebug is logged per token.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace oar {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Called from any thread; must be thread-safe and must not call back into the engine.
using LogCallback = std::function<void(LogLevel, std::string_view message)>;

// Value passed down by whoever owns an Engine; an empty callback drops events.
struct Logger {
  LogCallback callback;
  void operator()(LogLevel level, std::string_view message) const {
    if (callback) callback(level, message);
  }
};

// Reports progress of long work (loading, quantizing): done and total in the same unit, usually bytes.
// Returning false asks the work to stop; it then ends with StatusCode::kCancelled.
using Progress = std::function<bool(std::string_view what, uint64_t done, uint64_t total)>;

}  // namespace oar
