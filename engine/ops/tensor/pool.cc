// Pooling over windows and whole planes. f32 goes to a kernel (lower()), f16 and bf16 through f32 and bytes
// to loops over vectors (by_kernels()); evaluation is plain and takes every layout.
#include <cstring>
#include <limits>

#include "engine/ops/tensor/conv.h"
#include "engine/ops/tensor/quantized.h"
#include "kernels/quantize.h"
#include "kernels/reduce.h"

namespace oar::tensor {
namespace {

// What a node makes of an operand of one shape.
struct Pooling {
  Window w;
  bool nhwc = false;
  Shape in, shape;  // the operand's with channels first; the result's as it lies
  int64_t planes() const { return in[0] * in[1]; }
  // Where entry i of a plane of `size` lies.
  int64_t at(int64_t plane, int64_t i, int64_t size) const {
    return nhwc ? (plane / in[1] * size + i) * in[1] + plane % in[1] : plane * size + i;
  }
};
Result<Pooling> pooling_of(const Attrs& attrs, const Shape& x, bool global) {
  Pooling p;
  p.nhwc = is_nhwc(attrs);
  if (p.nhwc && x.rank() != 4) return invalid_argument("channels-last pooling needs four axes");
  p.in = p.nhwc ? channels_first(x) : x;
  if (global) {
    if (x.rank() < 3) return invalid_argument("needs (N, C, spatial...)");
    OAR_ASSIGN(p.w, make_window(Attrs(), p.in, std::vector<int64_t>(p.in.begin() + 2, p.in.end()), false));
  } else {
    OAR_ASSIGN(p.w,
               make_window(attrs, p.in, attrs.get_ints("kernel_shape"), attrs.get_int("ceil_mode") != 0));
  }
  std::vector<int64_t> dims{p.in[0], p.in[1]};
  dims.insert(dims.end(), p.w.out, p.w.out + p.w.axes);
  OAR_ASSIGN(p.shape, checked_shape(dims));
  if (p.nhwc) p.shape = channels_last(p.shape);
  return p;
}

// f(plane, window, output index) for every output of every channel.
template <class F>
void pool_with(const EvalContext& ctx, const Pooling& p, F&& f) {
  const int64_t outs = p.w.out_size();
  ctx.parallel(p.planes(), static_cast<double>(outs * p.w.kernel_size()), [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) {
      for (int64_t o = 0; o < outs; ++o) f(plane, o, p.at(plane, o, outs));
    }
  });
}

// to[c] = the greatest of taps[...][c]: 64 channels at a time stay in registers until all taps are seen.
template <class T>
void max_pixel(const T* const* taps, size_t count, int64_t channels, T* to) {
  using V [[gnu::vector_size(16)]] = T;
  constexpr int64_t kVectors = 4, kBlock = kVectors * static_cast<int64_t>(sizeof(V));
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  int64_t c = 0;
  for (; c + kBlock <= channels; c += kBlock) {
    V most[kVectors];
    for (V& m : most) m = V{} + kLowest;
    for (size_t k = 0; k < count; ++k) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < kVectors; ++v) {
        V x;
        std::memcpy(&x, taps[k] + c + v * static_cast<int64_t>(sizeof(V)), sizeof x);
        most[v] = most[v] > x ? most[v] : x;
      }
    }
    std::memcpy(to + c, most, sizeof most);
  }
  for (; c < channels; ++c) {
    T most = kLowest;
    for (size_t k = 0; k < count; ++k) most = std::max(most, taps[k][c]);
    to[c] = most;
  }
}

