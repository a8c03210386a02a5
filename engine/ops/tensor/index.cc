// Ops that choose elements by indices or values: gather and scatter in their forms, one_hot, compress,
// non_zero, unique, top_k. Indices are checked: a file or a caller may hold any.
#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>
#include <span>

#include "engine/ops/op_util.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/util.h"

namespace oar::tensor {
namespace {

// Elements [first, first + count) of `t` as indices into an axis of `n`, negative ones counted from the end.
// Returns the place in `t` of the first that is outside, which becomes 0, or -1.
int64_t read_indices(const Tensor& t, int64_t first, int64_t count, int64_t n, int64_t* out) {
  int64_t bad = -1;
  dispatch_integer(dtype_of(t), [&](auto tag) {
    const auto* from = elements<typename decltype(tag)::type>(t) + first;
    for (int64_t k = 0; k < count; ++k) {
      const auto i = static_cast<int64_t>(from[k]);
      const int64_t at = i < 0 ? i + n : i;
      const bool inside = static_cast<uint64_t>(at) < static_cast<uint64_t>(n);
      out[k] = inside ? at : 0;
      if (!inside && bad < 0) bad = first + k;
    }
  });
  return bad;
}
Status outside(const Tensor& t, int64_t at, int64_t n) {
  return invalid_argument(cat("index ", element_as_int(t, at), " is outside an axis of ", n));
}

// All of operand `i`.
Result<std::vector<int64_t>> indices(const EvalContext& ctx, size_t operand, int64_t n) {
  OAR_ASSIGN(const Tensor t, ctx.tensor(operand));
  if (!dtype_is_integer(dtype_of(t))) return invalid_argument("indices must be integers");
  std::vector<int64_t> v(static_cast<size_t>(t.numel()));
  if (const int64_t bad = read_indices(t, 0, t.numel(), n, v.data()); bad >= 0) return outside(t, bad, n);
  return v;
}

// For element k of `shape`, where its coordinates lie in a tensor of `strides` with `axis` replaced.
int64_t place(const Shape& shape, int64_t k, const std::array<int64_t, Shape::kMaxRank>& strides, int axis,
              int64_t index) {
  int64_t at = 0;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    at += (d == axis ? index : k % shape[d]) * strides[static_cast<size_t>(d)];
    k /= shape[d];
  }
  return at;
}

Status check_within(const Shape& small, const Shape& large, int but) {
  bool fits = small.rank() == large.rank();
  for (int d = 0; fits && d < small.rank(); ++d) fits = d == but || small[d] <= large[d];
  return fits ? ok_status() : invalid_argument("indices exceed the operand beside the axis");
}

Status gather_elements(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor at, ctx.tensor(1));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis"), x.shape().rank()));
  if (!dtype_is_integer(dtype_of(at))) return invalid_argument("indices must be integers");
  OAR_RETURN_IF_ERROR(check_within(at.shape(), x.shape(), axis));
  OAR_ASSIGN(Tensor y, ctx.allocate(at.shape(), dtype_of(x)));
  const auto strides = strides_of(x.shape());
  // Row by row of the last axis: there one step is one element, or what an index says. Indices are read by
  // pieces, which stay near.
  const int last = at.shape().rank() - 1;
  const int64_t n = at.shape().cols(), along = strides[static_cast<size_t>(axis)],
                step = axis == last ? 0 : 1, depth = x.shape()[axis];
  std::atomic<int64_t> bad = -1;
  dispatch_move(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = elements<T>(x);
    T* to = mutable_elements<T>(y);
    ctx.parallel(n > 0 ? y.numel() / n : 0, 1.5 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
      constexpr int64_t kPiece = 512;
      int64_t index[kPiece];
      for (int64_t r = begin; r < end; ++r) {
        const T* row = from + place(at.shape(), r * n, strides, axis, 0);
        for (int64_t first = 0; first < n; first += kPiece) {
          const int64_t count = std::min(kPiece, n - first);
          if (const int64_t b = read_indices(at, r * n + first, count, depth, index); b >= 0) {
            // Of all threads' the first, so that an error does not depend on their number.
            for (int64_t seen = bad; (seen < 0 || b < seen) && !bad.compare_exchange_weak(seen, b);) {}
            return;
          }
          T* const out = to + r * n + first;
          for (int64_t k = 0; k < count; ++k) out[k] = row[index[k] * along + (first + k) * step];
        }
      }
    });
  });
  if (bad >= 0) return outside(at, bad, depth);
  ctx.set(0, std::move(y));
  return ok_status();
}

