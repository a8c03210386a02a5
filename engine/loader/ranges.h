// The byte ranges a file's directory gives its tensors: they may not overlap, or one tensor's bytes would be
// read as another's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/status.h"

namespace oar {

struct NamedRange {
  uint64_t begin, end;    // bytes, begin <= end
  std::string_view name;  // of the tensor
};

// Sorts the ranges and refuses two that share a byte. Empty ranges overlap nothing. O(n log n).
Status sort_and_check_overlap(std::vector<NamedRange>& ranges, std::string_view file);

}  // namespace oar
