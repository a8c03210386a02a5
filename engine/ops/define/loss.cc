// Losses of classification.
#include "engine/ops/define/definitions.h"

namespace oar::definition {
namespace {

using Vals = std::span<const Val>;

// -w[t] logp[t] of targets t, of which {ignore_index} counts nothing; {reduction} mean by weight, sum or
// none.
Val loss_of(Builder& b, Vals in, const Attrs& attrs, Val logp) {
  if (!b.status().ok()) return {};
  Ints dims{0};  // the first axis, whatever it is: T of packed rows is a symbol
  for (size_t k = 1; k < b.shape(in[1]).size(); ++k)
    dims.push_back(b.dim(in[1], static_cast<int>(k)).const_value());
  const Attrs to_index{{"to", std::string("i32")}};
  Val at, ignored;
  if (attrs.has("ignore_index")) {
    const Val t = real(b, in[1]);
    ignored = b.op("equal", {t, b.scalar(static_cast<double>(attrs.get_int("ignore_index")))});
    at = b.op("cast", {b.op("where", {ignored, b.scalar(0), t})}, to_index);
  } else {
    at = b.op("cast", {in[1]}, to_index);
  }
  const auto counted = [&](Val v) { return ignored ? b.op("where", {ignored, b.scalar(0), v}) : v; };
  Ints column = dims;
  column.insert(column.begin() + 1, 1);
  const Val picked = b.op("gather_elements", {logp, reshaped(b, at, column)}, {{"axis", int64_t{1}}});
  Val loss = b.op("neg", {reshaped(b, picked, dims)}), weight = b.op("expand", {b.scalar(1), {}, in[1]});
  if (given(in, 2)) {
    weight = b.op("gather", {real(b, in[2]), at});
    loss = b.op("mul", {weight, loss});
  }
  loss = counted(loss);
  const std::string reduction = attrs.get_string("reduction", "mean");
  if (reduction == "none") return loss;
  const auto total = [&](Val v) { return b.op("reduce_sum", {v}, {{"keepdims", int64_t{0}}}); };
  return reduction == "sum" ? total(loss) : b.op("div", {total(loss), total(counted(weight))});
}

}  // namespace

std::vector<Val> nll_loss(Builder& b, Vals in, const Attrs& attrs) {
  return {loss_of(b, in, attrs, real(b, in[0]))};
}
std::vector<Val> softmax_cross_entropy_loss(Builder& b, Vals in, const Attrs& attrs) {
  const Val logp = b.op("log_softmax", {in[0]}, {{"axis", int64_t{1}}});
  return {loss_of(b, in, attrs, logp), logp};
}

}  // namespace oar::definition
