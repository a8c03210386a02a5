// Which layout the matmul kernels of each level want for a storage format. One table, read by the loader.
#include "kernels/cpu/matmul/int4_groups.h"
#include "kernels/cpu/matmul/int4_panel.h"
#include "kernels/cpu/matmul/int8_panel.h"
#include "kernels/matmul.h"

namespace oar {
namespace {

size_t row_major_bytes(int64_t, int64_t) { return 0; }  // no copy is made
bool row_major_accepts(Format, int64_t, int64_t) { return true; }
constexpr WeightLayout kRowMajor{"row-major", true, 1, &row_major_bytes, &row_major_accepts, nullptr};

}  // namespace

const WeightLayout& weight_layout(Format format, Isa isa) {
  // The reference reads every format as the file has it.
  if (isa == Isa::kReference) return kRowMajor;
  for (const char* name : kInt8PanelFormats) {
    if (std::string_view(format.name()) == name) return kInt8PanelLayout;
  }
  const WeightLayout* groups = isa == Isa::kAvx512Vnni ? int4_groups_layout(format) : nullptr;
  const WeightLayout* int4 = groups != nullptr ? groups : int4_panel_layout(format);
  return int4 != nullptr ? *int4 : kRowMajor;
}

}  // namespace oar