// y[to] = y[to] (op) x[from]
Result<void (*)(const Tensor&, int64_t, const Tensor&, int64_t)> combine(const std::string& reduction,
                                                                         const Tensor& t) {
  using Fn = void (*)(const Tensor&, int64_t, const Tensor&, int64_t);
  if (reduction == "none" || reduction.empty()) {
    return Fn(
        [](const Tensor& x, int64_t from, const Tensor& y, int64_t to) { copy_elements(x, from, y, to, 1); });
  }
  bool numeric = dispatch_numeric(dtype_of(t), [](auto) {});
  if (!numeric) return bad_dtype(t);
#define OAR_COMBINE(name, expression)                                                                 \
  if (reduction == name) {                                                                            \
    return Fn([](const Tensor& x, int64_t from, const Tensor& y, int64_t to) {                        \
      dispatch_numeric(dtype_of(x), [&](auto tag) {                                                   \
        using T = typename decltype(tag)::type;                                                       \
        using C = typename Element<T>::Compute;                                                       \
        using S = std::conditional_t<std::is_integral_v<C>, uint64_t, C>;                             \
        const C p = Element<T>::load(elements<T>(y)[to]), q = Element<T>::load(elements<T>(x)[from]); \
        const S a = static_cast<S>(p), b = static_cast<S>(q);                                         \
        (void)a, (void)b;                                                                             \
        mutable_elements<T>(y)[to] = Element<T>::store(static_cast<C>(expression));                   \
      });                                                                                             \
    });                                                                                               \
  }
  OAR_COMBINE("add", a + b)
  OAR_COMBINE("mul", a * b)
  OAR_COMBINE("max", p != p || p > q ? p : q)
  OAR_COMBINE("min", p != p || p < q ? p : q)
#undef OAR_COMBINE
  return invalid_argument(cat("unknown reduction '", reduction, "'"));
}

// Operand 0 to write over: itself where nobody else reads it.
Result<Tensor> copy_of(const EvalContext& ctx, const Tensor& x) {
  OAR_ASSIGN(Tensor y, ctx.allocate_over(0, x, x.shape(), dtype_of(x)));
  if (y.data() != x.data() && !ctx.options().sizing) copy_elements(x, 0, y, 0, x.numel());
  return y;
}

