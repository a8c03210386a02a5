// What the methods of quantization_config.h have in common once their packing is undone: an integer weight
// with scales and zeros, or an 8-bit float weight with scales; and the choice of the storage format that
// holds it exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/loader/quantization_config.h"

namespace oar {

// x = (level - zero) * scale.
struct IntegerWeight {
  int64_t N = 0, K = 0;
  int64_t group = 0;              // columns under one scale; divides K
  int bits = 0;                   // 4 or 8: levels 0 .. 15 or 0 .. 255
  std::vector<float> scales;      // (N, K / group), finite and not 0
  std::vector<float> zeros;       // the same, whole numbers
  Format scale_format;            // as stored: f16, bf16 or f32
  std::vector<int32_t> group_of;  // (K): the group of each column; empty: k / group
  // Rows [begin, begin + rows) as (rows, K) levels.
  std::function<void(int64_t begin, int64_t rows, uint8_t* levels)> read;
};

// 4 bits: i4_g* when every zero is 8, otherwise u4_g*; 8 bits: i8_channel or i8_g* when every zero is 128.
// The block is the largest of 128, 64, 32 that divides the group. Otherwise decoded, rounded once to the type
// of the scales (bf16 for f32), as the methods' own tools round, and `notice` says why.
Result<Tensor> make_integer_weight(const IntegerWeight& w, std::string* notice);

// x = q * scale of the tile: `q` is e4m3 or e5m2 (N, K); scales (ceil(N / tile_rows), ceil(K / tile_cols)),
// row-major. Tiles as wide as a row give *_channel, others *_g128. Tiles that do not divide into 128 columns:
// decoded to bf16.
Result<Tensor> make_f8_weight(const Tensor& q, const std::vector<float>& scales, int64_t tile_rows,
                              int64_t tile_cols, std::string* notice);

// A floating-point part as f32, each value finite and not 0: DATA_LOSS naming the first that is not. The
// caller has checked the shape.
Result<std::vector<float>> read_scales(const QuantModule& module, std::string_view part);

}  // namespace oar