// The greatest byte of every window of (N, H, W, C).
template <class T>
void max_bytes(const EvalContext& ctx, const Tensor& x, Tensor& y, const WindowShape& w, int64_t C) {
  const T* px = elements<T>(x);
  T* py = mutable_elements<T>(y);
  ctx.parallel(w.N * w.OH * w.OW, 0.1 * static_cast<double>(w.KH * w.KW * C),
               [&](int64_t begin, int64_t end) {
                 const int64_t channels = C;  // a byte written could change what is captured
                 std::vector<const T*> taps(static_cast<size_t>(std::min(w.KH, w.H) * std::min(w.KW, w.W)));
                 for (int64_t p = begin; p < end; ++p) {
                   const int64_t n = p / (w.OH * w.OW), y0 = p / w.OW % w.OH * w.stride_h - w.pad_top;
                   const int64_t x0 = p % w.OW * w.stride_w - w.pad_left;
                   size_t count = 0;
                   for (int64_t i = 0; i < w.KH; ++i) {
                     const int64_t row = y0 + i * w.dilation_h;
                     if (row < 0 || row >= w.H) continue;
                     for (int64_t j = 0; j < w.KW; ++j) {
                       const int64_t column = x0 + j * w.dilation_w;
                       if (column < 0 || column >= w.W) continue;
                       taps[count++] = px + ((n * w.H + row) * w.W + column) * channels;
                     }
                   }
                   max_pixel(taps.data(), count, channels, py + p * channels);
                 }
               });
}

// The kernel's arguments but for its operands, and rough nanoseconds of one thread.
PoolArgs pool_args(const Attrs& attrs, const Pooling& p, PoolOp op) {
  PoolArgs a;
  a.window = kernel_window(p.w, p.in[0]);
  a.C = p.in[1], a.op = op, a.count_pads = attrs.get_int("count_include_pad") != 0;
  a.planar = p.nhwc ? 0 : 1;
  return a;
}
double pool_cost(const Window& w, int64_t results) {
  return 0.15 * static_cast<double>(std::min(w.kernel_size(), w.in_size())) * static_cast<double>(results);
}

// The greatest byte of every window, on a device: among f32, which has all bytes.
Lowered lower_max_of_bytes(LowerContext& ctx, const PoolArgs& args, const Shape& shape) {
  const ValueInfo& x = ctx.operands[0];
  const Kernel* const to_f32 = ctx.backend.find_kernel(quantize_key());
  const Kernel* const pool = ctx.backend.find_kernel({KernelFamily::kPool});
  if (ctx.backend.memory() != MemoryKind::kDevice || to_f32 == nullptr || pool == nullptr)
    return not_lowered();
  constexpr uint8_t kValues = LoweredCall::kBetween, kMost = kValues + 1;
  auto op = std::make_unique<LoweredCalls>();
  op->between = {{Format::f32(), x.shape, true}, {Format::f32(), shape, true}};
  QuantizeArgs q;
  q.n = x.shape.numel(), q.is_signed = x.format.dtype() == DType::kI8, q.to_values = true;
  op->calls.push_back(
      part_call(*to_f32, q, 0, {0}, {kValues}, [](QuantizeArgs& a, const Operand* in, const Operand* out) {
        a.codes = in[0].data, a.values = out[0].as<float>();
      }));
  op->calls.push_back(
      part_call(*pool, args, 0, {kValues}, {kMost}, [](PoolArgs& a, const Operand* in, const Operand* out) {
        a.x = in[0].as<const float>(), a.out = out[0].as<float>();
      }));
  q.n = shape.numel(), q.to_values = false;
  op->calls.push_back(part_call(*to_f32, q, 0, {kMost}, {LoweredCall::kResult},
                                [](QuantizeArgs& a, const Operand* in, const Operand* out) {
                                  a.values = in[0].as<float>(), a.codes = out[0].data;
                                }));
  ctx.results->assign(1, {x.format, shape, true});
  return std::unique_ptr<LoweredOp>(std::move(op));
}

// Windows that are a whole plane: rows of a sum.
bool is_whole(const Pooling& p) {
  const Window& w = p.w;
  bool whole = w.out_size() == 1;
  for (int k = 0; k < w.axes; ++k)
    whole = whole && w.kernel[k] == w.in[k] && w.begin[k] == 0 && w.end[k] == 0 && w.dilation[k] == 1;
  return whole;
}
ReduceArgs whole_planes(const Pooling& p, PoolOp op) {
  ReduceArgs a;
  a.outer = p.planes(), a.n = p.w.in_size();
  a.op = op == PoolOp::kMax ? ReduceOp::kMax : ReduceOp::kMean;
  return a;
}

