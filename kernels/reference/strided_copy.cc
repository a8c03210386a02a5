// Elements moved from box to box, one by one: what the fast one must equal to the bit.
#include "kernels/strided_copy.h"

#include <cstring>

#include "kernels/kernel_list.h"
#include "kernels/partition.h"

namespace oar {
namespace {

int64_t elements(const StridedCopyArgs& a) {
  int64_t n = 1;
  for (int k = 0; k < a.rank; ++k) n *= a.dims[k];
  return n;
}

void plan(const void* args, int, KernelPlan* out) {
  const int64_t n = elements(*static_cast<const StridedCopyArgs*>(args));
  *out = {1, {row_chunks(n, rows_per_chunk(n, 16))}};
}

void run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const StridedCopyArgs*>(args);
  const int64_t n = elements(a), per = rows_per_chunk(n, 16);
  for (int64_t i = begin * per; i < end * per && i < n; ++i) {
    int64_t rest = i, from = 0, to = 0;
    for (int k = a.rank - 1; k >= 0; --k) {
      from += rest % a.dims[k] * a.x_steps[k];
      to += rest % a.dims[k] * a.out_steps[k];
      rest /= a.dims[k];
    }
    std::byte* const at = static_cast<std::byte*>(a.out) + to * a.element;
    const auto bytes = static_cast<size_t>(a.element);
    if (a.x == nullptr) memset(at, 0, bytes);
    else memcpy(at, static_cast<const std::byte*>(a.x) + from * a.element, bytes);
  }
}

constexpr KernelEntry kEntries[] = {{KernelFamily::kStridedCopy, Isa::kReference, plan, run}};

}  // namespace

constinit const KernelTable kernels_strided_copy_reference{kEntries};

}  // namespace oar