Status scatter_elements(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor at, ctx.tensor(1));
  OAR_ASSIGN(const Tensor updates, ctx.tensor(2));
  OAR_RETURN_IF_ERROR(check_same_dtype(x, updates));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis"), x.shape().rank()));
  OAR_ASSIGN(const auto index, indices(ctx, 1, x.shape()[axis]));
  OAR_RETURN_IF_ERROR(check_within(at.shape(), x.shape(), axis));
  if (!(updates.shape() == at.shape())) return invalid_argument("updates and indices differ in shape");
  const std::string reduction = ctx.attrs().get_string("reduction", "none");
  OAR_ASSIGN(const auto put, combine(reduction, x));
  OAR_ASSIGN(Tensor y, copy_of(ctx, x));
  const auto strides = strides_of(x.shape());
  const int last = at.shape().rank() - 1;
  const int64_t n = at.shape().cols(), along = strides[static_cast<size_t>(axis)];
  const int64_t rows = n > 0 && !ctx.options().sizing ? updates.numel() / n : 0;
  const auto each = [&](auto&& store) {  // store(from, to) for each update, in their order
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t* i = index.data() + r * n;
      const int64_t row = place(at.shape(), r * n, strides, axis, 0);
      for (int64_t k = 0; k < n; ++k) store(r * n + k, row + i[k] * along + (axis == last ? 0 : k));
    }
  };
  if (!reduction.empty() && reduction != "none") {
    each([&](int64_t from, int64_t to) { put(updates, from, y, to); });
  } else {
    dispatch_move(x, [&](auto tag) {
      using T = typename decltype(tag)::type;
      const T* const from = elements<T>(updates);
      T* const to = mutable_elements<T>(y);
      each([&](int64_t f, int64_t t) { to[t] = from[f]; });
    });
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// The start of each slice that the last axis of `at` points to, and the slice's size.
Result<std::vector<int64_t>> slice_starts(const Tensor& at, const Shape& x, int batch, int64_t* size) {
  if (!dtype_is_integer(dtype_of(at)) || at.shape().rank() < 1)
    return invalid_argument("indices must be integers of at least one axis");
  const int64_t depth = at.shape().cols();
  if (batch < 0 || batch >= at.shape().rank() || depth < 0 || depth > x.rank() - batch)
    return invalid_argument("indices are deeper than the operand");
  for (int d = 0; d < batch; ++d) {
    if (at.shape()[d] != x[d]) return invalid_argument("batch extents differ");
  }
  const auto strides = strides_of(x);
  *size = extent(x, batch + static_cast<int>(depth), x.rank());
  const int64_t rows = depth > 0 ? at.numel() / depth : at.shape().rows(), batches = extent(x, 0, batch);
  std::vector<int64_t> out;
  for (int64_t r = 0; r < rows; ++r) {
    int64_t start = batches > 0 ? r / (rows / batches) * extent(x, batch, x.rank()) : 0;
    for (int64_t d = 0; d < depth; ++d) {
      const int axis = batch + static_cast<int>(d);
      int64_t i = element_as_int(at, r * depth + d);
      if (i < -x[axis] || i >= x[axis])
        return invalid_argument(cat("index ", i, " is outside an axis of ", x[axis]));
      if (i < 0) i += x[axis];
      start += i * strides[static_cast<size_t>(axis)];
    }
    out.push_back(start);
  }
  return out;
}

Status gather_nd(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor at, ctx.tensor(1));
  const auto batch = static_cast<int>(std::clamp<int64_t>(ctx.attrs().get_int("batch_dims"), -1, 8));
  int64_t size = 0;
  OAR_ASSIGN(const auto starts, slice_starts(at, x.shape(), batch, &size));
  std::vector<int64_t> dims(at.shape().begin(), at.shape().begin() + at.shape().rank() - 1);
  const auto depth = static_cast<int>(at.shape().cols());
  for (int d = batch + depth; d < x.shape().rank(); ++d) dims.push_back(x.shape()[d]);
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(x)));
  dispatch_move(x, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const T* from = elements<T>(x);
    T* to = mutable_elements<T>(y);
    ctx.parallel(static_cast<int64_t>(starts.size()), 2 + 0.2 * static_cast<double>(size),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t k = begin; k < end; ++k)
                     std::copy_n(from + starts[static_cast<size_t>(k)], size, to + k * size);
                 });
  });
  ctx.set(0, std::move(y));
  return ok_status();
}

