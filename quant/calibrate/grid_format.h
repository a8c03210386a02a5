// Which storage formats are integer grids, and how codes and scales become their bytes. A format's own
// encode() rounds plainly; this is the door for quantizers that choose scales and codes themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/calibrate/grid.h"
#include "quant/format.h"

namespace oar::calibrate {

struct GridFormat {
  const char* format;  // Format::name()
  GridSpec spec;
  // One row: codes (cols), scale and zero (groups) as fit_row() made them for `spec`, to bytes
  // (Format::row_bytes(cols)). Decoding them gives scale * (code - zero), up to one rounding.
  void (*pack)(std::span<const int8_t> levels, std::span<const float> scale, std::span<const float> zero,
               std::byte* out);
};

// Null: the format is no integer grid (or nobody has said how); use its encode().
const GridFormat* find_grid_format(Format format);

}  // namespace oar::calibrate
