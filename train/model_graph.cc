#include "train/model_graph.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/format.h"
#include "engine/base/random.h"
#include "engine/graph/pass.h"
#include "engine/graph/passes/effects.h"
#include "engine/graph/passes/grad.h"
#include "engine/ops/train/balance.h"
#include "engine/ops/train/ops.h"

namespace oar::train {
namespace {

struct Forward {
  Graph graph;
  Val hidden, head, bias, targets, weight;
  Val balance;  // a loss of its own, or none
  Attrs loss;
  std::set<std::string> whole;      // tensors that are trained beside adapters
  std::set<std::string> by_head{};  // last parts of modules whose matrix is read head by head
  std::vector<Parameter> parameters;
  std::vector<ValueId> values;  // states, by parameter
};

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }

std::string without_end(const std::string& name, std::string_view end) {
  return name.substr(0, name.size() - end.size());
}

// The head and its loss: the last node of the forward part.
size_t head_node(const Graph& g) {
  const auto at = std::find_if(g.nodes().begin(), g.nodes().end(),
                               [](const Node& n) { return n.op == &op_linear_cross_entropy; });
  return static_cast<size_t>(at - g.nodes().begin());
}

// A state in the place of constant `v`.
// `shape` is a copy: it may be that of a value, and the graph's values move when it grows.
ValueId make_state(Forward& f, ValueId v, std::string name, Shape shape) {
  DimVector dims(shape.begin(), shape.end());
  const ValueId state = f.graph.add_state(name, {Format::f32(), std::move(dims)});
  if (v != kNoValue) {
    f.graph.replace_uses(v, state);
    if (f.head.id == v) f.head = {state};
    if (f.bias.id == v) f.bias = {state};
  }
  f.parameters.push_back({std::move(name), std::move(shape)});
  f.values.push_back(state);
  return state;
}

// What transformers keeps as buffers: no optimizer sees them there.
bool is_buffer(std::string_view name) {
  const std::string_view last = last_part(name);
  return last == "layer_scalar" || last == "e_score_correction_bias";
}

Status train_all(Forward& f, const Checkpoint& checkpoint, const GraphOptions& options) {
  const std::vector<std::string>& freeze = options.freeze;
  std::set<std::string> matched;
  std::string names;
  const size_t count = f.graph.num_values();
  for (size_t v = 0; v < count; ++v) {
    const Value& value = f.graph.value(static_cast<ValueId>(v));
    const auto tensor = checkpoint.tensors.find(value.name);
    if (value.kind != ValueKind::kConstant || tensor == checkpoint.tensors.end() || is_buffer(value.name))
      continue;
    const Format stored = tensor->second.format();
    const auto frozen = std::find_if(freeze.begin(), freeze.end(),
                                     [&](const std::string& p) { return matches(p, value.name); });
    if (frozen != freeze.end()) {
      matched.insert(*frozen);
      continue;
    }
    if (!stored.plain() || !dtype_is_float(stored.dtype()) || dtype_bits(stored.dtype()) < 16)
      return unimplemented(cat("'", value.name, "' is stored as ", stored.name(),
                               ": all parameters of a quantized model cannot be trained; use --lora"));
    make_state(f, static_cast<ValueId>(v), std::string(value.name), value.constant.shape());
  }
  for (const std::string& p : freeze)
    if (!matched.contains(p))
      return invalid_argument(cat("--freeze ", p, " matches no parameter of the model"));
  if (f.parameters.empty()) return invalid_argument("--freeze leaves no parameter to train");
  return ok_status();
}

// y + factor B (A x) behind every layer that is a target.
Status add_lora(Forward& f, const LoraOptions& lora) {
  std::set<std::string> found, all;
  const size_t count = f.graph.nodes().size();
  Builder b(f.graph);
  Val draw;
  if (lora.dropout > 0) draw = add_draw(f.graph);
  for (size_t i = 0; i < count; ++i) {
    const Node node = f.graph.nodes()[i];  // a copy: nodes are appended
    if (!node.is("linear") || f.graph.value(node.inputs[2]).kind != ValueKind::kConstant) continue;
    const std::string weight = f.graph.value(node.inputs[2]).name;
    if (!weight.ends_with(".weight") || f.whole.contains(weight)) continue;
    const std::string module = without_end(weight, ".weight");
    all.insert(std::string(last_part(module)));
    bool wanted = false;
    for (const std::string& t : lora.targets) {
      if (t == "all" ? mamba_output(module) : module != t && !module.ends_with("." + t)) continue;
      wanted = true;
      found.insert(t);
    }
    if (!wanted) continue;
    const Shape shape = f.graph.value(node.inputs[2]).constant.shape();
    const std::string prefix = cat("base_model.model.", module);
    const Val a{make_state(f, kNoValue, prefix + ".lora_A.weight", {lora.rank, shape[1]})};
    const Val up{make_state(f, kNoValue, prefix + ".lora_B.weight", {shape[0], lora.rank})};
    const size_t first = f.graph.nodes().size();
    const Val y{node.outputs[0]};
    Val x{node.inputs[0]};
    if (draw) x = dropped(b, x, draw, lora.dropout, f.parameters.size());
    const Val inner = b.op("linear", {x, Val{}, a, Val{}});
    const Val part = b.op("linear", {inner, Val{}, up, Val{}});
    const Val sum =
        b.op("add", {y, b.op("mul", {part, b.scalar(lora.alpha / static_cast<double>(lora.rank))})});
    OAR_RETURN_IF_ERROR(b.status());
    f.graph.replace_uses(y.id, sum.id);
    for (size_t k = first; k < f.graph.nodes().size(); ++k)  // but in what adds to it
      if (f.graph.nodes()[k].outputs[0] == sum.id) f.graph.nodes()[k].inputs[0] = y.id;
    if (f.hidden.id == y.id) f.hidden = sum;
  }
  for (const std::string& t : lora.targets)
    if (f.by_head.contains(std::string(last_part(t))))
      return unimplemented(cat("--lora: '", t,
                               "' can have no adapter: attention over a latent reads parts of ",
                               "it, head by head; leave it out of targets"));
  std::string there;
  for (const std::string& name : all) there += cat(there.empty() ? "" : ", ", name);
  for (const std::string& t : lora.targets)
    if (!found.contains(t))
      return invalid_argument(
          cat("--lora: no layer of the model is called '", t, "'; there are ", there, ", all"));
  f.graph.sort();
  const size_t values = f.graph.num_values();
  for (size_t v = 0; v < values; ++v) {
    const Value value = f.graph.value(static_cast<ValueId>(v));
    if (value.kind == ValueKind::kConstant && f.whole.contains(value.name))
      make_state(f, static_cast<ValueId>(v), value.name, value.constant.shape());
  }
  return ok_status();
}

// An input of one number a row.
Val row(Graph& g, const char* name, const GraphOptions& options) {
  return Val{g.add_input(name, {Format::i32(), {Dim(options.tokens)}})};
}

// The inputs that every model has.
ModelInputs add_inputs(Forward& f, const GraphOptions& options) {
  ModelInputs in;
  in.tokens = row(f.graph, "tokens", options), in.positions = row(f.graph, "positions", options);
  in.segments = row(f.graph, "segments", options), f.targets = row(f.graph, "targets", options);
  f.weight = {f.graph.add_input("weight", {Format::f32(), {}})};
  return in;
}

// The weight of a mixture's load-balancing loss; 0: its config has none.
Result<double> balance_weight(const Checkpoint& checkpoint, const ModelConfig& config) {
  const json::value* const wanted = checkpoint.config.if_contains("output_router_logits");
  if (config.experts == 0 || wanted == nullptr || *wanted != json::value(true)) return 0.0;
  const json::value* const weight = checkpoint.config.if_contains("router_aux_loss_coef");
  if (weight == nullptr || !weight->is_number() || weight->to_number<double>() < 0)
    return invalid_argument(
        "config.json: 'output_router_logits' is true, so 'router_aux_loss_coef' must be a number from 0 on");
  return weight->to_number<double>();
}

Status choose_parameters(Forward& f, const Checkpoint& checkpoint, const GraphOptions& options) {
  if (options.full) OAR_RETURN_IF_ERROR(train_all(f, checkpoint, options));
  else OAR_RETURN_IF_ERROR(add_lora(f, options.lora));
  return widen_constants(f.graph, f.head, f.bias);
}

Result<Forward> build_encoder_forward(const Checkpoint& checkpoint, const EncoderConfig& config,
                                      EncoderHead head, const GraphOptions& options) {
  Forward f;
  const ModelInputs in = add_inputs(f, options);
  const Val types = config.types > 0 ? row(f.graph, "types", options) : Val{};
  // The head reads all rows: the loss looks at those that have a target.
  OAR_ASSIGN(f.hidden, head_features(f.graph, checkpoint, config, head, in, types));
  if (options.full && options.dropout > 0)
    OAR_RETURN_IF_ERROR(drop_branches(f.graph, f.hidden, options.dropout));
  use_rows_ops(f.graph);
  const EncoderHeadTensors names = head_tensors(checkpoint, config, head);
  ModelBuilder b(f.graph, checkpoint, config, in, 0);
  f.head = b.weight(names.last + ".weight"), f.bias = b.weight(names.last + ".bias");
  OAR_RETURN_IF_ERROR(b.status());
  for (const auto& [name, shape] : names.before) f.whole.insert(name);
  for (const char* part : {".weight", ".bias"}) f.whole.insert(names.last + part);
  f.loss = {{"scale", 1.0}, {"softcap", 0.0}};
  OAR_RETURN_IF_ERROR(choose_parameters(f, checkpoint, options));
  return f;
}

Result<Forward> build_forward(const Checkpoint& checkpoint, const ModelConfig& config,
                              const GraphOptions& options) {
  const Architecture* const architecture = find_architecture(config.model_type);
  OAR_CHECK(architecture != nullptr, "config was read for a known architecture");
  if (config.paired_rows || (options.full && config.linear_out_in))
    return unimplemented(cat("a ", checkpoint.kind,
                             " file of this architecture has rows in another order than its "
                             "checkpoint; finetune the Hugging Face folder"));
  Forward f;
  if (config.latent.rank > 0) f.by_head = {"kv_b_proj", "k_b_proj", "v_b_proj"};
  Graph& g = f.graph;
  const ModelInputs in = add_inputs(f, options);
  ModelBuilder b(g, checkpoint, config, in, 0);
  f.hidden = architecture->hidden(b);
  OAR_RETURN_IF_ERROR(b.status());
  if (options.full && options.dropout > 0)
    OAR_RETURN_IF_ERROR(drop_branches(f.graph, f.hidden, options.dropout));
  OAR_RETURN_IF_ERROR(options.full ? compute_weights(g, checkpoint.tensors, *options.copies)
                                   : copy_weights(g, *options.copies));
  use_rows_ops(g);
  OAR_ASSIGN(const double balance, balance_weight(checkpoint, config));
  if (balance > 0) {
    const Val share{g.add_input("share", {Format::f32(), {Dim(options.tokens)}})};
    OAR_ASSIGN(
        f.balance,
        balance_loss(g, share, balance / static_cast<double>(std::max<int64_t>(options.micro_batches, 1))));
  }
  f.head = b.weight(config.tied ? architecture->embedding : architecture->head);
  if (config.head_bias) f.bias = b.weight("lm_head.bias");
  OAR_RETURN_IF_ERROR(b.status());
  if (b.dim(f.head, 0).const_value() != config.vocab)
    return invalid_argument(cat("config.json: 'vocab_size' is ", config.vocab, " but the head has ",
                                b.dim(f.head, 0).const_value(), " rows"));
  f.loss = {{"scale", config.logit_scale}, {"softcap", config.logit_softcap}};
  OAR_RETURN_IF_ERROR(choose_parameters(f, checkpoint, options));
  return f;
}

// But ops with a slow reference alone, whose definitions' ops have kernels.
bool can_be_evaluated(const Node& n) {
  return (runs_on_values(*n.op) && !n.is("attention") && !n.is("moe_combine")) || n.is("embedding");
}

Result<std::vector<Val>> add_loss(Forward& f) {
  Builder b(f.graph);
  std::vector<Val> in{f.hidden, f.head, f.targets, f.weight};
  if (f.bias) in.push_back(f.bias);
  auto out = emit(b, op_linear_cross_entropy, in, f.loss);
  OAR_RETURN_IF_ERROR(b.status());
  return out;
}

Result<std::shared_ptr<const Graph>> loss_graph(Forward f) {
  OAR_ASSIGN(const auto out, add_loss(f));
  f.graph.nodes().back().outputs.resize(3);  // without gradients
  keep_all(f.graph);
  f.graph.add_output("loss", out[0].id);
  f.graph.add_output("hits", out[1].id);
  f.graph.add_output("likeliest", out[2].id);
  OAR_RETURN_IF_ERROR(decompose(f.graph, can_be_evaluated).status());
  use_own_ops(f.graph);
  OAR_RETURN_IF_ERROR(passes::dce(f.graph).status());
  return std::make_shared<const Graph>(std::move(f.graph));
}

Result<std::shared_ptr<const Graph>> step_graph(Forward f, const GraphOptions& how,
                                                passes::AmpReport& precision) {
  OAR_ASSIGN(const auto out, add_loss(f));
  const auto place = [&](Val v) { return std::find(f.values.begin(), f.values.end(), v.id); };
  if (place(f.head) == f.values.end()) f.graph.nodes().back().outputs.resize(5);
  const std::vector<int> uses = f.graph.use_counts();
  use_lora_ops(f.graph);
  passes::GradOptions options;
  options.seeds = {out[3].id};
  options.keep = can_be_evaluated;
  std::vector<ValueId> losses{f.hidden.id};
  ValueId loss = out[0].id;
  if (f.balance) {
    OAR_ASSIGN(const auto sum, f.graph.add_node(find_op("add"), {loss, f.balance.id}));
    loss = sum[0];
    losses.push_back(f.balance.id), options.seeds.push_back(kNoValue);
  }
  f.graph.add_output("loss", loss);
  OAR_ASSIGN(Graph g, passes::grad(f.graph, losses, f.values, options));
  use_rows_gradients(g);
  // What goes into sums of gradients is f32.
  const passes::AmpOps amp{
      listed_as(), [&g](const Node& n, size_t operand) { return reads_stored(g, n, operand); },
      [](const Node& n) { return n.op == &op_linear_cross_entropy; },
      [&g](const Node& n, size_t operand) { return rounds_itself(g, n, operand); },
      [](const Node& n, size_t operand) { return n.op == &op_expert_rows && operand == 3; }};  // biases
  OAR_ASSIGN(precision, passes::mixed_precision(g, head_node(g) + 1, how.precision, amp));
  use_own_ops(g);
  round_results(g);
  OAR_RETURN_IF_ERROR(passes::dce(g).status());
  precision.cast_bytes = cast_bytes(g);
  std::vector<ValueId> gradients;
  const size_t first = g.outputs().size() - f.values.size();
  for (size_t k = 0; k < f.values.size(); ++k) gradients.push_back(g.outputs()[first + k].value);
  g.keep_outputs(first);
  for (const auto& [value, gradient] : {std::pair(f.head, out[5]), std::pair(f.bias, out[4])}) {
    const auto k = static_cast<size_t>(place(value) - f.values.begin());
    if (!value || k == f.values.size()) continue;
    if (uses[static_cast<size_t>(value.id)] == 1) {  // by the loss alone: no other gradient
      gradients[k] = gradient.id;
      continue;
    }
    if (add_rows_to(g, gradients[k], gradient.id)) continue;
    OAR_ASSIGN(const auto sum, g.add_node(find_op("add"), {gradients[k], gradient.id}));
    gradients[k] = sum[0];
  }
  OAR_RETURN_IF_ERROR(passes::recompute(g, head_node(g), how.recompute, op_barrier));
  OAR_RETURN_IF_ERROR(end_step(g, gradients, f.parameters, f.values, how.update));
  OAR_RETURN_IF_ERROR(passes::dce(g).status());
  return std::make_shared<const Graph>(std::move(g));
}

}  // namespace

