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
  // Floats of scratch: coefficients of a group of rows; of a chunk what rows scale by, sums, the updates and
  // the keys; columns of a border; a border that nobody keeps.
  static int64_t floats(const StateScanArgs& args) {
    const StateScanShape& s = args.shape;
    const int64_t C = args.state.page_tokens, matrix = int64_t{s.key_dim} * s.value_dim;
    return (2 * kRows + 1) * C + C * (s.key_dim + 3 * s.value_dim + 1) + kPanel * s.key_dim + matrix;
  }
  StateScanHead(const StateScanArgs& args, int64_t head, float* scratch)
      : a(args), s(args.shape), h(head), kh(head / (s.heads / s.key_heads)), C(args.state.page_tokens) {
    old_part = scratch;
    new_part = old_part + kRows * C;
    weight = new_part + kRows * C;
    decays = weight + C;
    old_sum = decays + C;
    new_sum = old_sum + C * s.value_dim;
    updates = new_sum + C * s.value_dim;
    keys = updates + C * s.value_dim;
    panel = keys + C * s.key_dim;
    carry = panel + kPanel * s.key_dim;
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
      if (c.out != nullptr) close();  // which scales the keys
    });
  }
  void segment(int64_t from, int64_t to) {
    StateChunk c;
    for (c.first = from; c.first < to; c.first += c.rows) {
      c.rows = std::min(C, to - c.first);
      c.out = c.rows == C ? carry : nullptr;
      run(c);
      if (c.out != nullptr) close();
      c.border = c.out;
    }
  }

 private:
  static constexpr int64_t kRows = kRecurrentRows;
  // What decays further is forgotten: no sum of f32 would show it, and subnormal numbers cost a processor a
  // hundred cycles each.
  static constexpr float kLeastWeight = 0x1p-100f;
  static constexpr int64_t kPanel = 2 * kLanes, kManyRows = 16;

  void run(const StateChunk& given) {
    c = given;
    row0 = c.first - c.open;
    for (int64_t i = 0; i < c.open; ++i) decays[i] = c.kept[i * a.state.row_floats + kept_decays];
    const int64_t end = c.open + c.rows;
    const size_t sums = static_cast<size_t>(c.rows * s.value_dim) * sizeof(float);
    memset(new_sum, 0, sums);
    if (a.delta != 0) memset(old_sum, 0, sums);
    near = false;  // until they are there
    // Rows of operands lie far apart, at distances that share few sets of the nearest cache.
    if (c.rows >= kManyRows) copy_keys();
    if (c.border != nullptr) from_border(c.rows);
    for (int64_t r = c.open; r < end; r += kRows) group(r, std::min(kRows, end - r));
  }
  void copy_keys() {
    for (int64_t i = 0; i < c.open + c.rows; ++i) copy(keys + i * s.key_dim, key(i), s.key_dim);
    near = true;
  }
  void keep(int64_t t, float* row) const {
    const int64_t i = t - row0;
    // Heads of a group share their keys; the first keeps them.
    if (h % (s.heads / s.key_heads) == 0) copy(row + kh * s.key_dim, key(i), s.key_dim);
    copy(row + kept_updates, updates + i * s.value_dim, s.value_dim);
    row[kept_decays] = decays[i];
  }
  static void copy(float* to, const float* from, int64_t n) {
    for_lanes(n, [&](int64_t i, int64_t lanes) { store_part(to + i, load_part(from + i, lanes), lanes); });
  }

  // Rows are counted from the chunk's first; those in front of c.open are kept ones.
  const float* key(int64_t i) const {
    if (near) return keys + i * s.key_dim;
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
      if (w < kLeastWeight) {
        memset(to, 0, static_cast<size_t>(i) * sizeof(float));
        return 0;
      }
    }
    return w;
  }
  // Products of x and keys [n, n + kKeys), each sum but for the lanes of its vector.
  template <int kKeys>
  OAR_INLINE void lane_sums(const float* x, int64_t n, Vf* to) const {
    const float* k[kKeys];
    Vf sum[kKeys][4];
    OAR_UNROLL
    for (int j = 0; j < kKeys; ++j) {
      k[j] = key(n + j);
      OAR_UNROLL
      for (int i = 0; i < 4; ++i) sum[j][i] = zero();
    }
    int64_t d = 0;
    for (; d + 4 * kLanes <= s.key_dim; d += 4 * kLanes) {
      OAR_UNROLL
      for (int i = 0; i < 4; ++i) {
        const Vf part = load(x + d + i * kLanes);
        OAR_UNROLL
        for (int j = 0; j < kKeys; ++j) sum[j][i] = fma(part, load(k[j] + d + i * kLanes), sum[j][i]);
      }
    }
    for (; d < s.key_dim; d += kLanes) {
      const int64_t lanes = std::min<int64_t>(kLanes, s.key_dim - d);
      const Vf part = load_part(x + d, lanes);
      OAR_UNROLL
      for (int j = 0; j < kKeys; ++j) sum[j][0] = fma(part, load_part(k[j] + d, lanes), sum[j][0]);
    }
    OAR_UNROLL
    for (int j = 0; j < kKeys; ++j) to[j] = (sum[j][0] + sum[j][1]) + (sum[j][2] + sum[j][3]);
  }
  // to[n] = x . key(n) times w[n], n in [0, count).
  void scores(const float* x, int64_t count, const float* w, float* to) const {
    constexpr int kKeys = kLanes == 16 ? 4 : 2;  // as many as registers hold
    Vf sums[4];
    int64_t n = 0;
    for (; n + 4 <= count; n += 4) {
      OAR_UNROLL
      for (int j = 0; j < 4; j += kKeys) lane_sums<kKeys>(x, n + j, sums + j);
      reduce_add_four(sums[0], sums[1], sums[2], sums[3], to + n);
    }
    for (; n < count; ++n) {
      lane_sums<1>(x, n, sums);
      to[n] = reduce_add(sums[0]);
    }
    for_lanes(count, [&](int64_t i, int64_t lanes) {
      store_part(to + i, load_part(to + i, lanes) * load_part(w + i, lanes), lanes);
    });
  }
  // Adds the border's rows by the step's queries to new_sum [count, Dv], and by its keys to old_sum.
  void from_border(int64_t count) const {
    const auto add = [&](const float* border, int64_t ldr, int64_t at, int64_t n) {
      RecurrentProduct product{border, ldr, s.key_dim, query(c.open), a.ldq, new_sum + at, s.value_dim, n};
      product.run(count);
      if (a.delta == 0) return;
      product.h = key(c.open), product.ldh = near ? s.key_dim : a.ldk, product.sums = old_sum + at;
      product.run(count);
    };
    if (!near) return add(c.border, s.value_dim, 0, s.value_dim);
    // Many rows read a copy of some columns, which stays in the nearest cache.
    for (int64_t at = 0; at < s.value_dim; at += kPanel) {
      const int64_t n = std::min(kPanel, s.value_dim - at);
      for (int64_t d = 0; d < s.key_dim; ++d) copy(panel + d * kPanel, c.border + d * s.value_dim + at, n);
      add(panel, kPanel, at, n);
    }
  }
  // What is needed soon, and was written long ago.
  static void fetch(const float* x, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(x + i);
  }
  static void scale(float* x, float by, int64_t count) {
    for_lanes(count, [&](int64_t i, int64_t n) { store_part(x + i, load_part(x + i, n) * set1(by), n); });
  }
  // Adds updates of rows [i0, i1) of the chunk to sums [count, Dv], by coefficients [count, ..]: ldb from sum
  // to sum, step from row to row.
  void from_rows(const float* by, int64_t ldb, int64_t step, int64_t i0, int64_t i1, int64_t count,
                 float* sums) const {
    const auto add = [&](const float* first, int64_t ldr, int64_t from, int64_t to) {
      if (to > from)
        RecurrentProduct{first + from * ldr, ldr,         to - from, by + from * step, ldb, sums,
                         s.value_dim,        s.value_dim, step}
            .run(count);
    };
    if (i0 < c.open) add(c.kept + kept_updates, a.state.row_floats, i0, std::min(i1, c.open));
    add(updates, s.value_dim, std::max(i0, c.open), i1);
  }

  // Rows [r0, r0 + count) of the chunk.
  void group(int64_t r0, int64_t count) {
    float *news = new_sum + (r0 - c.open) * s.value_dim, *olds = old_sum + (r0 - c.open) * s.value_dim;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = r0 + i;
      float lanes[kLanes];
      store(lanes, exp(set1(a.g[(row0 + r) * a.ldg + h])));
      decays[r] = lanes[0];
      const float whole = weights(r, weight);
      fetch(a.v + (row0 + r) * a.ldv + h * s.value_dim, s.value_dim);
      scores(query(r), r + 1, weight, new_part + i * C);
      scale(news + i * s.value_dim, whole, s.value_dim);
      if (a.delta == 0) continue;
      scores(key(r), r, weight, old_part + i * C);
      scale(olds + i * s.value_dim, whole, s.value_dim);
    }
    from_rows(new_part, C, 1, 0, r0, count, news);
    if (a.delta != 0) from_rows(old_part, C, 1, 0, r0, count, olds);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t r = r0 + i, t = row0 + r;
      const float* v = a.v + t * a.ldv + h * s.value_dim;
      float *old = olds + i * s.value_dim, *sum = news + i * s.value_dim;
      const Vf beta = set1(a.beta[t * a.ldb + h]);
      if (a.delta != 0) from_rows(old_part + i * C, C, 1, r0, r, 1, old);
      for_lanes(s.value_dim, [&](int64_t j, int64_t n) {
        Vf x = load_part(v + j, n);
        if (a.delta != 0) x = x - load_part(old + j, n);
        store_part(updates + r * s.value_dim + j, beta * x, n);
      });
      from_rows(new_part + i * C, C, 1, r0, r + 1, 1, sum);
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
    if (!near) copy_keys();
    for (int64_t i = 0; i < C; ++i) scale(keys + i * s.key_dim, weight[i], s.key_dim);
    from_rows(keys, 1, s.key_dim, 0, C, s.key_dim, c.out);
  }

  const StateScanArgs& a;
  const StateScanShape& s;
  const int64_t h, kh, C;
  StateChunk c;
  int64_t row0 = 0;                   // packed row of the chunk's first, were it in this step
  float *old_part, *new_part;         // [kRows, C]
  float *weight, *decays;             // [C]
  float *old_sum, *new_sum;           // [C, Dv]: of this step's rows, in their order
  float* updates;                     // [C, Dv], of this step's rows
  float* keys;                        // [C, Dk]: the chunk's, scaled in the end
  bool near = false;                  // they are there
  float* panel;                       // [Dk, kPanel]
  float* carry;                       // [Dk, Dv]
  int64_t kept_updates, kept_decays;  // where they begin in a kept row
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
