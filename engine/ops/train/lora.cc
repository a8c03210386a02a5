// lora_linear and its way back (ops.h): a layer and its adapter at once. An adapter's products are thin: they
// cost what reading and writing rows costs. So its part is added where the layer's lies already.
#include "engine/ops/define/definitions.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"
#include "engine/ops/train/stored_matrix.h"
#include "kernels/conv.h"

namespace oar::train {
namespace {

DimVector with_last_axis(DimVector shape, const Dim& last) {
  shape.back() = last;
  return shape;
}

// x (..., K), w (N, K), bias (N), a (r, K), b (N, r)
Types lora_infer(const Graph& g, Ids in, const Attrs& attrs) {
  const DimVector x = shape_of(g, in[0]), w = shape_of(g, in[1]), a = shape_of(g, in[3]),
                  b = shape_of(g, in[4]);
  if (x.empty() || w.size() != 2 || a.size() != 2 || b.size() != 2 || !(x.back() == w[1]) ||
      !(a[1] == w[1]) || !(b[0] == w[0]) || !(a[0] == b[1]))
    return invalid_argument("x, the weight and its adapter do not fit");
  return std::vector<TensorType>{{result_format(attrs, 0), with_last_axis(x, w[0])},
                                 {result_format(attrs, 1), with_last_axis(x, a[0])}};
}

// dy (..., N), w (N, K), a (r, K), b (N, r)
Types lora_back_infer(const Graph& g, Ids in, const Attrs& attrs) {
  const DimVector dy = shape_of(g, in[0]), w = shape_of(g, in[1]), a = shape_of(g, in[2]);
  if (dy.empty() || w.size() != 2 || a.size() != 2 || !(dy.back() == w[0]))
    return invalid_argument("dy and the weight do not fit");
  return std::vector<TensorType>{{result_format(attrs, 0), with_last_axis(dy, a[0])},
                                 {result_format(attrs, 1), with_last_axis(dy, w[1])}};
}

// A matrix (terms, cols), or (cols, terms) where it is `turned`.
struct Thin {
  const Tensor& m;
  bool turned = false;
  int64_t terms() const { return m.shape()[turned ? 1 : 0]; }
  int64_t cols() const { return m.shape()[turned ? 0 : 1]; }
};

bool adapter_fits(const Tensor& m, int64_t rows, int64_t cols) {
  return m.shape() == Shape{rows, cols} && (m.format() == Format::f32() || m.format() == Format::bf16());
}

// to.out (rows, cols) = x (rows, terms) . m + to.add. With x in bf16 by products of bf16, where there is a
// kernel; these alone round.
Status thin_product(const KernelContext& ctx, const Tensor& x, int64_t rows, const Thin& m,
                    const ProductRows& to) {
  const int64_t K = m.terms(), N = m.cols();
  if (x.format() == Format::bf16() && narrow_kernel(ctx) != nullptr) {
    OAR_ASSIGN(const Tensor pairs, m.turned ? pack_turned_pairs(ctx, m.m) : pack_pairs(ctx, m.m));
    return ctx.options().sizing ? ok_status()
                                : narrow_product(ctx, elements<bf16>(x), rows, pairs, {K, N}, to);
  }
  OAR_ASSIGN(const Tensor wide, widened(ctx, x));
  OAR_ASSIGN(const Tensor beside, rounded_beside(ctx, x, m.m));
  OAR_ASSIGN(const Tensor from, widened(ctx, beside));
  const int64_t panel = ctx.backend().filter_panel();
  OAR_ASSIGN(Tensor packed, ctx.allocate({packed_filter_floats(N, 1, 1, K, panel)}, DType::kF32));
  if (ctx.options().sizing) return ok_status();
  pack_filters(mutable_elements<float>(packed), elements<float>(from), N, 1, 1, K, m.turned ? K : 1,
               m.turned ? 1 : N, 0, panel);
  tensor::PackedProduct p;
  p.rows = rows, p.K = K, p.N = N;
  p.x = elements<float>(wide), p.w = elements<float>(packed);
  p.residual = to.add, p.out = static_cast<float*>(to.out);
  return tensor::packed_product(ctx, p);
}

// low (rows, r) = factor x . first, y (rows, N) = base + low . second; base is f32, and y itself where that
// is. Without y `low` alone.
Status add_adapter(const KernelContext& ctx, const Tensor& x, int64_t rows, const Thin& first,
                   const Thin& second, Tensor& low, const Tensor& base, Tensor& y) {
  const bool narrow = x.format() == Format::bf16(), rounded_low = low.format() == Format::bf16();
  Tensor wide = low, rounded = low;
  if (rounded_low) { OAR_ASSIGN(wide, ctx.allocate(low.shape(), DType::kF32)); }
  OAR_RETURN_IF_ERROR(thin_product(ctx, x, rows, first, {wide.mutable_data()}));
  if (narrow && !rounded_low && y.defined()) { OAR_ASSIGN(rounded, ctx.allocate(low.shape(), DType::kBF16)); }
  const auto factor = static_cast<float>(ctx.attrs().get_float("factor", 1));
  float* const values = mutable_elements<float>(wide);
  const bool rounds = rounded.format() == Format::bf16();
  ctx.parallel(low.numel(), 0.3, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      values[k] *= factor;
      if (rounds) mutable_elements<bf16>(rounded)[k] = to_bf16(values[k]);
    }
  });
  if (!y.defined()) return ok_status();
  // Before a rounded y its products are, where no kernel of theirs rounds, added where the base lies.
  const Tensor& second_of = narrow ? rounded : wide;
  const bool by_kernel = narrow && narrow_kernel(ctx) != nullptr, rounds_y = y.format() == Format::bf16();
  ProductRows to{y.mutable_data(), rounds_y, elements<float>(base), nullptr};
  if (rounds_y && !by_kernel) to.out = base.mutable_data(), to.rounded = false;
  OAR_RETURN_IF_ERROR(thin_product(ctx, second_of, rows, second, to));
  return rounds_y && !by_kernel
             ? round_numbers(ctx, elements<float>(base), y.numel(), mutable_elements<bf16>(y))
             : ok_status();
}

