// A stretch of bytes of some text.
#pragma once

#include <cstddef>

namespace oar {

struct TextSpan {
  size_t begin = 0, end = 0;
  bool operator==(const TextSpan&) const = default;
};

}  // namespace oar
