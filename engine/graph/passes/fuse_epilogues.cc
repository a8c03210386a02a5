// What follows a convolution or a product with a constant matrix becomes part of its call: bias, residual
// and activation, where nobody else reads the value between. An inference batch norm folds into the filters
// (per filter m, w' = w s_m and b' = (b - mean) s_m + beta with s_m = scale / sqrt(variance + epsilon), in
// double, rounded once). matmul with a constant matrix first becomes `linear`, which has such a call.
#include <limits>

#include "engine/graph/pass.h"
#include "engine/graph/passes/absorb.h"
#include "engine/graph/passes/insert_quantization.h"
#include "engine/graph/passes/match.h"
#include "engine/graph/passes/substitution.h"

namespace oar::passes {
namespace {

// The outputs of one filter axis: M filters along the constant operand's axis.
int64_t filters_of(const Matcher& m, const Node& n) {
  const Tensor* w = m.constant(Matcher::operand(n, layer_operands(n).weight));
  if (!w) return 0;
  if (named(n, "conv")) return w->shape().rank() > 2 ? w->shape()[0] : 0;
  if (named(n, "conv_transpose"))
    return w->shape().rank() > 2 && n.attrs.get_int("group", 1) == 1 ? w->shape()[1] : 0;
  if (named(n, "linear"))
    return w->shape().rank() == 2 && n.inputs.size() == 4 ? w->shape()[filter_axis(n)] : 0;
  return 0;
}

void set_operand(Node& n, size_t k, ValueId v) {
  while (n.inputs.size() <= k) n.inputs.push_back(kNoValue);
  n.inputs[k] = v;
}

float at(const Tensor& t, int64_t k) { return static_cast<const float*>(t.data())[k]; }

// Conditions come before the rewrites, as functions that return null or the first one that fails: what
// `oar inspect --explain` prints is what decided.

// A layer, whose channels the norm sees, then batch_norm(., scale, bias, mean, variance).
const char* why_not_norm(const Matcher& m, const Node& layer, const Node& norm) {
  const LayerOperands at = layer_operands(layer);
  if (!m.f32_constant(layer.inputs[at.weight])) return "the filters are not constants of f32";
  const ValueId bias = Matcher::operand(layer, at.bias);
  const Tensor* b = m.f32_constant(bias);
  const int64_t M = filters_of(m, layer);
  if (bias != kNoValue && (!b || b->numel() != M)) return "the layer's bias is no constant of f32";
  if (norm.attrs.get_int("training_mode") || norm.outputs.size() != 1) return "the batch norm is training";
  if (Matcher::operand(layer, at.residual) != kNoValue) return "a residual was added before";
  for (size_t k = 1; k <= 4; ++k) {
    const Tensor* p = m.f32_constant(Matcher::operand(norm, k));
    if (!p || p->numel() != M) return "the batch norm's numbers are not constants of f32, one per filter";
  }
  return nullptr;
}

Status fold_norm(Graph& g, const Matcher& m, Node& layer, const Node& norm) {
  const LayerOperands place = layer_operands(layer);
  const ValueId weight = layer.inputs[place.weight];
  const Tensor* w = m.f32_constant(weight);
  const Tensor* b = m.f32_constant(Matcher::operand(layer, place.bias));
  const Tensor* parts[4];
  for (size_t k = 0; k < 4; ++k) parts[k] = m.f32_constant(Matcher::operand(norm, k + 1));
  const int64_t M = filters_of(m, layer);
  // In place where nobody else has the weights: loading is mostly waiting for new pages.
  const bool own = m.uses(weight) == 1 && w->buffer().writable() && w->buffer().holders() == 1;
  Tensor w2 = *w;
  if (!own) { OAR_ASSIGN(w2, Tensor::allocate(w->shape(), Format::f32())); }
  OAR_ASSIGN(Tensor b2, Tensor::allocate({M}, Format::f32()));
  const double epsilon = norm.attrs.get_float("epsilon", 1e-5);
  std::vector<double> scale(static_cast<size_t>(M));
  for (int64_t k = 0; k < M; ++k) {
    const auto value = [&](int which) { return static_cast<double>(at(*parts[which], k)); };
    const double s = scale[static_cast<size_t>(k)] = value(0) / std::sqrt(value(3) + epsilon);
    const double bias = b ? static_cast<double>(at(*b, k)) : 0;
    static_cast<float*>(b2.mutable_data())[k] = static_cast<float>((bias - value(2)) * s + value(1));
  }
  const bool columns = named(layer, "linear") && filter_axis(layer) == 1;
  const int64_t rows = columns ? w->shape()[0] : M, per = rows > 0 ? w->numel() / rows : 0;
  const float* from = w->values<float>().data();
  float* to = w2.mutable_values<float>().data();
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < per; ++k, ++from, ++to)
      *to = static_cast<float>(static_cast<double>(*from) * scale[static_cast<size_t>(columns ? k : r)]);
  }
  const std::string name = g.value(weight).name;
  layer.inputs[place.weight] = g.add_constant(name + "'", std::move(w2));
  set_operand(layer, place.bias, g.add_constant(name + ".bias'", std::move(b2)));
  return ok_status();
}