Result<Tensor> rows_like(const EvalContext& ctx, const Tensor& x, int64_t last, DType type) {
  std::vector<int64_t> dims = tensor::dims_of(x.shape());
  dims.back() = last;
  return ctx.allocate(Shape(dims), type);
}
// Where a layer's own rows go before its adapter's are added: into y, where that is f32.
Result<Tensor> base_of(const EvalContext& ctx, const Tensor& y) {
  return y.format() == Format::f32() ? Result<Tensor>(y) : ctx.allocate(y.shape(), DType::kF32);
}

Result<bool> lora_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(const Tensor a, ctx.tensor(3));
  OAR_ASSIGN(const Tensor b, ctx.tensor(4));
  if (w.shape().rank() != 2 || a.shape().rank() != 2 || x.shape().rank() < 1 ||
      x.shape().cols() != w.shape()[1] || !adapter_fits(a, a.shape()[0], w.shape()[1]) ||
      !adapter_fits(b, w.shape()[0], a.shape()[0]))
    return invalid_argument(cat("x ", x.shape().to_string(), ", the weight ", w.shape().to_string(),
                                " and its adapter do not fit"));
  Tensor bias;
  if (ctx.has(2)) {
    OAR_ASSIGN(bias, ctx.tensor(2));
    if (!(bias.format() == Format::f32()) || !(bias.shape() == Shape{w.shape()[0]}))
      return invalid_argument("the bias must be f32 (N)");
  }
  const int64_t rows = x.numel() / std::max<int64_t>(x.shape().cols(), 1);
  OAR_ASSIGN(Tensor y, rows_like(ctx, x, w.shape()[0], result_type(ctx.attrs(), 0)));
  OAR_ASSIGN(Tensor low, rows_like(ctx, x, a.shape()[0], result_type(ctx.attrs(), 1)));
  OAR_ASSIGN(Tensor base, base_of(ctx, y));
  OAR_RETURN_IF_ERROR(rows_there(ctx, x, w, ctx.prepared<StoredMatrix>(),
                                 bias.defined() ? elements<float>(bias) : nullptr, base));
  OAR_RETURN_IF_ERROR(add_adapter(ctx, x, rows, {a, true}, {b, true}, low, base, y));
  ctx.set(0, std::move(y));
  ctx.set(1, std::move(low));
  return true;
}

