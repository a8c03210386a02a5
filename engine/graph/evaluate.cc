#include "engine/graph/evaluate.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "engine/base/format.h"
#include "engine/graph/packed_weights.h"
#include "engine/graph/run_guard.h"
#include "engine/graph/run_values.h"
#include "engine/tensor/load_threads.h"

namespace oar {
namespace {

// Nesting of branches and loops; a file may nest deeper than the stack allows.
constexpr int kMaxDepth = 64;

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

std::string describe(const Node& node, std::span<const Datum* const> inputs) {
  std::string s = node.op->name;
  if (!node.name.empty()) s += cat(" '", node.name, "'");
  s += "(";
  for (size_t k = 0; k < inputs.size(); ++k)
    s += cat(k ? ", " : "", inputs[k] ? inputs[k]->to_string() : "-");
  return s + ")";
}

// Runs `work` over the node as one step of a run: it may be ended from outside, is measured, and its errors
// name it. `where`: the bound kernel; else null, and set to one that by_kernels() used.
template <class Work>
Status step(const char*& where, const Node& node, std::span<const Datum* const> inputs,
            std::span<Datum> outputs, const EvalOptions& options, const void* prepared,
            EvalContext::OperandFacts facts, Work&& work) {
  OAR_RETURN_IF_ERROR(RunGuard::check());
  KernelContext ctx(node, inputs, outputs, options, prepared, facts);
  const uint64_t start = options.profile ? now_ns() : 0;
  Status s = work(ctx);
  if (where == nullptr) where = ctx.used_kernel();
  if (options.profile) options.profile(node, where != nullptr ? where : kEvaluated, start, now_ns());
  if (!s.ok()) return Status(s.code(), cat(describe(node, inputs), ": ", s.message()));
  return s;
}

// A node without a call.
Status compute(KernelContext& ctx) {
  const OpDef& op = *ctx.node().op;
  if (op.by_kernels != nullptr && (!ctx.options().plainly || op.evaluate == nullptr)) {
    OAR_ASSIGN(const bool done, op.by_kernels(ctx));
    if (done) return ok_status();
  }
  if (op.evaluate == nullptr) return unimplemented(cat(op.name, " has no kernel for these operands"));
  for (size_t k = 0; op.prepare != nullptr && k < ctx.num_inputs() && !ctx.options().sizing; ++k) {
    if (ctx.datum(k).is_tensor() && !ctx.datum(k).tensor.has_bytes())
      return internal_error(cat("operand ", k, " was packed for kernels, which do not take the others"));
  }
  return op.evaluate(ctx);
}

// What the op of a call on a device looks at where it lies on the host, before it is copied.
Status check_call(const BoundCall& call, std::span<const Datum* const> operands, const Node& node,
                  const RunValues& values) {
  Operand in[LoweredCall::kResult];
  for (size_t k = 0; k < operands.size(); ++k) {
    if (operands[k] != nullptr && operands[k]->is_tensor() && !values.only_on_device(node.inputs[k]))
      in[k].data = const_cast<void*>(operands[k]->tensor.data());
  }
  return call.op->check(in);
}

uint64_t bytes_of(const Datum* d) { return d != nullptr && d->is_tensor() ? d->tensor.bytes() : 0; }

// Whether an evaluator gave its operand's bytes on, as a transpose does that keeps the order of its long
// axes. A loop that writes over its operand keeps the shape and is the last to read it (may_overwrite()).
bool is_view(std::span<const Datum* const> operands, std::span<const uint8_t> last_use,
             std::span<const Datum> results) {
  if (operands.empty() || operands[0] == nullptr || results.size() != 1) return false;
  const Datum &operand = *operands[0], &result = results[0];
  if (!operand.is_tensor() || !result.is_tensor()) return false;
  const Tensor &x = operand.tensor, &y = result.tensor;
  return x.data() == y.data() && x.bytes() == y.bytes() && (x.shape() != y.shape() || !last_use[0]);
}

}  // namespace

std::string Datum::to_string() const {
  if (kind == Kind::kTensor) return cat(tensor.format().name(), tensor.shape().to_string());
  if (kind == Kind::kSequence) return cat("sequence of ", items->size());
  return "none";
}

Result<Tensor> EvalContext::tensor(size_t i) const {
  if (!has(i)) return invalid_argument(cat("operand ", i, " is missing"));
  if (!inputs_[i]->is_tensor()) {
    return invalid_argument(cat("operand ", i, " is a ", inputs_[i]->to_string(), ", not a tensor"));
  }
  return inputs_[i]->tensor;
}

Result<Tensor> EvalContext::allocate(const Shape& shape, DType dtype) const {
  if (!options_.memory || dtype == DType::kString) {
    return allocate_elements(shape, dtype, options_.tensor_limit, false);
  }
  OAR_ASSIGN(const uint64_t bytes, element_bytes(shape, dtype, options_.tensor_limit));
  OAR_ASSIGN(Buffer buffer, options_.memory->allocate(bytes));
  return Tensor::make(shape, element_format(dtype), std::move(buffer));
}

Result<Tensor> EvalContext::zeros(const Shape& shape, DType dtype) const {
  if (!options_.memory || dtype == DType::kString) {
    return allocate_elements(shape, dtype, options_.tensor_limit, true);
  }
  OAR_ASSIGN(Tensor t, allocate(shape, dtype));
  if (!options_.sizing && t.bytes() > 0) std::memset(t.mutable_data(), 0, t.bytes());
  return t;
}

bool EvalContext::may_overwrite(size_t i, const Tensor& x, const Shape& shape, DType dtype) const {
  // Held by the evaluator and by `x`: a view, a sequence or the caller would be a third.
  return i < facts_.last_use.size() && facts_.last_use[i] && x.buffer().transient() &&
         x.buffer().holders() == 2 && x.shape() == shape && x.format() == element_format(dtype);
}

Status EvalContext::known(size_t i) const {
  if (i >= facts_.unknown.size() || !facts_.unknown[i]) return ok_status();
  return Status(StatusCode::kFailedPrecondition, cat("a size depends on the values of operand ", i));
}

Result<std::vector<int64_t>> EvalContext::ints(size_t i) const {
  OAR_RETURN_IF_ERROR(known(i));
  OAR_ASSIGN(const Tensor t, tensor(i));
  const DType d = t.format().dtype();
  if (!(dtype_is_integer(d) || d == DType::kBool) || t.shape().rank() > 1) {
    return invalid_argument(cat("operand ", i, " must be a list of integers"));
  }
  std::vector<int64_t> out(static_cast<size_t>(t.numel()));
  for (size_t k = 0; k < out.size(); ++k) out[k] = element_as_int(t, static_cast<int64_t>(k));
  return out;
}

Result<int64_t> EvalContext::scalar_int(size_t i) const {
  OAR_RETURN_IF_ERROR(known(i));
  OAR_ASSIGN(const Tensor t, tensor(i));
  if (t.numel() != 1 || t.format().dtype() == DType::kString) {
    return invalid_argument(cat("operand ", i, " must hold one number"));
  }
  return element_as_int(t, 0);
}

Result<double> EvalContext::scalar(size_t i) const {
  OAR_RETURN_IF_ERROR(known(i));
  OAR_ASSIGN(const Tensor t, tensor(i));
  if (t.numel() != 1 || t.format().dtype() == DType::kString) {
    return invalid_argument(cat("operand ", i, " must hold one number"));
  }
  return element_as_double(t, 0);
}

Result<std::vector<int64_t>> EvalContext::ints_or_attr(size_t i, const char* attr) const {
  if (has(i)) return ints(i);
  return attrs().get_ints(attr);
}

Result<std::vector<Datum>> EvalContext::run_subgraph(size_t which, std::vector<Datum> inputs) const {
  if (which >= node_.subgraphs.size()) return internal_error(cat("there is no subgraph ", which));
  if (options_.depth >= kMaxDepth) return invalid_argument("branches and loops nest too deeply");
  OAR_RETURN_IF_ERROR(RunGuard::check());  // a body may have no node
  EvalOptions inner = options_;
  ++inner.depth;
  inner.calls = nullptr;
  inner.bound = nullptr;
  if (const auto* prepared = static_cast<const std::vector<std::unique_ptr<const Evaluator>>*>(prepared_)) {
    return (*prepared)[which]->run(std::move(inputs), inner);
  }
  OAR_ASSIGN(const auto evaluator, Evaluator::create(node_.subgraphs[which], processor()));
  return evaluator->run(std::move(inputs), inner);
}

Result<Shape> checked_shape(std::span<const int64_t> dims) {
  if (dims.size() > Shape::kMaxRank) {
    return invalid_argument(cat("a result of ", dims.size(), " axes; at most ", Shape::kMaxRank));
  }
  for (int64_t d : dims) {
    if (d < 0) return invalid_argument(cat("a result would have an extent of ", d));
  }
  const Shape shape(dims);
  if (!shape.checked_numel()) return invalid_argument(cat("the size of ", shape.to_string(), " overflows"));
  return shape;
}

Result<int> checked_axis(int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) {
    return invalid_argument(cat("axis ", axis, " is outside [", -rank, ", ", rank, ")"));
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

Result<std::unique_ptr<const Evaluator>> Evaluator::create(std::shared_ptr<const Graph> graph,
                                                           Backend& backend, PackedWeights* kept) {
  Weights weights{std::make_shared<WeightStore>(backend.host()), nullptr, kept};
  if (backend.memory() == MemoryKind::kDevice) weights.device = std::make_shared<WeightStore>(backend);
  return create(std::move(graph), weights, "");
}

Result<std::unique_ptr<const Evaluator>> Evaluator::create(std::shared_ptr<const Graph> graph,
                                                           std::shared_ptr<WeightStore> weights) {
  return create(std::move(graph), Weights{std::move(weights), nullptr, nullptr}, "");
}

// `prefix` tells the nodes of subgraphs apart.
Result<std::unique_ptr<const Evaluator>> Evaluator::create(std::shared_ptr<const Graph> graph,
                                                           const Weights& weights,
                                                           const std::string& prefix) {
  auto e = std::unique_ptr<Evaluator>(new Evaluator());
  e->graph_ = std::move(graph);
  e->weights_ = weights.host;
  e->device_weights_ = weights.device;
  const Graph& g = *e->graph_;
  const size_t n = g.nodes().size();
  e->bodies_.resize(n);
  e->prepared_.resize(n);
  if (e->beside_device()) e->device_prepared_.resize(n);
  e->recent_.resize(n);
  e->last_.resize(n);
  e->last_use_.resize(n);
  // A body meets what the branch or trip brings.
  e->sizes_vary_.assign(n, !prefix.empty());
  std::vector<uint8_t> varies(g.num_values(), 0);
  for (size_t i = 0; i < n; ++i) {
    const Node& node = g.nodes()[i];
    if (std::any_of(node.inputs.begin(), node.inputs.end(),
                    [&](ValueId v) { return v != kNoValue && varies[v]; }))
      e->sizes_vary_[i] = 1;
    for (ValueId v : node.outputs) varies[v] = e->sizes_vary_[i] || node.op->sizes == SizesFrom::kValues;
  }
  std::vector<uint8_t> kept(g.num_values(), 0);
  std::vector<uint8_t> read(g.num_values(), 0);  // as values, by some node or the caller
  for (const auto& o : g.outputs()) kept[o.value] = read[o.value] = 1;
  for (size_t i = n; i-- > 0;) {
    const Node& node = g.nodes()[i];
    if (!runs_on_values(*node.op)) return unimplemented(cat(node.op->name, " cannot be evaluated"));
    e->last_use_[i].resize(node.inputs.size());
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      const ValueId v = node.inputs[k];
      if (v == kNoValue || kept[v] || g.value(v).kind == ValueKind::kConstant) continue;
      kept[v] = 1;
      e->last_[i].push_back(v);
      // An operand twice has two copies in the op, so that which of the two is marked does not matter.
      e->last_use_[i][k] = g.value(v).kind == ValueKind::kResult;
    }
    for (ValueId v : node.outputs) {
      if (!kept[v]) e->last_[i].push_back(v);
    }
    if (!node.subgraphs.empty()) {
      auto bodies = std::make_shared<Bodies>();
      for (const auto& s : node.subgraphs) {
        OAR_ASSIGN(auto body, create(s, weights, cat(prefix, i, ".", bodies->size(), "/")));
        bodies->push_back(std::move(body));
      }
      e->bodies_[i] = std::move(bodies);
    }
  }
  // Beside a device most nodes never need what the processor's kernels read.
  if (e->beside_device()) return std::unique_ptr<const Evaluator>(std::move(e));
  OAR_RETURN_IF_ERROR(e->prepare_nodes(weights.kept, prefix, read));
  for (size_t v = 0; v < g.num_values(); ++v) {
    const auto id = static_cast<ValueId>(v);
    if (!read[v] && g.value(id).kind == ValueKind::kConstant) e->spent_.push_back(id);
  }
  return std::unique_ptr<const Evaluator>(std::move(e));
}

// Sets read[v] of values that nodes still read when their constants are ready.
Status Evaluator::prepare_nodes(PackedWeights* kept, const std::string& prefix, std::vector<uint8_t>& read) {
  const Graph& g = *graph_;
  std::vector<PrepareContext> contexts;
  std::vector<size_t> which;    // node of each
  std::vector<uint64_t> sizes;  // of its constants
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    const Node& node = g.nodes()[i];
    prepared_[i].emplace();
    if (node.op->prepare == nullptr) {
      for (ValueId v : node.inputs) {
        if (v != kNoValue) read[v] = 1;
      }
      continue;
    }
    const PrepareContext& ctx = contexts.emplace_back(g, node, *weights_, kept, cat(prefix, i));
    uint64_t bytes = 0;
    for (size_t k = 0; k < node.inputs.size(); ++k) bytes += ctx.constant(k) ? ctx.constant(k)->bytes() : 0;
    which.push_back(i);
    sizes.push_back(bytes);
  }
  std::vector<Status> statuses(which.size());
  for_each_largest_first(weights_->backend().workers(), sizes, [&](size_t k) {
    auto made = g.nodes()[which[k]].op->prepare(contexts[k]);
    if (made.ok()) prepared_[which[k]] = Prepared{std::move(*made), contexts[k].spent()};
    else statuses[k] = made.status();
  });
  for (size_t k = 0; k < which.size(); ++k) {
    OAR_RETURN_IF_ERROR(statuses[k]);
    const std::vector<ValueId>& inputs = g.nodes()[which[k]].inputs;
    for (size_t j = 0; j < inputs.size(); ++j) {
      if (inputs[j] != kNoValue && (j >= 32 || (contexts[k].spent() >> j & 1) == 0)) read[inputs[j]] = 1;
    }
    if (kept == nullptr) continue;
    for (auto& [name, tensor] : contexts[k].take_packed()) kept->tensors[name] = std::move(tensor);
  }
  return ok_status();
}

