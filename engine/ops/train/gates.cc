// rows_swiglu, rows_rms_norm and their ways back (ops.h). Their derived gradients are a dozen ops between
// which all rows go through memory; here they go through once.
#include <cmath>

#include "engine/graph/derived.h"
#include "engine/ops/define/definitions.h"
#include "engine/ops/op_util.h"
#include "engine/ops/tensor/kernel_call.h"
#include "engine/ops/train/ops.h"
#include "engine/ops/train/stored_matrix.h"
#include "kernels/activation.h"
#include "kernels/norm.h"

namespace oar::train {
namespace {

using Four = float __attribute__((vector_size(16)));
using Two = double __attribute__((vector_size(16)));

// Numbers of a chunk, few enough that all of its operands stay in the first-level cache.
constexpr int64_t kGateChunk = 1024;

Types like_first(const Graph& g, Ids in, const Attrs& attrs, size_t results) {
  std::vector<TensorType> out;
  for (size_t k = 0; k < results; ++k) out.push_back({result_format(attrs, k), shape_of(g, in[0])});
  return out;
}
Types one_like_first(const Graph& g, Ids in, const Attrs& attrs) { return like_first(g, in, attrs, 1); }
Types two_like_first(const Graph& g, Ids in, const Attrs& attrs) { return like_first(g, in, attrs, 2); }

// fn(at, n) for chunks of `count` numbers, on all workers; each has a copy of fn.
template <class F>
void each_chunk(const KernelContext& ctx, int64_t count, F fn) {
  ctx.parallel((count + kGateChunk - 1) / kGateChunk, 2.0 * kGateChunk, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) fn(c * kGateChunk, std::min(kGateChunk, count - c * kGateChunk));
  });
}

Result<bool> swiglu_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor gate, ctx.tensor(0));
  OAR_ASSIGN(const Tensor up, ctx.tensor(1));
  if (!is_float(gate) || !is_float(up) || !(gate.shape() == up.shape()))
    return invalid_argument("gate and up are f32 or bf16 of one shape");
  OAR_ASSIGN(Tensor y, ctx.allocate(gate.shape(), result_type(ctx.attrs(), 0)));
  const Kernel& kernel = tensor::f32_kernel(ctx.backend(), KernelFamily::kSwiGlu);
  ctx.uses(kernel);
  each_chunk(ctx, gate.numel(), [&](int64_t at, int64_t n) {
    alignas(64) float room[3][kGateChunk];
    const FloatsTo to(ctx, y, at, n, room[2]);
    SwiGluArgs a;
    a.gate = as_floats(gate, at, n, room[0]), a.up = as_floats(up, at, n, room[1]);
    a.out = to.data();
    a.T = 1, a.F = a.ldo = a.ldg = a.ldu = n;
    tensor::OneThread().run(kernel, &a);
    to.done();
  });
  ctx.set(0, std::move(y));
  return true;
}

// y = g s u with s = sigmoid(g): du = dy g s, dg = dy u s (1 + g (1 - s))
template <class V>
void gate_back(V g, V u, V dy, V s, V& dg, V& du) {
  const V t = dy * s;
  dg = t * u * (1 + g * (1 - s)), du = t * g;
}

Result<bool> swiglu_back_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor gate, ctx.tensor(0));
  OAR_ASSIGN(const Tensor up, ctx.tensor(1));
  OAR_ASSIGN(const Tensor dy, ctx.tensor(2));
  if (!is_float(gate) || !is_float(up) || !is_float(dy) || !(gate.shape() == up.shape()) ||
      !(gate.shape() == dy.shape()))
    return invalid_argument("gate, up and dy are f32 or bf16 of one shape");
  OAR_ASSIGN(Tensor dg, ctx.allocate(gate.shape(), result_type(ctx.attrs(), 0)));
  OAR_ASSIGN(Tensor du, ctx.allocate(gate.shape(), result_type(ctx.attrs(), 1)));
  const Kernel& kernel = tensor::f32_kernel(ctx.backend(), KernelFamily::kUnary);
  ctx.uses(kernel);
  each_chunk(ctx, gate.numel(), [&](int64_t at, int64_t n) {
    alignas(64) float room[6][kGateChunk];
    const FloatsTo by_gate(ctx, dg, at, n, room[4]), by_up(ctx, du, at, n, room[5]);
    const float *const g = as_floats(gate, at, n, room[0]), *const u = as_floats(up, at, n, room[1]),
                       *const d = as_floats(dy, at, n, room[2]), *const s = room[3];
    UnaryArgs a;
    a.op = UnaryOp::kSigmoid, a.x = g, a.out = room[3], a.n = n;
    tensor::OneThread().run(kernel, &a);
    float *const to_g = by_gate.data(), *const to_u = by_up.data();
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
      const auto at_i = [i](const float* p) { return load_lanes<Four>(p + i); };
      Four by_g, by_u;
      gate_back(at_i(g), at_i(u), at_i(d), at_i(s), by_g, by_u);
      store_lanes(to_g + i, by_g), store_lanes(to_u + i, by_u);
    }
    for (; i < n; ++i) gate_back(g[i], u[i], d[i], s[i], to_g[i], to_u[i]);
    by_gate.done(), by_up.done();
  });
  ctx.set(0, std::move(dg));
  ctx.set(1, std::move(du));
  return true;
}