Result<bool> lora_back_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor dy, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(const Tensor a, ctx.tensor(2));
  OAR_ASSIGN(const Tensor b, ctx.tensor(3));
  if (w.shape().rank() != 2 || a.shape().rank() != 2 || dy.shape().rank() < 1 ||
      dy.shape().cols() != w.shape()[0] || !adapter_fits(a, a.shape()[0], w.shape()[1]) ||
      !adapter_fits(b, w.shape()[0], a.shape()[0]))
    return invalid_argument(cat("dy ", dy.shape().to_string(), ", the weight ", w.shape().to_string(),
                                " and its adapter do not fit"));
  const int64_t rows = dy.numel() / std::max<int64_t>(dy.shape().cols(), 1);
  OAR_ASSIGN(Tensor low, rows_like(ctx, dy, a.shape()[0], result_type(ctx.attrs(), 0)));
  Tensor dx, base;
  if (ctx.wants(1)) {
    OAR_ASSIGN(dx, rows_like(ctx, dy, w.shape()[1], result_type(ctx.attrs(), 1)));
    OAR_ASSIGN(base, base_of(ctx, dx));
    OAR_RETURN_IF_ERROR(rows_back(ctx, dy, w, base));
  }
  OAR_RETURN_IF_ERROR(add_adapter(ctx, dy, rows, {b, false}, {a, false}, low, base, dx));
  ctx.set(0, std::move(low));
  if (dx.defined()) ctx.set(1, std::move(dx));
  return true;
}

// low = factor x . first, and base + low . second, as layers whose matrices are read as `attrs` says.
std::vector<Val> adapted(Builder& b, Val x, Val base, Val first, Val second, double factor,
                         const Attrs& attrs) {
  const Val product = b.op("linear", {x, Val{}, first, Val{}}, attrs);
  const Val low = b.op("mul", {product, b.scalar(factor)});
  return {low, b.op("add", {base, b.op("linear", {low, Val{}, second, Val{}}, attrs)})};
}

std::vector<Val> lora_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val x = definition::real(b, in[0]), base = b.op("linear", {x, Val{}, in[1], in[2]});
  std::vector<Val> out = adapted(b, x, base, in[3], in[4], attrs.get_float("factor", 1), {});
  std::swap(out[0], out[1]);
  return rounded_results(b, std::move(out), attrs);
}

std::vector<Val> lora_back_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Attrs by_inputs{{"input_major", int64_t{1}}};
  const Val dy = definition::real(b, in[0]), base = b.op("linear", {dy, Val{}, in[1], Val{}}, by_inputs);
  return rounded_results(b, adapted(b, dy, base, in[3], in[2], attrs.get_float("factor", 1), by_inputs),
                         attrs);
}