// A constant added to each filter's output alike: its M values, or one for all.
bool is_bias(const Node& n, const Node& sum, const Tensor& t, int64_t M) {
  if (t.numel() == 1) return t.shape().rank() <= 1;
  if (t.numel() != M) return false;
  const Shape& s = t.shape();
  if (named(n, "linear")) return !sum.attrs.has("axis") && s[s.rank() - 1] == M;
  if (sum.attrs.has("axis")) return sum.attrs.get_int("axis") == 1 && s.rank() >= 1 && s[0] == M;
  // (M, 1, ..) aligned at the end of the weight's rank: (N, M, spatial...) has as many axes as the weight.
  return s.rank() >= 2 && s[s.rank() == 4 ? 1 : 0] == M && (s.rank() == 3 || s.rank() == 4);
}

const char* why_not_bias(const Matcher& m, const Node& n, const Node& sum, size_t side) {
  const Tensor* t = m.f32_constant(sum.inputs[side]);
  const Tensor* w = m.f32_constant(n.inputs[layer_operands(n).weight]);
  const int64_t M = filters_of(m, n);
  if (!t) return "the constant added is not f32";
  if (!w) return "the weights are not f32";
  if (!is_bias(n, sum, *t, M)) return "the constant added is not one number per filter";
  if (!named(n, "linear") && !sum.attrs.has("axis") && t->numel() != 1 && w->shape().rank() != 4)
    return "one number per filter of a convolution that is not over images";
  const ValueId old = Matcher::operand(n, layer_operands(n).bias);
  const Tensor* b = m.f32_constant(old);
  if (old != kNoValue && (!b || b->numel() != M)) return "the bias there is no constant of f32";
  return nullptr;
}

Status fold_bias(Graph& g, const Matcher& m, Node& n, const Node& sum, size_t side) {
  const Tensor* t = m.f32_constant(sum.inputs[side]);
  const Tensor* b = m.f32_constant(Matcher::operand(n, layer_operands(n).bias));
  const int64_t M = filters_of(m, n);
  OAR_ASSIGN(Tensor bias, Tensor::allocate({M}, Format::f32()));
  for (int64_t k = 0; k < M; ++k) {
    static_cast<float*>(bias.mutable_data())[k] = at(*t, t->numel() == 1 ? 0 : k) + (b ? at(*b, k) : 0.f);
  }
  set_operand(n, layer_operands(n).bias, g.add_constant(g.value(sum.inputs[side]).name, std::move(bias)));
  return ok_status();
}

bool is_layer(const Node& n) { return named(n, "conv") || named(n, "conv_transpose") || named(n, "linear"); }

// Null where `reader`, the only one of n's result, can become part of n.
const char* why_not(const Matcher& m, const Node& n, const Node& reader) {
  if (n.attrs.has("activation")) return "an activation ends the call already";
  if (filters_of(m, n) < 1) return "the weights are no constant, or a transposed convolution has groups";
  if (!Matcher::whole(reader) || reader.outputs.size() != 1) return "the reader has other than one result";
  const ValueId out = n.outputs[0];
  if (named(reader, "batch_norm") && reader.inputs[0] == out)
    return named(n, "conv") ? why_not_norm(m, n, reader)
                            : "a batch norm folds into convolutions, and layers of rows";
  if (named(reader, "add") && reader.inputs[0] != reader.inputs[1]) {
    const size_t other = reader.inputs[0] == out ? 1 : 0;
    if (Matcher::operand(n, layer_operands(n).residual) != kNoValue) return "a residual was added before";
    if (m.constant(reader.inputs[other])) {
      if (reader.attrs.has("axis") && other == 0) return "the constant keeps its shape, not the result";
      return why_not_bias(m, n, reader, other);
    }
    if (reader.attrs.has("axis")) return "the sum names an axis";
    if (named(n, "conv_transpose")) return "a transposed convolution adds no residual";
    if (reader.inputs[other] == kNoValue) return "the other operand is missing";
    return nullptr;
  }
  if (reader.inputs[0] != out) return "the reader has the result as another operand";
  if (!ending_of(m, reader)) return "no call ends with this op";
  return nullptr;
}

