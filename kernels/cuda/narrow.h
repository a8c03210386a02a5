// Rows of products in bf16 or e4m3, for kernels that read both operands so. Rows that a norm or a gate makes,
// and a transform turns, may be made in the launch that rounds them, to the bits of one launch each.
//
// Roofline: 6 or 5 bytes an element, 4 more with a gate. Of rows that are made here: what makes them reads
// and writes, and 2 bytes or 1 an element; a second look at a row comes from L1 or L2.
#pragma once

#include <optional>
#include <variant>

#include "kernels/activation.h"
#include "kernels/cuda/status.h"
#include "kernels/hadamard.h"
#include "kernels/matmul.h"
#include "kernels/norm.h"

namespace oar::cuda {

// How rows are made, which others may read too: in f32, where the arguments say.
struct RowSteps {
  std::variant<RmsNormArgs, SwiGluArgs> made;
  std::optional<HadamardArgs> transform;  // of what is made, row for row

  // Of the last step.
  const float* out() const;
  int64_t rows() const, cols() const, ld() const;
};
// Whether a block has room for it.
bool takes_transform(const HadamardArgs& transform);
// A launch for each step. A cudaError_t.
int make_rows(const RowSteps& steps, Stream stream);

struct Gate {
  const float* gate;  // null: x as it is; else act(gate) * x
  int64_t ld;
  UnaryOp act;
  const RowSteps* steps = nullptr;  // not null: x is rows of these that are still to be made; without a gate
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
