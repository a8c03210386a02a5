// Weights of 4 and 8 bits as onnxruntime's files hold them: rows of codes, low bits first, with a scale and
// perhaps a zero point for every block of a row. A weight is (code - zero) scale.
//
//   matmul_nbits(x (..., K), codes, scales, zeros?, bias?) {N, K, bits, block_size, format} -> (..., N)
//     `format` names one of quant/formats that holds these codes: they are moved into it once, and the kernel
//     of that format multiplies, with activations of 8 bits. Without one they become f32 once.
//   gather_nbits(codes (rows, ...), indices, scales, zeros?) {bits, block_size} -> rows as the scales' type
//
// Codes are bytes of `bits`, or one element each (i4, u4). Zeros are bytes of `bits` where the codes are, a
// row of blocks padded to whole bytes, or numbers. Without any: the middle, or 0 where codes are elements.
#include "engine/ops/tensor/kernel_call.h"
#include "kernels/matmul.h"
#include "quant/formats/group.h"

namespace oar::tensor {
namespace {

// One matrix of codes: N rows of K.
struct Codes {
  Tensor codes, scales, zeros;
  int64_t N = 0, K = 0, block = 0, blocks = 0, bits = 0;  // bits 0: an element each
  int64_t row_bytes = 0;                                  // of codes; blocks are whole, also a row's last one

