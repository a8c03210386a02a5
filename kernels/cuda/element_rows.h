// An element of each of some elementwise ops behind each other, by a thread (elementwise.cu; matmul_tiles.h
// between products).
#pragma once

#include "kernels/cuda/device.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/math.h"

namespace oar::cuda {

// Element i of each step that has it. What a thread has just made it keeps, so a step need not wait for
// memory.
OAR_DEVICE void do_elements(const ElementStep* steps, int count, int64_t i) {
  float last = 0.f;
#pragma unroll 1
  for (int k = 0; k < count; ++k) {
    const ElementStep& s = steps[k];
    if (i >= s.n) continue;
    const int64_t row = i / s.cols, col = i - row * s.cols;
    const float a = s.a_is_last ? last : load(s.a + row * s.a_row + col);
    if (s.b == nullptr) {
      last = s.op == ElementStep::kCopy ? a : unary(static_cast<UnaryOp>(s.op), a);
    } else {
      const float b = s.b_is_last ? last : load(s.b + row * s.b_row + col * s.b_col);
      last = s.op <= ElementStep::kGate ? gated(static_cast<UnaryOp>(ElementStep::kGate - s.op), a, b)
                                        : binary(static_cast<BinaryOp>(s.op), a, b);
    }
    store(s.out + i, last);
  }
}

}  // namespace oar::cuda