bool matches(std::string_view pattern, std::string_view name) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos) return pattern == name;
  if (!name.starts_with(pattern.substr(0, star))) return false;
  const std::string_view rest = pattern.substr(star + 1);
  for (size_t k = star; k <= name.size(); ++k)
    if (matches(rest, name.substr(k))) return true;
  return false;
}

namespace {
Result<ModelGraphs> graphs_of(Forward f, const GraphOptions& how) {
  ModelGraphs out;
  out.parameters = f.parameters;
  out.balanced = static_cast<bool>(f.balance);
  OAR_ASSIGN(out.loss, loss_graph(f));
  OAR_ASSIGN(out.step, step_graph(std::move(f), how, out.precision));
  return out;
}
}  // namespace

Result<ModelGraphs> build_model_graphs(const Checkpoint& checkpoint, const ModelConfig& config,
                                       const GraphOptions& options) {
  GraphOptions how = options;
  if (how.copies == nullptr) how.copies = std::make_shared<WeightCopies>();
  OAR_ASSIGN(Forward f, build_forward(checkpoint, config, how));
  OAR_ASSIGN(ModelGraphs out, graphs_of(std::move(f), how));
  if (how.sample_rows == 0) return out;
  how.tokens = how.sample_rows;
  OAR_ASSIGN(f, build_forward(checkpoint, config, how));
  OAR_ASSIGN(out.sample, loss_graph(std::move(f)));
  return out;
}

