// Elements moved from box to box, of as few axes as can be. Either rows are copied whole, or one value is
// repeated, or two axes change places and go in tiles, a cache line of x at a time, or elements go one by
// one. Memory is the limit: one source for all instruction sets, of vectors of four.
#include <algorithm>
#include <cstring>

#include "kernels/kernel_list.h"
#include "kernels/partition.h"
#include "kernels/strided_copy.h"

namespace oar {
namespace {

constexpr int kMostAxes = StridedCopyArgs::kMostAxes;

struct Axis {
  int64_t n, x, out;  // extent and steps
};

// The box as few axes, and how it is walked: `outer` axes counted, the last one or two within a unit.
struct Walk {
  enum class Unit : uint8_t { kRow, kFill, kTurned, kGathered };
  Axis axes[kMostAxes];
  int outer = 0;
  Unit unit = Unit::kRow;
  Axis inner{1, 1, 1}, other{1, 1, 1};  // of a unit; `other` is that of kTurned, along which x is dense
  int64_t bands = 1, band = 1;          // of `other`
  int64_t units = 1;

  explicit Walk(const StridedCopyArgs& a) {
    const StridedCopyArgs m = merged(a);
    const int rank = m.rank;
    for (int k = 0; k < rank; ++k) axes[k] = {m.dims[k], m.x_steps[k], m.out_steps[k]};
    if (rank > 0 && axes[rank - 1].n == 0) {
      units = 0;
      return;
    }
    if (rank > 0) inner = axes[rank - 1];
    outer = std::max(rank - 1, 0);
    if (inner.out == 1 && inner.x != 1 && inner.x != 0) choose_other();
    if (unit == Unit::kRow && !(inner.out == 1 && inner.x == 1))
      unit = inner.out == 1 && inner.x == 0 ? Unit::kFill : Unit::kGathered;
    // A cache line of x, or several where a line has few to turn.
    band = 64 / a.element * std::max<int64_t>(1, 64 / inner.n);
    bands = unit == Unit::kTurned ? ceil_div(other.n, band) : 1;
    units = bands;
    for (int k = 0; k < outer; ++k) units *= axes[k].n;
  }

  int64_t unit_elements() const { return inner.n * (unit == Unit::kTurned ? std::min(band, other.n) : 1); }

