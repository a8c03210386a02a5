// Recurrent layers: RNN, GRU and LSTM over a sequence, in one or both directions. Of f32 with constant
// weights and the usual activations by kernels: one product with the inputs of all steps, then step by step
// (kernels/recurrent.h). All others in double, as the definition says.
// https://onnx.ai/onnx/operators/onnx__LSTM.html
#include <functional>

#include "engine/ops/tensor/kernel_call.h"
#include "kernels/recurrent.h"

namespace oar::tensor {
namespace {

using Vec = std::vector<double>;
using Activation = std::function<double(double)>;

Result<Activation> activation(const std::string& given, double alpha, double beta) {
  std::string name;
  for (char c : given) name += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  auto f = [](auto fn) { return Activation(fn); };
  if (name == "sigmoid") return f([](double x) { return 1 / (1 + std::exp(-x)); });
  if (name == "tanh") return f([](double x) { return std::tanh(x); });
  if (name == "relu") return f([](double x) { return std::max(x, 0.0); });
  if (name == "affine") return f([=](double x) { return alpha * x + beta; });
  if (name == "leakyrelu") return f([=](double x) { return x < 0 ? alpha * x : x; });
  if (name == "thresholdedrelu") return f([=](double x) { return x > alpha ? x : 0; });
  if (name == "scaledtanh") return f([=](double x) { return alpha * std::tanh(beta * x); });
  if (name == "hardsigmoid") return f([=](double x) { return std::clamp(alpha * x + beta, 0.0, 1.0); });
  if (name == "elu") return f([=](double x) { return x < 0 ? alpha * std::expm1(x) : x; });
  if (name == "softsign") return f([](double x) { return x / (1 + std::abs(x)); });
  if (name == "softplus")
    return f([](double x) { return std::log1p(std::exp(-std::abs(x))) + std::max(x, 0.0); });
  return invalid_argument(cat("unknown activation '", given, "'"));
}

double default_alpha(const std::string& name) {
  return name == "HardSigmoid" ? 0.2 : name == "LeakyRelu" ? 0.01 : 1.0;
}
double default_beta(const std::string& name) {
  return name == "HardSigmoid" ? 0.5 : name == "ScaledTanh" ? 1.0 : 0.0;
}

using Cell = RecurrentCell;

// --- by kernels ---

struct PreparedRecurrent {
  Tensor w;       // packed for products: all directions' gates as columns
  Tensor bias;    // [D G H], of both products; or undefined
  Tensor r;       // [D][H][G][H]
  Tensor r_bias;  // [D][H], of a GRU's candidate where the reset gate scales it; or undefined
  int64_t D = 0, H = 0, I = 0;
};

// Which operands of the node are what; the states are one, or two of an LSTM.
constexpr uint8_t kSequence = 0, kSequenceLengths = 4, kFirstStates = 5;

bool usual(const Attrs& attrs, Cell cell, int64_t D) {
  if (attrs.get_float("clip", 0) != 0 || attrs.get_int("input_forget") != 0) return false;
  const std::vector<std::string> given = attrs.get_strings("activations");
  const size_t per = cell == Cell::kRnn ? 1 : cell == Cell::kGru ? 2 : 3;
  if (given.empty()) return true;
  if (given.size() != per * static_cast<size_t>(D)) return false;
  for (size_t k = 0; k < given.size(); ++k) {
    const bool gate = cell != Cell::kRnn && k % per == 0;
    if (given[k] != (gate ? "Sigmoid" : "Tanh")) return false;
  }
  return true;
}

template <Cell kCell>
Result<std::shared_ptr<const void>> prepare_recurrent(PrepareContext& ctx) {
  constexpr int64_t G = recurrent_gates(kCell);
  const auto f32 = [](const Tensor* t, int rank) {
    return t && t->format() == Format::f32() && t->shape().rank() == rank;
  };
  const Tensor *w = ctx.constant(1), *r = ctx.constant(2), *b = ctx.constant(3);
  const std::shared_ptr<const void> none;
  const auto has = [&](KernelFamily family) { return ctx.backend().find_kernel({family}) != nullptr; };
  if (!has(KernelFamily::kConv) || !has(KernelFamily::kRecurrent)) return none;
  if (!f32(w, 3) || !f32(r, 3) || (ctx.given(3) && !f32(b, 2)) || ctx.given(7)) return none;  // 7: peepholes
  const int64_t D = w->shape()[0], I = w->shape()[2], H = r->shape()[2];
  const bool both = ctx.node().attrs.get_string("direction", "forward") == "bidirectional";
  if (D != (both ? 2 : 1) || H == 0 || I == 0 || !(w->shape() == Shape({D, G * H, I})) ||
      !(r->shape() == Shape({D, G * H, H})) || (b && b->numel() != D * 2 * G * H) ||
      !usual(ctx.node().attrs, kCell, D)) {
    return none;
  }
  auto p = std::make_shared<PreparedRecurrent>();
  p->D = D, p->H = H, p->I = I;
  const int64_t N = D * G * H, width = ctx.backend().filter_panel();
  OAR_ASSIGN(p->w, ctx.pack(1, "filters of rows", Shape{packed_filter_floats(N, 1, 1, I, width)}, DType::kF32,
                            [&](Tensor& t) {
                              pack_filters(mutable_elements<float>(t), elements<float>(*w), N, 1, 1, I, I, 1,
                                           0, width);
                            }));
  OAR_ASSIGN(p->r, ctx.pack(2, cat("recurrent ", G), Shape{D * H * G * H}, DType::kF32, [&](Tensor& t) {
    for (int64_t d = 0; d < D; ++d)
      for (int64_t g = 0; g < G * H; ++g)
        for (int64_t k = 0; k < H; ++k)
          mutable_elements<float>(t)[(d * H + k) * G * H + g] = elements<float>(*r)[(d * G * H + g) * H + k];
  }));
  if (b) {
    const bool apart = kCell == Cell::kGru && ctx.node().attrs.get_int("linear_before_reset") != 0;
    OAR_ASSIGN(p->bias,
               ctx.pack(3, cat("biases ", G, apart ? " apart" : ""), Shape{N}, DType::kF32, [&](Tensor& t) {
                 for (int64_t i = 0; i < N; ++i) {
                   const float* of = elements<float>(*b) + i / (G * H) * 2 * G * H + i % (G * H);
                   mutable_elements<float>(t)[i] = apart && i % (G * H) >= 2 * H ? of[0] : of[0] + of[G * H];
                 }
               }));
    if (apart) {
      OAR_ASSIGN(p->r_bias, ctx.pack(3, "recurrent biases", Shape{D * H}, DType::kF32, [&](Tensor& t) {
        for (int64_t i = 0; i < D * H; ++i)
          mutable_elements<float>(t)[i] = elements<float>(*b)[(i / H * 2 + 1) * G * H + 2 * H + i % H];
      }));
    }
  }
  for (size_t i = 1; i <= 3; ++i) ctx.spend(i);
  return std::shared_ptr<const void>(std::move(p));
}

Status check_length(int64_t length, int64_t T) {
  if (length >= 0 && length <= T) return ok_status();
  return invalid_argument(cat("length ", length, " is outside of [0, ", T, "]"));
}

// The calls, with entries' lengths looked at before them; not those that a device has computed, of which its
// kernel takes care.
class RecurrentCalls final : public LoweredCalls {
 public:
  RecurrentArgs args;
  Status check(const Operand* in) const override {
    RecurrentArgs a = args;
    a.lengths = in[kSequenceLengths].data;
    for (int64_t b = 0; a.lengths != nullptr && b < a.B; ++b)
      OAR_RETURN_IF_ERROR(check_length(recurrent_length(a, b), a.T));
    return ok_status();
  }
};

// Two calls: the product with the inputs of all steps, whose results are the gates, and the steps.
template <Cell kCell>
Lowered lower_recurrent(LowerContext& ctx) {
  constexpr int64_t G = recurrent_gates(kCell);
  constexpr uint8_t kGates = LoweredCall::kBetween, kResult = LoweredCall::kResult;
  constexpr size_t kStateCount = kCell == Cell::kLstm ? 2 : 1;
  const auto* p = static_cast<const PreparedRecurrent*>(ctx.prepared);
  const ValueInfo& x = ctx.operands[kSequence];
  if (p == nullptr || !is_f32(x) || x.shape.rank() != 3 || x.shape[2] != p->I) return not_lowered();
  const Attrs& attrs = ctx.node.attrs;
  const bool batch_first = attrs.get_int("layout") == 1;
  const int64_t T = x.shape[batch_first ? 1 : 0], B = x.shape[batch_first ? 0 : 1];
  const int64_t D = p->D, H = p->H, N = D * G * H;
  auto op = std::make_unique<RecurrentCalls>();
  RecurrentArgs& a = op->args;
  if (ctx.given(kSequenceLengths)) {
    const ValueInfo& lengths = ctx.operands[kSequenceLengths];
    a.wide_lengths = lengths.format == Format::of(DType::kI64);
    if ((!a.wide_lengths && lengths.format != Format::of(DType::kI32)) || lengths.shape.rank() > 1 ||
        lengths.shape.numel() != B)
      return not_lowered();
  }
  for (size_t k = kFirstStates; k < kFirstStates + kStateCount; ++k) {
    if (ctx.given(k) && (!is_f32(ctx.operands[k]) || ctx.operands[k].shape.numel() != D * B * H))
      return not_lowered();
  }
  OAR_ASSIGN(const Shape y, checked_shape(batch_first ? std::vector<int64_t>{B, T, D, H}
                                                      : std::vector<int64_t>{T, D, B, H}));
  const Shape h = batch_first ? Shape({B, D, H}) : Shape({D, B, H});
  ctx.results->assign(1 + kStateCount, {Format::f32(), h, true});
  ctx.results->front().shape = y;
  OAR_ASSIGN(const Shape gates, checked_shape(std::vector<int64_t>{T * B, N}));
  op->between.push_back({Format::f32(), gates, true});
  if (T * B > 0) {
    PackedProduct in;
    in.rows = T * B, in.K = p->I, in.N = N;
    in.w = elements<float>(p->w);
    if (p->bias.defined()) in.bias = elements<float>(p->bias);
    op->calls.push_back(part_call(f32_kernel(ctx.backend, KernelFamily::kConv), product_args(ctx.backend, in),
                                  product_cost(in), {kSequence}, {kGates},
                                  [](ConvArgs& c, const Operand* from, const Operand* to) {
                                    c.x = from[0].as<const float>(), c.out = to[0].as<float>();
                                  }));
  }
  a.cell = kCell;
  a.reverse = attrs.get_string("direction", "forward") == "reverse";
  a.linear_before_reset = attrs.get_int("linear_before_reset") != 0;
  a.T = T, a.B = B, a.D = D, a.H = H;
  a.gates_t = batch_first ? N : B * N, a.gates_b = batch_first ? T * N : N;
  a.r = elements<float>(p->r);
  if (p->r_bias.defined()) a.r_bias = elements<float>(p->r_bias);
  a.state_d = batch_first ? H : B * H, a.state_b = batch_first ? D * H : H;
  a.y_t = D * B * H, a.y_d = B * H, a.y_b = H;
  if (batch_first) a.y_t = D * H, a.y_d = H, a.y_b = T * D * H;
  op->calls.push_back(part_call(
      f32_kernel(ctx.backend, KernelFamily::kRecurrent), a, 0.05 * static_cast<double>(T * B * N * H),
      {kGates, kSequenceLengths, kFirstStates, kFirstStates + 1}, {kResult, kResult + 1, kResult + 2},
      [](RecurrentArgs& r, const Operand* in, const Operand* out) {
        r.gates = in[0].as<const float>(), r.lengths = in[1].data;
        r.h0 = in[2].as<const float>(), r.c0 = in[3].as<const float>();
        r.y = out[0].as<float>(), r.h = out[1].as<float>(), r.c = out[2].as<float>();
      }));
  return std::unique_ptr<LoweredOp>(std::move(op));
}

// Why lower_recurrent() does not take the operands of a layer whose weights are packed.
template <Cell kCell>
Result<bool> why_not_lowered(KernelContext& ctx) {
  const auto* const packed = ctx.prepared<PreparedRecurrent>();
  if (packed == nullptr) return false;
  const PreparedRecurrent& p = *packed;
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  if (dtype_of(x) != DType::kF32) return bad_dtype(x);
  if (x.shape().rank() != 3 || x.shape()[2] != p.I)
    return invalid_argument(cat("x ", x.shape().to_string(), " needs three axes, the last of ", p.I));
  const int64_t B = x.shape()[ctx.attrs().get_int("layout") == 1 ? 0 : 1];
  for (size_t k = kFirstStates; k < kFirstStates + (kCell == Cell::kLstm ? 2 : 1); ++k) {
    if (!ctx.has(k)) continue;
    OAR_ASSIGN(const Tensor state, ctx.tensor(k));
    if (dtype_of(state) != DType::kF32 || state.numel() != p.D * B * p.H)
      return invalid_argument(cat("operand ", k, " needs ", p.D * B * p.H, " values of f32"));
  }
  return invalid_argument(cat("lengths must be ", B, " integers of 32 or 64 bits"));
}

// --- in double ---

// operands: x (T, B, I), w (D, G H, I), r (D, G H, H), b (D, 2 G H)?, lengths (B)?, h0 (D, B, H)?, and for
// LSTM c0 (D, B, H)?, peepholes (D, 3 H)?; layout 1 puts the batch first.
template <Cell kCell>
Status recurrent(EvalContext& ctx) {
  constexpr int64_t G = recurrent_gates(kCell);
  constexpr size_t kActivations = kCell == Cell::kRnn ? 1 : kCell == Cell::kGru ? 2 : 3;
  OAR_ASSIGN(const Tensor x, ctx.tensor(0));
  OAR_ASSIGN(const Tensor w, ctx.tensor(1));
  OAR_ASSIGN(const Tensor r, ctx.tensor(2));
  if (x.shape().rank() != 3 || w.shape().rank() != 3 || r.shape().rank() != 3 ||
      !dtype_is_float(dtype_of(x)) || !dtype_is_float(dtype_of(w)) || !dtype_is_float(dtype_of(r))) {
    return invalid_argument("x, w and r must be float tensors of three axes");
  }
  const bool batch_first = ctx.attrs().get_int("layout") == 1;
  const int64_t T = x.shape()[batch_first ? 1 : 0], B = x.shape()[batch_first ? 0 : 1], I = x.shape()[2];
  const int64_t D = w.shape()[0], H = r.shape()[2];
  const std::string direction = ctx.attrs().get_string("direction", "forward");
  if (!(w.shape() == Shape({D, G * H, I})) || !(r.shape() == Shape({D, G * H, H})) ||
      D != (direction == "bidirectional" ? 2 : 1)) {
    return invalid_argument("w and r do not match x, each other or the direction");
  }
  auto operand = [&](size_t k, int64_t count) -> Result<Vec> {
    if (!ctx.has(k)) return Vec();
    OAR_ASSIGN(const Tensor t, ctx.tensor(k));
    if (t.numel() != count || !dtype_is_float(dtype_of(t)))
      return invalid_argument(cat("operand ", k, " needs ", count, " floats"));
    return to_doubles(t);
  };
  OAR_ASSIGN(const Vec bias, operand(3, D * 2 * G * H));
  OAR_ASSIGN(const Vec h0, operand(5, D * B * H));
  Vec c0, peep;
  if constexpr (kCell == Cell::kLstm) {
    OAR_ASSIGN(c0, operand(6, D * B * H));
    OAR_ASSIGN(peep, operand(7, D * 3 * H));
  }
  std::vector<int64_t> lengths(static_cast<size_t>(B), T);
  if (ctx.has(kSequenceLengths)) {
    OAR_ASSIGN(const Tensor t, ctx.tensor(kSequenceLengths));
    if (!dtype_is_integer(dtype_of(t)) || t.shape().rank() > 1 || t.numel() != B)
      return invalid_argument("one length per batch entry is needed");
    for (int64_t b = 0; b < B && !ctx.options().sizing; ++b) {  // no size depends on them
      lengths[static_cast<size_t>(b)] = element_as_int(t, b);
      OAR_RETURN_IF_ERROR(check_length(element_as_int(t, b), T));
    }
  }
  std::vector<std::string> names = ctx.attrs().get_strings("activations");
  const Vec alphas = ctx.attrs().get_floats("activation_alpha"),
            betas = ctx.attrs().get_floats("activation_beta");
  if (names.empty()) {
    for (int64_t d = 0; d < D; ++d) {
      if (kCell != Cell::kRnn) names.emplace_back("Sigmoid");
      names.emplace_back("Tanh");
      if (kCell == Cell::kLstm) names.emplace_back("Tanh");
    }
  }
  if (names.size() != kActivations * static_cast<size_t>(D))
    return invalid_argument("wrong number of activations");
  std::vector<Activation> act;
  for (size_t k = 0; k < names.size(); ++k) {
    OAR_ASSIGN(Activation a, activation(names[k], k < alphas.size() ? alphas[k] : default_alpha(names[k]),
                                        k < betas.size() ? betas[k] : default_beta(names[k])));
    act.push_back(std::move(a));
  }
  const double clip = ctx.attrs().get_float("clip", 0);
  auto limit = [&](double v) { return clip > 0 ? std::clamp(v, -clip, clip) : v; };
  const bool after = ctx.attrs().get_int("linear_before_reset") != 0,
             coupled = ctx.attrs().get_int("input_forget") != 0;
  const Vec px = to_doubles(x), pw = to_doubles(w), pr = to_doubles(r);
  OAR_ASSIGN(const Shape y_shape, checked_shape(batch_first ? std::vector<int64_t>{B, T, D, H}
                                                            : std::vector<int64_t>{T, D, B, H}));
  const Shape h_shape = batch_first ? Shape({B, D, H}) : Shape({D, B, H});
  Vec y(static_cast<size_t>(y_shape.numel()), 0), yh(static_cast<size_t>(D * B * H)), yc(yh.size());
  for (int64_t d = 0; d < D; ++d) {
    const bool reverse = direction == "reverse" || d == 1;
    const double* wd = pw.data() + d * G * H * I;
    const double* rd = pr.data() + d * G * H * H;
    const Activation* f = act.data() + static_cast<size_t>(d) * kActivations;
    ctx.parallel(B, static_cast<double>(T * G * H * (H + I)), [&](int64_t begin, int64_t end) {
      const auto n = static_cast<size_t>(H);
      for (int64_t b = begin; b < end; ++b) {
        Vec h(n, 0), c(n, 0), gx(static_cast<size_t>(G * H)), gh(gx.size()), next(n);
        const int64_t state = batch_first ? (b * D + d) * H : (d * B + b) * H;
        for (size_t k = 0; k < n; ++k) {
          if (!h0.empty()) h[k] = h0[static_cast<size_t>(state) + k];
          if (!c0.empty()) c[k] = c0[static_cast<size_t>(state) + k];
        }
        const int64_t length = lengths[static_cast<size_t>(b)];
        for (int64_t s = 0; s < length; ++s) {
          const int64_t t = reverse ? length - 1 - s : s;
          const double* in = px.data() + (batch_first ? b * T + t : t * B + b) * I;
          auto recur = [&](const Vec& from, int64_t g) {
            double sum = bias.empty() ? 0 : bias[static_cast<size_t>(d * 2 * G * H + G * H + g)];
            for (int64_t k = 0; k < H; ++k) sum += rd[g * H + k] * from[static_cast<size_t>(k)];
            return sum;
          };
          for (int64_t g = 0; g < G * H; ++g) {
            double sum = bias.empty() ? 0 : bias[static_cast<size_t>(d * 2 * G * H + g)];
            for (int64_t k = 0; k < I; ++k) sum += wd[g * I + k] * in[k];
            gx[static_cast<size_t>(g)] = sum;
            gh[static_cast<size_t>(g)] = recur(h, g);
          }
          auto gate = [&](int64_t which, size_t k) {
            return gx[static_cast<size_t>(which) * n + k] + gh[static_cast<size_t>(which) * n + k];
          };
          auto p = [&](size_t which, size_t k) {
            return peep.empty() ? 0.0 : peep[(static_cast<size_t>(d) * 3 + which) * n + k];
          };
          if constexpr (kCell == Cell::kRnn) {
            for (size_t k = 0; k < n; ++k) next[k] = f[0](limit(gate(0, k)));
          } else if constexpr (kCell == Cell::kGru) {  // gates z, r, h
            Vec z(n), reset(n), scaled(n);
            for (size_t k = 0; k < n; ++k)
              z[k] = f[0](limit(gate(0, k))), reset[k] = f[0](limit(gate(1, k))), scaled[k] = reset[k] * h[k];
            for (size_t k = 0; k < n; ++k) {
              const double hidden = after ? gx[2 * n + k] + reset[k] * gh[2 * n + k]
                                          : gx[2 * n + k] + recur(scaled, 2 * H + static_cast<int64_t>(k));
              next[k] = (1 - z[k]) * f[1](limit(hidden)) + z[k] * h[k];
            }
          } else {  // gates i, o, f, c; peepholes i, o, f
            for (size_t k = 0; k < n; ++k) {
              const double i = f[0](limit(gate(0, k) + p(0, k) * c[k]));
              const double forget = coupled ? 1 - i : f[0](limit(gate(2, k) + p(2, k) * c[k]));
              c[k] = forget * c[k] + i * f[1](limit(gate(3, k)));
              const double o = f[0](limit(gate(1, k) + p(1, k) * c[k]));
              next[k] = o * f[2](c[k]);
            }
          }
          h = next;
          double* out = y.data() + (batch_first ? ((b * T + t) * D + d) * H : ((t * D + d) * B + b) * H);
          std::copy(h.begin(), h.end(), out);
        }
        std::copy(h.begin(), h.end(), yh.begin() + state);
        std::copy(c.begin(), c.end(), yc.begin() + state);
      }
    });
  }
  ctx.set(0, from_doubles(ctx, y_shape, dtype_of(x), y));
  ctx.set(1, from_doubles(ctx, h_shape, dtype_of(x), yh));
  if (kCell == Cell::kLstm) ctx.set(2, from_doubles(ctx, h_shape, dtype_of(x), yc));
  return ok_status();
}

}  // namespace
}  // namespace oar::tensor

namespace oar {
OAR_DEFINED_OP(gru, tensor::recurrent<RecurrentCell::kGru>,
               .by_kernels = tensor::why_not_lowered<RecurrentCell::kGru>,
               .prepare = tensor::prepare_recurrent<RecurrentCell::kGru>,
               .lower = tensor::lower_recurrent<RecurrentCell::kGru>);
OAR_DEFINED_OP(lstm, tensor::recurrent<RecurrentCell::kLstm>,
               .by_kernels = tensor::why_not_lowered<RecurrentCell::kLstm>,
               .prepare = tensor::prepare_recurrent<RecurrentCell::kLstm>,
               .lower = tensor::lower_recurrent<RecurrentCell::kLstm>);
OAR_DEFINED_OP(rnn, tensor::recurrent<RecurrentCell::kRnn>,
               .by_kernels = tensor::why_not_lowered<RecurrentCell::kRnn>,
               .prepare = tensor::prepare_recurrent<RecurrentCell::kRnn>,
               .lower = tensor::lower_recurrent<RecurrentCell::kRnn>);
}  // namespace oar
