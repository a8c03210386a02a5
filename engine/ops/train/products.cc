// Products of a layer (ops.h): rows_linear, rows_product, rows_gradient, and stored_matrix.h.
#include <cstring>
#include <limits>

#include "engine/ops/define/definitions.h"
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

Types with_last(const Graph& g, Ids in, size_t axis, const Attrs& attrs) {
  DimVector shape = shape_of(g, in[0]);
  const DimVector& w = shape_of(g, in[1]);
  if (shape.empty() || w.size() != 2 || !(shape.back() == w[1 - axis]))
    return invalid_argument("x and the weight do not fit");
  shape.back() = w[axis];
  return std::vector<TensorType>{{result_format(attrs, 0), std::move(shape)}};
}

Types linear_infer(const Graph& g, Ids in, const Attrs& attrs) { return with_last(g, in, 0, attrs); }
Types product_infer(const Graph& g, Ids in, const Attrs& attrs) { return with_last(g, in, 1, attrs); }
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
  return ctx.allocate(Shape(dims), result_type(ctx.attrs(), 0));
}

Result<bool> linear_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(Tensor y, result(ctx, x, w, 0));
  Tensor bias;
  if (ctx.has(2)) {
    OAR_ASSIGN(bias, ctx.tensor(2));
    if (!(bias.format() == Format::f32()) || !(bias.shape() == Shape{w.shape()[0]}))
      return invalid_argument("the bias must be f32 (N)");
  }
  OAR_RETURN_IF_ERROR(rows_there(ctx, x, w, ctx.prepared<StoredMatrix>(),
                                 bias.defined() ? elements<float>(bias) : nullptr, y));
  ctx.set(0, std::move(y));
  return true;
}

Result<bool> product_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor dy, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(Tensor dx, result(ctx, dy, w, 1));
  OAR_RETURN_IF_ERROR(rows_back(ctx, dy, w, dx));
  ctx.set(0, std::move(dx));
  return true;
}

// Columns of an adapter's rows: of so few, reading the other operand is the work.
constexpr int64_t kThin = 64;