// Takes the only reader of n's result into n, if that is possible.
Result<bool> absorb(Graph& g, const Matcher& m, Node& n, const Node& reader) {
  if (why_not(m, n, reader)) return false;
  const ValueId out = n.outputs[0];
  if (named(reader, "batch_norm")) {
    OAR_RETURN_IF_ERROR(fold_norm(g, m, n, reader));
  } else if (named(reader, "add") && reader.inputs[0] != reader.inputs[1]) {
    const size_t other = reader.inputs[0] == out ? 1 : 0;
    if (m.constant(reader.inputs[other])) OAR_RETURN_IF_ERROR(fold_bias(g, m, n, reader, other));
    else set_operand(n, layer_operands(n).residual, reader.inputs[other]);
  } else {
    const Ending e = *ending_of(m, reader);
    n.attrs.set("activation", e.kind);
    n.attrs.set("act_alpha", e.alpha);
    n.attrs.set("act_beta", e.beta);
  }
  return true;
}

// What becomes part of the filters or the bias of a convolution, which stays the op that files spell.
bool becomes_constant(const Matcher& m, const Node& n, const Node& reader) {
  if (!named(n, "conv") || n.outputs.size() != 1 || !Matcher::whole(reader)) return false;
  if (named(reader, "batch_norm")) return true;
  return named(reader, "add") && m.constant(reader.inputs[reader.inputs[0] == n.outputs[0] ? 1 : 0]);
}

// A batch norm of the rows that a layer makes and a reshape to (rows, M) hands on: what BatchNorm1d behind a
// Linear of more than two axes is exported as.
Result<int> fold_norms_of_rows(Graph& graph) {
  const Matcher m(graph);
  Substitution taken(graph);
  std::vector<bool> dead(graph.nodes().size(), false);
  int folded = 0;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node& norm = graph.nodes()[i];
    if (!named(norm, "batch_norm") || norm.inputs.empty() || m.uses(norm.inputs[0]) != 1) continue;
    const Node* rows = m.made_by(norm.inputs[0], "reshape");
    if (!rows || rows->inputs.size() != 1 || m.uses(rows->inputs[0]) != 1) continue;
    const Node* linear = m.made_by(rows->inputs[0], "linear");
    const std::vector<int64_t> shape = rows->attrs.get_ints("shape");
    if (!linear || linear->attrs.has("activation") || shape.size() != 2 || filters_of(m, *linear) < 1 ||
        shape[1] != filters_of(m, *linear) || why_not_norm(m, *linear, norm))
      continue;
    Node& layer = graph.nodes()[static_cast<size_t>(m.producer(rows->inputs[0]))];
    OAR_RETURN_IF_ERROR(fold_norm(graph, m, layer, norm));
    taken.add(norm.outputs[0], rows->outputs[0]);
    dead[i] = true;
    ++folded;
  }
  taken.apply(graph);
  graph.remove_nodes(dead);
  return folded;
}

// Null where a product can become a layer.
const char* why_not_linear(const Matcher& m, const Node& n) {
  if (n.inputs.size() < 2) return "an operand is missing";
  const Tensor* w = m.f32_constant(n.inputs[1]);
  if (!w) return "the second operand is no constant of f32";
  if (w->shape().rank() != 2 || w->numel() == 0) return "the constant is no matrix";
  if (m.constant(n.inputs[0])) return "both operands are constants";
  return nullptr;
}

}  // namespace

