// Attention of padded batches for one instruction set (DenseAttentionArgs).
//
// A chunk is a block of queries of all heads that read one head of keys. Its keys are packed into panels, its
// values into whole vectors; then come tiles of queries: scores, softmax, weighted sums. Where few queries
// meet many keys (a token on a long past) packing would cost more than the products: the queries are the
// panel then, keys and values are read where they lie. Both ways add the same terms in the same order.
#pragma once

#include <cstring>

#include "kernels/attention.h"
#include "kernels/cpu/attention/attention_tiles.h"

namespace oar::OAR_SIMD_NAMESPACE {

inline constexpr int64_t kDenseRows = 128;                 // queries of a chunk, at most
inline constexpr int64_t kFewQueries = 16, kManyKeys = 8;  // so many, with this many times the keys
inline constexpr int kFewPanels = static_cast<int>((kFewQueries + kLanes - 1) / kLanes);

class DenseTiles {
 public:
  static bool few(const DenseAttentionArgs& a) {
    const int64_t rows = a.H / a.K * a.S;
    return rows <= kFewQueries && a.L >= kManyKeys * rows;
  }
  // Blocks of about as many queries each.
  static int64_t blocks(const DenseAttentionArgs& a) {
    return few(a) ? 1 : (a.S + kDenseRows - 1) / kDenseRows;
  }
  static size_t scratch_floats(const DenseAttentionArgs& a) {
    const int64_t keys = whole_lanes(a.L) + kLanes;  // those of a block begin at a multiple of kLanes
    if (few(a)) return static_cast<size_t>(kFewPanels * kLanes * (a.D + keys) + kFewQueries * (a.D + keys));
    return static_cast<size_t>(keys * a.D + keys * whole_lanes(a.DV) + kAttentionTile * keys);
  }

  DenseTiles(const DenseAttentionArgs& a, float* scratch)
      : a_(a), scratch_(scratch), keys_(whole_lanes(a.L) + kLanes), width_(whole_lanes(a.DV)) {}

  // Block `block` of the queries of entry b that read head g of keys.
  void run(int64_t b, int64_t g, int64_t block) {
    b_ = b, k_ = a_.k + b * a_.k_steps.batch + g * a_.k_steps.head;
    v_ = a_.v + b * a_.v_steps.batch + g * a_.v_steps.head;
    const int64_t heads = a_.H / a_.K, first = g * heads;
    if (few(a_)) return few_rows(first, heads);
    const int64_t all = blocks(a_), from = a_.S * block / all, to = a_.S * (block + 1) / all;
    const KeyRange keys = range(from, to);
    float* const panels = scratch_;
    float* const values = panels + keys_ * a_.D;
    float* const scores = values + keys_ * width_;
    pack_panels(k_ + keys.from * a_.k_steps.row, a_.k_steps.row, keys.to - keys.from, a_.D, panels);
    pack_rows(v_ + keys.from * a_.v_steps.row, a_.v_steps.row, keys.to - keys.from, a_.DV, values);
    for (int64_t h = first; h < first + heads; ++h) {
      for (int64_t i = from; i < to; i += kAttentionTile) {
        const int64_t rows = std::min(kAttentionTile, to - i);
        const auto tile = [&]<int R>(std::integral_constant<int, R>, int64_t at) {
          const KeyRange own = range(at, at + R);
          const int64_t skip = own.from - keys.from, n = own.to - own.from, ld = whole_lanes(n);
          products<R>(query(h, at), a_.q_steps.row, a_.D, panels + skip * a_.D, n, scores, ld);
          finish<R, false>(h, at, own, scores, ld, values + skip * width_, width_);
        };
        if (rows == kAttentionTile) tile(std::integral_constant<int, kAttentionTile>{}, i);
        else
          for (int64_t r = 0; r < rows; ++r) tile(std::integral_constant<int, 1>{}, i + r);
      }
    }
  }

 private:
  // Keys of queries [from, to), from a multiple of kLanes on: lanes are the same in every tile.
  KeyRange range(int64_t from, int64_t to) const {
    KeyRange r{seen_keys(a_, b_, from).from, seen_keys(a_, b_, to - 1).to};
    r.from = std::min(r.from, r.to) / kLanes * kLanes;
    return r;
  }
  const float* query(int64_t h, int64_t i) const {
    return a_.q + b_ * a_.q_steps.batch + h * a_.q_steps.head + i * a_.q_steps.row;
  }

  // All queries of `heads` heads from `first` on.
  void few_rows(int64_t first, int64_t heads) {
    const int64_t S = a_.S, rows = heads * S, ldt = kFewPanels * kLanes;
    float* const panels = scratch_;
    float* const turned = panels + ldt * a_.D;
    float* const queries = turned + ldt * keys_;
    float* const scores = queries + kFewQueries * a_.D;
    const KeyRange keys = range(0, S);
    const int64_t n = keys.to - keys.from, ld = whole_lanes(n);
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(queries + r * a_.D, query(first + r / S, r % S), static_cast<size_t>(a_.D) * sizeof(float));
    pack_panels(queries, a_.D, rows, a_.D, panels);
    const float* const k = k_ + keys.from * a_.k_steps.row;
    int64_t j = 0;
    for (; j + kAttentionTile <= n; j += kAttentionTile)
      products<kAttentionTile>(k + j * a_.k_steps.row, a_.k_steps.row, a_.D, panels, rows, turned + j * ldt,
                               ldt);
    for (; j < n; ++j)
      products<1>(k + j * a_.k_steps.row, a_.k_steps.row, a_.D, panels, rows, turned + j * ldt, ldt);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t s = 0; s < n; ++s) scores[r * ld + s] = turned[s * ldt + r];
    const float* const values = v_ + keys.from * a_.v_steps.row;
    for (int64_t h = 0; h < heads; ++h) {
      float* const own = scores + h * S * ld;
      int64_t i = 0;
      for (; i + kAttentionTile <= S; i += kAttentionTile)
        finish<kAttentionTile, true>(first + h, i, keys, own + i * ld, ld, values, a_.v_steps.row);
      for (; i < S; ++i) finish<1, true>(first + h, i, keys, own + i * ld, ld, values, a_.v_steps.row);
    }
  }

