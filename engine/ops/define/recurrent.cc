// RNN, GRU and LSTM: one step after the other, each a definition of its own, in one or both directions.
// https://onnx.ai/onnx/operators/onnx__LSTM.html has the equations and the order of gates.
#include "engine/base/format.h"
#include "engine/ops/define/definitions.h"

namespace oar::definition {
namespace {

using Vals = std::span<const Val>;

// An activation by its name, {alpha} and {beta}.
Val activated(Builder& b, const std::string& given, std::optional<double> alpha, std::optional<double> beta,
              Val x) {
  std::string name;
  for (const char c : given) name += static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  const auto scaled = [&](Val v, double by) { return b.op("mul", {v, b.scalar(by)}); };
  for (const char* plain : {"sigmoid", "tanh", "relu", "softsign", "softplus"}) {
    if (name == plain) return b.op(plain, {x});
  }
  if (name == "affine") return b.op("add", {scaled(x, alpha.value_or(1)), b.scalar(beta.value_or(0))});
  if (name == "leakyrelu") return b.op("leaky_relu", {x}, {{"alpha", alpha.value_or(0.01)}});
  if (name == "elu") return b.op("elu", {x}, {{"alpha", alpha.value_or(1)}});
  if (name == "scaledtanh") return scaled(b.op("tanh", {scaled(x, beta.value_or(1))}), alpha.value_or(1));
  if (name == "hardsigmoid")
    return b.op("hard_sigmoid", {x}, {{"alpha", alpha.value_or(0.2)}, {"beta", beta.value_or(0.5)}});
  if (name == "thresholdedrelu")
    return b.op("where", {b.op("greater", {x, b.scalar(alpha.value_or(1))}), x, b.scalar(0)});
  return b.fail(invalid_argument(cat("unknown activation '", given, "'"))), Val{};
}

struct State {
  Val h, c;
};

// One direction of a layer: its weights as columns, and what one step does.
class Cell {
 public:
  Cell(Builder& b, Vals in, const Attrs& attrs, int64_t gates, int64_t direction, int64_t hidden)
      : b_(b), attrs_(attrs), gates_(gates), direction_(direction), H_(hidden) {
    w_ = columns(in[1]);
    r_ = columns(in[2]);
    const int64_t G = gates * hidden;
    if (given(in, 3)) {
      const Val all = cut(b, real(b, in[3]), 0, direction, direction + 1);  // (1, 2 G)
      bias_w_ = cut(b, all, 1, 0, G), bias_r_ = cut(b, all, 1, G, 2 * G);
    }
    if (gates == 4 && given(in, 7)) peep_ = cut(b, real(b, in[7]), 0, direction, direction + 1);  // (1, 3 H)
  }

  // (B, I), and what was
  State step(Val x, const State& s) const {
    const Val gx = product(x, w_, bias_w_), gh = product(s.h, r_, bias_r_);
    const auto gate = [&](int64_t k) { return sum(part(gx, k), part(gh, k)); };
    if (gates_ == 1) return {act(0, gate(0)), {}};
    if (gates_ == 3) {  // z, r, h
      const Val z = act(0, gate(0)), reset = act(0, gate(1));
      const bool after = attrs_.get_bool("linear_before_reset");
      const Val again = after ? mul(reset, part(gh, 2)) : part(product(mul(reset, s.h), r_, bias_r_), 2);
      const Val hidden = act(1, sum(part(gx, 2), again));
      const Val rest = b_.op("sub", {b_.scalar(1), z});
      return {sum(mul(rest, hidden), mul(z, s.h)), {}};
    }
    // i, o, f, c; peepholes i, o, f
    const auto peeped = [&](Val v, int64_t k, Val c) { return peep_ ? sum(v, mul(part(peep_, k), c)) : v; };
    const Val i = act(0, peeped(gate(0), 0, s.c));
    const Val forget =
        attrs_.get_bool("input_forget") ? b_.op("sub", {b_.scalar(1), i}) : act(0, peeped(gate(2), 2, s.c));
    const Val c = sum(mul(forget, s.c), mul(i, act(1, gate(3))));
    return {mul(act(0, peeped(gate(1), 1, c)), act(2, c, false)), c};
  }

