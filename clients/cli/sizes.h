// Memory amounts as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/status.h"

namespace oar::cli {

struct MemoryWish {
  uint64_t bytes = 0;   // 0: `percent` counts
  double percent = 80;  // of the memory available
};

// "80%", "4GiB", "4G" (the same), "500MB" (10^6), "1073741824".
Result<MemoryWish> parse_memory(std::string_view text);
// The same without percentages, and "0".
Result<uint64_t> parse_size(std::string_view text);

}  // namespace oar::cli
