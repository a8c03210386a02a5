// Products of a layer (ops.h): rows_linear, rows_product, rows_gradient, and stored_matrix.h.
#include <cstring>
#include <limits>

#include "engine/ops/op_util.h"
#include "engine/ops/tensor/gemm.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"
#include "engine/ops/train/stored_matrix.h"
#include "kernels/quantized_conv.h"

namespace oar::train {
namespace {

Status check_matrix(const Tensor& w) {
  if (w.shape().rank() != 2) return invalid_argument(cat("the weight is no matrix: ", w.shape().to_string()));
  return ok_status();
}

Types with_last(const Graph& g, Ids in, size_t axis) {
  DimVector shape = shape_of(g, in[0]);
  const DimVector& w = shape_of(g, in[1]);
  if (shape.empty() || w.size() != 2 || !(shape.back() == w[1 - axis]))
    return invalid_argument("x and the weight do not fit");
  shape.back() = w[axis];
  return std::vector<TensorType>{{Format::f32(), std::move(shape)}};
}

Types linear_infer(const Graph& g, Ids in, const Attrs&) { return with_last(g, in, 0); }
Types product_infer(const Graph& g, Ids in, const Attrs&) { return with_last(g, in, 1); }
Types gradient_infer(const Graph& g, Ids in, const Attrs&) {
  const DimVector dy = shape_of(g, in[0]), x = shape_of(g, in[1]);
  if (dy.size() != 2 || x.size() != 2 || !(dy[0] == x[0]))
    return invalid_argument("dy (T, N) and x (T, K) do not fit");
  return std::vector<TensorType>{{Format::f32(), {dy[1], x[1]}}};
}

// The result of a product whose last axis becomes w's axis `axis`.
Result<Tensor> result(const EvalContext& ctx, const Tensor& x, const Tensor& w, int axis) {
  OAR_RETURN_IF_ERROR(check_matrix(w));
  if (!(x.format() == Format::f32() || x.format() == Format::bf16()) || x.shape().rank() < 1 ||
      x.shape().cols() != w.shape()[1 - axis])
    return invalid_argument(
        cat("operands ", x.shape().to_string(), " and ", w.shape().to_string(), " do not fit"));
  std::vector<int64_t> dims = tensor::dims_of(x.shape());
  dims.back() = w.shape()[axis];
  return ctx.allocate(Shape(dims), DType::kF32);
}

Result<bool> linear_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(Tensor y, result(ctx, x, w, 0));
  if (!(x.format() == Format::f32())) return invalid_argument("rows of a layer are f32");
  Tensor bias;
  if (ctx.has(2)) {
    OAR_ASSIGN(bias, ctx.tensor(2));
    if (!(bias.format() == Format::f32()) || !(bias.shape() == Shape{w.shape()[0]}))
      return invalid_argument("the bias must be f32 (N)");
  }
  const int64_t rows = x.numel() / std::max<int64_t>(x.shape().cols(), 1);
  if (!ctx.options().sizing)
    OAR_RETURN_IF_ERROR(stored_product(ctx, elements<float>(x), rows, w, ctx.prepared<StoredMatrix>(),
                                       bias.defined() ? elements<float>(bias) : nullptr,
                                       mutable_elements<float>(y)));
  ctx.set(0, std::move(y));
  return true;
}

Result<bool> product_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor dy, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(Tensor dx, result(ctx, dy, w, 1));
  OAR_RETURN_IF_ERROR(rows_back(ctx, dy, w, mutable_elements<float>(dx)));
  ctx.set(0, std::move(dx));
  return true;
}

