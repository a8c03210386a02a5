// Our lstm, gru and rnn as Paddle's rnn of one layer: gates in another order, directions side by side in the
// last axis, weights as a list that ends with the biases.
#include <cstring>

#include "engine/base/format.h"
#include "engine/export/paddle_writer.h"

namespace oar::paddle {
namespace {

using Ints = std::vector<int64_t>;

struct Cell {
  const char* mode;
  std::vector<int64_t> gates;  // of ours, in Paddle's order
};
Cell cell_of(const NodeWriter& n) {
  if (n.node().is("lstm")) return {"LSTM", {0, 2, 3, 1}};  // i o f c -> i f c o
  if (n.node().is("gru")) return {"GRU", {1, 0, 2}};       // z r h -> r z c
  const auto names = n.attrs().get_strings("activations");
  return {!names.empty() && names[0] == "Relu" ? "RNN_RELU" : "RNN_TANH", {0}};
}

// Rows of direction d of a weight (D, gates H, columns), or of `gates H` values from `first` of a bias
// (D, 2 gates H), with the gates in Paddle's order.
ValueIndex gates(NodeWriter& n, const Tensor& t, int64_t d, int64_t first, int64_t hidden,
                 const Ints& order) {
  const int64_t columns = t.shape().rank() == 3 ? t.shape()[2] : 1,
                rows = static_cast<int64_t>(order.size()) * hidden;
  Ints dims{rows};
  if (t.shape().rank() == 3) dims.push_back(columns);
  auto out = Tensor::allocate(Shape(std::span<const int64_t>(dims)), t.format());
  if (!out.ok()) return n.fail(out.status()), kAbsent;
  const auto bytes = static_cast<size_t>(hidden * columns * t.format().block_bytes());
  const auto* from = static_cast<const char*>(t.data());
  auto* to = static_cast<char*>(out->mutable_data());
  const int64_t per_direction = t.shape()[1] * columns;
  for (size_t k = 0; k < order.size(); ++k) {
    const int64_t at = d * per_direction + first + order[k] * hidden * columns;
    std::memcpy(to + k * bytes, from + at * t.format().block_bytes(), bytes);
  }
  return n.constant(*out, "rnn_weight");
}

// (x, w, r, b?, lengths?, h?, c?, peepholes?)
void recurrent(NodeWriter& n) {
  n.expect_attrs({"activations", "direction", "hidden_size", "layout", "linear_before_reset"});
  const Cell cell = cell_of(n);
  const bool lstm = n.node().is("lstm"), gru = n.node().is("gru");
  const std::string direction = n.attrs().get_string("direction", "forward");
  const auto activations = n.attrs().get_strings("activations");
  const Tensor *w = n.known(1), *r = n.known(2), *b = n.known(3);
  const Declared x = n.in_type(0);
  const bool usual =
      lstm || gru ? activations.empty() : activations.size() < 2 || activations[0] == activations[1];
  if (w == nullptr || r == nullptr || (n.has(3) && b == nullptr) || w->shape().rank() != 3 || x.rank() != 3)
    return n.fail("weights that are computed");
  if (n.has(7) || !usual || n.attrs().get_int("layout", 0) != 0 ||
      (gru && n.attrs().get_int("linear_before_reset", 0) == 0))
    return n.fail("peepholes, other activations, another layout, or a reset gate before the product");
  const int64_t dirs = w->shape()[0], hidden = r->shape()[2], input = w->shape()[2];
  const auto rows = static_cast<int64_t>(cell.gates.size()) * hidden;
  if (w->shape()[1] != rows || r->shape().to_string() != Shape({dirs, rows, hidden}).to_string() ||
      (b && b->shape().to_string() != Shape({dirs, 2 * rows}).to_string()))
    return n.fail("weights of other shapes");
  const bool backwards = direction == "reverse";
  if (backwards && n.has(4)) return n.fail("a reversed sequence with lengths");

  std::vector<ValueIndex> weights, biases;
  for (int64_t d = 0; d < dirs; ++d) {
    weights.push_back(gates(n, *w, d, 0, hidden, cell.gates));
    weights.push_back(gates(n, *r, d, 0, hidden, cell.gates));
    for (const int64_t first : {int64_t{0}, rows}) {
      const std::vector<double> zeros(static_cast<size_t>(rows), 0);
      biases.push_back(b ? gates(n, *b, d, first, hidden, cell.gates) : n.constant(zeros, x.dtype, {rows}));
    }
  }
  weights.insert(weights.end(), biases.begin(), biases.end());

  ValueIndex in = n.in(0);
  const Declared state{x.dtype, {dirs, x.dims[1], hidden}};
  const auto initial = [&](size_t i) {
    if (n.has(i)) return n.in(i);
    const auto one = [&](int64_t v) {
      const auto d = static_cast<double>(v);
      return n.constant({&d, 1}, DType::kI64, {1});
    };
    const ValueIndex shape = n.concat({one(dirs), n.slice(n.shape_of(n.in(0)), 0, 1, 2), one(hidden)}, 0);
    return n.op("full_with_tensor", {n.number(0, x.dtype), shape}, {{"dtype", std::string(word_of(x.dtype))}},
                state);
  };
  std::vector<ValueIndex> states{initial(5)};
  if (lstm) states.push_back(initial(6));
  if (backwards) in = n.same("flip", in, {{"axis", Ints{0}}});
  const ValueIndex lengths = n.has(4) ? n.cast(n.in(4), DType::kI32) : kAbsent;
  const ValueIndex dropout = n.constant(std::span<const double>(), DType::kU8, {0});
  const Declared scratch{DType::kU8, {-1}};
  const auto y = n.emit("rnn", {in, states, weights, lengths, dropout},
                        {{"is_bidirec", dirs == 2},
                         {"input_size", input},
                         {"hidden_size", hidden},
                         {"mode", std::string(cell.mode)}},
                        {{{x.dtype, {x.dims[0], x.dims[1], dirs * hidden}}},
                         {scratch},
                         std::vector<Declared>(states.size(), state),
                         {scratch}});
  ValueIndex all = y[0][0];
  if (backwards) all = n.same("flip", all, {{"axis", Ints{0}}});
  n.out(0, n.transpose(n.reshape(all, {0, 0, dirs, hidden}), {0, 2, 1, 3}));
  n.out(1, y[2][0]);
  if (lstm) n.out(2, y[2][1]);
}

constexpr OpWriterEntry kRecurrentWriters[] = {
    {"gru", recurrent},
    {"lstm", recurrent},
    {"rnn", recurrent},
};

}  // namespace

std::span<const OpWriterEntry> recurrent_writers() { return kRecurrentWriters; }

}  // namespace oar::paddle