  int64_t bytes_of(int64_t n) const { return bits == 4 ? (n + 1) / 2 : n; }
  static int packed(const Tensor& t, int64_t bits, int64_t stride, int64_t row, int64_t k) {
    const uint8_t* p = elements<uint8_t>(t) + row * stride;
    return bits == 8 ? p[k] : p[k / 2] >> (k % 2 * 4) & 15;
  }
  int code(int64_t row, int64_t k) const {
    if (bits == 0) return static_cast<int>(element_as_int(codes, row * K + k));
    return packed(codes, bits, row_bytes, row, k);
  }
  double scale(int64_t row, int64_t b) const { return element_as_double(scales, row * blocks + b); }
  double zero(int64_t row, int64_t b) const {
    if (!zeros.defined()) return bits == 0 ? 0 : 1 << (bits - 1);
    if (bits == 0 || dtype_is_float(dtype_of(zeros))) return element_as_double(zeros, row * blocks + b);
    return packed(zeros, bits, bytes_of(blocks), row, b);
  }
  void decode(int64_t row, float* out) const {
    for (int64_t b = 0; b < blocks; ++b) {
      const auto s = static_cast<float>(scale(row, b)), z = static_cast<float>(zero(row, b));
      for (int64_t k = b * block; k < std::min(K, (b + 1) * block); ++k)
        out[k] = (static_cast<float>(code(row, k)) - z) * s;
    }
  }
  // A row of a format: blocks of an f16 scale, an f16 zero where `zeroed`, and codes of `bits`.
  void encode(int64_t row, Format format, bool zeroed, std::byte* out) const {
    const int64_t group = format.block_elems();
    for (int64_t at = 0; at < K; at += group, out += format.block_bytes()) {
      std::memset(out, 0, static_cast<size_t>(format.block_bytes()));
      const f16 d = to_f16(static_cast<float>(scale(row, at / block)));
      const f16 z = to_f16(static_cast<float>(zero(row, at / block)));
      std::memcpy(out, &d, sizeof d);
      if (zeroed) std::memcpy(out + sizeof d, &z, sizeof z);
      auto* q = reinterpret_cast<uint8_t*>(out + (zeroed ? 2 : 1) * sizeof d);
      for (int64_t i = 0; i < group; ++i) {
        if (bits == 4) formats::set_nibble(q, static_cast<int>(i), code(row, at + i));
        else q[i] = static_cast<uint8_t>(code(row, at + i) - 128);
      }
    }
  }
  Status check() const {
    const DType t = dtype_of(codes);
    const bool elements = bits == 0 && (t == DType::kI4 || t == DType::kU4);
    if (block < 1 || N < 0 || K < 1 || blocks != (K + block - 1) / block)
      return invalid_argument("the sizes of the codes do not match");
    if (!elements && (t != DType::kU8 || (bits != 4 && bits != 8))) return bad_dtype(codes);
    if (!dtype_is_float(dtype_of(scales)) || scales.numel() != N * blocks)
      return invalid_argument(cat("scales ", scales.shape().to_string(), " for ", N, " rows of ", blocks));
    if (!zeros.defined()) return ok_status();
    const bool one_each = elements || dtype_is_float(dtype_of(zeros));
    if (elements ? dtype_of(zeros) != t : !one_each && dtype_of(zeros) != DType::kU8) return bad_dtype(zeros);
    if (zeros.numel() != N * (one_each ? blocks : bytes_of(blocks)))
      return invalid_argument(
          cat("zero points ", zeros.shape().to_string(), " for ", N, " rows of ", blocks));
    return ok_status();
  }
};

struct PreparedNbits {
  Tensor packed;
  std::optional<Format> format;
  int64_t N = 0, K = 0;
};

// Those of a product's node.
Result<Codes> product_codes(const Attrs& a, const Tensor& codes, const Tensor& scales, const Tensor& zeros) {
  Codes c;
  c.codes = codes, c.scales = scales, c.zeros = zeros;
  c.N = a.get_int("N"), c.K = a.get_int("K"), c.bits = a.get_int("bits"), c.block = a.get_int("block_size");
  c.blocks = c.block > 0 ? (c.K + c.block - 1) / c.block : 0;
  c.row_bytes = c.blocks * (c.block * c.bits / 8);
  OAR_RETURN_IF_ERROR(c.check());
  if (c.codes.numel() != c.N * c.row_bytes)
    return invalid_argument(cat("codes ", c.codes.shape().to_string(), " for ", c.N, " rows of ", c.K));
  return c;
}

Result<std::shared_ptr<const void>> prepare_matmul_nbits(PrepareContext& ctx) {
  const Attrs& a = ctx.node().attrs;
  auto p = std::make_shared<PreparedNbits>();
  p->N = a.get_int("N"), p->K = a.get_int("K");
  if (!ctx.constant(1) || !ctx.constant(2) || (ctx.given(3) && !ctx.constant(3)))
    return invalid_argument("codes, scales and zero points must be constants");
  OAR_ASSIGN(const Codes c, product_codes(a, *ctx.constant(1), *ctx.constant(2),
                                          ctx.constant(3) ? *ctx.constant(3) : Tensor()));
  if (const std::string name = a.get_string("format"); !name.empty()) {
    p->format = Format::find(name);
    if (!p->format || p->format->plain() || c.block % p->format->block_elems() != 0 ||
        c.K % p->format->block_elems() != 0)
      return invalid_argument(cat("format '", name, "' does not hold these codes"));
    OAR_ASSIGN(const uint64_t packed, ctx.backend().packed_bytes(*p->format, c.N, c.K));
    Status packing;
    const int64_t stride = p->format->stride(c.K), rows = c.N * stride;
    const int64_t bytes = packed == 0 ? rows : static_cast<int64_t>(packed);
    OAR_ASSIGN(
        p->packed, ctx.pack(1, cat("matmul ", name, " of ", c.block), {bytes}, DType::kU8, [&](Tensor& t) {
          const bool zeroed = name.starts_with("u4");
          std::vector<std::byte> made(static_cast<size_t>(packed == 0 ? 0 : rows));
          auto* to = packed == 0 ? mutable_elements<std::byte>(t) : made.data();
          for (int64_t n = 0; n < c.N; ++n) c.encode(n, *p->format, zeroed, to + n * stride);
          if (packed > 0)
            packing = ctx.backend().pack(*p->format, *p->format, c.N, c.K, t.mutable_data(), made.data());
        }));
    OAR_RETURN_IF_ERROR(packing);
  } else {
    const int64_t width = ctx.backend().filter_panel();
    const Shape floats{packed_filter_floats(c.N, 1, 1, c.K, width)};
    OAR_ASSIGN(p->packed, ctx.pack(1, cat("filters of ", c.bits, " bits, blocks of ", c.block), floats,
                                   DType::kF32, [&](Tensor& t) {
                                     std::vector<float> rows(static_cast<size_t>(width * c.K));
                                     for (int64_t n = 0; n < c.N; n += width) {
                                       const int64_t count = std::min(width, c.N - n);
                                       for (int64_t i = 0; i < count; ++i)
                                         c.decode(n + i, rows.data() + i * c.K);
                                       pack_filters(mutable_elements<float>(t) + n * c.K, rows.data(), count,
                                                    1, 1, c.K, c.K, 1, 0, width);
                                     }
                                   }));
  }
  for (const size_t i : {1, 2, 3}) {
    if (ctx.constant(i)) ctx.spend(i);
  }
  return std::shared_ptr<const void>(std::move(p));
}

// A kernel's arguments with the segment they point to, wherever they lie.
struct BlockMatmulArgs {
  MatmulArgs matmul;
  MatmulSegment segment;
  void fill(const float* x, const float* bias, float* out) {
    matmul.segments = &segment, matmul.num_segments = 1;
    matmul.x = x, matmul.out = out, segment.bias = bias;
  }
};
BlockMatmulArgs block_args(const PreparedNbits& p, int64_t rows) {
  BlockMatmulArgs a;
  a.segment = {p.packed.data(), nullptr, p.N, 0};
  a.matmul.T = rows, a.matmul.K = a.matmul.ldx = p.K, a.matmul.ldo = p.N;
  a.matmul.format = *p.format;
  return a;
}
PackedProduct float_product(const PreparedNbits& p, int64_t rows) {
  PackedProduct c;
  c.rows = rows, c.K = p.K, c.N = p.N, c.w = elements<float>(p.packed);
  return c;
}
double block_cost(const PreparedNbits& p, int64_t rows) {
  return product_ns(static_cast<double>(rows), static_cast<double>(p.K * p.N), 0.01,
                    static_cast<double>(p.packed.bytes()) / static_cast<double>(p.K * p.N));
}

Result<Shape> result_of(int64_t N, int64_t K, const Shape& x) {
  if (x.rank() < 1 || x[x.rank() - 1] != K)
    return invalid_argument(cat("an operand ", x.to_string(), " for ", N, " rows of ", K));
  std::vector<int64_t> dims = dims_of(x);
  dims.back() = N;
  return checked_shape(dims);
}

// x . weights, each (code - zero) scale, in double.
Status matmul_nbits(EvalContext& ctx) {
  Tensor zeros, bias;
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor codes, ctx.tensor(1));
  OAR_ASSIGN(const Tensor scales, ctx.tensor(2));
  if (ctx.has(3)) { OAR_ASSIGN(zeros, ctx.tensor(3)); }
  OAR_ASSIGN(const Codes c, product_codes(ctx.attrs(), codes, scales, zeros));
  if (!dtype_is_float(dtype_of(x))) return bad_dtype(x);
  OAR_ASSIGN(const Shape shape, result_of(c.N, c.K, x.shape()));
  if (ctx.has(4)) {
    OAR_ASSIGN(bias, ctx.tensor(4));
    if (bias.numel() != c.N) return invalid_argument("the bias needs one value per column");
    OAR_ASSIGN(bias, as_f64(ctx, bias));
  }
  OAR_ASSIGN(const Tensor wide, as_f64(ctx, x));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF64));
  const int64_t rows = x.numel() / c.K;
  ctx.parallel(c.N, 2.0 * static_cast<double>(c.K * (rows + 4)), [&](int64_t begin, int64_t end) {
    std::vector<float> w(static_cast<size_t>(c.K));
    for (int64_t n = begin; n < end; ++n) {
      c.decode(n, w.data());
      for (int64_t r = 0; r < rows; ++r) {
        double sum = bias.defined() ? elements<double>(bias)[n] : 0;
        for (int64_t k = 0; k < c.K; ++k)
          sum += elements<double>(wide)[r * c.K + k] * static_cast<double>(w[static_cast<size_t>(k)]);
        mutable_elements<double>(y)[r * c.N + n] = sum;
      }
    }
  });
  OAR_ASSIGN(y, from_f64(ctx, y, dtype_of(x)));
  ctx.set(0, std::move(y));
  return ok_status();
}