Result<const Prepared*> Evaluator::prepared(size_t i, WeightStore& weights) const {
  if (!beside_device()) return &*prepared_[i];
  const std::lock_guard lock(lazy_);
  std::optional<Prepared>& p = (&weights == device_weights_.get() ? device_prepared_ : prepared_)[i];
  if (p) return &*p;
  const Node& node = graph_->nodes()[i];
  Prepared now;
  if (node.op->prepare != nullptr) {
    PrepareContext context(*graph_, node, weights, nullptr, "");
    OAR_ASSIGN(now.made, node.op->prepare(context));
    now.spent = context.spent();
  }
  return &p.emplace(std::move(now));
}

// Its op is null where the node is evaluated. `on_host`: not on the device, whatever that has.
Result<std::shared_ptr<const BoundCall>> Evaluator::bind(size_t i, std::span<const Datum* const> operands,
                                                         bool on_host) const {
  const Node& node = graph_->nodes()[i];
  if (beside_device() && !on_host) {
    OAR_ASSIGN(const Prepared* const made, prepared(i, *device_weights_));
    OAR_ASSIGN(auto call, bind_call(*graph_, node, operands, *device_weights_, *made));
    if (call->op != nullptr) return call;
  }
  OAR_ASSIGN(const Prepared* const made, prepared(i, *weights_));
  return bind_call(*graph_, node, operands, *weights_, *made);
}