Status scatter_nd(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor at, ctx.tensor(1));
  OAR_ASSIGN(const Tensor updates, ctx.tensor(2));
  OAR_RETURN_IF_ERROR(check_same_dtype(x, updates));
  int64_t size = 0;
  OAR_ASSIGN(const auto starts, slice_starts(at, x.shape(), 0, &size));
  if (updates.numel() != static_cast<int64_t>(starts.size()) * size)
    return invalid_argument("updates do not match the indices");
  OAR_ASSIGN(const auto put, combine(ctx.attrs().get_string("reduction", "none"), x));
  OAR_ASSIGN(Tensor y, copy_of(ctx, x));
  const std::string reduction = ctx.attrs().get_string("reduction", "none");
  const bool replace = reduction == "none" || reduction.empty();
  for (size_t k = 0; k < starts.size(); ++k) {
    if (replace) {
      copy_elements(updates, static_cast<int64_t>(k) * size, y, starts[k], size);
      continue;
    }
    for (int64_t e = 0; e < size; ++e) put(updates, static_cast<int64_t>(k) * size + e, y, starts[k] + e);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// tensor_scatter(cache (B, ...), update, write_indices?) {axis, mode}: writes the update into the cache from
// an index of each batch entry on.
Status tensor_scatter(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor u, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_same_dtype(x, u));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis", -2), x.shape().rank()));
  const bool circular = ctx.attrs().get_string("mode", "linear") == "circular";
  if (axis == 0) return invalid_argument("axis 0 is the batch");
  for (int d = 0; d < x.shape().rank(); ++d) {
    if (u.shape().rank() != x.shape().rank() || (d != axis && u.shape()[d] != x.shape()[d]))
      return invalid_argument("the update does not match the cache");
  }
  std::vector<int64_t> at(static_cast<size_t>(x.shape()[0]), 0);
  if (ctx.has(2)) { OAR_ASSIGN(at, ctx.ints(2)); }
  if (static_cast<int64_t>(at.size()) != x.shape()[0])
    return invalid_argument("one index per batch entry is needed");
  OAR_ASSIGN(Tensor y, copy_of(ctx, x));
  const int64_t n = x.shape()[axis], m = u.shape()[axis],
                inner = extent(x.shape(), axis + 1, x.shape().rank()), outer = extent(x.shape(), 0, axis);
  for (int64_t o = 0; o < outer; ++o) {
    const int64_t start = at[static_cast<size_t>(o / extent(x.shape(), 1, axis))];
    for (int64_t k = 0; k < m; ++k) {
      int64_t to = start + k;
      if (circular && n > 0) to = ((to % n) + n) % n;
      if (to < 0 || to >= n) return invalid_argument(cat("position ", to, " is outside a cache of ", n));
      copy_elements(u, (o * m + k) * inner, y, (o * n + to) * inner, inner);
    }
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// one_hot(indices, depth, values (2)) {axis}: indices outside [-depth, depth) give all "off".
Status one_hot(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor at, ctx.tensor(0));
  OAR_ASSIGN(const int64_t depth, ctx.scalar_int(1));
  OAR_ASSIGN(const Tensor values, ctx.tensor(2));
  OAR_RETURN_IF_ERROR(check_number(at));
  if (depth < 0 || values.numel() != 2) return invalid_argument("needs a depth and two values");
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis", -1), at.shape().rank() + 1));
  std::vector<int64_t> dims = dims_of(at.shape());
  dims.insert(dims.begin() + axis, depth);
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(values)));
  const int64_t inner = extent(shape, axis + 1, shape.rank());
  for (int64_t k = 0; k < y.numel(); ++k) {
    const int64_t d = k / inner % depth, o = k / inner / depth;
    int64_t i = element_as_int(at, o * inner + k % inner);
    if (i < 0) i += depth;
    copy_elements(values, i == d ? 1 : 0, y, k, 1);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// The entries `chosen` of x along `axis`, in that order.
Result<Tensor> take_along(EvalContext& ctx, const Tensor& x, int axis, const std::vector<int64_t>& chosen) {
  const int64_t n = x.shape()[axis], outer = extent(x.shape(), 0, axis),
                inner = extent(x.shape(), axis + 1, x.shape().rank());
  std::vector<int64_t> dims = dims_of(x.shape());
  const auto count = static_cast<int64_t>(chosen.size());
  dims[static_cast<size_t>(axis)] = count;
  OAR_ASSIGN(Tensor y, ctx.allocate(Shape(dims), dtype_of(x)));
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t k = 0; k < count; ++k)
      copy_elements(x, (o * n + chosen[static_cast<size_t>(k)]) * inner, y, (o * count + k) * inner, inner);
  }
  return y;
}