// Pads and strides come from a file: a row with its pads must not outgrow the operand's by much.
bool fits_planes(const Pooling& p) {
  if (is_whole(p)) return true;
  if (p.w.axes > 2) return false;
  const WindowShape w = kernel_window(p.w, p.in[0]);
  const auto reach = static_cast<double>(w.OW - 1) * static_cast<double>(w.stride_w) +
                     static_cast<double>(w.KW - 1) * static_cast<double>(w.dilation_w) + 1;
  return w.pad_top >= 0 && w.pad_left >= 0 && reach <= 2.0 * static_cast<double>(w.W) + 64 &&
         static_cast<double>(p.w.kernel_size()) <= 1024;
}

template <class Args>
Lowered one_call(LowerContext& ctx, KernelFamily family, const Args& args, const Pooling& p) {
  return lowered_call(ctx, family, args, p.shape, pool_cost(p.w, p.shape.numel()), 0,
                      [](Args& a, const Operand* from, const Operand* to) {
                        a.out = to[0].as<float>(), a.x = from[0].as<const float>();
                      });
}

// f32 as one call; planes as files have them on the processor alone.
template <PoolOp kOp, bool kGlobal>
Lowered lower_pool(LowerContext& ctx) {
  const Attrs& attrs = ctx.node.attrs;
  const ValueInfo& x = ctx.operands[0];
  const bool bytes = kOp == PoolOp::kMax && is_byte(x) && is_nhwc(attrs);
  if (!(is_f32(x) || bytes) || ctx.node.outputs.size() != 1) return not_lowered();
  const auto p = pooling_of(attrs, x.shape, kGlobal);
  if (!p.ok() || p->shape.numel() == 0) return not_lowered();
  if (bytes) return lower_max_of_bytes(ctx, pool_args(attrs, *p, kOp), p->shape);
  if (p->nhwc) return one_call(ctx, KernelFamily::kPool, pool_args(attrs, *p, kOp), *p);
  if (ctx.backend.memory() != MemoryKind::kHost || !fits_planes(*p)) return not_lowered();
  return is_whole(*p) ? one_call(ctx, KernelFamily::kReduce, whole_planes(*p, kOp), *p)
                      : one_call(ctx, KernelFamily::kPool, pool_args(attrs, *p, kOp), *p);
}

// Of f16 and bf16 as files have them: in f32. False where the planes have another dtype, three axes or
// windows that do not fit.
Result<bool> through_planes(KernelContext& ctx, const Tensor& given, const Pooling& p, PoolOp op) {
  const DType dtype = dtype_of(given);
  if ((dtype != DType::kF16 && dtype != DType::kBF16) || p.shape.numel() == 0 || !fits_planes(p))
    return false;
  OAR_ASSIGN(const Tensor x, as_f32(ctx, given));
  OAR_ASSIGN(Tensor y, ctx.allocate(p.shape, DType::kF32));
  const auto run = [&](KernelFamily family, auto args) {
    args.out = mutable_elements<float>(y), args.x = elements<float>(x);
    return run_kernel(ctx, f32_kernel(ctx.backend(), family), &args, pool_cost(p.w, p.shape.numel()));
  };
  OAR_RETURN_IF_ERROR(is_whole(p) ? run(KernelFamily::kReduce, whole_planes(p, op))
                                  : run(KernelFamily::kPool, pool_args(ctx.attrs(), p, op)));
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  ctx.set(0, std::move(y));
  return true;
}