// Trips of a loop, and runs whose sizes were not kept, mostly meet sizes of those before.
Result<std::shared_ptr<const BoundCall>> Evaluator::recent_or_bound(size_t i,
                                                                    std::span<const Datum* const> operands,
                                                                    bool on_host) const {
  if (!on_host) {
    const std::lock_guard lock(lazy_);
    const auto found = std::find_if(recent_[i].begin(), recent_[i].end(),
                                    [&](const auto& call) { return call->fits(operands); });
    if (found != recent_[i].end()) {
      std::rotate(recent_[i].begin(), found, found + 1);
      return recent_[i].front();
    }
  }
  OAR_ASSIGN(auto call, bind(i, operands, on_host));
  if (on_host) return call;
  const std::lock_guard lock(lazy_);
  ++bindings_;
  if (recent_[i].size() == (sizes_vary_[i] ? kMostRecent : 1)) recent_[i].pop_back();
  recent_[i].insert(recent_[i].begin(), call);
  return call;
}

Status Evaluator::evaluate_node(size_t i, RunValues& values, const EvalOptions& options,
                                const EvalOptions* device_options, EvalContext::OperandFacts facts,
                                NodeValues& scratch) const {
  const Node& node = graph_->nodes()[i];
  // While sizing, shape arithmetic is computed all the same, on the host.
  const bool on_host = device_options != nullptr && device_options->sizing && !options.sizing;
  auto& [operands, results] = scratch;
  operands.clear();
  for (ValueId v : node.inputs) operands.push_back(values.find(v));
  results.assign(node.outputs.size(), {});
  std::shared_ptr<const BoundCall> call;
  if (node.op->lower != nullptr && !options.plainly) {
    if (options.calls != nullptr) call = (*options.calls)[i];
    if (call == nullptr || !call->fits(operands)) { OAR_ASSIGN(call, recent_or_bound(i, operands, on_host)); }
    if (options.bound != nullptr) (*options.bound)[i] = call;
  }

  const bool has_call = call != nullptr && call->op != nullptr, launched = has_call && call->on_device();
  const char* where = has_call ? call->op->where() : nullptr;
  // A view stays where its operand is.
  const bool on_device =
      launched || (node.op->view && !node.inputs.empty() && values.only_on_device(node.inputs[0]));
  if (launched) {
    if (!device_options->sizing) {
      const Status fits = check_call(*call, operands, node, values);
      if (!fits.ok()) return Status(fits.code(), cat(describe(node, operands), ": ", fits.message()));
    }
    for (size_t k = 0; k < operands.size(); ++k) {
      if (call->weights[k]) operands[k] = nullptr;
      else if (operands[k] != nullptr) { OAR_ASSIGN(operands[k], values.on_device(node.inputs[k])); }
    }
    OAR_RETURN_IF_ERROR(
        step(where, node, operands, results, *device_options, nullptr, facts, [&](KernelContext& ctx) {
          OAR_RETURN_IF_ERROR(run_call(*call, ctx));
          return options.profile ? call->backend->synchronize() : ok_status();
        }));
  } else {
    const uint64_t before = values.downloaded();
    for (size_t k = 0; k < operands.size(); ++k) {
      if (operands[k] == nullptr || (on_device && k == 0) || node.op->sizes == SizesFrom::kItself) continue;
      OAR_ASSIGN(operands[k], values.on_host(node.inputs[k]));
    }
    OAR_RETURN_IF_ERROR(values.arrive());
    if (options.detours != nullptr && values.downloaded() > before) ++options.detours->ops[node.op->name];
    const void* made = bodies_[i].get();
    if (made == nullptr) {
      OAR_ASSIGN(const Prepared* const p, prepared(i, *weights_));
      made = p->made.get();
    }
    OAR_RETURN_IF_ERROR(step(where, node, operands, results, options, made, facts, [&](KernelContext& ctx) {
      return has_call ? run_call(*call, ctx) : compute(ctx);
    }));
  }
  if (options.detours != nullptr) options.detours->launches += launched;
  // Shape arithmetic and views move nothing; a branch or loop is the nodes within it.
  const auto moves_nothing = [&] {
    return node.op->view || (where == nullptr && !on_device && is_view(operands, last_use_[i], results));
  };
  if (options.placed && node.op->sizes != SizesFrom::kItself && node.subgraphs.empty() && !moves_nothing()) {
    uint64_t bytes = 0;
    for (ValueId v : node.inputs) bytes += bytes_of(values.find(v));
    for (const Datum& d : results) bytes += bytes_of(&d);
    options.placed({node, where, on_device, bytes});
  }
  for (size_t k = 0; k < results.size(); ++k) {
    if (on_device) values.set_on_device(node.outputs[k], std::move(results[k]));
    else values.set_on_host(node.outputs[k], std::move(results[k]));
  }
  return ok_status();
}

