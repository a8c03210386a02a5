// Super-block matmul (kquant_panel.h) for processors with AVX-512 VNNI.
#include "kernels/cpu/kquant_panel.h"

namespace oar {

namespace {

template <class... Types>
void append_each(KernelList& list) {
  (MatmulDriver<KPanelCore<Types>>::append(list, Format(Types::kInfo), Isa::kAvx512Vnni), ...);
}

}  // namespace

void append_kquant_avx512vnni(KernelList& list) {
  append_each<Q4K512, Q5K512, Q6K512, Q3K512, Q2K512, IQ4XS512>(list);
}

}  // namespace oar