 private:
  // Weights of this direction, (rows, n), as (n, rows).
  Val columns(Val v) const {
    const Ints dims = extents(b_, v);
    if (!b_.status().ok()) return {};
    return turned(b_, reshaped(b_, cut(b_, real(b_, v), 0, direction_, direction_ + 1), {dims[1], dims[2]}),
                  {1, 0});
  }
  Val sum(Val a, Val c) const { return b_.op("add", {a, c}); }
  Val mul(Val a, Val c) const { return b_.op("mul", {a, c}); }
  Val product(Val x, Val w, Val bias) const {
    const Val y = b_.op("matmul", {x, w});
    return bias ? sum(y, bias) : y;
  }
  Val part(Val v, int64_t k) const { return cut(b_, v, 1, k * H_, (k + 1) * H_); }
  // Activation `which` of this direction, of values within {clip} unless they are a state.
  Val act(size_t which, Val v, bool limited = true) const {
    const double clip = attrs_.get_float("clip", 0);
    if (limited && clip > 0) v = b_.op("min", {b_.op("max", {v, b_.scalar(-clip)}), b_.scalar(clip)});
    const size_t per = gates_ == 1 ? 1 : gates_ == 3 ? 2 : 3;
    const size_t at = static_cast<size_t>(direction_) * per + which;
    const std::vector<std::string> names = attrs_.get_strings("activations");
    if (names.empty()) return b_.op(gates_ > 1 && which == 0 ? "sigmoid" : "tanh", {v});
    const std::vector<double> alphas = attrs_.get_floats("activation_alpha"),
                              betas = attrs_.get_floats("activation_beta");
    const auto number = [&](const std::vector<double>& list) {
      return at < list.size() ? std::optional(list[at]) : std::nullopt;
    };
    if (at >= names.size()) return b_.fail(invalid_argument("wrong number of activations")), Val{};
    return activated(b_, names[at], number(alphas), number(betas), v);
  }

  Builder& b_;
  const Attrs& attrs_;
  const int64_t gates_, direction_, H_;
  Val w_, r_, bias_w_, bias_r_, peep_;
};

// x (T, B, I), w (D, G H, I), r (D, G H, H), b (D, 2 G H)?, lengths (B)?, h0 (D, B, H)?, c0?, peepholes?;
// with {layout: 1} the batch comes first, in x, states and results. It may be none: reshapes derive it, since
// an extent of 0 in a shape would be another.
std::vector<Val> layer(Builder& b, Vals in, const Attrs& attrs, int64_t gates) {
  const bool batch_first = attrs.get_int("layout") == 1;
  const auto steps_first = [&](Val v) { return batch_first ? turned(b, v, {1, 0, 2}) : v; };
  const Val x = steps_first(real(b, in[0]));
  const Ints xs = extents(b, x), rs = extents(b, in[2]);
  if (!b.status().ok() || xs.size() != 3 || rs.size() != 3)
    return b.fail(invalid_argument("x and r must have three axes")), std::vector<Val>{};
  const int64_t T = xs[0], B = xs[1], I = xs[2], D = rs[0], H = rs[2];
  const Val lengths = given(in, 4) ? reshaped(b, real(b, in[4]), {-1, 1}) : Val{};
  std::vector<Val> y, h, c;  // by direction: (T, 1, B, H), (1, B, H)
  for (int64_t d = 0; d < D; ++d) {
    const Cell cell(b, in, attrs, gates, d, H);
    const auto first = [&](size_t operand) {
      if (!given(in, operand)) return filled(b, {B, H}, 0);
      return reshaped(b, cut(b, steps_first(real(b, in[operand])), 0, d, d + 1), {-1, H});
    };
    State s{first(5), gates == 4 ? first(6) : Val{}};
    const bool reverse = d == 1 || attrs.get_string("direction", "forward") == "reverse";
    std::vector<Val> rows(static_cast<size_t>(T));
    for (int64_t k = 0; k < T; ++k) {
      const int64_t t = reverse ? T - 1 - k : k;
      State next = cell.step(reshaped(b, cut(b, x, 0, t, t + 1), {-1, I}), s);
      Val out = next.h;
      if (lengths) {  // entries that have ended stay as they are
        const Val there = b.op("greater", {lengths, b.scalar(static_cast<double>(t))});
        out = b.op("where", {there, next.h, b.scalar(0)});
        next.h = b.op("where", {there, next.h, s.h});
        if (next.c) next.c = b.op("where", {there, next.c, s.c});
      }
      rows[static_cast<size_t>(t)] = reshaped(b, out, {1, 1, -1, H});
      s = next;
    }
    y.push_back(joined(b, rows, 0));
    h.push_back(reshaped(b, s.h, {1, -1, H}));
    if (s.c) c.push_back(reshaped(b, s.c, {1, -1, H}));
  }
  const Val all = joined(b, y, 1);
  std::vector<Val> out{batch_first ? turned(b, all, {2, 0, 1, 3}) : all, steps_first(joined(b, h, 0))};
  if (gates == 4) out.push_back(steps_first(joined(b, c, 0)));
  return out;
}

}  // namespace

std::vector<Val> rnn(Builder& b, Vals in, const Attrs& attrs) { return layer(b, in, attrs, 1); }
std::vector<Val> gru(Builder& b, Vals in, const Attrs& attrs) { return layer(b, in, attrs, 3); }
std::vector<Val> lstm(Builder& b, Vals in, const Attrs& attrs) { return layer(b, in, attrs, 4); }

}  // namespace oar::definition