  // From products of R queries with the keys of `keys` to their results.
  template <int R, bool kInPlace>
  void finish(int64_t h, int64_t i, KeyRange keys, float* scores, int64_t ld, const float* values,
              int64_t ldv) {
    float* const out = a_.out + b_ * a_.out_steps.batch + h * a_.out_steps.head + i * a_.out_steps.row;
    float inverse[R];
    bool blind[R];
    for (int r = 0; r < R; ++r) inverse[r] = soften(h, i + r, keys, scores + r * ld, &blind[r]);
    weighted_sums<R, kInPlace>(scores, ld, keys.to - keys.from, values, ldv, a_.DV, inverse, out,
                               a_.out_steps.row);
    for (int r = 0; r < R; ++r)
      if (blind[r]) std::fill_n(out + r * a_.out_steps.row, a_.DV, a_.blind_is_nan ? NAN : 0.f);
  }

  // Weights of query i from its products with `keys`, in place; returns 1 / their sum.
  float soften(int64_t h, int64_t i, KeyRange keys, float* row, bool* blind) const {
    const KeyRange seen = seen_keys(a_, b_, i);
    const int64_t n = seen.to - seen.from, skip = seen.from - keys.from;
    float* const x = row + skip;
    *blind = n <= 0;
    float sum = 1;
    if (n > 0) {
      scale_and_cap(x, n);
      if (a_.mask != nullptr) *blind = !add_mask(h, i, seen, x);
      if (!*blind) sum = exponentials(x, n);
    }
    if (*blind) {
      std::fill_n(row, keys.to - keys.from, 0.f);
    } else {
      std::fill_n(row, skip, 0.f);
      std::fill(x + n, row + (keys.to - keys.from), 0.f);
    }
    return 1.f / sum;
  }

  void scale_and_cap(float* x, int64_t n) const {
    const Vf scale = set1(a_.softcap > 0 ? a_.scale / a_.softcap : a_.scale), cap = set1(a_.softcap);
    for_lanes(n, [&](int64_t s, int64_t lanes) {
      Vf v = load_part(x + s, lanes) * scale;
      if (a_.softcap > 0) v = tanh(v) * cap;
      store_part(x + s, v, lanes);
    });
  }

  // False where no key is left.
  bool add_mask(int64_t h, int64_t i, KeyRange seen, float* x) const {
    const int64_t at = b_ * a_.mask_steps.batch + h * a_.mask_steps.head + i * a_.mask_steps.row +
                       seen.from * a_.mask_column;
    const int64_t n = seen.to - seen.from, step = a_.mask_column;
    bool any = false;
    if (a_.mask_bool) {
      const auto* const m = static_cast<const uint8_t*>(a_.mask) + at;
      for (int64_t s = 0; s < n; ++s) {
        const bool sees = m[s * step] != 0;
        x[s] = sees ? x[s] : -INFINITY;
        any |= sees;
      }
      return any;
    }
    const auto* const m = static_cast<const float*>(a_.mask) + at;
    if (step == 0) {
      for (int64_t s = 0; s < n; ++s) x[s] += m[0];
      return m[0] != -INFINITY;
    }
    Vf top = set1(-INFINITY);
    for_lanes(n, [&](int64_t s, int64_t lanes) {
      const Vf add = load_part(m + s, lanes);
      store_part(x + s, load_part(x + s, lanes) + add, lanes);
      if (lanes == kLanes) top = max(add, top);
    });
    any = reduce_max(top) != -INFINITY;
    for (int64_t s = n / kLanes * kLanes; s < n && !any; ++s) any = m[s] != -INFINITY;
    return any;
  }

  const DenseAttentionArgs& a_;
  float* const scratch_;
  const int64_t keys_, width_;  // floats of a row of scores at most, and of a packed value
  int64_t b_ = 0;
  const float *k_ = nullptr, *v_ = nullptr;
};

inline void dense_attention_plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const DenseAttentionArgs*>(args);
  *out = {1, {a.B * a.K * DenseTiles::blocks(a)}};
  out->worker_scratch = DenseTiles::scratch_floats(a) * sizeof(float);
}
inline void dense_attention_run(const void* args, int, int64_t begin, int64_t end,
                                const KernelScratch& scratch) {
  const auto& a = *static_cast<const DenseAttentionArgs*>(args);
  DenseTiles tiles(a, static_cast<float*>(scratch.worker));
  const int64_t blocks = DenseTiles::blocks(a);
  for (int64_t c = begin; c < end; ++c) tiles.run(c / blocks / a.K, c / blocks % a.K, c % blocks);
}

}  // namespace oar::OAR_SIMD_NAMESPACE
