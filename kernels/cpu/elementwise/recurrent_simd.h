// Recurrent layers step by step (kernels/recurrent.h) for one instruction set. Up to four entries of a batch
// go together, so that each weight is read once for all; their sums are formed as those of one, so who goes
// with whom does not change a bit.
#pragma once

#include <algorithm>

#include "kernels/cpu/vmath.h"
#include "kernels/partition.h"
#include "kernels/recurrent.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr int64_t kRecurrentRows = 4;

// Rows of states h [rows, H], ldh apart and their numbers `step`, times weights r [H, ldr], columns [0, n),
// added to sums [rows, lds]. Each sum is formed in the order of its terms.
class RecurrentProduct {
 public:
  const float* r;
  int64_t ldr, H;
  const float* h;
  int64_t ldh;
  float* sums;
  int64_t lds, n, step = 1;

  void run(int64_t rows) const {
    // Accumulators: enough to hide the latency of a multiply-add, and to fit the registers.
    constexpr int kMost = kLanes == 16 ? 12 : 8;
    int64_t i = 0;
    if constexpr (kLanes == 16) {
      for (; i + 8 <= rows; i += 8) all_columns<8, 2>(i);
    }
    for (; i + 4 <= rows; i += 4) all_columns<4, kMost / 4>(i);
    for (; i + 2 <= rows; i += 2) all_columns<2, kMost / 2>(i);
    if (i < rows) all_columns<1, kMost>(i);
  }

 private:
  template <int kRows, int kVectors>
  void all_columns(int64_t row) const {
    int64_t at = 0;
    columns<kRows, kVectors>(row, at);
    if (at < n) tile<kRows, 1>(row, at, n - at);
  }
  // Whole tiles, then narrower ones.
  template <int kRows, int kVectors>
  void columns(int64_t row, int64_t& at) const {
    for (; at + kVectors * kLanes <= n; at += kVectors * kLanes) tile<kRows, kVectors>(row, at, kLanes);
    if constexpr (kVectors > 1) columns<kRows, kVectors / 2>(row, at);
  }
  // `lanes`: of the last vector.
  template <int kRows, int kVectors>
  OAR_INLINE void tile(int64_t row, int64_t at, int64_t lanes) const {
    Vf sum[kRows][kVectors];
    OAR_UNROLL
    for (int i = 0; i < kRows; ++i) {
      OAR_UNROLL
      for (int v = 0; v < kVectors; ++v)
        sum[i][v] = load_part(sums + (row + i) * lds + at + v * kLanes, v + 1 < kVectors ? kLanes : lanes);
    }
    for (int64_t k = 0; k < H; ++k) {
      const float* weights = r + k * ldr + at;
      Vf w[kVectors];
      OAR_UNROLL
      for (int v = 0; v < kVectors; ++v)
        w[v] = load_part(weights + v * kLanes, v + 1 < kVectors ? kLanes : lanes);
      OAR_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const Vf state = set1(h[(row + i) * ldh + k * step]);
        OAR_UNROLL
        for (int v = 0; v < kVectors; ++v) sum[i][v] = fma(state, w[v], sum[i][v]);
      }
    }
    OAR_UNROLL
    for (int i = 0; i < kRows; ++i) {
      OAR_UNROLL
      for (int v = 0; v < kVectors; ++v)
        store_part(sums + (row + i) * lds + at + v * kLanes, sum[i][v], v + 1 < kVectors ? kLanes : lanes);
    }
  }
};

// Entries [b0, b0 + rows) of one direction, all of one length.
class RecurrentRun {
 public:
  // Floats of scratch for up to kRecurrentRows entries.
  static int64_t floats(const RecurrentArgs& a) {
    return kRecurrentRows * (recurrent_gates(a.cell) + 3) * a.H;
  }
  RecurrentRun(const RecurrentArgs& args, int64_t direction, int64_t first, int64_t count, float* scratch)
      : a(args), d(direction), b0(first), rows(count), H(args.H), G(recurrent_gates(args.cell)) {
    gates = scratch;
    h = gates + rows * G * H;
    c = h + rows * H;
    scaled = c + rows * H;
  }
  void run(int64_t length) {
    each_row([&](int64_t i, int64_t b) {
      begin_state(a.h0, b, h + i * H);
      begin_state(a.c0, b, c + i * H);
    });
    for (int64_t s = 0; s < length; ++s) step(a.reverse || d == 1 ? length - 1 - s : s);
    for (int64_t t = length; t < a.T; ++t) {
      each_row([&](int64_t, int64_t b) {
        memset(a.y + t * a.y_t + b * a.y_b + d * a.y_d, 0, static_cast<size_t>(H) * sizeof(float));
      });
    }
    each_row([&](int64_t i, int64_t b) {
      const int64_t at = d * a.state_d + b * a.state_b;
      if (a.h) copy(a.h + at, h + i * H);
      if (a.c) copy(a.c + at, c + i * H);
    });
  }