Result<std::vector<Datum>> Evaluator::run(std::vector<Datum> inputs, const EvalOptions& options) const {
  const Graph& g = *graph_;
  if (inputs.size() != g.inputs().size()) {
    return invalid_argument(cat("a graph of ", g.inputs().size(), " inputs is given ", inputs.size()));
  }
  if (options.depth == 0 && options.states.size() != g.states().size()) {
    return invalid_argument(
        cat("a graph of ", g.states().size(), " states is given ", options.states.size()));
  }
  std::optional<RunMemory> own;
  std::optional<EvalOptions> on_device;
  if (beside_device()) {
    // It has no kernels any more; the processor must not stand in for all of it.
    OAR_RETURN_IF_ERROR(device_weights_->backend().fault());
    on_device = options;
    on_device->memory =
        options.device_memory != nullptr ? options.device_memory : &own.emplace(&device_weights_->backend());
  }
  const EvalOptions* const device_options = on_device ? &*on_device : nullptr;
  RunValues values(g, options, device_weights_.get(), on_device ? on_device->memory : nullptr);
  NodeValues scratch;
  for (size_t k = 0; k < inputs.size(); ++k) values.set_on_host(g.inputs()[k], std::move(inputs[k]));
  for (size_t k = 0; k < g.states().size() && options.depth == 0; ++k)
    values.set_on_host(g.states()[k], options.states[k]);
  // While sizing: values of which only the shape is known, and options for nodes that see none of them.
  std::vector<uint8_t> unknown, unknown_operands;
  EvalOptions real;
  if (options.sizing) {
    unknown.resize(g.num_values());
    for (ValueId v : g.inputs()) unknown[v] = 1;
    for (ValueId v : g.states()) unknown[v] = 1;
    real = options;
    real.sizing = false;
  }
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    const Node& node = g.nodes()[i];
    const EvalOptions* how = &options;
    EvalContext::OperandFacts facts{last_use_[i], {}};
    if (options.sizing) {
      unknown_operands.clear();
      for (ValueId v : node.inputs) unknown_operands.push_back(v != kNoValue && unknown[v]);
      const bool any = std::count(unknown_operands.begin(), unknown_operands.end(), 1) > 0;
      if (any && node.op->sizes == SizesFrom::kValues) {
        std::vector<const Datum*> operands;
        for (ValueId v : node.inputs) operands.push_back(values.find(v));
        return Status(StatusCode::kFailedPrecondition,
                      cat(describe(node, operands), ": sizes depend on values"));
      }
      const bool computed = !any || node.op->sizes == SizesFrom::kItself;
      if (computed) how = &real;
      facts.unknown = unknown_operands;
      for (ValueId v : node.outputs) unknown[v] = !computed;
    }
    if (options.memory != nullptr && options.depth == 0) options.memory->at_node(i);
    OAR_RETURN_IF_ERROR(evaluate_node(i, values, *how, device_options, facts, scratch));
    if (options.observe && options.depth == 0) {
      std::vector<Datum> results;
      for (ValueId v : node.outputs) {
        OAR_ASSIGN(const Datum* d, values.on_host(v));
        results.push_back(d != nullptr ? *d : Datum());
      }
      OAR_RETURN_IF_ERROR(values.arrive());
      OAR_RETURN_IF_ERROR(options.observe(node, results));
    }
    for (ValueId v : last_[i]) values.drop(v);
  }
  std::vector<Datum> out;
  for (const auto& o : g.outputs()) {
    OAR_ASSIGN(const Datum* d, values.on_host(o.value));
    if (!d) return internal_error(cat("output '", o.name, "' was not computed"));
    out.push_back(*d);
  }
  OAR_RETURN_IF_ERROR(values.arrive());
  if (options.detours != nullptr) {
    options.detours->uploaded += values.uploaded();
    options.detours->downloaded += values.downloaded();
  }
  return out;
}

