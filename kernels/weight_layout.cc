// Which layout the matmul kernels of each level want for a storage format. One table, read by the loader.
#include "kernels/matmul.h"

namespace oar {
namespace {

size_t row_major_bytes(int64_t, int64_t) { return 0; }
bool row_major_accepts(Format, int64_t, int64_t) { return true; }

}  // namespace

const WeightLayout& weight_layout(Format, Isa) {
  static const WeightLayout row_major{"row-major", true, 1, &row_major_bytes, &row_major_accepts, nullptr};
  return row_major;
}

}  // namespace oar
