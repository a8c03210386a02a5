#include "train/image_graph.h"

#include <algorithm>
#include <set>

#include "engine/graph/builder.h"
#include "engine/graph/pass.h"
#include "engine/graph/passes/grad.h"
#include "engine/graph/passes/typed.h"
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

std::string layer_name(const Node& n) {
  return n.name.empty() ? n.op->name : cat(n.op->name, " '", n.name, "'");
}

// Operands that layers read as what they have learned.
std::vector<size_t> learned_operands(const Node& n) {
  for (const char* op : {"conv", "conv_transpose", "batch_norm", "instance_norm", "group_norm", "layer_norm"})
    if (n.is(op)) return {1, 2};
  if (n.is("linear")) return {2, 3};
  if (n.is("matmul")) return {0, 1};
  if (n.is("rms_norm") || n.is("prelu")) return {1};
  return {};
}

bool is_vector(const Tensor& t) {
  return std::count_if(t.shape().begin(), t.shape().end(), [](int64_t n) { return n > 1; }) <= 1;
}

// The constant behind ops that move numbers and make none; kNoValue: it is computed, or an input.
ValueId constant_behind(const Graph& g, const std::vector<int>& producer, ValueId v) {
  while (v != kNoValue && g.value(v).kind == ValueKind::kResult) {
    const Node& n = g.nodes()[static_cast<size_t>(producer[static_cast<size_t>(v)])];
    bool moves = false;
    for (const char* op : {"identity", "reshape", "transpose", "flatten", "squeeze", "unsqueeze"})
      moves = moves || n.is(op);
    if (!moves) return kNoValue;
    v = n.inputs[0];
  }
  return v != kNoValue && g.value(v).kind == ValueKind::kConstant ? v : kNoValue;
}

class Network {
 public:
  Network(ImageGraphs& out, const std::vector<std::string>& freeze)
      : out_(out), g_(out.network), freeze_(freeze) {}

  Status choose() {
    g_.sort();
    producer_ = g_.producers();
    for (size_t v = 0; v < g_.num_values(); ++v)
      if (g_.value(static_cast<ValueId>(v)).kind != ValueKind::kResult)
        names_.insert(g_.value(static_cast<ValueId>(v)).name);
    behind_.assign(g_.num_values(), 0);
    for (size_t i = 0; i < g_.nodes().size(); ++i) OAR_RETURN_IF_ERROR(look(i));
    for (const std::string& p : freeze_)
      if (!matched_.contains(p))
        return invalid_argument(cat("--freeze ", p, " matches no parameter of the network"));
    if (out_.parameters.empty())
      return matched_.empty() ? unimplemented("the network has no layer whose f32 weights are stored")
                              : invalid_argument("--freeze leaves no parameter to train");
    return ok_status();
  }

 private:
  bool frozen(const std::string& name) {
    bool any = false;
    for (const std::string& p : freeze_)
      if (matches(p, name)) any = true, matched_.insert(p);
    return any;
  }

  // A constant of the operand's own, under a name that no other has.
  ValueId own(ValueId v, Node& reader, size_t operand) {
    const bool shared = !used_.insert(v).second;
    if (shared && reader.inputs[operand] == v && is_vector(g_.value(v).constant)) {
      const Tensor t = g_.value(v).constant;
      const std::string name = g_.value(v).name;
      v = g_.add_constant(name, t);
      reader.inputs[operand] = v;
      behind_.resize(g_.num_values(), 0);
      producer_.resize(g_.num_values(), -1);
      name_alone(v);
    } else if (!shared && g_.value(v).name.empty()) {
      name_alone(v);
    }
    return v;
  }
  void name_alone(ValueId v) {
    const std::string base = g_.value(v).name.empty() ? "constant" : g_.value(v).name;
    std::string name = base;
    for (int k = 2; !names_.insert(name).second; ++k) name = cat(base, ".", k);
    g_.value(v).name = name;
  }

  Status learn(size_t i, size_t operand) {
    Node& n = g_.nodes()[i];
    ValueId v = constant_behind(g_, producer_, n.inputs[operand]);
    if (v == kNoValue) return ok_status();
    const Format format = g_.value(v).constant.format();
    if (!dtype_is_float(format.dtype())) return ok_status();
    if (!(format == Format::f32()))
      return unimplemented(cat("'", g_.value(v).name, "' of ", layer_name(n), " is ", format.name(),
                               "; only networks in f32 are trained"));
    v = own(v, n, operand);
    const auto known = std::find(out_.constants.begin(), out_.constants.end(), v);
    if (known == out_.constants.end()) {
      const std::string name = g_.value(v).name;
      if (frozen(name)) return ok_status();
      out_.parameters.push_back({name, g_.value(v).constant.shape()});
      out_.constants.push_back(v);
    }
    behind_[static_cast<size_t>(n.inputs[operand])] = 1;
    return ok_status();
  }