 private:
  void choose_other() {
    for (int k = 0; k < outer; ++k) {
      if (axes[k].x != 1) continue;
      unit = Unit::kTurned;
      other = axes[k];
      std::copy(axes + k + 1, axes + outer, axes + k);
      --outer;
      return;
    }
  }
};

// Units of one chunk.
int64_t units_per_chunk(const Walk& w, int32_t element) {
  return rows_per_chunk(w.units, 2 * element * w.unit_elements());
}

typedef uint32_t Four __attribute__((vector_size(16)));

inline Four load(const uint32_t* p) {
  Four v;
  memcpy(&v, p, sizeof(v));
  return v;
}
inline void store(uint32_t* p, Four v) { memcpy(p, &v, sizeof(v)); }

// Four rows of four elements, turned. Without loops: vectors that a loop counts would go through memory.
inline void turn_block(const uint32_t* x, int64_t x_step, uint32_t* out, int64_t out_step) {
  const Four r0 = load(x), r1 = load(x + x_step), r2 = load(x + 2 * x_step), r3 = load(x + 3 * x_step);
  const Four a = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), b = __builtin_shufflevector(r2, r3, 0, 4, 1, 5),
             c = __builtin_shufflevector(r0, r1, 2, 6, 3, 7), d = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  store(out, __builtin_shufflevector(a, b, 0, 1, 4, 5));
  store(out + out_step, __builtin_shufflevector(a, b, 2, 3, 6, 7));
  store(out + 2 * out_step, __builtin_shufflevector(c, d, 0, 1, 4, 5));
  store(out + 3 * out_step, __builtin_shufflevector(c, d, 2, 3, 6, 7));
}

// turn() of so few rows that a loop over them would cost more than what it moves: the planes of an image.
template <int n, class T>
void turn_few(const T* x, int64_t x_step, T* out, int64_t out_step, int64_t m) {
  for (int64_t j = 0; j < m; ++j) {
    for (int i = 0; i < n; ++i) out[j * out_step + i] = x[i * x_step + j];
  }
}

// out[j out_step + i] = x[i x_step + j] for i < n, j < m.
template <class T>
void turn(const T* x, int64_t x_step, T* out, int64_t out_step, int64_t n, int64_t m) {
  if (n == 2) return turn_few<2>(x, x_step, out, out_step, m);
  if (n == 3) return turn_few<3>(x, x_step, out, out_step, m);
  constexpr int64_t kTile = 16;
  for (int64_t i0 = 0; i0 < n; i0 += kTile) {
    const int64_t i1 = std::min(n, i0 + kTile);
    int64_t j = 0;
    if constexpr (sizeof(T) == 4) {
      const int64_t whole = i0 + (i1 - i0) / 4 * 4;
      for (; j + 4 <= m; j += 4) {
        for (int64_t i = i0; i < whole; i += 4)
          turn_block(x + i * x_step + j, x_step, out + j * out_step + i, out_step);
        for (int64_t i = whole; i < i1; ++i) {
          for (int64_t k = j; k < j + 4; ++k) out[k * out_step + i] = x[i * x_step + k];
        }
      }
    }
    for (; j < m; ++j) {
      for (int64_t i = i0; i < i1; ++i) out[j * out_step + i] = x[i * x_step + j];
    }
  }
}

template <class T>
void copy(const StridedCopyArgs& a, const Walk& w, int64_t begin, int64_t end) {
  static constexpr T kZero = 0;
  const T* const x = a.x != nullptr ? static_cast<const T*>(a.x) : &kZero;
  T* const out = static_cast<T*>(a.out);
  // Bands count fastest, then the outer axes from the last on.
  int64_t at[kMostAxes] = {}, from = 0, to = 0, rest = begin / w.bands, b = begin % w.bands;
  for (int k = w.outer - 1; k >= 0; --k) {
    at[k] = rest % w.axes[k].n;
    rest /= w.axes[k].n;
    from += at[k] * w.axes[k].x;
    to += at[k] * w.axes[k].out;
  }
  for (int64_t u = begin; u < end; ++u) {
    const T* const p = x + from;
    T* const q = out + to;
    switch (w.unit) {
      case Walk::Unit::kRow: memcpy(q, p, static_cast<size_t>(w.inner.n) * sizeof(T)); break;
      case Walk::Unit::kFill: std::fill_n(q, w.inner.n, *p); break;
      case Walk::Unit::kTurned: {
        const int64_t j = b * w.band;
        turn(p + j, w.inner.x, q + j * w.other.out, w.other.out, w.inner.n, std::min(w.band, w.other.n - j));
        break;
      }
      case Walk::Unit::kGathered:
        for (int64_t i = 0; i < w.inner.n; ++i) q[i * w.inner.out] = p[i * w.inner.x];
        break;
    }
    if (++b < w.bands) continue;
    b = 0;
    for (int k = w.outer - 1; k >= 0; --k) {
      from += w.axes[k].x, to += w.axes[k].out;
      if (++at[k] < w.axes[k].n) break;
      from -= at[k] * w.axes[k].x, to -= at[k] * w.axes[k].out;
      at[k] = 0;
    }
  }
}

void plan(const void* args, int, KernelPlan* out) {
  const auto& a = *static_cast<const StridedCopyArgs*>(args);
  const Walk w(a);
  *out = {1, {row_chunks(w.units, units_per_chunk(w, a.element))}};
}

void run(const void* args, int, int64_t begin, int64_t end, const KernelScratch&) {
  const auto& a = *static_cast<const StridedCopyArgs*>(args);
  const Walk w(a);
  const int64_t per = units_per_chunk(w, a.element), first = begin * per, last = std::min(end * per, w.units);
  switch (a.element) {
    case 1: return copy<uint8_t>(a, w, first, last);
    case 2: return copy<uint16_t>(a, w, first, last);
    case 4: return copy<uint32_t>(a, w, first, last);
    default: return copy<uint64_t>(a, w, first, last);
  }
}

constexpr KernelEntry kEntries[] = {{KernelFamily::kStridedCopy, Isa::kGeneric, plan, run}};

}  // namespace

constinit const KernelTable kernels_strided_copy_generic{kEntries};

}  // namespace oar