template <PoolOp kOp, bool kGlobal>
Result<bool> pool_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Pooling p, pooling_of(ctx.attrs(), x.shape(), kGlobal));
  if (ctx.wants(1)) return false;  // where the maxima lie
  if (!p.nhwc) return through_planes(ctx, x, p, kOp);
  const DType dtype = dtype_of(x);
  if (kOp != PoolOp::kMax || (dtype != DType::kU8 && dtype != DType::kI8)) return false;
  OAR_ASSIGN(Tensor y, ctx.allocate(p.shape, dtype));
  if (dtype == DType::kU8) max_bytes<uint8_t>(ctx, x, y, kernel_window(p.w, p.in[0]), p.in[1]);
  else max_bytes<int8_t>(ctx, x, y, kernel_window(p.w, p.in[0]), p.in[1]);
  ctx.set(0, std::move(y));
  return true;
}

Status max_over(EvalContext& ctx, bool global) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Pooling pool, pooling_of(ctx.attrs(), x.shape(), global));
  const Window& w = pool.w;
  OAR_ASSIGN(Tensor y, ctx.allocate(pool.shape, dtype_of(x)));
  Tensor indices;
  if (ctx.wants(1)) { OAR_ASSIGN(indices, ctx.zeros(pool.shape, DType::kI64)); }
  const bool columns = ctx.attrs().get_int("storage_order") != 0;
  const int64_t ins = w.in_size();
  if (!dispatch_numeric(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        using L = std::numeric_limits<C>;
        pool_with(ctx, pool, [&](int64_t p, int64_t o, int64_t at) {
          C best = L::has_infinity ? -L::infinity() : L::lowest();
          int64_t where = -1;
          walk_window(w, o, [&](int64_t, int64_t i) {
            const C v = Element<T>::load(elements<T>(x)[pool.at(p, i, ins)]);
            if (where < 0 || v > best || v != v) best = v, where = i;
          });
          mutable_elements<T>(y)[at] = Element<T>::store(best);
          if (!indices.defined()) return;
          if (columns) {  // the index in a column-major plane
            int64_t rest = where, turned = 0, strides[6], stride = 1;
            for (int k = 0; k < w.axes; ++k) strides[k] = stride, stride *= w.in[k];
            for (int k = w.axes - 1; k >= 0; --k) turned += rest % w.in[k] * strides[k], rest /= w.in[k];
            where = turned;
          }
          mutable_elements<int64_t>(indices)[at] = p * ins + where;
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  if (indices.defined()) ctx.set(1, std::move(indices));
  return ok_status();
}

enum class Mean { kAverage, kLp };

template <Mean kKind>
Status mean_over(EvalContext& ctx, bool global) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Pooling pool, pooling_of(ctx.attrs(), x.shape(), global));
  const Window& w = pool.w;
  OAR_ASSIGN(Tensor y, ctx.allocate(pool.shape, dtype_of(x)));
  const bool pads_count = ctx.attrs().get_int("count_include_pad") != 0;
  const auto p_norm = static_cast<double>(ctx.attrs().get_int("p", 2));
  const int64_t ins = w.in_size();
  if (!dispatch_float(dtype_of(x), [&](auto tag) {
        using T = typename decltype(tag)::type;
        using C = typename Element<T>::Compute;
        pool_with(ctx, pool, [&](int64_t p, int64_t o, int64_t at) {
          double sum = 0;
          int64_t count = 0;
          walk_window(w, o, [&](int64_t, int64_t i) {
            const auto v = static_cast<double>(Element<T>::load(elements<T>(x)[pool.at(p, i, ins)]));
            if constexpr (kKind == Mean::kLp) sum += std::pow(std::abs(v), p_norm);
            else sum += v;
            ++count;
          });
          if constexpr (kKind == Mean::kLp) {
            mutable_elements<T>(y)[at] = Element<T>::store(static_cast<C>(std::pow(sum, 1 / p_norm)));
            return;
          }
          if (pads_count) {  // pads count, what ceil_mode adds behind them does not
            count = 1;
            int64_t rest = o;
            for (int k = w.axes - 1; k >= 0; --k) {
              const int64_t start = rest % w.out[k] * w.stride[k] - w.begin[k];
              rest /= w.out[k];
              int64_t n = 0;
              for (int64_t e = 0; e < w.kernel[k]; ++e) n += start + e * w.dilation[k] < w.in[k] + w.end[k];
              count *= n;
            }
          }
          mutable_elements<T>(y)[at] =
              Element<T>::store(static_cast<C>(count > 0 ? sum / static_cast<double>(count) : 0));
        });
      })) {
    return bad_dtype(x);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

// max_unpool(x, indices, output_shape?): each value where its maximum was found, zero elsewhere.
Status max_unpool(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor at, ctx.tensor(1));
  if (dtype_of(at) != DType::kI64 || !(at.shape() == x.shape()) || x.shape().rank() < 3)
    return invalid_argument("indices must be i64, shaped like the operand");
  const auto n = static_cast<size_t>(x.shape().rank() - 2);
  const auto kernel = ctx.attrs().get_ints("kernel_shape");
  std::vector<int64_t> strides = ctx.attrs().get_ints("strides"), pads = ctx.attrs().get_ints("pads");
  if (strides.empty()) strides.assign(n, 1);
  if (pads.empty()) pads.assign(2 * n, 0);
  if (kernel.size() != n || strides.size() != n || pads.size() != 2 * n)
    return invalid_argument("attributes have another number of axes");
  std::vector<int64_t> dims{x.shape()[0], x.shape()[1]};
  for (size_t k = 0; k < n; ++k) {
    int64_t d = 0;
    if (__builtin_mul_overflow(x.shape()[static_cast<int>(k) + 2] - 1, strides[k], &d) ||
        __builtin_add_overflow(d, kernel[k] - pads[k] - pads[k + n], &d)) {
      return invalid_argument("the result overflows");
    }
    dims.push_back(d);
  }
  OAR_ASSIGN(const Shape inferred, checked_shape(dims));
  Shape shape = inferred;
  if (ctx.has(2)) {
    OAR_ASSIGN(const auto wanted, ctx.ints(2));
    OAR_ASSIGN(shape, checked_shape(wanted));
    if (shape.rank() != x.shape().rank()) return invalid_argument("output_shape has another number of axes");
  }
  OAR_ASSIGN(Tensor y, ctx.zeros(shape, dtype_of(x)));
  const int rank = shape.rank();
  for (int64_t k = 0; k < x.numel(); ++k) {
    // Indices are those of the inferred shape, also when a larger one is asked for.
    int64_t rest = elements<int64_t>(at)[k], to = 0, stride = 1;
    if (rest < 0 || rest >= inferred.numel())
      return invalid_argument(cat("index ", rest, " is out of range"));
    bool inside = true;
    for (int d = rank - 1; d >= 0; --d) {
      inside = inside && rest % inferred[d] < shape[d];
      to += rest % inferred[d] * stride, rest /= inferred[d], stride *= shape[d];
    }
    if (inside) copy_elements(x, k, y, to, 1);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

template <bool kGlobal>
Status max_over(EvalContext& c) {
  return max_over(c, kGlobal);
}
template <Mean kKind, bool kGlobal>
Status mean_over(EvalContext& c) {
  return mean_over<kKind>(c, kGlobal);
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
using tensor::Mean;
#define OAR_POOL(op, evaluate, kind, global)                                                \
  OAR_DEFINED_OP(op, evaluate, .by_kernels = tensor::pool_by_kernels<PoolOp::kind, global>, \
                 .lower = tensor::lower_pool<PoolOp::kind, global>)
OAR_POOL(average_pool, (tensor::mean_over<Mean::kAverage, false>), kAverage, false);
OAR_POOL(global_average_pool, (tensor::mean_over<Mean::kAverage, true>), kAverage, true);
OAR_POOL(max_pool, tensor::max_over<false>, kMax, false);
OAR_POOL(global_max_pool, tensor::max_over<true>, kMax, true);
#undef OAR_POOL
OAR_DEFINED_OP(lp_pool, (tensor::mean_over<Mean::kLp, false>));
OAR_DEFINED_OP(global_lp_pool, (tensor::mean_over<Mean::kLp, true>));
OAR_TENSOR_OP(max_unpool, tensor::max_unpool);
}  // namespace oar
