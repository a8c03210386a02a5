#include "engine/graph/plan.h"

#include <algorithm>
#include <map>

#include "engine/base/format.h"
#include "engine/graph/host_op.h"

namespace oar {
namespace {

constexpr size_t kArgsAlignment = 64;

// The format that says most about a node: of its first matrix, its state, or its first operand.
std::string node_format(const Graph& graph, const Node& n) {
  const Value* said = nullptr;
  for (ValueId v : n.inputs) {
    if (v == kNoValue) continue;
    const Value& value = graph.value(v);
    if (said == nullptr) said = &value;
    if (value.kind == ValueKind::kConstant && value.type.shape.size() >= 2) return value.type.format.name();
  }
  const std::string kv = n.attrs.get_string("format");
  return !kv.empty() ? kv : said != nullptr ? said->type.format.name() : "f32";
}

}  // namespace

// Ops without a kernel, for one warning each.
struct Plan::Missing {
  struct Entry {
    int64_t calls = 0, bytes = 0;  // copied to the processor and back by one run at its largest
    const char* where = nullptr;
  };
  std::map<std::pair<std::string, std::string>, Entry> ops;  // by op and format

  void warn(const Backend& backend, const Logger& log) const {
    for (const auto& [op, entry] : ops) {
      std::string cost;
      if (backend.memory() != MemoryKind::kHost) {
        cost = cat(" on the CPU (", entry.where, "), ", entry.calls, entry.calls == 1 ? " call" : " calls",
                   " with up to ", format_bytes(static_cast<uint64_t>(entry.bytes)),
                   " of copies and a wait each run");
      } else {
        cost = " by its reference, slowly";
      }
      log(LogLevel::kWarning,
          cat("no kernel for ", op.first, " (", op.second, ") on ", backend.name(), ": it runs", cost));
    }
  }
};

Result<std::unique_ptr<const Plan>> Plan::make(const Graph& graph, WeightStore& weights,
                                               WeightStore& host_weights, std::span<const Node> expressions,
                                               const Logger& log, const Progress& progress) {
  auto plan = std::unique_ptr<Plan>(new Plan(graph, weights.backend()));
  plan->weights_ = &weights;
  plan->host_weights_ = &host_weights;
  plan->expressions_ = expressions;
  plan->log_ = log;
  plan->progress_ = progress;
  OAR_RETURN_IF_ERROR(plan->lower());
  plan->weights_ = plan->host_weights_ = nullptr;
  plan->expressions_ = {};
  plan->log_ = {};
  plan->progress_ = {};
  return std::unique_ptr<const Plan>(std::move(plan));
}

LowerContext Plan::context(const Node& node, WeightStore& weights) const {
  return {graph_, node, weights.backend(), weights, progress_, expressions_};
}

Status Plan::lower() {
  OAR_ASSIGN(memory_, plan_memory(graph_, memory_rules(backend_)));
  place_states();
  Missing missing;
  live_.assign(graph_.num_values(), 0);
  steps_.reserve(graph_.nodes().size());
  for (const Node& n : graph_.nodes()) {
    for (ValueId v : n.outputs) live_[v] = 1;
    for (ValueId v : n.inputs) {
      if (v != kNoValue) live_[v] = 1;
    }
    if (in_place(n, memory_.placements)) continue;
    Step step;
    step.node = &n;
    OAR_RETURN_IF_ERROR(lower_step(n, missing, step));
    step.in.assign(n.inputs.begin(), n.inputs.end());
    step.out.assign(n.outputs.begin(), n.outputs.end());
    std::unique_ptr<LoweredOp> next = std::move(step.behind);
    add_step(std::move(step));
    while (next != nullptr) {
      std::unique_ptr<LoweredOp> after = std::move(next->more);
      const Step& before = steps_.back();
      Step behind;
      behind.op = std::move(next);
      next = std::move(after);
      behind.node = before.node;
      behind.in = before.in;
      behind.out = before.out;
      behind.device_constants = before.device_constants;
      add_step(std::move(behind));
    }
  }
  missing.warn(backend_, log_);
  find_next_weights();
  capturable_ = backend_.captures() && std::all_of(steps_.begin(), steps_.end(),
                                                   [](const Step& s) { return s.op->kernel() != nullptr; });
  for (ValueId v : graph_.inputs()) live_[v] = 1;
  for (const auto& o : graph_.outputs()) {
    live_[o.value] = 1;
    graph_constants_.insert(o.value);
  }

  std::vector<Dim> dims;
  for (size_t v = 0; v < live_.size(); ++v) {
    if (!live_[v]) continue;
    const TensorType& t = graph_.value(static_cast<ValueId>(v)).type;
    if (t.shape.size() > Shape::kMaxRank) return unimplemented("tensors of more than 8 axes");
    dims.insert(dims.end(), t.shape.begin(), t.shape.end());
    dims.push_back(memory_.placements[v].row_stride);
    for (size_t s = 0; s < graph_.states().size(); ++s) {
      if (memory_.placements[v].root == graph_.states()[s])
        state_values_.emplace_back(static_cast<ValueId>(v), s);
    }
  }
  extents_ = std::make_unique<const DimProgram>(dims);
  return ok_status();
}

void Plan::add_step(Step step) {
  step.args = args_bytes_;
  args_bytes_ += (step.op->args_bytes() + kArgsAlignment - 1) / kArgsAlignment * kArgsAlignment;
  steps_.push_back(std::move(step));
}

// A state's ops share its memory. On a device that lacks one of them, all run on the CPU, and so do
// those that also use another state of theirs.
void Plan::place_states() {
  host_states_.assign(graph_.states().size(), 0);
  if (backend_.memory() == MemoryKind::kHost) return;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Node& n : graph_.nodes()) {
      std::vector<size_t> used;
      for (ValueId v : n.inputs) {
        for (size_t s = 0; v != kNoValue && s < graph_.states().size(); ++s) {
          if (memory_.placements[v].root == graph_.states()[s]) used.push_back(s);
        }
      }
      if (used.empty()) continue;
      bool host = std::any_of(used.begin(), used.end(), [&](size_t s) { return host_states_[s] != 0; });
      if (!host) {
        LowerContext probe = context(n, *weights_);
        probe.probe = true;
        const auto op = lowers_by_types(*n.op) ? n.op->lower(probe) : Lowered(std::unique_ptr<LoweredOp>());
        host = !op.ok() || *op == nullptr || (*op)->kernel() == nullptr;
      }
      for (size_t s : used) {
        if (host && !host_states_[s]) host_states_[s] = changed = true;
      }
    }
  }
}