 private:
  void step(int64_t t) {
    each_row([&](int64_t i, int64_t b) {
      memcpy(gates + i * G * H, a.gates + t * a.gates_t + b * a.gates_b + d * G * H,
             static_cast<size_t>(G * H) * sizeof(float));
    });
    switch (a.cell) {
      case RecurrentCell::kRnn:
        product(h, 0, 1);
        each_value([&](int64_t i, int64_t k, int64_t n) { put(h, i, k, n, tanh(gate(i, 0, k, n))); });
        break;
      case RecurrentCell::kGru: gru(); break;
      case RecurrentCell::kLstm:
        product(h, 0, 4);
        each_value([&](int64_t i, int64_t k, int64_t n) {
          const Vf kept = sigmoid(gate(i, 2, k, n)) * get(c, i, k, n);
          const Vf state = fma(sigmoid(gate(i, 0, k, n)), tanh(gate(i, 3, k, n)), kept);
          put(c, i, k, n, state);
          put(h, i, k, n, sigmoid(gate(i, 1, k, n)) * tanh(state));
        });
        break;
    }
    each_row([&](int64_t i, int64_t b) { copy(a.y + t * a.y_t + b * a.y_b + d * a.y_d, h + i * H); });
  }
  void gru() {
    product(h, 0, 2);
    if (a.linear_before_reset) {
      // The candidate's product by itself: the reset gate scales it before the inputs' part is added.
      each_row([&](int64_t i, int64_t) {
        copy(scaled + i * H, gates + (i * G + 2) * H);
        if (a.r_bias) copy(gates + (i * G + 2) * H, a.r_bias + d * H);
        else memset(gates + (i * G + 2) * H, 0, static_cast<size_t>(H) * sizeof(float));
      });
      product(h, 2, 3);
      each_value([&](int64_t i, int64_t k, int64_t n) {
        finish_gru(i, k, n, fma(sigmoid(gate(i, 1, k, n)), gate(i, 2, k, n), get(scaled, i, k, n)));
      });
    } else {
      each_value([&](int64_t i, int64_t k, int64_t n) {
        put(scaled, i, k, n, sigmoid(gate(i, 1, k, n)) * get(h, i, k, n));
      });
      product(scaled, 2, 3);
      each_value([&](int64_t i, int64_t k, int64_t n) { finish_gru(i, k, n, gate(i, 2, k, n)); });
    }
  }
  OAR_INLINE void finish_gru(int64_t i, int64_t k, int64_t n, Vf candidate) {
    const Vf z = sigmoid(gate(i, 0, k, n)), fresh = tanh(candidate);
    put(h, i, k, n, fma(z, get(h, i, k, n) - fresh, fresh));
  }

  // Adds what `states` give to gates [from, to).
  void product(const float* states, int64_t from, int64_t to) {
    RecurrentProduct{
        a.r + d * H * G * H + from * H, G * H, H, states, H, gates + from * H, G * H, (to - from) * H}
        .run(rows);
  }
  void begin_state(const float* from, int64_t b, float* to) const {
    if (from) copy(to, from + d * a.state_d + b * a.state_b);
    else memset(to, 0, static_cast<size_t>(H) * sizeof(float));
  }
  void copy(float* to, const float* from) const { memcpy(to, from, static_cast<size_t>(H) * sizeof(float)); }
  OAR_INLINE Vf gate(int64_t i, int64_t g, int64_t k, int64_t n) const {
    return load_part(gates + (i * G + g) * H + k, n);
  }
  OAR_INLINE Vf get(const float* p, int64_t i, int64_t k, int64_t n) const {
    return load_part(p + i * H + k, n);
  }
  OAR_INLINE void put(float* p, int64_t i, int64_t k, int64_t n, Vf x) const {
    store_part(p + i * H + k, x, n);
  }
  template <class F>
  OAR_INLINE void each_row(F&& f) const {
    for (int64_t i = 0; i < rows; ++i) f(i, b0 + i);
  }
  template <class F>
  OAR_INLINE void each_value(F&& f) const {
    for (int64_t i = 0; i < rows; ++i) for_lanes(H, [&](int64_t k, int64_t n) { f(i, k, n); });
  }

  const RecurrentArgs& a;
  const int64_t d, b0, rows, H, G;
  float *gates, *h, *c, *scaled;  // [rows, G, H] and [rows, H]
};

// Entries to a chunk: one where there are few, for the sake of the workers.
OAR_INLINE int64_t recurrent_block(const RecurrentArgs& a) {
  return a.D * a.B >= 16 ? kRecurrentRows : a.D * a.B >= 8 ? 2 : 1;
}
inline void recurrent_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const RecurrentArgs*>(args);
  *out = {1, {std::max<int64_t>(1, a.D * ceil_div(a.B, recurrent_block(a)))}};
  out->worker_scratch = static_cast<size_t>(RecurrentRun::floats(a)) * sizeof(float);
}
inline void recurrent_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const RecurrentArgs*>(args);
  if (a.B == 0) return;
  const int64_t block = recurrent_block(a), blocks = ceil_div(a.B, block);
  const auto length = [&](int64_t b) { return recurrent_length(a, b); };
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    const int64_t d = chunk / blocks, last = std::min(a.B, (chunk % blocks + 1) * block);
    for (int64_t b = chunk % blocks * block, next; b < last; b = next) {
      for (next = b + 1; next < last && length(next) == length(b);) ++next;
      RecurrentRun(a, d, b, next - b, static_cast<float*>(scratch.worker)).run(length(b));
    }
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