// Operands that are not f32, by way of it.
Result<bool> nbits_by_kernels(KernelContext& ctx) {
  const auto* p = ctx.prepared<PreparedNbits>();
  if (p == nullptr) return false;
  OAR_ASSIGN(Tensor x, ctx.tensor(0));
  const DType dtype = dtype_of(x);
  if (!dtype_is_float(dtype)) return bad_dtype(x);
  OAR_ASSIGN(const Shape shape, result_of(p->N, p->K, x.shape()));
  OAR_ASSIGN(x, as_f32(ctx, x));
  Tensor bias;
  if (ctx.has(4)) {
    OAR_ASSIGN(bias, ctx.tensor(4));
    if (bias.numel() != p->N) return invalid_argument("the bias needs one value per column");
    OAR_ASSIGN(bias, as_f32(ctx, bias));
  }
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF32));
  const int64_t rows = x.numel() / p->K;
  const float* b = bias.defined() ? elements<float>(bias) : nullptr;
  if (rows > 0 && p->N > 0) {
    if (p->format) {
      const Kernel& kernel = kernel_of(ctx.backend(), {KernelFamily::kMatmul, *p->format});
      BlockMatmulArgs a = block_args(*p, rows);
      a.fill(elements<float>(x), b, mutable_elements<float>(y));
      OAR_RETURN_IF_ERROR(run_kernel(ctx, kernel, &a, block_cost(*p, rows)));
    } else {
      PackedProduct c = float_product(*p, rows);
      c.x = elements<float>(x), c.bias = b, c.out = mutable_elements<float>(y);
      OAR_RETURN_IF_ERROR(packed_product(ctx, c));
    }
  }
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  ctx.set(0, std::move(y));
  return true;
}

