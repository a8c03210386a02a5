// The part of recurrent layers (RNN, GRU, LSTM) that goes step by step: what depends on the state. The
// products with the inputs, of all steps at once, are a matrix product before it.
// https://onnx.ai/onnx/operators/onnx__LSTM.html has the formulas; activations are the usual ones, sigmoid
// for gates and tanh.
//
// Roofline: D * T * B * G * H * H multiply-adds; one sequence reads its direction's weights in every step, so
// below some 100 KB of them (H = 80 for LSTM) the first cache decides, then the second.
#pragma once

#include "kernels/kernel.h"

namespace oar {

enum class RecurrentCell : uint8_t {
  kRnn,   // G = 1
  kGru,   // G = 3: update z, reset r, candidate
  kLstm,  // G = 4: input i, output o, forget f, candidate
};
constexpr int64_t recurrent_gates(RecurrentCell c) {
  return c == RecurrentCell::kRnn ? 1 : c == RecurrentCell::kGru ? 3 : 4;
}

struct RecurrentArgs {
  uint32_t size = sizeof(RecurrentArgs);
  uint32_t version = 3;
  RecurrentCell cell = RecurrentCell::kLstm;
  bool reverse = false;  // direction 0 goes from an entry's last step to its first; direction 1 always
  bool linear_before_reset = false;    // GRU: the reset gate scales the candidate's product, not the state
  int64_t T = 0, B = 0, D = 0, H = 0;  // steps, batch entries, directions (1 or 2), width of the state
  // x . W^T + biases, [D][G][H] for step t of entry b at gates + t * gates_t + b * gates_b.
  const float* gates = nullptr;
  int64_t gates_t = 0, gates_b = 0;
  const float* r = nullptr;       // [D][H][G][H]: what each state value adds to all gates
  const float* r_bias = nullptr;  // [D][H] of the candidate's product with linear_before_reset, or null
  // [B] steps of each entry: i32, or i64 with wide_lengths; null: T. Within [0, T], but for a device: what it
  // computed itself nobody has looked at, and entries of another length become NaN.
  const void* lengths = nullptr;
  bool wide_lengths = false;
  // [H] each for direction d of entry b at d * state_d + b * state_b. Null: zero, or not wanted.
  const float *h0 = nullptr, *c0 = nullptr;
  float *h = nullptr, *c = nullptr;  // after the last step
  int64_t state_d = 0, state_b = 0;
  // [H] for each step at y + t * y_t + b * y_b + d * y_d; 0 in steps beyond an entry's length.
  float* y = nullptr;
  int64_t y_t = 0, y_b = 0, y_d = 0;
};

// Steps of entry b.
inline int64_t recurrent_length(const RecurrentArgs& a, int64_t b) {
  if (a.lengths == nullptr) return a.T;
  return a.wide_lengths ? static_cast<const int64_t*>(a.lengths)[b]
                        : static_cast<const int32_t*>(a.lengths)[b];
}

}  // namespace oar
