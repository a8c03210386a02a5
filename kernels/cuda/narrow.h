// Rows of products in bf16, for kernels that read both operands so.
//
// Roofline: 6 bytes an element, 10 with a gate.
#pragma once

#include "kernels/cuda/status.h"
#include "kernels/matmul.h"

namespace oar::cuda {

struct Gate {
  const float* gate;  // null: x as it is; else act(gate) * x
  int64_t ld;
  UnaryOp act;
};

// Bytes of rows of x in bf16, one behind the other: a multiple of 256.
uint64_t narrow_bytes(const MatmulArgs& args);
// A cudaError_t. `to`: a multiple of 16, narrow_bytes(). K is a multiple of 8.
int narrow_rows(void* to, const MatmulArgs& args, const Gate& gate, Stream stream);

}  // namespace oar::cuda
