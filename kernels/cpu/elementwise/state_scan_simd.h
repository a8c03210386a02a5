// Layers that keep a matrix (kernels/state_scan.h) for one instruction set. A unit of work is a head of a
// sequence, chunk after chunk; up to four rows go together, so that a border and the rows of its chunk are
// read once for all. Sums are formed by RecurrentProduct: each number's in the order of its terms.
#pragma once

#include <algorithm>

#include "kernels/cpu/elementwise/norm_simd.h"
#include "kernels/cpu/elementwise/recurrent_simd.h"
#include "kernels/cpu/vmath.h"
#include "kernels/state_scan.h"

namespace oar::OAR_SIMD_NAMESPACE {

class StateScanHead {
 public:
  // Floats of scratch: coefficients of a group of rows; of a chunk the updates, what rows scale by, and keys
  // that are scaled; a border that nobody keeps.
  static int64_t floats(const StateScanArgs& args) {
    const StateScanShape& s = args.shape;
    const int64_t C = args.state.page_tokens, matrix = int64_t{s.key_dim} * s.value_dim;
    return kRows * (3 * C + 1 + 2 * s.value_dim) + C * (s.key_dim + s.value_dim + 1) + matrix;
  }
  StateScanHead(const StateScanArgs& args, int64_t head, float* scratch)
      : a(args), s(args.shape), h(head), kh(head / (s.heads / s.key_heads)), C(args.state.page_tokens) {
    old_part = scratch;
    new_part = old_part + kRows * C;
    weight = new_part + kRows * C;
    whole = weight + kRows * C;
    old_sum = whole + kRows;
    new_sum = old_sum + kRows * s.value_dim;
    turned = new_sum + kRows * s.value_dim;
    updates = turned + C * s.key_dim;
    decays = updates + C * s.value_dim;
    carry = decays + C;
    kept_updates = int64_t{s.key_heads} * s.key_dim + h * s.value_dim;
    kept_decays = state_scan_row(s) - s.heads + h;
  }

  void sequence(int64_t b) {
    const int64_t size = int64_t{s.key_dim} * s.value_dim;
    for_each_state_chunk(a.state, b, h * size, carry, [&](const StateChunk& c) {
      run(c);
      for (int64_t t = c.first; t < c.first + c.rows; ++t) {
        if (float* row = state_row(a.state, t)) keep(t, row);
      }
    });
  }
  void segment(int64_t from, int64_t to) {
    StateChunk c;
    for (c.first = from; c.first < to; c.first += c.rows) {
      c.rows = std::min(C, to - c.first);
      c.out = c.rows == C ? carry : nullptr;
      run(c);
      c.border = c.out;
    }
  }

 private:
  static constexpr int64_t kRows = kRecurrentRows;

  void run(const StateChunk& given) {
    c = given;
    row0 = c.first - c.open;
    for (int64_t i = 0; i < c.open; ++i) decays[i] = c.kept[i * a.state.row_floats + kept_decays];
    const int64_t end = c.open + c.rows;
    for (int64_t r = c.open; r < end; r += kRows) group(r, std::min(kRows, end - r));
    if (c.out != nullptr) close();
  }
  void keep(int64_t t, float* row) const {
    const int64_t i = t - row0;
    // Heads of a group share their keys; the first keeps them.
    if (h % (s.heads / s.key_heads) == 0) copy(row + kh * s.key_dim, key(i), s.key_dim);
    copy(row + kept_updates, updates + i * s.value_dim, s.value_dim);
    row[kept_decays] = decays[i];
  }
  static void copy(float* to, const float* from, int64_t n) {
    memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  }

  // Rows are counted from the chunk's first; those in front of c.open are kept ones.
  const float* key(int64_t i) const {
    const float* row = i < c.open ? c.kept + i * a.state.row_floats : a.k + (row0 + i) * a.ldk;
    return row + kh * s.key_dim;
  }
  const float* query(int64_t i) const { return a.q + (row0 + i) * a.ldq + kh * s.key_dim; }

  // w(i, r) for i <= r to `to`; returns d(r).
  float weights(int64_t r, float* to) const {
    float w = 1;
    for (int64_t i = r; i >= 0; --i) {
      to[i] = w;
      w *= decays[i];
    }
    return w;
  }
  float dot(const float* x, const float* y) const {
    return sum_lanes(s.key_dim,
                     [&](int64_t i, int64_t n) { return load_part(x + i, n) * load_part(y + i, n); });
  }
  // Sums [count, Dv] of the border's rows by x [count], rows ldx apart, times d(r).
  void from_border(const float* x, int64_t ldx, int64_t count, float* sums) const {
    memset(sums, 0, static_cast<size_t>(count * s.value_dim) * sizeof(float));
    if (c.border == nullptr) return;
    RecurrentProduct{c.border, s.value_dim, s.key_dim, x, ldx, sums, s.value_dim, s.value_dim}.run(count);
    for (int64_t i = 0; i < count; ++i) {
      float* row = sums + i * s.value_dim;
      for_lanes(s.value_dim, [&](int64_t j, int64_t n) {
        store_part(row + j, load_part(row + j, n) * set1(whole[i]), n);
      });
    }
  }
  // Adds updates of rows [i0, i1) of the chunk to sums [count, Dv], by coefficients [count], ldb apart.
  void from_rows(const float* by, int64_t ldb, int64_t i0, int64_t i1, int64_t count, float* sums) const {
    const auto add = [&](const float* first, int64_t ldr, int64_t from, int64_t to) {
      if (to > from)
        RecurrentProduct{first + from * ldr, ldr, to - from, by + from, ldb, sums, s.value_dim, s.value_dim}
            .run(count);
    };
    if (i0 < c.open) add(c.kept + kept_updates, a.state.row_floats, i0, std::min(i1, c.open));
    add(updates, s.value_dim, std::max(i0, c.open), i1);
  }

