// spdlog behind the engine's Logger: the one place of the program that knows it.
#pragma once

#include <string>

#include "engine/base/log.h"

namespace oar::cli {

// Lines on stderr, from `level` on. Thread-safe.
Logger make_logger(LogLevel level);

}  // namespace oar::cli