Result<bool> gradient_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor dy, ctx.tensor(0));
  OAR_ASSIGN(Tensor x, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_matrix(dy));
  OAR_RETURN_IF_ERROR(check_matrix(x));
  const int64_t T = dy.shape()[0], N = dy.shape()[1], K = x.shape()[1];
  const bool bf16s = dy.format() == Format::bf16();
  if (x.shape()[0] != T || !(x.format() == dy.format()) || !(bf16s || dy.format() == Format::f32()))
    return invalid_argument(cat("operands ", dy.shape().to_string(), " and ", x.shape().to_string(),
                                " do not fit, or are not both f32 or both bf16"));
  const bool narrow = bf16s && narrow_kernel(ctx) != nullptr;
  OAR_ASSIGN(Tensor dw, ctx.allocate({N, K}, DType::kF32));
  OAR_ASSIGN(Tensor rows, ctx.allocate({N, T}, narrow ? DType::kBF16 : DType::kF32));
  float* const out = mutable_elements<float>(dw);
  if (narrow) {
    turn(ctx, elements<bf16>(dy), T, N, mutable_elements<bf16>(rows));
    OAR_ASSIGN(const Tensor pairs, pack_pairs(ctx, x));
    if (!ctx.options().sizing)
      OAR_RETURN_IF_ERROR(narrow_product(ctx, elements<bf16>(rows), N, pairs, x.shape(), out, false));
  } else {
    if (bf16s) turn(ctx, elements<bf16>(dy), T, N, mutable_elements<float>(rows));
    else turn(ctx, elements<float>(dy), T, N, mutable_elements<float>(rows));
    OAR_ASSIGN(x, widened(ctx, x));
    tensor::Products p;
    p.M = N, p.N = K, p.K = T;
    p.a = elements<float>(rows), p.lda = T;
    p.b = elements<float>(x), p.b_row = K, p.b_col = 1;
    p.out = out;
    p.at_a = p.at_b = {0};
    OAR_RETURN_IF_ERROR(tensor::packed_products(ctx, p));
  }
  ctx.set(0, std::move(dw));
  return true;
}

// Whether the kernel of this format reads rows as they are stored.
bool in_place(const Backend& backend, const Tensor& w) {
  const auto bytes = backend.packed_bytes(w.format(), w.shape()[0], w.shape()[1]);
  return bytes.ok() && *bytes == 0;
}

}  // namespace

Result<std::shared_ptr<const void>> prepare_matrix(PrepareContext& ctx, size_t operand) {
  const Tensor* const w = ctx.constant(operand);
  const std::shared_ptr<const void> none;
  if (w == nullptr || w->shape().rank() != 2 || in_place(ctx.backend(), *w)) return none;
  const int64_t n = w->shape()[0], k = w->shape()[1];
  OAR_ASSIGN(const uint64_t bytes, ctx.backend().packed_bytes(w->format(), n, k));
  auto out = std::make_shared<StoredMatrix>();
  Status packed;
  // From the store: nodes that read the same matrix share it.
  OAR_ASSIGN(out->packed,
             ctx.pack(operand, "rows_linear", {static_cast<int64_t>(bytes)}, DType::kI8, [&](Tensor& to) {
               packed = ctx.backend().pack(w->format(), w->format(), n, k, to.mutable_data(), w->data());
             }));
  OAR_RETURN_IF_ERROR(packed);
  return std::shared_ptr<const void>(std::move(out));
}

Status stored_product(const KernelContext& ctx, const float* x, int64_t rows, const Tensor& w,
                      const StoredMatrix* stored, const float* bias, float* out) {
  const int64_t n = w.shape()[0], k = w.shape()[1];
  if (rows == 0 || n == 0) return ok_status();
  const Kernel* const kernel = ctx.backend().find_kernel({KernelFamily::kMatmul, w.format()});
  if (kernel == nullptr || (stored == nullptr && !in_place(ctx.backend(), w)))
    return unimplemented(cat("no product with a matrix of ", w.format().name()));
  const MatmulSegment segment{stored != nullptr ? stored->packed.data() : w.data(), bias, n, 0};
  MatmulArgs args;
  args.out = out, args.x = x;
  args.segments = &segment, args.num_segments = 1;
  args.T = rows, args.K = k, args.ldx = k, args.ldo = n;
  args.format = w.format();
  return tensor::run_kernel(ctx, *kernel, &args, static_cast<double>(rows * n) * static_cast<double>(k) / 6);
}

