#include "engine/ops/train/balance.h"

#include "engine/base/format.h"
#include "engine/graph/builder.h"
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

using Ints = std::vector<int64_t>;
Attrs sum_over(Ints axes) { return {{"axes", std::move(axes)}, {"keepdims", int64_t{0}}}; }
Attrs cut(int64_t from, int64_t to) {
  return {{"starts", Ints{from}}, {"ends", Ints{to}}, {"axes", Ints{0}}};
}

}  // namespace

Result<Val> balance_loss(Graph& g, Val share, double coefficient) {
  Builder b(g);
  const auto shaped = [&](Val v, Ints dims) { return b.op("reshape", {v}, {{"shape", std::move(dims)}}); };
  Val chosen, likely;  // by expert, over all layers
  int64_t layers = 0, X = 0;
  const size_t count = g.nodes().size();
  for (size_t i = 0; i < count; ++i) {
    const Node n = g.nodes()[i];  // a copy: nodes are appended
    if (n.op != &op_route) continue;
    if (n.attrs.get_string("score", "softmax") != "softmax" || n.attrs.get_int("groups") > 1 ||
        (n.inputs.size() > 1 && n.inputs[1] != kNoValue))
      return unimplemented(
          "config.json: 'output_router_logits' is true, but the load-balancing loss is defined for routers "
          "of softmax without corrections and groups; set it to false to train without");
    const Val logits{n.inputs[0]}, begins{n.outputs[3]};
    X = b.dim(logits, 1).const_value();
    const Val p = b.op("mul", {b.op("softmax", {logits}), shaped(share, {-1, 1})});
    const Val slot = shaped({n.outputs[1]}, {0, 0, 1});  // an expert's slots lie between two starts
    const Val own = b.op("logical_and", {b.op("greater_equal", {slot, b.op("slice", {begins}, cut(0, X))}),
                                         b.op("less", {slot, b.op("slice", {begins}, cut(1, X + 1))})});
    const Val counted =
        b.op("mul", {b.op("cast", {own}, {{"to", std::string("f32")}}), shaped(share, {-1, 1, 1})});
    const Val of_layer[] = {b.op("reduce_sum", {counted}, sum_over({0, 1})),
                            b.op("reduce_sum", {p}, sum_over({0}))};
    chosen = layers == 0 ? of_layer[0] : b.op("add", {chosen, of_layer[0]});
    likely = layers == 0 ? of_layer[1] : b.op("add", {likely, of_layer[1]});
    ++layers;
  }
  if (layers == 0) return internal_error("a mixture without routes");
  const double factor = coefficient * static_cast<double>(X) / static_cast<double>(layers * layers);
  const Val loss =
      b.op("mul", {b.op("reduce_sum", {b.op("mul", {chosen, likely})}, sum_over({0})), b.scalar(factor)});
  OAR_RETURN_IF_ERROR(b.status());
  return loss;
}

}  // namespace oar::train