// out (r, C) = a (T, r)^T . b (T, C) of f32: b goes through the caches once, a few columns at a time.
Status thin_gradient(const KernelContext& ctx, const Tensor& a, const Tensor& b, float* out) {
  constexpr int64_t kColumns = 64;
  const int64_t T = a.shape()[0], r = a.shape()[1], C = b.shape()[1], width = ctx.backend().filter_panel();
  const int64_t chunks = (C + kColumns - 1) / kColumns,
                slices = std::min<int64_t>(chunks, ctx.backend().workers() * 4);
  const int64_t floats = packed_filter_floats(kColumns, 1, 1, T, width);
  OAR_ASSIGN(Tensor rows, ctx.allocate({r, T}, DType::kF32));
  OAR_ASSIGN(Tensor packed, ctx.allocate({slices, floats}, DType::kF32));
  turn(ctx, elements<float>(a), T, r, mutable_elements<float>(rows));
  const Kernel& kernel = tensor::f32_kernel(ctx.backend(), KernelFamily::kConv);
  ctx.uses(kernel);
  const double each = static_cast<double>(T * kColumns) * (0.5 + 0.02 * static_cast<double>(r));
  ctx.parallel(slices, each * static_cast<double>(chunks) / static_cast<double>(std::max<int64_t>(slices, 1)),
               [&](int64_t begin, int64_t end) {
                 tensor::OneThread thread;
                 for (int64_t slice = begin; slice < end; ++slice) {
                   float* const to = mutable_elements<float>(packed) + slice * floats;
                   for (int64_t c = chunks * slice / slices; c < chunks * (slice + 1) / slices; ++c) {
                     const int64_t first = c * kColumns, n = std::min(kColumns, C - first);
                     pack_filters(to, elements<float>(b) + first, n, 1, 1, T, 1, C, 0, width);
                     tensor::PackedProduct p;
                     p.rows = r, p.K = T, p.N = n, p.ldo = C;
                     p.x = elements<float>(rows), p.w = to, p.out = out + first;
                     const ConvArgs args = tensor::product_args(ctx.backend(), p);
                     thread.run(kernel, &args);
                   }
                 }
               });
  return ok_status();
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
  if (!bf16s && T > 0 && std::min(N, K) > 0 && std::min(N, K) <= kThin) {
    if (N <= K) {
      OAR_RETURN_IF_ERROR(thin_gradient(ctx, dy, x, mutable_elements<float>(dw)));
    } else {
      OAR_ASSIGN(Tensor turned, ctx.allocate({K, N}, DType::kF32));
      OAR_RETURN_IF_ERROR(thin_gradient(ctx, x, dy, mutable_elements<float>(turned)));
      turn(ctx, elements<float>(turned), K, N, mutable_elements<float>(dw));
    }
    ctx.set(0, std::move(dw));
    return true;
  }
  float* const out = mutable_elements<float>(dw);
  if (narrow) {
    OAR_ASSIGN(const Tensor rows, pack_pairs(ctx, dy));
    OAR_ASSIGN(const Tensor pairs, pack_pairs(ctx, x));
    if (!ctx.options().sizing)
      OAR_RETURN_IF_ERROR(turned_product(ctx, pairs_of(rows), N, pairs, x.shape(), {out}));
  } else {
    OAR_ASSIGN(Tensor rows, ctx.allocate({N, T}, DType::kF32));
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

namespace {

// Slices are packed as they are needed, so that a head is never there twice.
Status packed_f32_product(const KernelContext& ctx, const float* x, int64_t rows, const Tensor& w,
                          const float* bias, float* out) {
  constexpr int64_t kSlice = 2048;
  const int64_t n = w.shape()[0], k = w.shape()[1], panel = ctx.backend().filter_panel();
  OAR_ASSIGN(Tensor packed,
             ctx.allocate({packed_filter_floats(std::min(n, kSlice), 1, 1, k, panel)}, DType::kF32));
  float* const to = mutable_elements<float>(packed);
  for (int64_t first = 0; first < n && !ctx.options().sizing; first += kSlice) {
    tensor::PackedProduct p;
    p.rows = rows, p.K = k, p.N = std::min(kSlice, n - first), p.ldo = n;
    const float* const from = elements<float>(w) + first * k;
    ctx.parallel((p.N + panel - 1) / panel, 0.3 * static_cast<double>(k * panel),
                 [&](int64_t begin, int64_t end) {
                   pack_filters(to + begin * panel * k, from + begin * panel * k,
                                std::min(p.N, end * panel) - begin * panel, 1, 1, k, k, 1, 0, panel);
                 });
    p.x = x, p.w = to, p.out = out + first;
    p.bias = bias == nullptr ? nullptr : bias + first;
    OAR_RETURN_IF_ERROR(tensor::packed_product(ctx, p));
  }
  return ok_status();
}

}  // namespace

Status stored_product(const KernelContext& ctx, const float* x, int64_t rows, const Tensor& w,
                      const StoredMatrix* stored, const float* bias, float* out) {
  const int64_t n = w.shape()[0], k = w.shape()[1];
  if (rows == 0 || n == 0) return ok_status();
  if (w.format() == Format::f32() && k > 0) return packed_f32_product(ctx, x, rows, w, bias, out);
  if (ctx.options().sizing) return ok_status();
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
  return t.format() == Format::f32() ? Result<Tensor>(t) : tensor::as_f32(ctx, t);
}

Result<Tensor> rounded_beside(const KernelContext& ctx, const Tensor& x, const Tensor& w) {
  const bool both = x.format() == Format::bf16() && w.format() == Format::f32();
  return both ? tensor::from_f32(ctx, w, DType::kBF16) : Result<Tensor>(w);
}

namespace {
ProductRows rows_of(Tensor& out, const float* bias) {
  return {out.mutable_data(), out.format() == Format::bf16(), nullptr, bias};
}
}  // namespace

Status rows_there(const KernelContext& ctx, const Tensor& x, const Tensor& w, const StoredMatrix* stored,
                  const float* bias, Tensor& out) {
  const int64_t n = w.shape()[0], k = w.shape()[1], rows = x.numel() / std::max<int64_t>(k, 1);
  const bool floats = w.format() == Format::f32() || w.format() == Format::bf16();
  if (x.format() == Format::bf16() && floats && narrow_kernel(ctx) != nullptr) {
    OAR_ASSIGN(const Tensor pairs, pack_turned_pairs(ctx, w));
    return ctx.options().sizing
               ? ok_status()
               : narrow_product(ctx, elements<bf16>(x), rows, pairs, {k, n}, rows_of(out, bias));
  }
  OAR_ASSIGN(const Tensor wide, widened(ctx, x));
  OAR_ASSIGN(const Tensor beside, rounded_beside(ctx, x, w));
  return make_result(ctx, out, [&](float* to) {
    return stored_product(ctx, elements<float>(wide), rows, beside, stored, bias, to);
  });
}

Status rows_back(const KernelContext& ctx, const Tensor& dy, const Tensor& w, Tensor& out) {
  const int64_t rows = dy.numel() / std::max<int64_t>(dy.shape().cols(), 1);
  if (dy.format() == Format::bf16() && narrow_kernel(ctx) != nullptr) {
    OAR_ASSIGN(const Tensor pairs, pack_pairs(ctx, w));
    return ctx.options().sizing
               ? ok_status()
               : narrow_product(ctx, elements<bf16>(dy), rows, pairs, w.shape(), rows_of(out, nullptr));
  }
  OAR_ASSIGN(const Tensor wide, widened(ctx, dy));
  OAR_ASSIGN(const Tensor beside, rounded_beside(ctx, dy, w));
  return make_result(ctx, out,
                     [&](float* to) { return product_back(ctx, elements<float>(wide), rows, beside, to); });
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

namespace {

uint32_t pair_of(bf16 low, bf16 high) { return low.bits | static_cast<uint32_t>(high.bits) << 16; }
uint32_t pair_of(float low, float high) { return pair_of(to_bf16(low), to_bf16(high)); }

// Numbers 0 .. 7 of two rows beside each other.
struct EightPairs {
  Lanes32 first, second;
};
EightPairs load_pairs(const bf16* low, const bf16* high) {
  const auto a = load_lanes<Lanes16>(low), b = load_lanes<Lanes16>(high);
  return {reinterpret_cast<Lanes32>(interleave_low(a, b)), reinterpret_cast<Lanes32>(interleave_high(a, b))};
}
EightPairs load_pairs(const float* low, const float* high) {
  const auto four = [&](int64_t c) {
    return rounded_to_bf16(load_lanes<Lanes32>(low + c)) >> 16 |
           (rounded_to_bf16(load_lanes<Lanes32>(high + c)) & 0xffff0000u);
  };
  return {four(0), four(4)};
}
// Numbers 0 .. 7 of one row: four pairs of neighbours.
Lanes32 load_neighbours(const bf16* row) { return load_lanes<Lanes32>(row); }
Lanes32 load_neighbours(const float* row) {
  const Lanes32 a = rounded_to_bf16(load_lanes<Lanes32>(row)),
                b = rounded_to_bf16(load_lanes<Lanes32>(row + 4));
  return __builtin_shufflevector(a, b, 0, 2, 4, 6) >> 16 |
         (__builtin_shufflevector(a, b, 1, 3, 5, 7) & 0xffff0000u);
}

// Where panels of pairs of (K, N) lie.
struct PairPanels {
  int64_t pairs, panels;
  PairPanels(int64_t K, int64_t N)
      : pairs(quantized_k(K, 2) / 4), panels((N + kQuantizedPanel - 1) / kQuantizedPanel) {}
  int64_t count() const { return pairs * panels * kQuantizedPanel; }
  uint32_t* at(uint32_t* first, int64_t panel, int64_t pair) const {
    return first + (panel * pairs + pair) * kQuantizedPanel;
  }
  Result<Tensor> allocate(const KernelContext& ctx) const { return ctx.allocate({count()}, DType::kI32); }
};

// Two rows of `cols` numbers become one line of each panel.
template <class T>
void pair_rows(const PairPanels& to, uint32_t* out, int64_t pair, const T* low, const T* high, int64_t cols) {
  for (int64_t c0 = 0; c0 < cols; c0 += kQuantizedPanel) {
    uint32_t* const line = to.at(out, c0 / kQuantizedPanel, pair);
    const int64_t width = std::min(kQuantizedPanel, cols - c0);
    if (width < kQuantizedPanel) {
      for (int64_t c = 0; c < kQuantizedPanel; ++c)
        line[c] = c < width ? pair_of(low[c0 + c], high[c0 + c]) : 0;
      continue;
    }
    for (int64_t c = 0; c < kQuantizedPanel; c += 8) {
      const EightPairs p = load_pairs(low + c0 + c, high + c0 + c);
      store_lanes(line + c, p.first), store_lanes(line + c + 4, p.second);
    }
  }
}

// `width` rows of K numbers, `step` apart, become a panel.
template <class T>
void pair_columns(uint32_t* to, int64_t pairs, const T* rows, int64_t step, int64_t width, int64_t K) {
  constexpr int64_t kBlock = 4, kLine = 16;  // pairs
  const int64_t whole = width == kQuantizedPanel ? K / (2 * kBlock) * kBlock : 0;
  for (int64_t p0 = 0; p0 < whole; p0 += kLine) {  // a line of each row at a time
    for (int64_t n = 0; n < kQuantizedPanel; n += kBlock) {
      for (int64_t p = p0; p < std::min(whole, p0 + kLine); p += kBlock) {
        Lanes32 block[kBlock];
        for (int64_t i = 0; i < kBlock; ++i) block[i] = load_neighbours(rows + (n + i) * step + 2 * p);
        turn_block(block);
        for (int64_t i = 0; i < kBlock; ++i) store_lanes(to + (p + i) * kQuantizedPanel + n, block[i]);
      }
    }
  }
  const auto at = [&](int64_t n, int64_t k) { return n < width && k < K ? rows[n * step + k] : T{}; };
  for (int64_t p = whole; p < pairs; ++p)
    for (int64_t n = 0; n < kQuantizedPanel; ++n)
      to[p * kQuantizedPanel + n] = pair_of(at(n, 2 * p), at(n, 2 * p + 1));
}

}  // namespace

Result<Tensor> pack_pairs(const KernelContext& ctx, const Tensor& w) {
  const int64_t rows = w.shape()[0], cols = w.shape()[1], stride = w.format().stride(cols);
  const PairPanels to(rows, cols);
  OAR_ASSIGN(Tensor out, to.allocate(ctx));
  uint32_t* const pairs = pairs_of(out);
  // Two rows at a time, so that no more than these are decoded.
  ctx.parallel(to.pairs, 0.5 * static_cast<double>(cols), [&](int64_t begin, int64_t end) {
    std::vector<float> decoded(static_cast<size_t>(2 * cols));
    const std::vector<bf16> zeros(static_cast<size_t>(cols));
    const auto row = [&](int64_t r) { return static_cast<const std::byte*>(w.data()) + r * stride; };
    for (int64_t p = begin; p < end; ++p) {
      if (w.format() == Format::bf16()) {
        const auto narrow = [&](int64_t r) {
          return r < rows ? reinterpret_cast<const bf16*>(row(r)) : zeros.data();
        };
        pair_rows(to, pairs, p, narrow(2 * p), narrow(2 * p + 1), cols);
        continue;
      }
      const float* wide[2];
      for (int64_t i = 0; i < 2; ++i) {
        float* const own = decoded.data() + i * cols;
        wide[i] = own;
        if (2 * p + i >= rows) std::fill_n(own, cols, 0.f);
        else if (w.format() == Format::f32()) wide[i] = reinterpret_cast<const float*>(row(2 * p + i));
        else w.format().decode_row(row(2 * p + i), cols, own);
      }
      pair_rows(to, pairs, p, wide[0], wide[1], cols);
    }
  });
  return out;
}

Result<Tensor> pack_turned_pairs(const KernelContext& ctx, const Tensor& w) {
  const int64_t N = w.shape()[0], K = w.shape()[1];
  const PairPanels to(K, N);
  OAR_ASSIGN(Tensor out, to.allocate(ctx));
  ctx.parallel(to.panels, 0.5 * static_cast<double>(K * kQuantizedPanel), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      const int64_t n = panel * kQuantizedPanel, width = std::min(kQuantizedPanel, N - n);
      uint32_t* const first = to.at(pairs_of(out), panel, 0);
      if (w.format() == Format::bf16()) pair_columns(first, to.pairs, elements<bf16>(w) + n * K, K, width, K);
      else pair_columns(first, to.pairs, elements<float>(w) + n * K, K, width, K);
    }
  });
  return out;
}

int64_t pair_count(int64_t K, int64_t N) { return PairPanels(K, N).count(); }

namespace {
void pack_row_pairs(uint32_t* to, const bf16* w, int64_t step, int64_t K, int64_t N, int64_t first,
                    int64_t last) {
  const PairPanels panels(K, N);
  const std::vector<bf16> zeros(2 * last > K ? static_cast<size_t>(N) : 0);
  const auto row = [&](int64_t k) { return k < K ? w + k * step : zeros.data(); };
  for (int64_t p = first; p < last; ++p) pair_rows(panels, to, p, row(2 * p), row(2 * p + 1), N);
}
}  // namespace

void pack_rows(uint32_t* to, const bf16* w, int64_t step, int64_t K, int64_t N) {
  pack_row_pairs(to, w, step, K, N, 0, PairPanels(K, N).pairs);
}
void pack_rows(const EvalContext& ctx, uint32_t* to, const bf16* w, int64_t step, int64_t K, int64_t N) {
  ctx.parallel(PairPanels(K, N).pairs, 0.5 * static_cast<double>(N),
               [&](int64_t begin, int64_t end) { pack_row_pairs(to, w, step, K, N, begin, end); });
}

void pack_turned_rows(uint32_t* to, const bf16* w, int64_t step, int64_t N, int64_t K) {
  const PairPanels panels(K, N);
  for (int64_t n = 0; n < N; n += kQuantizedPanel)
    pair_columns(panels.at(to, n / kQuantizedPanel, 0), panels.pairs, w + n * step, step,
                 std::min(kQuantizedPanel, N - n), K);
}

namespace {
Status run_product(const KernelContext& ctx, Bf16ProductArgs a, int64_t rows, const Tensor& pairs,
                   const Shape& w, const ProductRows& to) {
  a.w = static_cast<const int8_t*>(pairs.data()), a.out = to.out;
  a.residual = to.add, a.shift = to.bias;
  a.window.N = a.window.H = a.window.OH = 1, a.window.W = a.window.OW = rows;
  a.C = w[0], a.M = w[1];
  a.out_type = to.rounded ? QuantizedOut::kBF16 : QuantizedOut::kF32;
  a.low = -std::numeric_limits<float>::infinity(), a.high = -a.low;
  return tensor::run_kernel(ctx, *narrow_kernel(ctx), &a,
                            0.01 * static_cast<double>(rows) * static_cast<double>(a.C * a.M));
}
}  // namespace

Status narrow_product(const KernelContext& ctx, const bf16* x, int64_t rows, const Tensor& pairs,
                      const Shape& w, const ProductRows& to) {
  Bf16ProductArgs a;
  a.x = reinterpret_cast<const uint8_t*>(x);
  return run_product(ctx, a, rows, pairs, w, to);
}

Status turned_product(const KernelContext& ctx, const uint32_t* x, int64_t rows, const Tensor& pairs,
                      const Shape& w, const ProductRows& to) {
  Bf16ProductArgs a;
  a.x = reinterpret_cast<const uint8_t*>(x), a.x_packed = true;
  return run_product(ctx, a, rows, pairs, w, to);
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

namespace {

std::vector<Val> linear_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val y = b.op("linear", {definition::real(b, in[0]), Val{}, in[1], definition::given(in, 2)});
  return rounded_results(b, {y}, attrs);
}
std::vector<Val> product_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val x = definition::real(b, in[0]);
  return rounded_results(b, {b.op("linear", {x, Val{}, in[1], Val{}}, {{"input_major", int64_t{1}}})}, attrs);
}
std::vector<Val> gradient_define(Builder& b, std::span<const Val> in, const Attrs&) {
  const Val turned = definition::turned(b, definition::real(b, in[0]), {1, 0});
  return {b.op("matmul", {turned, definition::real(b, in[1])})};
}

}  // namespace

const OpDef op_rows_linear = {.name = "rows_linear",
                              .infer = linear_infer,
                              .define = linear_define,
                              .by_kernels = linear_by_kernels,
                              .prepare = prepare_stored_matrix<1>};
const OpDef op_rows_product = {.name = "rows_product",
                               .infer = product_infer,
                               .define = product_define,
                               .by_kernels = product_by_kernels};
const OpDef op_rows_gradient = {.name = "rows_gradient",
                                .infer = gradient_infer,
                                .define = gradient_define,
                                .by_kernels = gradient_by_kernels};

}  // namespace oar::train
