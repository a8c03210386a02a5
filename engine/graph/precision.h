// In how many bits the layers of an f32 model are computed: convolutions and products with constant weights.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/base/status.h"

namespace oar {

enum class Precision : uint8_t {
  kF32,
  kBf16,  // weights and operands rounded to bf16 (8 bits of precision), sums in f32
  kInt8,  // weights as i8 with a scale per filter, operands as u8 with a scale per image or row, sums exact
};
// "f32", "bf16", "int8".
const char* precision_name(Precision p);
// INVALID_ARGUMENT, with the names that there are, for any other.
Result<Precision> parse_precision(std::string_view name);

}  // namespace oar
