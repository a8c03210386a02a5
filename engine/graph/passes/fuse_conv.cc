// Convolution with what follows it: an inference batch norm folds into the filters and the bias (per filter
// m, w' = w s_m and b' = (b - mean) s_m + beta with s_m = scale / sqrt(variance + epsilon), in double,
// rounded once), and a relu becomes the convolution's own epilogue. Only f32 constants, and only where nobody
// else reads the value between.
#include <cmath>

#include "engine/graph/op.h"
#include "engine/graph/pass.h"

namespace oar::passes {
namespace {

const Tensor* f32_constant(const Graph& g, const Node& n, size_t i) {
  if (i >= n.inputs.size() || n.inputs[i] == kNoValue) return nullptr;
  const Value& v = g.value(n.inputs[i]);
  if (v.kind != ValueKind::kConstant || !(v.constant.format() == Format::f32())) return nullptr;
  return &v.constant;
}

// conv(x, w, b?) then batch_norm(., scale, bias, mean, variance): the norm's node is dead afterwards.
Result<bool> fold_norm(Graph& g, size_t conv_at, size_t norm_at) {
  const Node norm = g.nodes()[norm_at], conv = g.nodes()[conv_at];
  const Tensor* w = f32_constant(g, conv, 1);
  const Tensor* b = f32_constant(g, conv, 2);
  const bool has_bias = conv.inputs.size() > 2 && conv.inputs[2] != kNoValue;
  const Tensor* parts[4];
  for (size_t k = 0; k < 4; ++k) parts[k] = f32_constant(g, norm, k + 1);
  if (!w || w->shape().rank() < 3 || (has_bias && !b) || norm.attrs.get_int("training_mode") ||
      norm.outputs.size() != 1 || conv.attrs.has("activation")) {
    return false;
  }
  const int64_t M = w->shape()[0], per = M > 0 ? w->numel() / M : 0;
  for (const Tensor* p : parts) {
    if (!p || p->numel() != M) return false;
  }
  if (b && b->numel() != M) return false;
  OAR_ASSIGN(Tensor w2, Tensor::allocate(w->shape(), Format::f32()));
  OAR_ASSIGN(Tensor b2, Tensor::allocate({M}, Format::f32()));
  const double epsilon = norm.attrs.get_float("epsilon", 1e-5);
  for (int64_t m = 0; m < M; ++m) {
    auto at = [&](int which) {
      return static_cast<double>(static_cast<const float*>(parts[which]->data())[m]);
    };
    const double s = at(0) / std::sqrt(at(3) + epsilon);
    const double bias = b ? static_cast<double>(static_cast<const float*>(b->data())[m]) : 0;
    static_cast<float*>(b2.mutable_data())[m] = static_cast<float>((bias - at(2)) * s + at(1));
    for (int64_t k = m * per; k < (m + 1) * per; ++k) {
      static_cast<float*>(w2.mutable_data())[k] =
          static_cast<float>(static_cast<double>(static_cast<const float*>(w->data())[k]) * s);
    }
  }
  const std::string name = g.value(conv.inputs[1]).name;
  const ValueId wid = g.add_constant(name + "'", std::move(w2)),
                bid = g.add_constant(name + ".bias'", std::move(b2));
  g.nodes()[conv_at].inputs = {conv.inputs[0], wid, bid};
  g.replace_uses(norm.outputs[0], conv.outputs[0]);
  return true;
}

}  // namespace

Result<int> fuse_conv(Graph& graph) {
  int fused = 0;
  std::vector<bool> dead(graph.nodes().size(), false);
  const std::vector<int> uses = graph.use_counts(), producer = graph.producers();
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& n = graph.nodes()[i];
    const bool norm = n.is("batch_norm"), relu = n.is("relu");
    if ((!norm && !relu) || n.inputs.empty() || n.inputs[0] == kNoValue) continue;
    // A folded norm's readers now read the convolution itself.
    const int p = producer[n.inputs[0]];
    if (p < 0 || dead[static_cast<size_t>(p)] || !graph.nodes()[static_cast<size_t>(p)].is("conv")) continue;
    if (uses[n.inputs[0]] != 1 && !(relu && graph.use_counts()[n.inputs[0]] == 1)) continue;
    const auto conv_at = static_cast<size_t>(p);
    if (norm) {
      OAR_ASSIGN(const bool done, fold_norm(graph, conv_at, i));
      if (!done) continue;
    } else {
      if (graph.nodes()[conv_at].attrs.has("activation")) continue;
      graph.nodes()[conv_at].attrs.set("activation", std::string("relu"));
      graph.replace_uses(n.outputs[0], graph.nodes()[conv_at].outputs[0]);
    }
    dead[i] = true;
    ++fused;
  }
  graph.remove_nodes(dead);
  return fused;
}

}  // namespace oar::passes