std::vector<Val> swiglu_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val y = b.op("swiglu", {definition::real(b, in[0]), definition::real(b, in[1])});
  return rounded_results(b, {y}, attrs);
}
std::vector<Val> swiglu_back_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val dy[] = {definition::real(b, in[2])};
  return rounded_results(b, derived_gradient(b, swiglu_define, in.first(2), {}, dy, 2), attrs);
}

std::vector<Val> swiglu_vjp(const Pullback& p) {
  return emit(p.b, op_rows_swiglu_back, std::vector<Val>{p.in[0], p.in[1], p.d[0]});
}

Status check_norm(const Tensor& x, const Tensor& w) {
  if (x.shape().rank() != 2 || !is_float(x) || !(w.format() == Format::f32()) ||
      !(w.shape() == Shape{x.shape()[1]}))
    return invalid_argument("x is f32 or bf16 (T, E), its weight f32 (E)");
  return ok_status();
}
double epsilon_of(const EvalContext& ctx) { return ctx.attrs().get_float("epsilon", 1e-5); }

// Rows of E floats for one worker.
class RowRoom {
 public:
  RowRoom(int64_t E, size_t rows) : E_(static_cast<size_t>(E)), floats_(E_ * rows) {}
  float* row(size_t k) { return floats_.data() + k * E_; }

 private:
  size_t E_;
  std::vector<float> floats_;
};

Result<bool> norm_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_RETURN_IF_ERROR(check_norm(x, w));
  OAR_ASSIGN(Tensor y, ctx.allocate(x.shape(), result_type(ctx.attrs(), 0)));
  const int64_t E = x.shape()[1];
  const Kernel& kernel = tensor::f32_kernel(ctx.backend(), KernelFamily::kRmsNorm);
  ctx.uses(kernel);
  ctx.parallel(E > 0 ? x.shape()[0] : 0, 0.6 * static_cast<double>(E), [&](int64_t begin, int64_t end) {
    RowRoom room(E, 2);
    RmsNormArgs a;
    a.w = elements<float>(w), a.rows = 1, a.cols = a.ldx = a.ldo = E;
    a.eps = static_cast<float>(epsilon_of(ctx));
    for (int64_t t = begin; t < end; ++t) {
      const FloatsTo to(ctx, y, t * E, E, room.row(0));
      a.x = as_floats(x, t * E, E, room.row(1)), a.out = to.data();
      tensor::OneThread().run(kernel, &a);
      to.done();
    }
  });
  ctx.set(0, std::move(y));
  return true;
}

// Numbers 2h and 2h + 1 of four.
template <int h>
Two half_of(Four v) {
  return __builtin_convertvector(__builtin_shufflevector(v, v, 2 * h, 2 * h + 1), Two);
}

// The sum over k of a[k] b[k], c[k] being 1 where null; in double, in an order that n alone decides.
double sum_of_products(const float* a, const float* b, const float* c, int64_t n) {
  Two sums[2] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    auto v = load_lanes<Four>(a + i);
    if (c != nullptr) v *= load_lanes<Four>(c + i);
    const auto w = load_lanes<Four>(b + i);
    sums[0] += half_of<0>(v) * half_of<0>(w);
    sums[1] += half_of<1>(v) * half_of<1>(w);
  }
  double sum = (sums[0][0] + sums[0][1]) + (sums[1][0] + sums[1][1]);
  for (; i < n; ++i)
    sum += static_cast<double>(c != nullptr ? a[i] * c[i] : a[i]) * static_cast<double>(b[i]);
  return sum;
}

// sums[c] += a[c] b[c] by
void add_products(const float* a, const float* b, float by, int64_t n, double* sums) {
  int64_t c = 0;
  for (; c + 4 <= n; c += 4) {
    const Four v = load_lanes<Four>(a + c), w = load_lanes<Four>(b + c) * by;
    store_lanes(sums + c, load_lanes<Two>(sums + c) + half_of<0>(v) * half_of<0>(w));
    store_lanes(sums + c + 2, load_lanes<Two>(sums + c + 2) + half_of<1>(v) * half_of<1>(w));
  }
  for (; c < n; ++c) sums[c] += static_cast<double>(a[c]) * static_cast<double>(b[c] * by);
}