Status compress(EvalContext& ctx) {
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor condition, ctx.tensor(1));
  if (dtype_of(condition) != DType::kBool || condition.shape().rank() != 1)
    return invalid_argument("the condition must be bool of one axis");
  int axis = 0;
  if (ctx.attrs().has("axis")) {
    OAR_ASSIGN(axis, checked_axis(ctx.attrs().get_int("axis"), x.shape().rank()));
  } else {
    OAR_ASSIGN(x, x.reshape({x.numel()}));
  }
  const int64_t n = x.shape()[axis];
  std::vector<int64_t> chosen;
  for (int64_t k = 0; k < std::min(n, condition.numel()); ++k) {
    if (elements<uint8_t>(condition)[k]) chosen.push_back(k);
  }
  OAR_ASSIGN(Tensor y, take_along(ctx, x, axis, chosen));
  ctx.set(0, std::move(y));
  return ok_status();
}

// non_zero(x): the coordinates of what is not zero, (rank, count).
Status non_zero(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_RETURN_IF_ERROR(check_number(x));
  std::vector<int64_t> found;
  for (int64_t k = 0; k < x.numel(); ++k) {
    if (element_as_double(x, k) != 0) found.push_back(k);
  }
  const int rank = x.shape().rank();
  const auto count = static_cast<int64_t>(found.size());
  OAR_ASSIGN(Tensor y, ctx.zeros({std::max(rank, 1), count}, DType::kI64));
  for (int64_t c = 0; c < count; ++c) {
    int64_t rest = found[static_cast<size_t>(c)];
    for (int d = rank - 1; d >= 0; --d)
      mutable_elements<int64_t>(y)[d * count + c] = rest % x.shape()[d], rest /= x.shape()[d];
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// unique(x) {axis?, sorted} -> values, first indices, inverse, counts
Status unique(EvalContext& ctx) {
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  int axis = 0;
  if (ctx.attrs().has("axis")) {
    OAR_ASSIGN(axis, checked_axis(ctx.attrs().get_int("axis"), x.shape().rank()));
  } else {
    OAR_ASSIGN(x, x.reshape({x.numel()}));
  }
  const int64_t n = x.shape()[axis], outer = extent(x.shape(), 0, axis),
                inner = extent(x.shape(), axis + 1, x.shape().rank());
  // Entry order: lexicographic over the entry's elements.
  auto compare = [&](int64_t a, int64_t b) -> int {
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < inner; ++i) {
        const int64_t p = (o * n + a) * inner + i, q = (o * n + b) * inner + i;
        if (dtype_of(x) == DType::kString) {
          const int c = elements<std::string>(x)[p].compare(elements<std::string>(x)[q]);
          if (c != 0) return c;
        } else if (dtype_is_float(dtype_of(x))) {
          const double u = element_as_double(x, p), v = element_as_double(x, q);
          if (u != v) return std::isnan(u) ? (std::isnan(v) ? 0 : 1) : std::isnan(v) || u < v ? -1 : 1;
        } else {
          const int64_t u = element_as_int(x, p), v = element_as_int(x, q);
          if (u != v) return u < v ? -1 : 1;
        }
      }
    }
    return 0;
  };
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return compare(a, b) < 0; });
  std::vector<int64_t> first, counts, inverse(static_cast<size_t>(n));
  for (size_t k = 0; k < order.size(); ++k) {
    if (k == 0 || compare(order[k - 1], order[k]) != 0) first.push_back(order[k]), counts.push_back(0);
    ++counts.back();
    inverse[static_cast<size_t>(order[k])] = static_cast<int64_t>(first.size()) - 1;
  }
  if (ctx.attrs().get_int("sorted", 1) == 0) {  // in the order of first appearance
    std::vector<size_t> by(first.size());
    std::iota(by.begin(), by.end(), size_t{0});
    std::sort(by.begin(), by.end(), [&](size_t a, size_t b) { return first[a] < first[b]; });
    std::vector<int64_t> f, c, rank(by.size());
    for (size_t k = 0; k < by.size(); ++k)
      f.push_back(first[by[k]]), c.push_back(counts[by[k]]), rank[by[k]] = static_cast<int64_t>(k);
    for (int64_t& i : inverse) i = rank[static_cast<size_t>(i)];
    first = std::move(f), counts = std::move(c);
  }
  OAR_ASSIGN(Tensor y, take_along(ctx, x, axis, first));
  ctx.set(0, std::move(y));
  size_t slot = 1;
  for (const auto* list : {&first, &inverse, &counts}) {
    OAR_ASSIGN(Tensor t, ctx.zeros({static_cast<int64_t>(list->size())}, DType::kI64));
    std::copy(list->begin(), list->end(), mutable_elements<int64_t>(t));
    ctx.set(slot++, std::move(t));
  }
  return ok_status();
}