Result<ModelGraphs> build_encoder_graphs(const Checkpoint& checkpoint, const EncoderConfig& config,
                                         EncoderHead head, const GraphOptions& options) {
  OAR_ASSIGN(Forward f, build_encoder_forward(checkpoint, config, head, options));
  return graphs_of(std::move(f), options);
}

std::string Parameter::adapted() const {
  constexpr std::string_view kBefore = "base_model.model.";
  const size_t end = name.rfind(".lora_");
  return name.starts_with(kBefore) && end != std::string::npos
             ? name.substr(kBefore.size(), end - kBefore.size())
             : std::string();
}

namespace {

// What an update of these parameters knows of them.
Attrs update_attrs(std::span<const Parameter> parameters, const OptimizerOptions& o) {
  std::vector<double> decay, rate;
  for (const Parameter& p : parameters) {
    decay.push_back(p.shape.rank() > 1 ? o.decay : 0);
    const auto own =
        std::find_if(o.rates.begin(), o.rates.end(), [&](const auto& r) { return matches(r.first, p.name); });
    rate.push_back(own == o.rates.end() ? 1 : own->second);
  }
  if (o.kind == Optimizer::kSgd) return {{"decay", decay}, {"rate", rate}, {"momentum", o.momentum}};
  return {{"decay", decay}, {"rate", rate}, {"beta1", o.beta1}, {"beta2", o.beta2}, {"epsilon", o.epsilon}};
}

const OpDef* update_op(const OptimizerOptions& o) { return o.kind == Optimizer::kSgd ? &op_sgd : &op_adamw; }

ValueId hyper_of(Graph& g) { return g.add_input("hyper", {Format::of(DType::kF64), {4}}); }

}  // namespace