  Status look(size_t i) {
    const auto given = [&](size_t k) {
      const Node& n = g_.nodes()[i];
      return k < n.inputs.size() && n.inputs[k] != kNoValue;
    };
    const auto learned = [&](size_t k) {
      return given(k) && behind_[static_cast<size_t>(g_.nodes()[i].inputs[k])] != 0;
    };
    for (const size_t k : learned_operands(g_.nodes()[i]))
      if (given(k)) OAR_RETURN_IF_ERROR(learn(i, k));
    const Node& layer = g_.nodes()[i];
    const bool window = layer.is("conv") || layer.is("conv_transpose");
    if ((window || layer.is("linear")) &&
        constant_behind(g_, producer_, layer.inputs[window ? 1 : 2]) == kNoValue)
      return unimplemented(
          cat(layer_name(layer), " reads weights that are computed (of a quantized network?), not stored"));
    if (layer.is("batch_norm")) OAR_RETURN_IF_ERROR(average(i));
    if ((layer.is("add") || layer.is("mul")) && (learned(0) || learned(1))) {
      const size_t k = learned(0) ? 1 : 0;
      const ValueId v = constant_behind(g_, producer_, layer.inputs[k]);
      if (v != kNoValue && g_.value(v).constant.numel() > 1) OAR_RETURN_IF_ERROR(learn(i, k));
    }
    const Node& n = g_.nodes()[i];
    bool any = false;
    for (size_t k = 0; k < n.inputs.size(); ++k) any = any || learned(k);
    for (const ValueId v : n.outputs)
      if (v != kNoValue) behind_[static_cast<size_t>(v)] = any ? 1 : 0;
    return ok_status();
  }

  // A batch norm's averages move with the batches.
  Status average(size_t i) {
    if (g_.nodes()[i].attrs.get_bool("training_mode"))
      return unimplemented(
          cat(layer_name(g_.nodes()[i]), " is in training mode; export the network for inference"));
    for (const size_t k : {size_t{3}, size_t{4}}) {
      Node& n = g_.nodes()[i];
      const ValueId v = n.inputs[k];
      if (g_.value(v).kind != ValueKind::kConstant || !(g_.value(v).constant.format() == Format::f32()))
        return unimplemented(cat(layer_name(n), " has averages that are no f32 constants"));
      if (k == 3 && frozen(g_.value(v).name)) return ok_status();
      const ValueId mine = own(v, n, k);
      out_.averages.push_back({g_.value(mine).name, n.attrs.get_float("momentum", 0.9), mine});
    }
    return ok_status();
  }

  ImageGraphs& out_;
  Graph& g_;
  const std::vector<std::string>& freeze_;
  std::set<std::string> names_, matched_;
  std::set<ValueId> used_;
  std::vector<int> producer_;
  std::vector<uint8_t> behind_;  // by value: reads something that is trained
};

DimVector dims_of(const Shape& s) { return {s.begin(), s.end()}; }

// Batch norms by the batch's own numbers, and those as outputs.
Status train_norms(Graph& g, const ImageGraphs& out) {
  for (size_t a = 0; a + 1 < out.averages.size(); a += 2) {
    const auto reads = [&](const Node& n) {
      return n.is("batch_norm") && n.inputs[3] == out.averages[a].constant;
    };
    const auto at = std::find_if(g.nodes().begin(), g.nodes().end(), reads);
    OAR_CHECK(at != g.nodes().end(), "an average belongs to a batch norm");
    const Node n = *at;
    g.nodes().erase(at);
    const auto made = g.append(&op_batch_statistics_norm, {n.inputs[0], n.inputs[1], n.inputs[2]}, 3,
                               {{"epsilon", n.attrs.get_float("epsilon", 1e-5)}}, {}, n.name);
    g.replace_uses(n.outputs[0], made[0]);
    for (size_t k = 0; k < 2; ++k) g.add_output(out.averages[a + k].name, made[1 + k]);
    g.sort();
  }
  return ok_status();
}

// The value whose softmax the loss takes: what the network gives, or what its own softmax is given.
Val scores_of(const Graph& g, ValueId v) {
  const std::vector<int> producer = g.producers();
  for (ValueId at = v; producer[static_cast<size_t>(at)] >= 0;) {
    const Node& n = g.nodes()[static_cast<size_t>(producer[static_cast<size_t>(at)])];
    if (n.is("softmax") || n.is("log_softmax")) return {n.inputs[0]};
    if (!n.is("identity") && !n.is("reshape") && !n.is("flatten") && !n.is("squeeze")) break;
    at = n.inputs[0];
  }
  return {v};
}