bool Plan::on_host_state(ValueId value) const {
  for (size_t s = 0; s < host_states_.size(); ++s) {
    if (host_states_[s] && memory_.placements[value].root == graph_.states()[s]) return true;
  }
  return false;
}

Status Plan::lower_step(const Node& n, Missing& missing, Step& step) {
  const bool device = backend_.memory() != MemoryKind::kHost;
  const bool pinned = std::any_of(n.inputs.begin(), n.inputs.end(),
                                  [&](ValueId v) { return v != kNoValue && on_host_state(v); });
  if (lowers_by_types(*n.op) && !pinned) {
    LowerContext ctx = context(n, *weights_);
    OAR_ASSIGN(auto op, n.op->lower(ctx));
    if (op != nullptr) {
      has_phases_ = has_phases_ || op->prompts != nullptr;
      step.behind = op->prompts != nullptr ? std::move(op->prompts) : std::move(op->more);
    }
    step.op = std::move(op);
    // An op that runs on the host by itself would read the device's memory.
    if (device && step.op && step.op->kernel() == nullptr) step.op.reset();
    if (step.op) return keep_constants(ctx.taken, step);
  }
  return step.op ? ok_status() : lower_to_host(n, missing, step);
}

Status Plan::lower_to_host(const Node& n, Missing& missing, Step& step) {
  const bool device = backend_.memory() != MemoryKind::kHost;
  for (const ValueId v : n.inputs) {
    if (v != kNoValue && graph_.value(v).kind == ValueKind::kConstant) graph_constants_.insert(v);
  }
  if (device && lowers_by_types(*n.op)) {
    LowerContext ctx = context(n, *host_weights_);
    OAR_ASSIGN(step.op, n.op->lower(ctx));
  }
  if (!step.op) {
    if (!n.op->define && !n.op->evaluate) {
      return unimplemented(cat("neither ", backend_.name(), " nor the CPU has a kernel for ", n.op->name,
                               " of ", node_format(graph_, n)));
    }
    step.op = make_host_op(n, backend_.host());
  }
  Missing::Entry& entry = missing.ops[{n.op->name, node_format(graph_, n)}];
  ++entry.calls;
  entry.where = step.op->where();
  if (!device) return ok_status();
  const auto place = [&](ValueId v) {
    if (v == kNoValue) return HostOperand::kAbsent;
    if (on_host_state(v) || graph_.value(v).kind == ValueKind::kConstant) return HostOperand::kHost;
    Dim elements = 1;
    for (const Dim& d : graph_.value(v).type.shape) elements = elements * d;
    entry.bytes += elements.upper_bound(graph_.symbols()) * graph_.value(v).type.format.block_bytes();
    return HostOperand::kCopied;
  };
  std::vector<HostOperand> in, out;
  for (ValueId v : n.inputs) in.push_back(place(v));
  for (ValueId v : n.outputs) out.push_back(place(v));
  step.op = make_copied_op(backend_, std::move(step.op), std::move(in), std::move(out));
  return ok_status();
}