std::optional<Ending> ending_of(const Matcher& m, const Node& act) {
  const std::string_view name = act.op->name;
  const Attrs& a = act.attrs;
  if (name == "relu" || name == "sigmoid" || name == "tanh") return Ending{act.op->name};
  if (name == "silu" && a.get_float("alpha", 1) == 1) return Ending{"silu"};
  if (name == "gelu") return Ending{a.get_string("approximate", "none") == "tanh" ? "gelu_tanh" : "gelu"};
  if (name == "leaky_relu") return Ending{"leaky_relu", a.get_float("alpha", 0.01)};
  if (name == "hard_sigmoid")
    return Ending{"hard_sigmoid", a.get_float("alpha", 0.2), a.get_float("beta", 0.5)};
  if (name == "hard_swish")
    return Ending{"hard_swish", a.get_float("alpha", 1.0 / 6), a.get_float("beta", 0.5)};
  if (name == "clip") {
    double bounds[] = {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    for (size_t k = 0; k < 2; ++k) {
      const ValueId v = Matcher::operand(act, k + 1);
      if (v == kNoValue) continue;
      const auto c = m.number(v);
      if (!c) return std::nullopt;
      bounds[k] = *c;
    }
    return Ending{"clip", bounds[0], bounds[1]};
  }
  return std::nullopt;
}

Result<int> matmul_to_linear(Graph& graph) {
  const OpDef* linear = find_op("linear");
  const Matcher m(graph);
  int made = 0;
  for (Node& n : graph.nodes()) {
    if (!named(n, "matmul") || why_not_linear(m, n)) continue;
    n.op = linear;
    n.inputs = {n.inputs[0], kNoValue, n.inputs[1], kNoValue};
    n.attrs = Attrs{{"input_major", int64_t{1}}};
    ++made;
  }
  return made;
}

std::vector<Refusal> explain_linear(const Graph& graph) {
  const Matcher m(graph);
  std::vector<Refusal> out;
  for (const Node& n : graph.nodes()) {
    if (!named(n, "matmul")) continue;
    if (const char* reason = why_not_linear(m, n)) out.push_back({node_label(n), "", reason});
  }
  return out;
}

Result<int> absorb_readers(Graph& graph, const Absorb& absorb) {
  int fused = 0;
  // From the last node to the first: of two convolutions that meet in a sum, the later one takes it.
  for (bool changed = true; changed;) {
    changed = false;
    const Matcher m(graph);
    Substitution taken(graph);  // a sum that n took is n's own result at the end of the round
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
      const Node& next = graph.nodes()[static_cast<size_t>(r)];  // absorb() adds values, never nodes
      OAR_ASSIGN(const bool done, absorb(graph, m, n, next));
      if (!done) continue;
      taken.add(next.outputs[0], n.outputs[0]);
      dead[static_cast<size_t>(r)] = touched[i] = true;
      // Whoever reads the sum now has other operands than the matcher knows: next round.
      const int after = reader[static_cast<size_t>(next.outputs[0])];
      if (after >= 0) touched[static_cast<size_t>(after)] = true;
      ++fused;
      changed = true;
    }
    taken.apply(graph);
    graph.remove_nodes(dead);
    graph.sort();
  }
  return fused;
}

Result<int> fuse_epilogues(Graph& graph) {
  OAR_ASSIGN(const int rows, fold_norms_of_rows(graph));
  OAR_ASSIGN(const int read, absorb_readers(graph, absorb));
  return rows + read;
}

Result<int> fold_layer_constants(Graph& graph) {
  return absorb_readers(graph, [](Graph& g, const Matcher& m, Node& n, const Node& reader) -> Result<bool> {
    if (!becomes_constant(m, n, reader)) return false;
    return absorb(g, m, n, reader);
  });
}

std::vector<Refusal> explain_epilogues(const Graph& graph) {
  const Matcher m(graph);
  std::vector<Refusal> out;
  for (const Node& reader : graph.nodes()) {
    for (ValueId v : reader.inputs) {
      const Node* n = m.maker(v);
      if (!n || !is_layer(*n) || n->outputs.size() != 1) continue;
      // What never follows a layer's sum as part of its call is no missed fusion.
      const bool candidate = named(reader, "batch_norm") || named(reader, "add") || ending_of(m, reader) ||
                             named(reader, "clip");
      if (!candidate) continue;
      const char* reason = m.uses(v) != 1 ? "others read the result too" : why_not(m, *n, reader);
      out.push_back(
          {node_label(*n), node_label(reader), reason ? reason : "the sum went into its other operand"});
    }
  }
  return out;
}

}  // namespace oar::passes