Status check_rates(std::span<const Parameter> parameters, const OptimizerOptions& o) {
  for (const auto& [pattern, factor] : o.rates)
    if (std::none_of(parameters.begin(), parameters.end(),
                     [&, &want = pattern](const Parameter& p) { return matches(want, p.name); }))
      return invalid_argument(
          cat("--rate-of ", pattern, "=", factor, " matches no parameter that is trained"));
  return ok_status();
}

Status end_step(Graph& g, const std::vector<ValueId>& gradients, const std::vector<Parameter>& parameters,
                const std::vector<ValueId>& values, const std::optional<StepUpdate>& update) {
  const size_t P = parameters.size();
  std::vector<ValueId> states;
  std::vector<Node> effects;
  for (size_t m = 0; m < (update ? update->optimizer.moments() : 1); ++m)
    for (size_t k = 0; k < P; ++k)
      states.push_back(g.add_state(cat(update ? cat("moment", m + 1) : "sum", "/", parameters[k].name),
                                   g.value(gradients[k]).type));
  const ValueId hyper = update ? hyper_of(g) : kNoValue;
  const size_t each = update && update->together ? P : 1;  // parameters of a node
  for (size_t first = 0; first < P; first += each) {
    std::vector<ValueId> in;
    if (update) in.push_back(hyper);
    for (size_t k = first; k < first + each; ++k) {
      if (update) in.push_back(values[k]);
      for (size_t s = k; s < states.size(); s += P) in.push_back(states[s]);
      in.push_back(gradients[k]);
    }
    Attrs attrs;
    if (update)
      attrs = update_attrs(std::span(parameters).subspan(first, each), update->optimizer),
      attrs.set("keep", int64_t{1});
    OAR_ASSIGN(const auto made, g.add_node(update ? update_op(update->optimizer) : &op_accumulate,
                                           std::move(in), std::move(attrs)));
    if (update) g.add_output(update->together ? "norm" : cat("norm/", parameters[first].name), made[0]);
    effects.push_back(std::move(g.nodes().back()));
    g.nodes().pop_back();
  }
  passes::add_effects(g, std::move(effects));
  return ok_status();
}