// Rows of w decoded to f32: fn(row, values), in parallel.
template <class F>
void decode_rows(const KernelContext& ctx, const Tensor& w, F&& fn) {
  const int64_t n = w.shape()[0], k = w.shape()[1], stride = w.format().stride(k);
  ctx.parallel(n, static_cast<double>(k), [&](int64_t begin, int64_t end) {
    std::vector<float> row(static_cast<size_t>(k));
    for (int64_t r = begin; r < end; ++r) {
      w.format().decode_row(static_cast<const std::byte*>(w.data()) + r * stride, k, row.data());
      fn(r, row.data());
    }
  });
}

Result<Tensor> widened(const KernelContext& ctx, const Tensor& t) {
  if (t.format() == Format::f32()) return t;
  OAR_ASSIGN(Tensor out, ctx.allocate(t.shape(), DType::kF32));
  ctx.parallel(t.numel(), 0.2, [&](int64_t begin, int64_t end) {
    const bf16* const from = elements<bf16>(t);
    float* const to = mutable_elements<float>(out);
    for (int64_t i = begin; i < end; ++i) convert(from[i], to[i]);
  });
  return out;
}

Status rows_back(const KernelContext& ctx, const Tensor& dy, const Tensor& w, float* out) {
  const int64_t rows = dy.numel() / std::max<int64_t>(dy.shape().cols(), 1);
  if (dy.format() == Format::bf16() && narrow_kernel(ctx) != nullptr) {
    OAR_ASSIGN(const Tensor pairs, pack_pairs(ctx, w));
    return ctx.options().sizing ? ok_status()
                                : narrow_product(ctx, elements<bf16>(dy), rows, pairs, w.shape(), out, false);
  }
  OAR_ASSIGN(const Tensor wide, widened(ctx, dy));
  return product_back(ctx, elements<float>(wide), rows, w, out);
}

Status product_back(const KernelContext& ctx, const float* dy, int64_t rows, const Tensor& w, float* out,
                    int64_t ldy, bool add) {
  const int64_t n = w.shape()[0], k = w.shape()[1];
  tensor::Products p;
  p.M = rows, p.N = k, p.K = n;
  p.a = dy, p.out = out;
  p.lda = ldy > 0 ? ldy : n, p.b_row = k, p.b_col = 1;
  p.at_a = p.at_b = {0};
  p.add = add;
  if (w.format() == Format::f32()) {
    p.b = elements<float>(w);
    return tensor::packed_products(ctx, p);
  }
  OAR_ASSIGN(Tensor decoded, ctx.allocate(w.shape(), DType::kF32));
  p.b = elements<float>(decoded);
  if (!ctx.options().sizing)
    decode_rows(ctx, w, [&](int64_t r, const float* row) {
      std::copy(row, row + k, mutable_elements<float>(decoded) + r * k);
    });
  return tensor::packed_products(ctx, p);
}

const Kernel* narrow_kernel(const KernelContext& ctx) { return ctx.backend().find_kernel(bf16_conv_key()); }

