// Super-block matmul (kquant_panel.h) for processors with AVX-512 VNNI.
#include "kernels/cpu/matmul/kquant_panel.h"

namespace oar {

namespace {

template <class... Types>
constexpr auto kernels_of() {
  return join(MatmulDriver<KPanelCore<Types>>::kernels(Types::kFormat, Isa::kAvx512Vnni)...);
}
constexpr auto kEntries = kernels_of<Q4K512, Q5K512, Q6K512, Q3K512, Q2K512, IQ4XS512>();

}  // namespace

constinit const KernelTable kernels_kquant_avx512vnni{kEntries};

}  // namespace oar
