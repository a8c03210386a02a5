// What follows a convolution or a product with a constant matrix becomes part of its call: bias, residual
// and activation, where nobody else reads the value between. An inference batch norm folds into the filters
// (per filter m, w' = w s_m and b' = (b - mean) s_m + beta with s_m = scale / sqrt(variance + epsilon), in
// double, rounded once). matmul and gemm with a constant matrix first become `dense`, which has such a call.
#include <limits>

#include "engine/graph/pass.h"
#include "engine/graph/passes/match.h"

namespace oar::passes {
namespace {

// The outputs of one filter axis: M filters along the constant operand's axis.
int64_t filters_of(const Matcher& m, const Node& n) {
  const Tensor* w = m.constant(Matcher::operand(n, 1));
  if (!w) return 0;
  if (named(n, "conv")) return w->shape().rank() > 2 ? w->shape()[0] : 0;
  if (named(n, "conv_transpose"))
    return w->shape().rank() > 2 && n.attrs.get_int("group", 1) == 1 ? w->shape()[1] : 0;
  if (named(n, "dense")) return n.attrs.get_int("transposed") != 0 ? w->shape()[0] : w->shape()[1];
  return 0;
}

void set_operand(Node& n, size_t k, ValueId v) {
  while (n.inputs.size() <= k) n.inputs.push_back(kNoValue);
  n.inputs[k] = v;
}

float at(const Tensor& t, int64_t k) { return static_cast<const float*>(t.data())[k]; }

// conv(x, w, b?) then batch_norm(., scale, bias, mean, variance).
Result<bool> fold_norm(Graph& g, const Matcher& m, Node& conv, const Node& norm) {
  if (!named(conv, "conv")) return false;
  const Tensor* w = m.f32_constant(conv.inputs[1]);
  const Tensor* b = m.f32_constant(Matcher::operand(conv, 2));
  const Tensor* parts[4];
  for (size_t k = 0; k < 4; ++k) parts[k] = m.f32_constant(Matcher::operand(norm, k + 1));
  if (!w || (Matcher::operand(conv, 2) != kNoValue && !b) || norm.attrs.get_int("training_mode") ||
      norm.outputs.size() != 1 || Matcher::operand(conv, 3) != kNoValue) {
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
  for (int64_t k = 0; k < M; ++k) {
    const auto value = [&](int which) { return static_cast<double>(at(*parts[which], k)); };
    const double s = value(0) / std::sqrt(value(3) + epsilon);
    const double bias = b ? static_cast<double>(at(*b, k)) : 0;
    static_cast<float*>(b2.mutable_data())[k] = static_cast<float>((bias - value(2)) * s + value(1));
    for (int64_t e = k * per; e < (k + 1) * per; ++e) {
      static_cast<float*>(w2.mutable_data())[e] = static_cast<float>(static_cast<double>(at(*w, e)) * s);
    }
  }
  const std::string name = g.value(conv.inputs[1]).name;
  const ValueId wid = g.add_constant(name + "'", std::move(w2)),
                bid = g.add_constant(name + ".bias'", std::move(b2));
  conv.inputs = {conv.inputs[0], wid, bid};
  return true;
}

// A constant added to each filter's output alike: its M values, or one for all.
bool is_bias(const Node& n, const Node& sum, const Tensor& t, int64_t M) {
  if (t.numel() == 1) return t.shape().rank() <= 1;
  if (t.numel() != M) return false;
  const Shape& s = t.shape();
  if (named(n, "dense")) return !sum.attrs.has("axis") && s[s.rank() - 1] == M;
  if (sum.attrs.has("axis")) return sum.attrs.get_int("axis") == 1 && s.rank() >= 1 && s[0] == M;
  // (M, 1, ..) aligned at the end of the weight's rank: (N, M, spatial...) has as many axes as the weight.
  return s.rank() >= 2 && s[s.rank() == 4 ? 1 : 0] == M && (s.rank() == 3 || s.rank() == 4);
}

Result<bool> fold_bias(Graph& g, const Matcher& m, Node& n, const Node& sum, size_t side) {
  const Tensor* t = m.f32_constant(sum.inputs[side]);
  const Tensor* w = m.f32_constant(n.inputs[1]);
  const int64_t M = filters_of(m, n);
  if (!t || !w || M < 1 || !is_bias(n, sum, *t, M)) return false;
  if (!named(n, "dense") && !sum.attrs.has("axis") && t->numel() != 1 && w->shape().rank() != 4) return false;
  const ValueId old = Matcher::operand(n, 2);
  const Tensor* b = m.f32_constant(old);
  if (old != kNoValue && (!b || b->numel() != M)) return false;
  OAR_ASSIGN(Tensor bias, Tensor::allocate({M}, Format::f32()));
  for (int64_t k = 0; k < M; ++k) {
    static_cast<float*>(bias.mutable_data())[k] = at(*t, t->numel() == 1 ? 0 : k) + (b ? at(*b, k) : 0.f);
  }
  set_operand(n, 2, g.add_constant(g.value(sum.inputs[side]).name, std::move(bias)));
  return true;
}

// Sets the attributes that make `act` the node's epilogue.
bool take_activation(const Matcher& m, Node& n, const Node& act) {
  const std::string_view name = act.op->name;
  const auto set = [&](const char* kind, double alpha = 0, double beta = 0) {
    n.attrs.set("activation", std::string(kind));
    n.attrs.set("act_alpha", alpha);
    n.attrs.set("act_beta", beta);
    return true;
  };
  const Attrs& a = act.attrs;
  if (name == "relu" || name == "sigmoid" || name == "silu" || name == "tanh") return set(act.op->name);
  if (name == "swish" && a.get_float("alpha", 1) == 1) return set("silu");
  if (name == "gelu") return set(a.get_string("approximate", "none") == "tanh" ? "gelu_tanh" : "gelu");
  if (name == "leaky_relu") return set("leaky_relu", a.get_float("alpha", 0.01));
  if (name == "hard_sigmoid") return set("hard_sigmoid", a.get_float("alpha", 0.2), a.get_float("beta", 0.5));
  if (name == "hard_swish") return set("hard_swish", a.get_float("alpha", 1.0 / 6), a.get_float("beta", 0.5));
  if (name == "clip") {
    double bounds[] = {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    for (size_t k = 0; k < 2; ++k) {
      const ValueId v = Matcher::operand(act, k + 1);
      if (v == kNoValue) continue;
      const auto c = m.number(v);
      if (!c) return false;
      bounds[k] = *c;
    }
    return set("clip", bounds[0], bounds[1]);
  }
  return false;
}

// Takes the only reader of n's result into n, if that is possible.
Result<bool> absorb(Graph& g, const Matcher& m, Node& n, const Node& reader) {
  if (n.attrs.has("activation") || filters_of(m, n) < 1 || !Matcher::whole(reader) ||
      reader.outputs.size() != 1) {
    return false;
  }
  const ValueId out = n.outputs[0];
  if (named(reader, "batch_norm") && reader.inputs[0] == out) return fold_norm(g, m, n, reader);
  if (named(reader, "add") && reader.inputs[0] != reader.inputs[1]) {
    const size_t other = reader.inputs[0] == out ? 1 : 0;
    if (Matcher::operand(n, 3) != kNoValue) return false;
    if (m.constant(reader.inputs[other])) {
      // With an axis the first operand is the one that keeps its shape.
      if (reader.attrs.has("axis") && other == 0) return false;
      return fold_bias(g, m, n, reader, other);
    }
    if (reader.attrs.has("axis") || named(n, "conv_transpose") || reader.inputs[other] == kNoValue)
      return false;
    set_operand(n, 3, reader.inputs[other]);
    return true;
  }
  if (reader.inputs[0] != out) return false;
  return take_activation(m, n, reader);
}

}  // namespace

Result<int> fuse_dense(Graph& graph) {
  const OpDef* dense = find_op("dense");
  const Matcher m(graph);
  int made = 0;
  for (Node& n : graph.nodes()) {
    const bool product = named(n, "matmul"), gemm = named(n, "gemm");
    if ((!product && !gemm) || n.inputs.size() < 2) continue;
    const Tensor* w = m.f32_constant(n.inputs[1]);
    if (!w || w->shape().rank() != 2 || w->numel() == 0 || m.constant(n.inputs[0])) continue;
    const bool transposed = gemm && n.attrs.get_int("transB") != 0;
    ValueId bias = kNoValue;
    if (gemm) {
      if (n.attrs.get_int("transA") != 0 || n.attrs.get_float("alpha", 1) != 1 ||
          n.attrs.get_float("beta", 1) != 1)
        continue;
      bias = Matcher::operand(n, 2);
      const Tensor* b = m.f32_constant(bias);
      const int64_t N = w->shape()[transposed ? 0 : 1];
      if (bias != kNoValue && (!b || b->numel() != N || b->shape()[b->shape().rank() - 1] != N)) continue;
    }
    n.op = dense;
    n.inputs = {n.inputs[0], n.inputs[1], bias};
    n.attrs = Attrs{{"transposed", int64_t{transposed}}};
    if (gemm) n.attrs.set("matrix", int64_t{1});
    ++made;
  }
  return made;
}

Result<int> fuse_epilogues(Graph& graph) {
  int fused = 0;
  // From the last node to the first: of two convolutions that meet in a sum, the later one takes it.
  for (bool changed = true; changed;) {
    changed = false;
    const Matcher m(graph);
    std::vector<bool> dead(graph.nodes().size(), false), touched(graph.nodes().size(), false);
    std::vector<int> reader(graph.num_values(), -1);
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      for (ValueId v : graph.nodes()[i].inputs) {
        if (v != kNoValue) reader[static_cast<size_t>(v)] = static_cast<int>(i);
      }
    }
    for (size_t i = graph.nodes().size(); i-- > 0;) {
      Node& n = graph.nodes()[i];
      if (dead[i] || touched[i] || n.outputs.size() != 1 || m.uses(n.outputs[0]) != 1) continue;
      const int r = reader[static_cast<size_t>(n.outputs[0])];
      if (r < 0 || dead[static_cast<size_t>(r)] || touched[static_cast<size_t>(r)]) continue;
      const Node next = graph.nodes()[static_cast<size_t>(r)];
      OAR_ASSIGN(const bool done, absorb(graph, m, n, next));
      if (!done) continue;
      graph.replace_uses(next.outputs[0], n.outputs[0]);
      dead[static_cast<size_t>(r)] = touched[i] = true;
      // Whoever reads the sum now has other operands than the matcher knows: next round.
      const int after = reader[static_cast<size_t>(next.outputs[0])];
      if (after >= 0) touched[static_cast<size_t>(after)] = true;
      ++fused;
      changed = true;
    }
    graph.remove_nodes(dead);
    graph.sort();
  }
  return fused;
}

}  // namespace oar::passes
