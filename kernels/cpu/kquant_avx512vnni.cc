// Super-block matmul (kquant_panel.h) for processors with AVX-512 VNNI.
#include "kernels/cpu/kquant_panel.h"

namespace oar {

void append_kquant_avx512vnni(KernelList& list) {
#define OAR_FORMAT(Type, name)                                                        \
  MatmulDriver<KPanelCore<Type>>::append(list, Format(Type::kInfo), Isa::kAvx512Vnni, \
                                         "matmul." name ".avx512vnni",                \
                                         "grouped_matmul." name ".avx512vnni");
  OAR_FORMAT(Q4K512, "q4_k")
  OAR_FORMAT(Q5K512, "q5_k")
  OAR_FORMAT(Q6K512, "q6_k")
  OAR_FORMAT(Q3K512, "q3_k")
  OAR_FORMAT(Q2K512, "q2_k")
  OAR_FORMAT(IQ4XS512, "iq4_xs")
#undef OAR_FORMAT
}

}  // namespace oar
