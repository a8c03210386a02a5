// Which layout the matmul kernels of each level want for a storage format. One table, read by the loader.
#include "kernels/cpu/int8_panel.h"
#include "kernels/matmul.h"

namespace oar {
namespace {

size_t row_major_bytes(int64_t, int64_t) { return 0; }  // no copy is made
bool row_major_accepts(Format, int64_t, int64_t) { return true; }
constexpr WeightLayout kRowMajor{"row-major", true, 1, &row_major_bytes, &row_major_accepts, nullptr};

}  // namespace

const WeightLayout& weight_layout(Format format, Isa isa) {
  static const Format q8_0 = *Format::find("q8_0");
  // The reference reads every format as the file has it.
  if (format == q8_0 && isa > Isa::kReference) return kInt8PanelLayout;
  return kRowMajor;
}

}  // namespace oar
