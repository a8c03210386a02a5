#include "engine/graph/precision.h"

#include "engine/base/format.h"

namespace oar {

const char* precision_name(Precision p) {
  return p == Precision::kBf16 ? "bf16" : p == Precision::kInt8 ? "int8" : "f32";
}

Result<Precision> parse_precision(std::string_view name) {
  for (const Precision p : {Precision::kF32, Precision::kBf16, Precision::kInt8}) {
    if (name == precision_name(p)) return p;
  }
  return Status(StatusCode::kInvalidArgument, cat("precision is '", name, "'; it must be f32, bf16 or int8"),
                "precision");
}

}  // namespace oar