// Where a value comes in ascending order, NaN behind all, as an unsigned number; zeros are one.
template <class T>
auto place_of(T v) {
  using U = std::conditional_t<sizeof(T) <= 4, uint32_t, uint64_t>;
  using S = std::make_signed_t<U>;
  constexpr U kSign = U{1} << (8 * sizeof(U) - 1);
  if constexpr (std::is_floating_point_v<T>) {
    if (v != v) return static_cast<U>(~U{0});
    const U u = std::bit_cast<U>(v + T{0});
    return static_cast<U>((u & kSign) != 0 ? ~u : u | kSign);
  } else if constexpr (std::is_signed_v<T>) {
    return static_cast<U>(static_cast<U>(static_cast<S>(v)) ^ kSign);
  } else {
    return static_cast<U>(v);
  }
}

// The first k of a row's entries in order, found among those whose leading bits are small enough: most of a
// long row is never compared. Keys: what is compared, the entry's index behind it.
template <class Place>
class Selection {
 public:
  using Key = std::conditional_t<sizeof(Place) == 4, uint64_t, unsigned __int128>;
  static int64_t index_of(Key key) { return static_cast<int64_t>(static_cast<uint32_t>(key)); }

  explicit Selection(int64_t n) : places(static_cast<size_t>(n)) {}

  std::vector<Place> places;  // of the row's entries
  // The result stays until the next call.
  std::span<const Key> first(int64_t k) {
    const Place most = places.size() < kLongRow ? static_cast<Place>(~Place{0}) : bound(k);
    keys_.clear();
    for (size_t i = 0; i < places.size(); ++i)
      if (places[i] <= most) keys_.push_back(static_cast<Key>(places[i]) << 32 | static_cast<uint32_t>(i));
    const auto end = keys_.begin() + k;
    if (k > 0) std::nth_element(keys_.begin(), end - 1, keys_.end());
    std::sort(keys_.begin(), end);
    return {keys_.data(), static_cast<size_t>(k)};
  }

 private:
  static constexpr size_t kLongRow = 512;
  static constexpr int kBits = 11, kShift = 8 * static_cast<int>(sizeof(Place)) - kBits;

  // No less than the k-th place.
  Place bound(int64_t k) {
    counts_.assign(size_t{1} << kBits, 0);
    for (const Place p : places) ++counts_[p >> kShift];
    Place leading = 0;
    for (int64_t seen = counts_[0]; seen < k;) seen += counts_[++leading];
    return static_cast<Place>(leading << kShift | (static_cast<Place>(~Place{0}) >> kBits));
  }

  std::vector<Key> keys_;
  std::vector<uint32_t> counts_;
};

