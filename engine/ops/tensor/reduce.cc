// Reductions over any axes, arg-reductions, running sums and products, softmax and its kin. Floats accumulate
// in double, integers exactly.
#include <limits>

#include "engine/ops/op_util.h"
#include "engine/ops/reduce.h"
#include "engine/ops/tensor/evaluators.h"
#include "engine/ops/tensor/kernel_call.h"
#include "kernels/activation.h"
#include "kernels/reduce.h"

namespace oar::tensor {
namespace {

// How the operand falls apart: result element o gathers `reduced` operand elements.
struct Axes {
  std::vector<bool> gone;
  Shape shape;  // of the result
};

Result<Axes> reduction_axes(const EvalContext& ctx, const Tensor& x) {
  OAR_ASSIGN(const std::vector<int64_t> axes, ctx.ints_or_attr(1, "axes"));
  const int rank = x.shape().rank();
  const bool keep = ctx.attrs().get_int("keepdims", 1) != 0;
  const bool none = axes.empty() && ctx.attrs().get_int("noop_with_empty_axes") != 0;
  Axes a;
  a.gone.assign(static_cast<size_t>(rank), axes.empty() && !none);
  for (int64_t v : axes) {
    OAR_ASSIGN(const int axis, checked_axis(v, rank));
    a.gone[static_cast<size_t>(axis)] = true;
  }
  std::vector<int64_t> dims;
  for (int k = 0; k < rank; ++k) {
    if (!a.gone[static_cast<size_t>(k)]) dims.push_back(x.shape()[k]);
    else if (keep) dims.push_back(1);
  }
  a.shape = Shape(dims);
  return a;
}

// f(result index, operand indices as base + strides over the reduced box)
template <class F>
void for_each_result(const EvalContext& ctx, const Tensor& x, const Axes& a, F&& f) {
  const auto strides = strides_of(x.shape());
  std::vector<int64_t> kept_dims, kept_strides, dims, steps;
  for (int k = 0; k < x.shape().rank(); ++k) {
    (a.gone[static_cast<size_t>(k)] ? dims : kept_dims).push_back(x.shape()[k]);
    (a.gone[static_cast<size_t>(k)] ? steps : kept_strides).push_back(strides[static_cast<size_t>(k)]);
  }
  // Adjacent reduced axes that are walked as one become one.
  for (size_t k = dims.size(); k-- > 1;) {
    if (steps[k - 1] == steps[k] * dims[k]) {
      dims[k - 1] *= dims[k], steps[k - 1] = steps[k];
      dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(k)),
          steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }
  int64_t reduced = 1;
  for (int64_t d : dims) reduced *= d;
  const int64_t inner = dims.empty() ? 1 : dims.back(), step = dims.empty() ? 1 : steps.back();
  ctx.parallel(a.shape.numel(), static_cast<double>(reduced), [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      int64_t rest = o, base = 0;
      for (size_t k = kept_dims.size(); k-- > 0;)
        base += rest % kept_dims[k] * kept_strides[k], rest /= kept_dims[k];
      f(o, [&](auto&& each) {
        for (int64_t r = 0; inner > 0 && r < reduced / inner; ++r) {
          int64_t q = r, at = base;
          for (size_t k = dims.empty() ? 0 : dims.size() - 1; k-- > 0;)
            at += q % dims[k] * steps[k], q /= dims[k];
          for (int64_t i = 0; i < inner; ++i) each(at + i * step);
        }
      });
    }
  });
}

// What becomes of a sum, of as many elements. Called by pointer, for once in a result: what adds up is
// compiled for every dtype.
struct Finish {
  int64_t (*integer)(int64_t sum, double count);
  double (*real)(double sum, double count);
};

constexpr auto kItself = [](auto v) { return v; };

// Sum of g(x) over the axes, finished.
template <class G>
Status sum_with(EvalContext& ctx, G&& g, const Finish& finish) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Axes axes, reduction_axes(ctx, x));
  OAR_ASSIGN(Tensor y, ctx.allocate(axes.shape, dtype_of(x)));
  const double count =
      axes.shape.numel() > 0 ? static_cast<double>(x.numel()) / static_cast<double>(axes.shape.numel()) : 0;
  if (!dispatch_numeric(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        const T* in = elements<T>(x);
        T* out = mutable_elements<T>(y);
        for_each_result(ctx, x, axes, [&](int64_t o, auto&& walk) {
          if constexpr (std::is_integral_v<C>) {
            uint64_t sum = 0;
            walk([&](int64_t at) {
              sum += static_cast<uint64_t>(static_cast<int64_t>(g(static_cast<int64_t>(in[at]))));
            });
            out[o] = static_cast<T>(finish.integer(static_cast<int64_t>(sum), count));
          } else {
            double sum = 0;
            walk([&](int64_t at) { sum += g(static_cast<double>(Element<T>::load(in[at]))); });
            out[o] = Element<T>::store(static_cast<C>(finish.real(sum, count)));
          }
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

constexpr Finish kSame = {[](int64_t v, double) { return v; }, [](double v, double) { return v; }};

int64_t wrap_mul(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}
constexpr auto kSquare = [](auto v) {
  if constexpr (std::is_integral_v<decltype(v)>) return wrap_mul(v, v);
  else return v * v;
};
constexpr auto kAbs = [](auto v) {
  if constexpr (std::is_integral_v<decltype(v)>)
    return v < 0 ? static_cast<int64_t>(0 - static_cast<uint64_t>(v)) : v;
  else return std::abs(v);
};

Status reduce_l1(EvalContext& c) { return sum_with(c, kAbs, kSame); }
Status reduce_sum_square(EvalContext& c) { return sum_with(c, kSquare, kSame); }
Status reduce_l2(EvalContext& c) {
  return sum_with(c, kSquare,
                  {[](int64_t v, double) { return static_cast<int64_t>(std::sqrt(static_cast<double>(v))); },
                   [](double v, double) { return std::sqrt(v); }});
}
Status reduce_log_sum(EvalContext& c) {
  return sum_with(c, kItself,
                  {[](int64_t v, double) { return saturate_cast<int64_t>(std::log(static_cast<double>(v))); },
                   [](double v, double) { return std::log(v); }});
}

template <bool kMax>
Status reduce_extreme(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Axes axes, reduction_axes(ctx, x));
  OAR_ASSIGN(Tensor y, ctx.allocate(axes.shape, dtype_of(x)));
  if (!dispatch_number(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        using L = std::numeric_limits<C>;
        // Of nothing: the neutral element, infinite where there is one.
        C least = kMax ? L::lowest() : L::max();
        if constexpr (L::has_infinity) least = kMax ? -L::infinity() : L::infinity();
        if (dtype_of(x) == DType::kBool) least = kMax ? 0 : 1;
        for_each_result(ctx, x, axes, [&](int64_t o, auto&& walk) {
          C best = least;
          walk([&](int64_t at) {
            const C v = Element<T>::load(elements<T>(x)[at]);
            if (v != v || (kMax ? v > best : v < best)) best = v;
          });
          mutable_elements<T>(y)[o] = Element<T>::store(best);
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}
Status reduce_min(EvalContext& c) { return reduce_extreme<false>(c); }

Status reduce_prod(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Axes axes, reduction_axes(ctx, x));
  OAR_ASSIGN(Tensor y, ctx.allocate(axes.shape, dtype_of(x)));
  if (!dispatch_numeric(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        using S = std::conditional_t<std::is_integral_v<C>, uint64_t, double>;
        for_each_result(ctx, x, axes, [&](int64_t o, auto&& walk) {
          S p = 1;
          walk([&](int64_t at) { p *= static_cast<S>(Element<T>::load(elements<T>(x)[at])); });
          mutable_elements<T>(y)[o] = Element<T>::store(static_cast<C>(p));
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// log(sum(exp(x))) about the largest, which cannot overflow.
Status reduce_log_sum_exp(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Axes axes, reduction_axes(ctx, x));
  OAR_ASSIGN(Tensor y, ctx.allocate(axes.shape, dtype_of(x)));
  if (!dispatch_float(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        for_each_result(ctx, x, axes, [&](int64_t o, auto&& walk) {
          double top = -INFINITY, sum = 0;
          walk([&](int64_t at) {
            top = std::max(top, static_cast<double>(Element<T>::load(elements<T>(x)[at])));
          });
          const double about = std::isfinite(top) ? top : 0;
          walk([&](int64_t at) {
            sum += std::exp(static_cast<double>(Element<T>::load(elements<T>(x)[at])) - about);
          });
          mutable_elements<T>(y)[o] = Element<T>::store(static_cast<C>(std::log(sum) + about));
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// Where the largest or smallest of n values lies, the first or the last of equal ones. A NaN at the front
// stays.
template <class T, bool kMax, bool kLast>
int64_t best_of(const T* from, int64_t n, int64_t stride) {
  using C = typename Element<T>::Compute;
  const auto beats = [](C v, C b) { return (kMax ? v > b : v < b) || (kLast && v == b); };
  constexpr int64_t kBlock = 64;
  int64_t best = 0;
  C b = Element<T>::load(from[0]);
  for (int64_t k = 1; k < n;) {
    // Blocks that have nothing better, nearly all of a long row, are passed by vectors.
    const int64_t stop = std::min(n, k + kBlock);
    if (stride == 1 && stop - k == kBlock) {
      int better = 0;
      for (int64_t i = 0; i < kBlock; ++i) better |= beats(Element<T>::load(from[k + i]), b);
      if (better == 0) {
        k = stop;
        continue;
      }
    }
    for (; k < stop; ++k) {
      const C v = Element<T>::load(from[k * stride]);
      if (beats(v, b)) best = k, b = v;
    }
  }
  return best;
}

template <bool kMax>
Status arg_extreme(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const int axis, checked_axis(ctx.attrs().get_int("axis", 0), x.shape().rank()));
  const bool keep = ctx.attrs().get_int("keepdims", 1) != 0,
             last = ctx.attrs().get_int("select_last_index") != 0;
  std::vector<int64_t> dims = dims_of(x.shape());
  const int64_t n = dims[static_cast<size_t>(axis)], inner = extent(x.shape(), axis + 1, x.shape().rank());
  if (keep) dims[static_cast<size_t>(axis)] = 1;
  else dims.erase(dims.begin() + axis);
  OAR_ASSIGN(Tensor y, ctx.zeros(Shape(dims), DType::kI64));
  if (n == 0 && y.numel() > 0) return invalid_argument("no element to choose from");
  if (!dispatch_numeric(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        ctx.parallel(y.numel(), static_cast<double>(n), [&](int64_t begin, int64_t end) {
          for (int64_t o = begin; o < end; ++o) {
            const T* const from = elements<T>(x) + o / inner * n * inner + o % inner;
            mutable_elements<int64_t>(y)[o] =
                last ? best_of<T, kMax, true>(from, n, inner) : best_of<T, kMax, false>(from, n, inner);
          }
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}
Status arg_max(EvalContext& c) { return arg_extreme<true>(c); }
Status arg_min(EvalContext& c) { return arg_extreme<false>(c); }

template <bool kProduct>
Status running(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const int64_t wanted, ctx.scalar_int(1));
  OAR_ASSIGN(const int axis, checked_axis(wanted, x.shape().rank()));
  const bool exclusive = ctx.attrs().get_int("exclusive") != 0, reverse = ctx.attrs().get_int("reverse") != 0;
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), dtype_of(x)));
  const int64_t n = x.shape()[axis], inner = extent(x.shape(), axis + 1, x.shape().rank());
  const int64_t lanes = n > 0 ? x.numel() / n : 0;
  if (!dispatch_numeric(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        using S = std::conditional_t<std::is_integral_v<C>, uint64_t, double>;
        const T* in = elements<T>(x);
        T* out = mutable_elements<T>(y);
        // Lanes lie beside each other, or are rows. Some at a time, so that none waits for its own last
        // addition; of rows few, each of which is a line of the cache. Constants let the compiler make
        // vectors of neighbours.
        constexpr int64_t kBeside = 64, kRows = 8;
        const auto run = [&](int64_t from, auto count, auto apart) {
          S sums[kBeside];
          std::fill_n(sums, +count, static_cast<S>(kProduct ? 1 : 0));
          for (int64_t k = 0; k < n; ++k) {
            const int64_t at = from + (reverse ? n - 1 - k : k) * inner;
            const T* __restrict const x_k = in + at;
            T* __restrict const y_k = out + at;
            const auto put = [&] {
              for (int64_t i = 0; i < count; ++i) y_k[i * apart] = Element<T>::store(static_cast<C>(sums[i]));
            };
            if (exclusive) put();
            for (int64_t i = 0; i < count; ++i) {
              const S v = static_cast<S>(Element<T>::load(x_k[i * apart]));
              sums[i] = kProduct ? sums[i] * v : sums[i] + v;
            }
            if (!exclusive) put();
          }
        };
        const int64_t outer = inner > 0 ? lanes / inner : 0, beside = inner > 1 ? inner : outer,
                      each = inner > 1 ? kBeside : kRows, blocks = (beside + each - 1) / each;
        ctx.parallel(inner > 1 ? outer * blocks : blocks, 0.5 * static_cast<double>(n * each),
                     [&](int64_t b, int64_t e) {
                       for (int64_t u = b; u < e; ++u) {
                         const int64_t first = u % blocks * each, count = std::min(each, beside - first);
                         const int64_t from = inner > 1 ? u / blocks * n * inner + first : first * n;
                         if constexpr (std::is_same_v<T, float> && !kProduct) {
                           if (count == kBeside) {
                             run(from, std::integral_constant<int64_t, kBeside>(),
                                 std::integral_constant<int64_t, 1>());
                             continue;
                           }
                         }
                         run(from, count, inner > 1 ? 1 : n);
                       }
                     });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}
Status cum_sum(EvalContext& c) { return running<false>(c); }
Status cum_prod(EvalContext& c) { return running<true>(c); }

enum class Soft { kSoftmax, kLog, kHard };

// Lanes of `n` elements that lie `inner` apart.
struct Lanes {
  int64_t n = 1, inner = 1;
};
// {axis, flatten}: along one axis, or over everything from that axis on (before ONNX opset 13).
Result<Lanes> lanes_of(const Attrs& attrs, const Shape& x) {
  const int rank = x.rank();
  const bool flat = attrs.get_int("flatten") != 0;
  const int64_t wanted = attrs.get_int("axis", -1);
  if (rank == 0 || (flat && wanted == rank)) return Lanes{};
  OAR_ASSIGN(const int axis, checked_axis(wanted, rank));
  return Lanes{flat ? extent(x, axis, rank) : x[axis], flat ? 1 : extent(x, axis + 1, rank)};
}

template <Soft kKind>
Status soft(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Lanes lanes, lanes_of(ctx.attrs(), x.shape()));
  const int64_t n = lanes.n, inner = lanes.inner;
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), dtype_of(x)));
  if (x.numel() == 0) return ctx.set(0, std::move(y)), ok_status();
  if (!dispatch_float(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        const T* in = elements<T>(x);
        T* out = mutable_elements<T>(y);
        ctx.parallel(x.numel() / n, 8.0 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
          std::vector<double> row(static_cast<size_t>(n));
          for (int64_t l = begin; l < end; ++l) {
            const int64_t base = l / inner * n * inner + l % inner;
            for (int64_t k = 0; k < n; ++k)
              row[static_cast<size_t>(k)] = static_cast<double>(Element<T>::load(in[base + k * inner]));
            size_t where = 0;
            for (size_t k = 1; k < row.size(); ++k) {
              if (row[k] > row[where]) where = k;
            }
            const double top = row[where];
            double sum = 0;
            for (size_t k = 0; k < row.size(); ++k) {
              if constexpr (kKind == Soft::kHard) row[k] = k == where ? 1 : 0;
              if constexpr (kKind == Soft::kLog) row[k] -= top, sum += std::exp(row[k]);
              if constexpr (kKind == Soft::kSoftmax) row[k] = std::exp(row[k] - top), sum += row[k];
            }
            const double shift = kKind == Soft::kLog ? std::log(sum) : 0,
                         scale = kKind == Soft::kSoftmax ? 1 / sum : 1;
            for (int64_t k = 0; k < n; ++k)
              out[base + k * inner] =
                  Element<T>::store(static_cast<C>((row[static_cast<size_t>(k)] - shift) * scale));
          }
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// f32 along the last axis.
Result<bool> log_softmax_by_kernel(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Lanes lanes, lanes_of(ctx.attrs(), x.shape()));
  const int64_t n = lanes.n;
  if (dtype_of(x) != DType::kF32 || lanes.inner != 1 || x.numel() == 0) return false;
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), DType::kF32));
  const Kernel &exp = f32_kernel(ctx.backend(), KernelFamily::kUnary),
               &reduce = f32_kernel(ctx.backend(), KernelFamily::kReduce);
  ctx.uses(exp);
  const float* in = elements<float>(x);
  float* out = mutable_elements<float>(y);
  ctx.parallel(x.numel() / n, 1.5 * static_cast<double>(n), [&](int64_t begin, int64_t end) {
    OneThread thread;
    for (int64_t l = begin; l < end; ++l) {
      const float* from = in + l * n;
      float* to = out + l * n;  // for the while holds the exponentials
      float top = 0, sum = 0;
      ReduceArgs r;
      r.out = &top, r.x = from, r.outer = 1, r.n = n, r.op = ReduceOp::kMax;
      thread.run(reduce, &r);
      scale_and_shift(from, to, n, 1, -top);
      UnaryArgs a;
      a.out = to, a.x = to, a.n = n, a.op = UnaryOp::kExp;
      thread.run(exp, &a);
      r.out = &sum, r.x = to, r.op = ReduceOp::kSum;
      thread.run(reduce, &r);
      // Less the largest first: what is left of two large numbers would be lost.
      scale_and_shift(from, to, n, 1, -top);
      scale_and_shift(to, to, n, 1, -std::log(sum));
    }
  });
  ctx.set(0, std::move(y));
  return true;
}
Status log_softmax(EvalContext& c) { return soft<Soft::kLog>(c); }
Status hardmax(EvalContext& c) { return soft<Soft::kHard>(c); }

}  // namespace

Status reduce_sum(EvalContext& c) { return sum_with(c, kItself, kSame); }
Status reduce_mean(EvalContext& c) {
  return sum_with(
      c, kItself,
      {[](int64_t v, double count) { return count > 0 ? v / static_cast<int64_t>(count) : int64_t{0}; },
       [](double v, double count) { return v / count; }});
}
Status reduce_max(EvalContext& c) { return reduce_extreme<true>(c); }
Status softmax(EvalContext& c) { return soft<Soft::kSoftmax>(c); }

}  // namespace oar::tensor

namespace oar {
OAR_STEP_OP(arg_max, tensor::arg_max);
OAR_STEP_OP(arg_min, tensor::arg_min);
OAR_TENSOR_OP(cum_prod, tensor::cum_prod);
extern const OpDef op_cum_sum = {
    .name = "cum_sum", .infer = typed_as_first, .vjp = gradient::cum_sum, .evaluate = tensor::cum_sum};
OAR_STEP_OP(hardmax, tensor::hardmax);
extern const OpDef op_log_softmax = {.name = "log_softmax",
                                     .infer = same_as_first,
                                     .define = definition::log_softmax,
                                     .evaluate = tensor::log_softmax,
                                     .by_kernels = tensor::log_softmax_by_kernel};
OAR_DEFINED_OP(reduce_l1, tensor::reduce_l1, .no_gradient_of = kComputedAxes);
OAR_DEFINED_OP(reduce_l2, tensor::reduce_l2, .no_gradient_of = kComputedAxes);
OAR_DEFINED_OP(reduce_log_sum, tensor::reduce_log_sum, .no_gradient_of = kComputedAxes);
OAR_DEFINED_OP(reduce_log_sum_exp, tensor::reduce_log_sum_exp, .no_gradient_of = kComputedAxes);
extern const OpDef op_reduce_min = {
    .name = "reduce_min",
    .define = definition::reduce_min,
    .evaluate = tensor::reduce_min,
    .lower = [](LowerContext& ctx) { return reduce_lower(ctx, ReduceOp::kMin); },
    .no_gradient_of = kComputedAxes};
OAR_DEFINED_OP(reduce_prod, tensor::reduce_prod, .no_gradient_of = "computed axes, more than 4,096 factors");
extern const OpDef op_reduce_sum_square = {
    .name = "reduce_sum_square",
    .define = definition::reduce_sum_square,
    .evaluate = tensor::reduce_sum_square,
    .lower = [](LowerContext& ctx) { return reduce_lower(ctx, ReduceOp::kSumOfSquares); },
    .no_gradient_of = kComputedAxes};
}  // namespace oar