// y = x r w with r = (mean(x^2) + epsilon)^-1/2: dx = r (dy w - x r^2 mean(dy w x)), dw = sum of dy x r
Result<bool> norm_back_by_kernels(KernelContext& ctx) {
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(const Tensor dy, ctx.tensor(2));
  OAR_RETURN_IF_ERROR(check_norm(x, w));
  if (!is_float(dy) || !(dy.shape() == x.shape()))
    return invalid_argument("dy is shaped like x, in f32 or bf16");
  const int64_t T = x.shape()[0], E = x.shape()[1];
  OAR_ASSIGN(Tensor dx, ctx.allocate(x.shape(), result_type(ctx.attrs(), 0)));
  // Sums over rows of groups of rows, whatever the workers; then over groups.
  constexpr int64_t kGroup = 32;
  const bool of_weight = ctx.wants(1);
  const int64_t groups = (T + kGroup - 1) / kGroup;
  Tensor sums, dw;
  if (of_weight) {
    OAR_ASSIGN(sums, ctx.zeros({groups, E}, DType::kF64));
    OAR_ASSIGN(dw, ctx.allocate({E}, DType::kF32));
  }
  ctx.parallel(groups, 2.0 * static_cast<double>(kGroup * E), [&](int64_t begin, int64_t end) {
    RowRoom room(E, 3);
    const float* const f = elements<float>(w);
    for (int64_t t = begin * kGroup; t < std::min(T, end * kGroup); ++t) {
      const FloatsTo result(ctx, dx, t * E, E, room.row(0));
      const float *const row = as_floats(x, t * E, E, room.row(1)), *const d =
                                                                        as_floats(dy, t * E, E, room.row(2));
      const auto n = static_cast<double>(E);
      const double scale = 1 / std::sqrt(sum_of_products(row, row, nullptr, E) / n + epsilon_of(ctx));
      const double slope = scale * scale * scale * sum_of_products(d, row, f, E) / n;
      const auto r = static_cast<float>(scale), by = static_cast<float>(slope);
      float* const to = result.data();
      int64_t i = 0;
      for (; i + 4 <= E; i += 4)
        store_lanes(to + i,
                    load_lanes<Four>(d + i) * load_lanes<Four>(f + i) * r - load_lanes<Four>(row + i) * by);
      for (; i < E; ++i) to[i] = d[i] * f[i] * r - row[i] * by;
      result.done();
      if (of_weight) add_products(d, row, r, E, mutable_elements<double>(sums) + t / kGroup * E);
    }
  });
  ctx.set(0, std::move(dx));
  if (!of_weight) return true;
  ctx.parallel(E, static_cast<double>(groups), [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      double sum = 0;
      for (int64_t g = 0; g < groups; ++g) sum += elements<double>(sums)[g * E + c];
      mutable_elements<float>(dw)[c] = static_cast<float>(sum);
    }
  });
  ctx.set(1, std::move(dw));
  return true;
}

Types norm_back_infer(const Graph& g, Ids in, const Attrs& attrs) {
  return std::vector<TensorType>{{result_format(attrs, 0), shape_of(g, in[0])},
                                 {Format::f32(), shape_of(g, in[1])}};
}

std::vector<Val> norm_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val y = b.op("rms_norm", {definition::real(b, in[0]), in[1]}, without_rounding(attrs));
  return rounded_results(b, {y}, attrs);
}
std::vector<Val> norm_back_define(Builder& b, std::span<const Val> in, const Attrs& attrs) {
  const Val dy[] = {definition::real(b, in[2])};
  return rounded_results(b, derived_gradient(b, norm_define, in.first(2), without_rounding(attrs), dy, 2),
                         attrs);
}

std::vector<Val> norm_vjp(const Pullback& p) {
  auto back =
      emit(p.b, op_rows_rms_norm_back, std::vector<Val>{p.in[0], p.in[1], p.d[0]}, without_rounding(p.attrs));
  if (!back.empty() && p.wanted[1] == 0) p.b.graph().nodes().back().outputs.resize(1), back[1] = Val{};
  return back;
}

}  // namespace

void use_gate_ops(Graph& g) {
  const auto rank = [&](const Node& n, size_t k) {
    return n.inputs.size() == 2 && n.inputs[k] != kNoValue ? g.value(n.inputs[k]).type.shape.size() : 0;
  };
  for (Node& n : g.nodes()) {
    const bool plain = n.is("swiglu") && n.attrs == Attrs{};
    if (plain && rank(n, 0) == 2 && g.value(n.inputs[0]).type.shape == g.value(n.inputs[1]).type.shape)
      n.op = &op_rows_swiglu;
    const int64_t axis = n.attrs.get_int("axis", -1);
    if (n.is("rms_norm") && rank(n, 0) == 2 && rank(n, 1) == 1 && (axis == -1 || axis == 1))
      n.op = &op_rows_rms_norm;
  }
}

const OpDef op_rows_swiglu = {.name = "rows_swiglu",
                              .infer = one_like_first,
                              .define = swiglu_define,
                              .vjp = swiglu_vjp,
                              .by_kernels = swiglu_by_kernels};
const OpDef op_rows_swiglu_back = {.name = "rows_swiglu_back",
                                   .infer = two_like_first,
                                   .define = swiglu_back_define,
                                   .by_kernels = swiglu_back_by_kernels};
const OpDef op_rows_rms_norm = {.name = "rows_rms_norm",
                                .infer = one_like_first,
                                .define = norm_define,
                                .vjp = norm_vjp,
                                .by_kernels = norm_by_kernels};
const OpDef op_rows_rms_norm_back = {.name = "rows_rms_norm_back",
                                     .infer = norm_back_infer,
                                     .define = norm_back_define,
                                     .by_kernels = norm_back_by_kernels};

}  // namespace oar::train