struct ScoredNetwork {
  Graph graph;
  std::vector<ValueId> parameters;  // states
  Val loss, logits;
};

Result<ScoredNetwork> forward(const ImageGraphs& out, const ImportedModel& model, const Shape& input,
                              bool train, int64_t& classes) {
  Graph g = out.network;
  g.keep_outputs(1);
  for (size_t k = 0; k < out.parameters.size(); ++k) {
    const Parameter& p = out.parameters[k];
    g.replace_uses(out.constants[k], g.add_state(p.name, {Format::f32(), dims_of(p.shape)}));
  }
  // A file has one seed, and with it every step would drop the same.
  for (size_t i = 0; i < g.nodes().size(); ++i)
    if (const Node n = g.nodes()[i]; n.is("dropout")) g.replace_uses(n.outputs[0], n.inputs[0]);
  if (train) {
    OAR_RETURN_IF_ERROR(train_norms(g, out));
  } else {
    for (const ImageGraphs::Average& a : out.averages) {
      const Shape shape = g.value(a.constant).constant.shape();
      g.replace_uses(a.constant, g.add_state(a.name, {Format::f32(), dims_of(shape)}));
    }
  }
  ScoredNetwork f;
  OAR_ASSIGN(f.graph, passes::typed(g, {{model.inputs[0].name, {Format::f32(), dims_of(input)}}}));
  Builder b(f.graph);
  const Val targets{f.graph.add_input("targets", {Format::i32(), {Dim(input[0])}})};
  const Val weight{f.graph.add_input("weight", {Format::f32(), {}})};
  const Val scores = scores_of(f.graph, f.graph.outputs()[0].value);
  int64_t numbers = 1;
  for (const Dim& d : b.shape(scores)) numbers *= d.const_value();
  if (b.shape(scores).empty() || b.dim(scores, 0).const_value() != input[0] || numbers / input[0] < 2)
    return invalid_argument(cat("the network's output is ", f.graph.type_string(b.type(scores)), " for ",
                                input[0], " images; expected a row of scores an image"));
  classes = numbers / input[0];
  f.logits = b.op("reshape", {scores}, {{"shape", std::vector<int64_t>{input[0], classes}}});
  const Val sum = b.op("softmax_cross_entropy_loss", {f.logits, targets},
                       {{"reduction", std::string("sum")}, {"ignore_index", int64_t{-1}}});
  f.loss = b.op("mul", {sum, weight});
  OAR_RETURN_IF_ERROR(b.status());
  for (size_t k = 0; k < out.parameters.size(); ++k) f.parameters.push_back(f.graph.states()[k]);
  return f;
}

}  // namespace

Result<ImageGraphs> build_image_graphs(const ImportedModel& model, const Shape& input,
                                       const std::vector<std::string>& freeze,
                                       const std::optional<StepUpdate>& update) {
  ImageGraphs out;
  out.network = *model.graph;
  OAR_RETURN_IF_ERROR(Network(out, freeze).choose());
  const auto evaluated = [](const Node& n) { return runs_on_values(*n.op); };

  OAR_ASSIGN(ScoredNetwork held, forward(out, model, input, false, out.classes));
  held.graph.keep_outputs(0);
  held.graph.add_output("loss", held.loss.id);
  held.graph.add_output("logits", held.logits.id);
  OAR_RETURN_IF_ERROR(decompose(held.graph, evaluated).status());
  OAR_RETURN_IF_ERROR(passes::dce(held.graph).status());
  out.loss = std::make_shared<const Graph>(std::move(held.graph));

  OAR_ASSIGN(ScoredNetwork f, forward(out, model, input, true, out.classes));
  // The loss takes the place of the scores, in front of the batch norms' numbers.
  std::vector<Graph::Output> outputs(f.graph.outputs().begin(), f.graph.outputs().end());
  outputs[0] = {"loss", f.loss.id};
  f.graph.keep_outputs(0);
  for (const Graph::Output& o : outputs) f.graph.add_output(o.name, o.value);
  passes::GradOptions options;
  options.keep = evaluated;
  const ValueId loss[] = {f.loss.id};
  OAR_ASSIGN(Graph g, passes::grad(f.graph, loss, f.parameters, options));
  std::vector<ValueId> gradients;
  for (size_t k = 0; k < f.parameters.size(); ++k) gradients.push_back(g.outputs()[outputs.size() + k].value);
  g.keep_outputs(outputs.size());
  OAR_RETURN_IF_ERROR(end_step(g, gradients, out.parameters, f.parameters, update));
  OAR_RETURN_IF_ERROR(passes::dce(g).status());
  out.step = std::make_shared<const Graph>(std::move(g));
  return out;
}

}  // namespace oar::train