uint64_t Evaluator::bindings() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < graph_->nodes().size(); ++i) {
    if (bodies_[i] == nullptr) continue;
    for (const auto& body : *bodies_[i]) sum += body->bindings();
  }
  const std::lock_guard lock(lazy_);
  return sum + bindings_;
}

Result<BlockPlan> Evaluator::size(std::vector<Datum> inputs, const EvalOptions& options,
                                  BlockPlan* device) const {
  RunMemory memory, device_memory;
  memory.begin_sizing();
  device_memory.begin_sizing();
  EvalOptions sizing = options;
  sizing.sizing = true;
  sizing.memory = &memory;
  sizing.device_memory = &device_memory;
  sizing.profile = nullptr;
  sizing.detours = nullptr;
  sizing.calls = nullptr;
  sizing.bound = nullptr;
  OAR_ASSIGN(const std::vector<Datum> results, run(std::move(inputs), sizing));
  std::vector<BlockLife> lives = memory.end();
  if (lives.empty() && !graph_->nodes().empty())
    return Status(StatusCode::kFailedPrecondition, "too many values to plan");
  if (device != nullptr) *device = plan_blocks(device_memory.end());
  BlockPlan out = plan_blocks(std::move(lives));
  out.first = memory.first_blocks();
  return out;
}

Result<std::vector<Datum>> evaluate_op(const Node& node, std::span<const Datum* const> inputs,
                                       const EvalOptions& options) {
  std::vector<Datum> outputs(node.outputs.size());
  const char* where = nullptr;
  OAR_RETURN_IF_ERROR(step(where, node, inputs, outputs, options, nullptr, {}, node.op->evaluate));
  return outputs;
}

Result<std::vector<Datum>> compute_op(const Node& node, std::span<const Datum* const> inputs,
                                      const EvalOptions& options) {
  std::vector<Datum> outputs(node.outputs.size());
  const char* where = nullptr;
  OAR_RETURN_IF_ERROR(step(where, node, inputs, outputs, options, nullptr, {}, compute));
  return outputs;
}

}  // namespace oar