Lowered lower_matmul_nbits(LowerContext& ctx) {
  const auto* p = static_cast<const PreparedNbits*>(ctx.prepared);
  const ValueInfo& x = ctx.operands[0];
  if (p == nullptr || !is_f32(x) || x.shape.numel() == 0 || p->N == 0) return not_lowered();
  if (ctx.given(4) && (!is_f32(ctx.operands[4]) || ctx.operands[4].shape.numel() != p->N))
    return not_lowered();
  OAR_ASSIGN(const Shape shape, result_of(p->N, p->K, x.shape));
  const int64_t rows = x.shape.numel() / p->K;
  if (!p->format) {
    const PackedProduct c = float_product(*p, rows);
    return lowered_call(ctx, KernelFamily::kConv, product_args(ctx.backend, c), shape, product_cost(c), 0,
                        [](ConvArgs& a, const Operand* in, const Operand* out) {
                          a.out = out[0].as<float>(), a.x = in[0].as<const float>();
                          a.bias = in[4].as<const float>();
                        });
  }
  const Kernel* kernel = ctx.backend.find_kernel({KernelFamily::kMatmul, *p->format});
  return lowered_call(ctx, kernel, block_args(*p, rows), shape, block_cost(*p, rows), 0,
                      [](BlockMatmulArgs& a, const Operand* in, const Operand* out) {
                        a.fill(in[0].as<const float>(), in[4].as<const float>(), out[0].as<float>());
                      });
}

Status gather_nbits(EvalContext& ctx) {
  Codes c;
  OAR_ASSIGN(c.codes, ctx.tensor(0));
  OAR_ASSIGN(const Tensor indices, ctx.tensor(1));
  OAR_ASSIGN(c.scales, ctx.tensor(2));
  if (ctx.has(3)) { OAR_ASSIGN(c.zeros, ctx.tensor(3)); }
  if (c.codes.shape().rank() != 2 || !dtype_is_integer(dtype_of(indices)))
    return invalid_argument("rows of codes and integer indices are needed");
  c.bits = dtype_of(c.codes) == DType::kU8 ? ctx.attrs().get_int("bits") : 0;
  c.block = ctx.attrs().get_int("block_size");
  c.N = c.codes.shape()[0], c.K = c.codes.shape()[1] * (c.bits == 4 ? 2 : 1);
  c.blocks = c.block > 0 ? (c.K + c.block - 1) / c.block : 0;
  c.row_bytes = c.codes.shape()[1];
  OAR_RETURN_IF_ERROR(c.check());
  std::vector<int64_t> dims = dims_of(indices.shape());
  dims.push_back(c.K);
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF32));
  const int64_t count = indices.numel();
  for (int64_t k = 0; k < count && !ctx.options().sizing; ++k) {
    const int64_t at = element_as_int(indices, k);
    if (at < -c.N || at >= c.N) return invalid_argument(cat("index ", at, " of ", c.N, " rows"));
  }
  ctx.parallel(count, 2.0 * static_cast<double>(c.K), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t at = element_as_int(indices, k);
      c.decode(at < 0 ? at + c.N : at, mutable_elements<float>(y) + k * c.K);
    }
  });
  OAR_ASSIGN(y, from_f32(ctx, y, dtype_of(c.scales)));
  ctx.set(0, std::move(y));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_DEFINED_OP(gather_nbits, tensor::gather_nbits);
OAR_DEFINED_OP(matmul_nbits, tensor::matmul_nbits, .by_kernels = tensor::nbits_by_kernels,
               .prepare = tensor::prepare_matmul_nbits, .lower = tensor::lower_matmul_nbits);
}  // namespace oar