  // Rows [r0, r0 + count) of the chunk.
  void group(int64_t r0, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = r0 + i;
      float lanes[kLanes];
      store(lanes, exp(set1(a.g[(row0 + r) * a.ldg + h])));
      decays[r] = lanes[0];
      float* w = weight + i * C;
      whole[i] = weights(r, w);
      for (int64_t n = 0; n <= r; ++n) {
        new_part[i * C + n] = dot(query(r), key(n)) * w[n];
        if (a.delta != 0 && n < r) old_part[i * C + n] = dot(key(r), key(n)) * w[n];
      }
    }
    from_border(query(r0), a.ldq, count, new_sum);
    from_rows(new_part, C, 0, r0, count, new_sum);
    if (a.delta != 0) {
      from_border(key(r0), a.ldk, count, old_sum);
      from_rows(old_part, C, 0, r0, count, old_sum);
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = r0 + i, t = row0 + r;
      const float* v = a.v + t * a.ldv + h * s.value_dim;
      float *old = old_sum + i * s.value_dim, *sum = new_sum + i * s.value_dim;
      const Vf beta = set1(a.beta[t * a.ldb + h]);
      if (a.delta != 0) from_rows(old_part + i * C, C, r0, r, 1, old);
      for_lanes(s.value_dim, [&](int64_t j, int64_t n) {
        Vf x = load_part(v + j, n);
        if (a.delta != 0) x = x - load_part(old + j, n);
        store_part(updates + r * s.value_dim + j, beta * x, n);
      });
      from_rows(new_part + i * C, C, r0, r + 1, 1, sum);
      copy(a.out + t * a.ldo + h * s.value_dim, sum, s.value_dim);
    }
  }

  // The next border, of a full chunk; it may lie where the last does.
  void close() {
    const int64_t size = int64_t{s.key_dim} * s.value_dim;
    const Vf all = set1(weights(C - 1, weight));
    for_lanes(size, [&](int64_t j, int64_t n) {
      store_part(c.out + j, c.border != nullptr ? load_part(c.border + j, n) * all : zero(), n);
    });
    for (int64_t i = 0; i < C; ++i) {
      const float* k = key(i);
      for (int64_t d = 0; d < s.key_dim; ++d) turned[d * C + i] = k[d] * weight[i];
    }
    from_rows(turned, C, 0, C, s.key_dim, c.out);
  }

  const StateScanArgs& a;
  const StateScanShape& s;
  const int64_t h, kh, C;
  StateChunk c;
  int64_t row0 = 0;                     // packed row of the chunk's first, were it in this step
  float *old_part, *new_part, *weight;  // [kRows, C]
  float* whole;                         // [kRows]: d(r)
  float *old_sum, *new_sum;             // [kRows, Dv]
  float* turned;                        // [Dk, C]
  float *updates, *decays;              // [C, Dv], of this step's rows; [C]
  float* carry;                         // [Dk, Dv]
  int64_t kept_updates, kept_decays;    // where they begin in a kept row
};

inline void state_scan_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const StateScanArgs*>(args);
  const int64_t sequences = a.state.borders != nullptr ? a.state.B : 1;
  *out = {1, {std::max<int64_t>(1, sequences * a.shape.heads)}};
  out->worker_scratch = static_cast<size_t>(StateScanHead::floats(a)) * sizeof(float);
}

inline void state_scan_run(const void* args, int, int64_t begin, int64_t end, const KernelScratch& scratch) {
  const auto& a = *static_cast<const StateScanArgs*>(args);
  const int64_t heads = a.shape.heads;
  const bool kept = a.state.borders != nullptr;
  if (kept && a.state.B == 0) return;
  for (int64_t i = begin; i < end; ++i) {
    StateScanHead head(a, i % heads, static_cast<float*>(scratch.worker));
    if (kept) {
      head.sequence(i / heads);
      continue;
    }
    for (int64_t t = 0, last = 0; t < a.T; t = last) {
      for (last = t + 1; last < a.T && a.segments[last] == a.segments[t];) ++last;
      head.segment(t, last);
    }
  }
}

}  // namespace oar::OAR_SIMD_NAMESPACE
