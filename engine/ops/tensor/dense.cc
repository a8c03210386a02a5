// Layers with a constant matrix, and attention of heads: products through the packed kernel with their bias,
// residual and activation. What passes make of matmul and gemm (fuse_dense) and of the spelled-out attention
// of encoders (fuse_attention).
#include "engine/ops/tensor/heads.h"
#include "engine/ops/tensor/narrow.h"

namespace oar::tensor {
namespace {

struct PreparedDense {
  Tensor packed;
  std::optional<NarrowWeights> narrow;  // instead of `packed`
  int64_t K = 0, N = 0;
};

Result<std::shared_ptr<const void>> prepare_dense(PrepareContext& ctx) {
  const bool transposed = ctx.node().attrs.get_int("transposed") != 0;
  if (!ctx.constant(1) || !(ctx.constant(1)->format() == Format::f32()) ||
      ctx.constant(1)->shape().rank() != 2) {
    return invalid_argument("a dense layer needs a constant f32 matrix");
  }
  const Tensor& w = *ctx.constant(1);
  auto p = std::make_shared<PreparedDense>();
  p->K = w.shape()[transposed ? 1 : 0], p->N = w.shape()[transposed ? 0 : 1];
  if (precision_of(ctx.node().attrs) != Precision::kF32) {
    OAR_ASSIGN(p->narrow,
               prepare_narrow(ctx, {w, p->N, 1, p->K, transposed ? p->K : 1, 0, transposed ? 1 : p->N}));
    ctx.spend(1);
    return std::shared_ptr<const void>(std::move(p));
  }
  const int64_t width = filter_width(ctx.backend());
  const Shape floats{packed_filter_floats(p->N, 1, 1, p->K, width)};
  OAR_ASSIGN(p->packed, ctx.pack("w", floats, DType::kF32, [&](Tensor& t) {
    pack_filters(mutable_elements<float>(t), elements<float>(w), p->N, 1, 1, p->K, transposed ? p->K : 1,
                 transposed ? 1 : p->N, 0, width);
  }));
  ctx.spend(1);
  return std::shared_ptr<const void>(std::move(p));
}

// dense(x (..., K), w (K, N), bias (N)?, residual?) {transposed, matrix, activation, act_alpha, act_beta}:
// activation(x . w + bias + residual) of f32, w constant, (N, K) when transposed. `matrix`: x has two axes.
Status dense(EvalContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  const auto* p = ctx.prepared<PreparedDense>();
  if (!p) return internal_error("a dense layer was not prepared");
  if (dtype_of(x) != DType::kF32) return bad_dtype(x);
  const int rank = x.shape().rank();
  if (rank < 1 || (ctx.attrs().get_int("matrix") != 0 && rank != 2))
    return invalid_argument(cat("an operand ", x.shape().to_string(), " for a matrix product"));
  if (x.shape()[rank - 1] != p->K) {
    return invalid_argument(
        cat("inner extents differ: ", x.shape().to_string(), " . [", p->K, ", ", p->N, "]"));
  }
  OAR_ASSIGN(const Activation act, activation_of(ctx.attrs()));
  std::vector<int64_t> dims = dims_of(x.shape());
  dims.back() = p->N;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  PackedProduct c;
  Tensor bias, residual;
  if (ctx.has(2)) {
    OAR_ASSIGN(bias, ctx.tensor(2));
    if (dtype_of(bias) != DType::kF32 || bias.numel() != p->N)
      return invalid_argument("the bias needs one f32 value per column");
    c.bias = elements<float>(bias);
  }
  if (ctx.has(3)) {
    OAR_ASSIGN(residual, ctx.tensor(3));
    OAR_RETURN_IF_ERROR(check_same_dtype(x, residual));
  }
  const bool fused = residual.defined() && residual.shape() == shape;
  Tensor y;
  if (fused) {
    OAR_ASSIGN(y, ctx.allocate_over(3, residual, shape, DType::kF32));
  } else {
    OAR_ASSIGN(y, ctx.allocate(shape, DType::kF32));
  }
  if (fused) c.residual = elements<float>(residual);
  c.rows = x.numel() / std::max<int64_t>(p->K, 1), c.K = p->K, c.N = p->N;
  c.x = elements<float>(x), c.out = mutable_elements<float>(y);
  if (!residual.defined() || fused) c.activation = act;
  if (p->narrow) {
    // Each row is an image of one pixel: it has a scale of its own.
    WindowShape rows;
    rows.N = c.rows, rows.H = rows.W = rows.OH = rows.OW = 1;
    OAR_RETURN_IF_ERROR(
        run_narrow(ctx, *p->narrow, {rows, c.K, c.N, c.x, c.bias, c.residual, c.out, c.activation}));
  } else {
    c.w = elements<float>(p->packed);
    OAR_RETURN_IF_ERROR(packed_product(ctx, c));
  }
  if (residual.defined() && !fused) {  // of another shape: broadcast
    OAR_ASSIGN(const Broadcast b, Broadcast::make({&shape, &residual.shape()}));
    OAR_ASSIGN(Tensor out, ctx.allocate(b.shape(), DType::kF32));
    zip_elements<float, float>(ctx, b, y, residual, out, [&](float u, float v) {
      return act.given() ? static_cast<float>(act.apply(static_cast<double>(u + v))) : u + v;
    });
    y = std::move(out);
  }
  ctx.set(0, std::move(y));
  return ok_status();
}

Lowered lower_dense(LowerContext& ctx) {
  const auto* p = static_cast<const PreparedDense*>(ctx.prepared);
  const ValueInfo& x = ctx.operands[0];
  const int rank = x.shape.rank();
  if (p == nullptr || p->narrow || !is_f32(x) || rank < 1 || x.shape[rank - 1] != p->K || p->N == 0 ||
      x.shape.numel() == 0 || (ctx.node.attrs.get_int("matrix") != 0 && rank != 2))
    return not_lowered();
  std::vector<int64_t> dims = dims_of(x.shape);
  dims.back() = p->N;
  OAR_ASSIGN(const Shape shape, checked_shape(dims));
  const bool residual = ctx.given(3);
  if (ctx.given(2) && (!is_f32(ctx.operands[2]) || ctx.operands[2].shape.numel() != p->N))
    return not_lowered();
  if (residual && (!is_f32(ctx.operands[3]) || !(ctx.operands[3].shape == shape))) return not_lowered();
  PackedProduct c;
  c.rows = x.shape.numel() / p->K, c.K = p->K, c.N = p->N;
  c.w = elements<float>(p->packed);
  OAR_ASSIGN(c.activation, activation_of(ctx.node.attrs));
  return lowered_call(ctx, f32_kernel(ctx.backend, KernelFamily::kConv), product_args(ctx.backend, c), shape,
                      product_cost(c), residual ? 3 : -1,
                      [](ConvArgs& a, const Operand* in, const Operand* out) {
                        a.out = out[0].as<float>(), a.x = in[0].as<const float>();
                        a.bias = in[2].as<const float>(), a.residual = in[3].as<const float>();
                      });
}

// --- attention ---

// `scratch` holds packed keys, packed values and scores.
void attend(const Backend& backend, const HeadShape& s, const Head& h, float* scratch, OneThread& thread) {
  const Kernel& product = f32_kernel(backend, KernelFamily::kConv);
  const Kernel& softmax = f32_kernel(backend, KernelFamily::kSoftmax);
  const int64_t width = panel_width(product.isa), keys = packed_filter_floats(s.T, 1, 1, s.D, width);
  const int64_t values = packed_filter_floats(s.DV, 1, 1, s.T, width);
  float *pk = scratch, *pv = pk + keys, *scores = pv + values;
  pack_filters(pk, h.k, s.T, 1, 1, s.D, s.k_row, 1, 0, width);
  pack_filters(pv, h.v, s.DV, 1, 1, s.T, 1, s.v_row, 0, width);
  ConvArgs a;
  a.window.N = a.window.H = a.window.OH = 1;
  a.window.W = a.window.OW = s.S;
  a.panel = width;
  a.out = scores, a.x = h.q, a.w = pk, a.C = s.D, a.M = s.T, a.ldx = s.q_row, a.ldo = s.T;
  thread.run(product, &a);
  SoftmaxArgs soft;
  soft.out = scores, soft.x = scores, soft.mask = h.mask, soft.mask_row = s.mask_row;
  soft.rows = s.S, soft.n = s.T, soft.scale = s.scale;
  thread.run(softmax, &soft);
  a.out = h.out, a.x = scores, a.w = pv, a.C = s.T, a.M = s.DV, a.ldx = s.T, a.ldo = s.out_row;
  thread.run(product, &a);
}

// head_attention(q (B, S, H, D), k (B, T, H, D), v (B, T, H, DV), mask?) {scale} -> (B, S, H, DV):
// softmax(q k^T scale + mask) v per head; the mask broadcasts to (B, H, S, T).
Status head_attention(EvalContext& ctx) {
  Tensor in[3];
  for (size_t i = 0; i < 3; ++i) {
    OAR_ASSIGN(in[i], ctx.tensor(i));
    if (!dtype_is_float(dtype_of(in[i])) || in[i].shape().rank() != 4) return bad_dtype(in[i]);
    OAR_RETURN_IF_ERROR(check_same_dtype(in[0], in[i]));
  }
  const DType dtype = dtype_of(in[0]);
  const Shape &q = in[0].shape(), &k = in[1].shape(), &v = in[2].shape();
  const int64_t B = std::max({q[0], k[0], v[0]}), H = std::max({q[2], k[2], v[2]});
  HeadShape s;
  s.S = q[1], s.T = k[1], s.D = q[3], s.DV = v[3];
  s.q_row = q[2] * s.D, s.k_row = k[2] * s.D, s.v_row = v[2] * s.DV, s.out_row = H * s.DV;
  // As matmul broadcasts: a batch entry or head of one serves all.
  const auto fits = [](int64_t own, int64_t all) { return own == all || own == 1; };
  bool match = k[3] == s.D && v[1] == s.T;
  for (const Shape* shape : {&q, &k, &v}) match = match && fits((*shape)[0], B) && fits((*shape)[2], H);
  if (!match) {
    return invalid_argument(
        cat("heads ", q.to_string(), ", ", k.to_string(), " and ", v.to_string(), " do not match"));
  }
  for (Tensor& t : in) { OAR_ASSIGN(t, as_f32(ctx, t)); }
  OAR_ASSIGN(const Shape shape, checked_shape(std::vector<int64_t>{B, s.S, H, s.DV}));
  OAR_ASSIGN(Tensor y, ctx.allocate(shape, DType::kF32));
  // Where the mask's entries of one head lie: broadcast axes have stride 0.
  Tensor mask;
  int64_t mask_b = 0, mask_h = 0;
  if (ctx.has(3)) {
    OAR_ASSIGN(const Tensor given, ctx.tensor(3));
    if (dtype_of(given) != dtype) return check_same_dtype(in[0], given);
    OAR_ASSIGN(mask, as_f32(ctx, given));
    const Shape full{B, H, s.S, s.T};
    OAR_ASSIGN(const Broadcast b, Broadcast::make({&full, &mask.shape()}));
    if (!(b.shape() == full)) return invalid_argument("the mask is larger than the scores");
    std::vector<int64_t> dims(static_cast<size_t>(4 - mask.shape().rank()), 1);
    dims.insert(dims.end(), mask.shape().begin(), mask.shape().end());
    if (dims[3] != s.T) {  // one value for all keys
      const Shape wide{dims[0], dims[1], dims[2], s.T};
      OAR_ASSIGN(Tensor spread, ctx.allocate(wide, DType::kF32));
      for (int64_t r = 0; r < spread.numel() / std::max<int64_t>(s.T, 1); ++r)
        std::fill_n(mutable_elements<float>(spread) + r * s.T, s.T, elements<float>(mask)[r]);
      mask = std::move(spread);
    }
    s.mask_row = dims[2] == 1 ? 0 : s.T;
    mask_h = dims[1] == 1 ? 0 : dims[2] * s.T;
    mask_b = dims[0] == 1 ? 0 : dims[1] * dims[2] * s.T;
  }
  if (y.numel() == 0) return ctx.set(0, std::move(y)), ok_status();
  s.scale = static_cast<float>(ctx.attrs().get_float("scale", 1));
  OAR_RETURN_IF_ERROR(attend_heads(ctx, s, B * H, [&](int64_t u) {
    const int64_t b = u / H, h = u % H;
    // The first row of this head, of an operand (B or 1, rows, H or 1, width).
    const auto head = [&](const Tensor& t) {
      const Shape& o = t.shape();
      const int64_t ob = o[0] == 1 ? 0 : b, oh = o[2] == 1 ? 0 : h;
      return elements<float>(t) + (ob * o[1] * o[2] + oh) * o[3];
    };
    return Head{head(in[0]), head(in[1]), head(in[2]),
                mask.defined() ? elements<float>(mask) + b * mask_b + h * mask_h : nullptr,
                mutable_elements<float>(y) + (b * s.S * H + h) * s.DV};
  }));
  OAR_ASSIGN(y, from_f32(ctx, y, dtype));
  ctx.set(0, std::move(y));
  return ok_status();
}

}  // namespace

Status attend_heads(const EvalContext& ctx, const HeadShape& s, int64_t heads,
                    const std::function<Head(int64_t)>& head) {
  const int64_t width = filter_width(ctx.backend()), workers = ctx.backend().workers();
  const int64_t floats = packed_filter_floats(std::max<int64_t>(s.T, 1), 1, 1, s.D, width) +
                         packed_filter_floats(s.DV, 1, 1, s.T, width) + s.S * s.T;
  // As many slices of scratch as there are ranges of heads in flight.
  const int64_t slices = std::min(heads, workers * 4);
  OAR_ASSIGN(const Shape scratch_shape, checked_shape(std::vector<int64_t>{slices, floats}));
  OAR_ASSIGN(Tensor scratch, ctx.allocate(scratch_shape, DType::kF32));
  const double cost = 0.05 * static_cast<double>(s.S * s.T) * static_cast<double>(s.D + s.DV);
  ctx.parallel(slices, cost * static_cast<double>(heads) / static_cast<double>(slices),
               [&](int64_t begin, int64_t end) {
                 OneThread thread;
                 for (int64_t slice = begin; slice < end; ++slice) {
                   float* own = mutable_elements<float>(scratch) + slice * floats;
                   for (int64_t u = heads * slice / slices; u < heads * (slice + 1) / slices; ++u)
                     attend(ctx.backend(), s, head(u), own, thread);
                 }
               });
  return ok_status();
}

}  // namespace oar::tensor

namespace oar {
extern const OpDef op_dense = {.name = "dense",
                               .gradient = Gradient::kNone,
                               .evaluate = tensor::dense,
                               .prepare = tensor::prepare_dense,
                               .lower = tensor::lower_dense};
OAR_TENSOR_OP(head_attention, tensor::head_attention);
}  // namespace oar