Result<Tensor> pack_pairs(const KernelContext& ctx, const Tensor& w) {
  const int64_t rows = w.shape()[0], cols = w.shape()[1];
  const int64_t pairs = quantized_k(rows, 2) / 4, panels = (cols + kQuantizedPanel - 1) / kQuantizedPanel;
  const int64_t width = panels * kQuantizedPanel, stride = w.format().stride(cols);
  const bool narrow = w.format() == Format::bf16();
  OAR_ASSIGN(Tensor out, ctx.allocate({pairs * width}, DType::kI32));
  // Two rows at a time, so that no more than these are decoded.
  ctx.parallel(pairs, static_cast<double>(2 * width), [&](int64_t begin, int64_t end) {
    std::vector<uint16_t> two(static_cast<size_t>(2 * width));
    std::vector<float> wide(static_cast<size_t>(narrow ? 0 : cols));
    const auto fetch = [&](int64_t r, uint16_t* to) {
      const auto* const from = static_cast<const std::byte*>(w.data()) + r * stride;
      if (r >= rows) {
        std::fill_n(to, cols, uint16_t{0});
      } else if (narrow) {
        std::memcpy(to, from, static_cast<size_t>(cols) * sizeof(uint16_t));
      } else {
        w.format().decode_row(from, cols, wide.data());
        for (int64_t c = 0; c < cols; ++c) to[c] = to_bf16(wide[static_cast<size_t>(c)]).bits;
      }
    };
    for (int64_t p = begin; p < end; ++p) {
      uint16_t *const low = two.data(), *const high = low + width;
      fetch(2 * p, low), fetch(2 * p + 1, high);
      for (int64_t c0 = 0; c0 < width; c0 += kQuantizedPanel) {
        auto* const to = static_cast<uint32_t*>(out.mutable_data()) + c0 * pairs + p * kQuantizedPanel;
        for (int64_t c = 0; c < kQuantizedPanel; ++c)
          to[c] = low[c0 + c] | static_cast<uint32_t>(high[c0 + c]) << 16;
      }
    }
  });
  return out;
}

Status narrow_product(const KernelContext& ctx, const bf16* x, int64_t rows, const Tensor& pairs,
                      const Shape& w, float* out, bool add) {
  QuantizedConvArgs a;
  a.x = reinterpret_cast<const uint8_t*>(x), a.w = static_cast<const int8_t*>(pairs.data()), a.out = out;
  a.residual = add ? out : nullptr;
  a.window.N = a.window.H = a.window.OH = 1, a.window.W = a.window.OW = rows;
  a.C = w[0], a.M = w[1];
  a.out_type = QuantizedOut::kF32;
  a.low = -std::numeric_limits<float>::infinity(), a.high = -a.low;
  return tensor::run_kernel(ctx, *narrow_kernel(ctx), &a,
                            0.01 * static_cast<double>(rows) * static_cast<double>(a.C * a.M));
}

void use_rows_gradients(Graph& g) {
  const std::vector<int> producer = g.producers();
  for (Node& n : g.nodes()) {
    if (!n.is("matmul") || g.value(n.inputs[1]).type.shape.size() != 2) continue;
    const int by = producer[static_cast<size_t>(n.inputs[0])];
    if (by < 0 || !g.nodes()[static_cast<size_t>(by)].is("transpose")) continue;
    const Node& turned = g.nodes()[static_cast<size_t>(by)];
    const std::vector<int64_t> perm = turned.attrs.get_ints("perm");
    const ValueId dy = turned.inputs[0];
    if (g.value(dy).type.shape.size() != 2 || (!perm.empty() && perm[0] == 0)) continue;
    n.op = &op_rows_gradient;
    n.inputs[0] = dy;
  }
}

uint64_t packed_weights(const Graph& g, const Backend& backend) {
  uint64_t bytes = 0;
  for (size_t v = 0; v < g.num_values(); ++v) {
    const Value& value = g.value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kConstant || value.constant.shape().rank() != 2 ||
        value.constant.format().plain())
      continue;
    const auto packed =
        backend.packed_bytes(value.constant.format(), value.constant.shape()[0], value.constant.shape()[1]);
    if (packed.ok()) bytes += *packed;
  }
  return bytes;
}

const OpDef op_rows_linear = {.name = "rows_linear",
                              .infer = linear_infer,
                              .by_kernels = linear_by_kernels,
                              .prepare = prepare_stored_matrix<1>};
const OpDef op_rows_product = {
    .name = "rows_product", .infer = product_infer, .by_kernels = product_by_kernels};
const OpDef op_rows_gradient = {
    .name = "rows_gradient", .infer = gradient_infer, .by_kernels = gradient_by_kernels};

}  // namespace oar::train