// dA = (factor (dy B + dlow))^T x, dB = dy^T low. The gradient of a gradient may have dlow, or that alone.
std::vector<Val> lora_vjp(const Pullback& p) {
  Builder& b = p.b;
  if (p.wanted[1] != 0 || p.wanted[2] != 0) {
    b.fail(unimplemented("lora_linear has no gradient of the layer itself"));
    return {};
  }
  const auto gradient = [&](Val dy, Val x) {
    const auto made = emit(b, op_rows_gradient, std::vector<Val>{dy, x});
    return made.empty() ? Val{} : made[0];
  };
  std::vector<Val> out(5);
  Val inner;  // of x A^T
  if (p.d[0]) {
    const auto back =
        emit(b, op_lora_back, std::vector<Val>{p.d[0], p.in[1], p.in[3], p.in[4]}, without_rounding(p.attrs));
    if (back.empty()) return {};
    if (p.wanted[0] == 0) b.graph().nodes().back().outputs.resize(1);
    else out[0] = back[1];
    inner = back[0];
    if (p.wanted[4] != 0) out[4] = gradient(p.d[0], p.out[1]);
  }
  if (p.d[1]) {
    const Val own = b.op("mul", {p.d[1], b.scalar(p.attrs.get_float("factor", 1))});
    if (p.wanted[0] != 0)
      out[0] = b.op("linear", {own, out[0], p.in[3], Val{}}, {{"input_major", int64_t{1}}});
    inner = inner ? b.op("add", {inner, own}) : own;
  }
  if (p.wanted[3] != 0) out[3] = gradient(inner, p.in[0]);
  return out;
}

}  // namespace

void use_lora_ops(Graph& g) {
  const std::vector<int> producer = g.producers(), uses = g.use_counts();
  // The node of this op whose one result is `v`, which nobody else reads.
  const auto made = [&](ValueId v, const char* op) -> const Node* {
    if (v == kNoValue || uses[static_cast<size_t>(v)] != 1) return nullptr;
    const int k = producer[static_cast<size_t>(v)];
    return k >= 0 && g.nodes()[static_cast<size_t>(k)].is(op) ? &g.nodes()[static_cast<size_t>(k)] : nullptr;
  };
  const auto plain = [&](const Node* n) {
    return n != nullptr && n->inputs.size() == 4 && n->inputs[1] == kNoValue && !n->attrs.has("activation") &&
           n->attrs.get_int("input_major") == 0 && g.value(n->inputs[0]).type.shape.size() == 2 &&
           g.value(n->inputs[2]).type.shape.size() == 2;
  };
  const auto is = [&](ValueId v, ValueKind kind) { return v == kNoValue || g.value(v).kind == kind; };
  const size_t count = g.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    const Node sum = g.nodes()[i];
    if (!sum.is("add")) continue;
    const Node *const base = made(sum.inputs[0], "linear"), *const scaled = made(sum.inputs[1], "mul");
    const Node* const up = scaled == nullptr ? nullptr : made(scaled->inputs[0], "linear");
    const Node* const down = up == nullptr ? nullptr : made(up->inputs[0], "linear");
    if (!plain(base) || !plain(up) || !plain(down) || base->inputs[0] != down->inputs[0] ||
        !is(base->inputs[2], ValueKind::kConstant) || !is(base->inputs[3], ValueKind::kConstant) ||
        !is(scaled->inputs[1], ValueKind::kConstant) || !is(up->inputs[2], ValueKind::kState) ||
        !is(down->inputs[2], ValueKind::kState) || up->inputs[3] != kNoValue || down->inputs[3] != kNoValue)
      continue;
    const Tensor factor = g.value(scaled->inputs[1]).constant;
    if (factor.numel() != 1 || !(factor.format() == Format::f32())) continue;
    const auto out = g.add_node(
        &op_lora_linear, {base->inputs[0], base->inputs[2], base->inputs[3], down->inputs[2], up->inputs[2]},
        {{"factor", static_cast<double>(factor.values<float>()[0])}});
    if (!out.ok()) continue;
    Node node = std::move(g.nodes().back());
    g.nodes().pop_back();
    node.outputs[0] = sum.outputs[0];
    g.nodes()[i] = std::move(node);
  }
}

const OpDef op_lora_linear = {.name = "lora_linear",
                              .infer = lora_infer,
                              .define = lora_define,
                              .vjp = lora_vjp,
                              .by_kernels = lora_by_kernels,
                              .prepare = prepare_stored_matrix<1>,
                              .no_gradient_of = "the layer's own weight and bias"};
const OpDef op_lora_back = {.name = "lora_back",
                            .infer = lora_back_infer,
                            .define = lora_back_define,
                            .by_kernels = lora_back_by_kernels};

}  // namespace oar::train
