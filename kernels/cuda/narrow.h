// Rows of products in bf16 or e4m3, for kernels that read both operands so.
//
// Roofline: 6 or 5 bytes an element, 4 more with a gate.
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

// Rows in e4m3: elements of each kNarrowGroup k are codes times a scale, the largest 448 times it.
constexpr int kNarrowGroup = 128;
struct NarrowCodes {
  uint8_t* codes;     // [T, K]
  float* scales;      // [K / kNarrowGroup, ld_scales]
  int64_t ld_scales;  // rows, a multiple of 4
};
uint64_t narrow_codes_bytes(const MatmulArgs& args);
// Where they lie in `memory`, a multiple of 256.
NarrowCodes narrow_codes(const MatmulArgs& args, void* memory);
// A cudaError_t. K is a multiple of kNarrowGroup.
int narrow_rows_to_codes(const NarrowCodes& to, const MatmulArgs& args, const Gate& gate, Stream stream);

}  // namespace oar::cuda