Result<std::shared_ptr<const Graph>> build_update_graph(const std::vector<Parameter>& parameters,
                                                        const OptimizerOptions& o) {
  Graph g;
  std::vector<ValueId> inputs{hyper_of(g)};
  for (const Parameter& p : parameters) {
    const TensorType type{Format::f32(), DimVector(p.shape.begin(), p.shape.end())};
    inputs.push_back(g.add_state(p.name, type));
    for (size_t k = 0; k < o.moments(); ++k)
      inputs.push_back(g.add_state(cat("moment", k + 1, "/", p.name), type));
    inputs.push_back(g.add_state(cat("sum/", p.name), type));
  }
  OAR_ASSIGN(const auto norm, g.add_node(update_op(o), std::move(inputs), update_attrs(parameters, o)));
  g.add_output("norm", norm[0]);
  return std::make_shared<const Graph>(std::move(g));
}

Result<Tensor> initial_value(const Parameter& p, size_t index, const Checkpoint& checkpoint, uint64_t seed) {
  OAR_ASSIGN(Tensor out, Tensor::zeros(p.shape, Format::f32()));
  const auto values = out.mutable_values<float>();
  if (const auto it = checkpoint.tensors.find(p.name); it != checkpoint.tensors.end()) {
    const Tensor& stored = it->second;
    const int64_t cols = stored.shape().cols();
    const auto* from = static_cast<const std::byte*>(stored.data());
    for (int64_t r = 0; r < stored.shape().rows(); ++r)
      stored.format().decode_row(from + r * stored.format().stride(cols), cols, values.data() + r * cols);
    stored.buffer().release_pages();  // the file's, which are here now
  } else if (p.name.ends_with(".lora_A.weight")) {
    const double bound = 1 / std::sqrt(static_cast<double>(p.shape[1]));
    for (size_t k = 0; k < values.size(); ++k)
      values[k] = static_cast<float>(bound * (2 * uniform(seed + (index + 1) * 0x9E3779B97F4A7C15u, k) - 1));
  }
  return out;
}

}  // namespace oar::train
