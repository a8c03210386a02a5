// Linear layers: out[T, sum n] = x[T, K] . W^T (+ bias) (+ residual), several weights sharing one x.
//
// Roofline: M = T small: bytes of W over memory bandwidth; M large: 2*T*K*N over the machine's dot-product
// peak. One call takes several weight segments (query/key/value, gate/up), so that x is converted once and
// the pool meets one barrier, without copying the mapped weights together.
//
// A weight is read either as it lies in the file or in a packed layout made once at load. In the file it is
// row-major [n, K]; bf16, f16 and f32 are used in place, mapped, never copied. weight_layout() says which
// layout the matmul kernel of this ISA wants for a format.
#pragma once

#include "kernels/activation.h"
#include "kernels/kernel.h"

namespace oar {

struct MatmulSegment {
  const void* w;      // [n, K] in `format`, in the layout the kernel asked for; 64-byte aligned when packed,
                      // element-aligned when row-major
  const float* bias;  // [n] or null
  int64_t n;          // output columns of this segment
  int64_t out_col;    // first column of `out` it writes
};

struct MatmulArgs {
  uint32_t size = sizeof(MatmulArgs);
  uint32_t version = 1;
  float* out = nullptr;             // [T, ldo]
  const float* x = nullptr;         // [T, ldx]
  const float* residual = nullptr;  // [T, ldo] added to the result, or null; may be `out` itself
  const MatmulSegment* segments = nullptr;
  int64_t num_segments = 0;
  int64_t T = 0, K = 0;
  int64_t ldx = 0, ldo = 0;
  Format format;  // storage format of every segment
};

// The same of act(gate) * x instead of x, computed block by block while x is packed: the second layer of a
// gated feed-forward network reads the first one's output, and nothing lies between.
struct GatedMatmulArgs {
  uint32_t size = sizeof(GatedMatmulArgs);
  uint32_t version = 1;
  MatmulArgs matmul;
  const float* gate = nullptr;  // [T, ld_gate]
  int64_t ld_gate = 0;
  const Kernel* swiglu = nullptr;  // activation.h: what computes it, to the same bits as a call of its own
  UnaryOp act = UnaryOp::kSilu;
};

// Exactly one of these per (format, isa). bytes(): size of a packed [n, K] weight (0 when in place). pack():
// rows [row_begin, row_end) of a row-major weight in `from` format into dst (the whole packed weight, 64-byte
// aligned); row_begin and row_end are multiples of `row_granule`, or n. Disjoint ranges may be packed by
// several threads at once. pack reads any storage format for which it returns true from accepts():
// a layout may also take floating-point rows and quantize them on the way ("int8.panel16" does).
struct WeightLayout {
  const char* name;  // "row-major", "int8.panel16", "int4.panel16", "int4z.g128.panel32" and the like
  bool in_place;     // true: use the mapped bytes as they are, pack is null
  int row_granule;
  size_t (*bytes)(int64_t n, int64_t K);
  bool (*accepts)(Format from, int64_t n, int64_t K);
  void (*pack)(void* dst, const void* src, Format from, int64_t n, int64_t K, int64_t row_begin,
               int64_t row_end);
};

// The layout in which the matmul kernel of `isa` wants weights of storage format `format`. Every storage
// format has one: formats without a kernel of their own are decoded to f32 or bf16 rows by the generic
// kernel, in place.
const WeightLayout& weight_layout(Format format, Isa isa);

}  // namespace oar