// What the op does not take over lies where its kernel finds it.
Status Plan::keep_constants(const std::vector<size_t>& taken, Step& step) {
  const Node& n = *step.node;
  for (size_t k = 0; k < n.inputs.size(); ++k) {
    if (n.inputs[k] == kNoValue || std::find(taken.begin(), taken.end(), k) != taken.end()) continue;
    if (graph_.value(n.inputs[k]).kind != ValueKind::kConstant) continue;
    const LowerContext ctx = context(n, *weights_);
    OAR_ASSIGN(const StoredWeight* w,
               ctx.weight(k, "as stored", [&](const Tensor& t) { return weights_->place(t, false); }));
    step.device_constants.emplace_back(k, w->data());
  }
  return ok_status();
}

uint64_t Plan::weight_bytes(KernelFamily family) const {
  uint64_t bytes = 0;
  for (const Step& step : steps_) {
    if (step.op->kernel() && step.op->kernel()->family == family) bytes += step.op->weight_bytes;
  }
  return bytes;
}

uint64_t Plan::weight_values(KernelFamily family) const {
  uint64_t values = 0;
  for (const Step& step : steps_) {
    if (!step.op->kernel() || step.op->kernel()->family != family) continue;
    for (const ValueId v : step.node->inputs) {
      if (v == kNoValue) continue;
      const DimVector& shape = graph_.value(v).type.shape;  // activations have a symbol among theirs
      if (shape.size() < 2 ||
          !std::all_of(shape.begin(), shape.end(), [](const Dim& d) { return d.is_const(); }))
        continue;
      uint64_t product = 1;
      for (const Dim& d : shape) product *= static_cast<uint64_t>(d.const_value());
      values += product;
    }
  }
  return values;
}

void Plan::find_next_weights() {
  // Smaller ones stay in caches from run to run, and who fetches hears later that the wait is over.
  const uint64_t worthwhile = static_cast<uint64_t>(backend_.workers()) * (128 << 10);
  const auto reads = [&](const Step& s) {
    const Kernel* k = s.op->kernel();
    return k != nullptr && k->weights != nullptr && s.op->weight_bytes >= worthwhile;
  };
  const auto first = std::find_if(steps_.begin(), steps_.end(), reads);
  size_t next = static_cast<size_t>(first - steps_.begin());
  for (size_t i = steps_.size(); i-- > 0;) {
    steps_[i].next = first == steps_.end() ? i : next;
    if (reads(steps_[i])) next = i;
  }
}

std::string Plan::to_string() const {
  const auto column = [](std::string text, size_t width) {
    text.resize(std::max(text.size() + 1, width), ' ');
    return text;
  };
  std::string out = cat("plan on ", backend_.name(), ": ", steps_.size(), " steps, arena ",
                        format_bytes(arena_bytes()), "\nsteps: op, kernel, results at bytes of the arena\n");
  // Two steps are alike when they differ in nothing but which values they work on.
  std::vector<std::string> kinds, results;
  for (const Step& step : steps_) {
    std::string types, places;
    for (ValueId v : step.node->outputs) {
      const std::string type = graph_.type_string(graph_.value(v).type);
      const int64_t at = memory_.placements[v].offset;
      types += " " + type;
      places += cat(places.empty() ? "%" : ", %", v, " ", type, at < 0 ? "" : cat(" at ", at));
    }
    kinds.push_back(cat(step.node->op->name, " ", step.op->where(), types));
    results.push_back(std::move(places));
  }
  for (size_t i = 0; i < steps_.size();) {
    // The run of equal stretches from here that covers most: the layers of a model.
    size_t length = 1, times = 1;
    for (size_t n = 1; i + 2 * n <= steps_.size(); ++n) {
      size_t same = 0;
      while (i + n + same < steps_.size() && kinds[i + same] == kinds[i + n + same]) ++same;
      if (const size_t fits = same / n + 1; fits > 1 && n * fits > length * times) length = n, times = fits;
    }
    for (size_t k = i; k < i + length; ++k)
      out += cat("  ", column(cat(k), 5), column(steps_[k].node->op->name, 18),
                 column(steps_[k].op->where(), 34), results[k], "\n");
    if (times > 1)
      out += cat("  ", i + length, " to ", i + length * times - 1, ": the same, ", times - 1,
                 times == 2 ? " more time\n" : " more times\n");
    i += length * times;
  }
  return out;
}

}  // namespace oar
