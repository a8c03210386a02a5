#include "engine/graph/precision.h"

#include <iterator>

#include "engine/base/format.h"

namespace oar {

namespace {

constexpr const char* kNames[] = {"f32", "bf16", "f16", "tf32", "int8"};  // in the order of Precision

}  // namespace

const char* precision_name(Precision p) { return kNames[static_cast<size_t>(p)]; }

Result<Precision> parse_precision(std::string_view name) {
  for (size_t p = 0; p < std::size(kNames); ++p) {
    if (name == kNames[p]) return static_cast<Precision>(p);
  }
  return Status(StatusCode::kInvalidArgument,
                cat("precision is '", name, "'; it must be f32, bf16, f16, tf32 or int8"), "precision");
}

KernelKey rounded_conv_key(Precision p) {
  // No format that is stored: f32 of which a device reads the first 19 bits.
  static constexpr FormatInfo kTf32{"tf32", DType::kF32, 1, 4, 0, true, 32.f, 4, nullptr, nullptr};
  return {.family = KernelFamily::kConv,
          .weight = p == Precision::kTf32  ? Format(&kTf32)
                    : p == Precision::kF16 ? Format::f16()
                                           : Format::bf16()};
}

}  // namespace oar
