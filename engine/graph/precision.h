// In how many bits the layers of an f32 model are computed: convolutions and products with constant weights.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/base/status.h"
#include "kernels/kernel.h"

namespace oar {

enum class Precision : uint8_t {
  kF32,
  kBf16,  // weights and operands rounded to bf16 (8 bits of precision), sums in f32
  kF16,   // to f16 (11 bits); what is 65520 and more is infinite
  kTf32,  // to TF32 (11 bits, the range of f32)
  kInt8,  // weights as i8 with a scale per filter, operands as u8 with a scale per image or row, sums exact
};
// "f32", "bf16", "f16", "tf32", "int8".
const char* precision_name(Precision p);
// INVALID_ARGUMENT, with the names that there are, for any other.
Result<Precision> parse_precision(std::string_view name);

// How a device is asked for convolutions and products whose operands are rounded to bf16, f16 or TF32.
KernelKey rounded_conv_key(Precision p);

}  // namespace oar