// top_k(x, k) {axis, largest, sorted} -> values, indices; of equal values the earlier wins, a NaN is above
// all.
Status top_k(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const int64_t k, ctx.scalar_int(1));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis", -1), x.shape().rank()));
  const int64_t n = x.shape()[axis], inner = extent(x.shape(), axis + 1, x.shape().rank());
  if (k < 0 || k > n) return invalid_argument(cat("k = ", k, " of an axis of ", n));
  if (n > std::numeric_limits<uint32_t>::max()) return invalid_argument(cat("an axis of ", n, " entries"));
  const bool largest = ctx.attrs().get_int("largest", 1) != 0;
  std::vector<int64_t> dims = dims_of(x.shape());
  dims[static_cast<size_t>(axis)] = k;
  OAR_ASSIGN(Tensor y, ctx.allocate(Shape(dims), dtype_of(x)));
  OAR_ASSIGN(Tensor at, ctx.zeros(Shape(dims), DType::kI64));
  if (!dispatch_numeric(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using Place = decltype(place_of(Element<T>::load(T{})));
        const int64_t rows = n > 0 ? x.numel() / n : 0;
        const T* const from = elements<T>(x);
        T* const to_values = mutable_elements<T>(y);
        int64_t* const to_indices = mutable_elements<int64_t>(at);
        const Place turned = largest ? static_cast<Place>(~Place{0}) : Place{0};
        ctx.parallel(rows, 4.0 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
          Selection<Place> selection(n);
          for (int64_t l = begin; l < end; ++l) {
            const int64_t to = l / inner * k * inner + l % inner;
            const T* const row = from + l / inner * n * inner + l % inner;
            for (int64_t i = 0; i < n; ++i)
              selection.places[static_cast<size_t>(i)] =
                  static_cast<Place>(place_of(Element<T>::load(row[i * inner])) ^ turned);
            const auto found = selection.first(k);
            for (int64_t i = 0; i < k; ++i) {
              const int64_t index = selection.index_of(found[static_cast<size_t>(i)]);
              to_values[to + i * inner] = row[index * inner];
              to_indices[to + i * inner] = index;
            }
          }
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  ctx.set(1, std::move(at));
  return ok_status();
}

}  // namespace

Status gather(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor at, ctx.tensor(1));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis"), x.shape().rank()));
  const int64_t n = x.shape()[axis], outer = extent(x.shape(), 0, axis),
                inner = extent(x.shape(), axis + 1, x.shape().rank());
  OAR_ASSIGN(const auto rows, indices(ctx, 1, n));
  std::vector<int64_t> dims(x.shape().begin(), x.shape().begin() + axis);
  dims.insert(dims.end(), at.shape().begin(), at.shape().end());
  dims.insert(dims.end(), x.shape().begin() + axis + 1, x.shape().end());
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, dtype_of(x)));
  const auto count = static_cast<int64_t>(rows.size());
  for (int64_t o = 0; o < outer; ++o) {
    for (int64_t r = 0; r < count; ++r)
      copy_elements(x, (o * n + rows[static_cast<size_t>(r)]) * inner, y, (o * count + r) * inner, inner);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

}  // namespace oar::tensor

namespace oar {
OAR_TENSOR_OP(compress, tensor::compress, .sizes = SizesFrom::kValues);
extern const OpDef op_gather_elements = {.name = "gather_elements",
                                         .infer = gather_elements_infer,
                                         .vjp = gradient::gather_elements,
                                         .evaluate = tensor::gather_elements};
OAR_SMOOTH_OP(gather_nd, tensor::gather_nd, .no_gradient_of = "batch_dims");
OAR_STEP_OP(non_zero, tensor::non_zero, .sizes = SizesFrom::kValues);
OAR_STEP_OP(one_hot, tensor::one_hot);
static constexpr const char* kReductions = "reductions mul, min and max";
extern const OpDef op_scatter_elements = {.name = "scatter_elements",
                                          .infer = scatter_infer,
                                          .vjp = gradient::scatter_elements,
                                          .evaluate = tensor::scatter_elements,
                                          .no_gradient_of = kReductions};
extern const OpDef op_scatter_nd = {.name = "scatter_nd",
                                    .infer = scatter_infer,
                                    .vjp = gradient::scatter_nd,
                                    .evaluate = tensor::scatter_nd,
                                    .no_gradient_of = kReductions};
OAR_TENSOR_OP(tensor_scatter, tensor::tensor_scatter);
OAR_TENSOR_OP(top_k, tensor::top_k);
OAR_TENSOR_OP(unique, tensor::unique, .sizes = SizesFrom::kValues);
}  // namespace oar
