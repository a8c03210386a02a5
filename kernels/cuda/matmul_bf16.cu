// Products with bf16 weights by tensor cores.
#include <cuda_runtime_api.h>

#include "kernels/cuda/bf16_weights.h"

namespace oar::cuda {

int launch_bf16(const Product& p, Stream stream) {
  bool aligned = p.K % 8 == 0;
  aligned = aligned && matrices_aligned(p, 16);
  return launch_tensor<Bf16Rows<true>, Bf16Rows<false>>(p, aligned, stream);
}

LaunchChain chain_of_bf16(const GatedMatmulArgs& a) {
  const MatmulArgs& m = a.matmul;
  bool aligned = m.K % 8 == 0 && reads_wide(m.T, m.K, m.x, m.ldx, a.gate, a.ld_gate);
  for (int64_t i = 0; i < m.num_segments; ++i)
    aligned = aligned && reinterpret_cast<uintptr_t>(m.segments[i].w) % 16 == 0;
  return aligned ? launch_chain<Bf16Rows<true>> : nullptr;
}

}  // namespace oar::cuda
