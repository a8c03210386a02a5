#include "engine/graph/plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/host_op.h"
#include "engine/graph/pass.h"
#include "engine/graph/weights.h"

namespace oar {
namespace {

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
};

Result<const float*> LowerContext::f32_constant(size_t input) {
  if (input >= node.inputs.size() || node.inputs[input] == kNoValue)
    return static_cast<const float*>(nullptr);
  const Value& v = graph.value(node.inputs[input]);
  if (v.kind != ValueKind::kConstant)
    return invalid_argument(cat(node.op->name, ": operand ", input, " is not a constant"));
  taken.push_back(input);
  OAR_ASSIGN(const Tensor f32, to_f32(v.constant));
  OAR_ASSIGN(Buffer device, backend.allocate(std::max<uint64_t>(f32.bytes(), 4)));
  OAR_RETURN_IF_ERROR(backend.upload(device.mutable_data(), f32.data(), f32.bytes()));
  const auto* p = static_cast<const float*>(device.data());
  owned.push_back(std::move(device));
  return p;
}

bool LowerContext::is_weight(size_t input) const {
  if (input >= node.inputs.size() || node.inputs[input] == kNoValue) return false;
  const ValueId v = node.inputs[input];
  if (graph.value(v).kind == ValueKind::kConstant) return true;
  return std::any_of(expressions.begin(), expressions.end(),
                     [&](const Node& n) { return n.outputs[0] == v; });
}

Result<Tensor> LowerContext::weight(size_t input) const {
  taken.push_back(input);
  return evaluate_weight(graph, expressions, node.inputs[input], backend.host_pool());
}

Result<std::unique_ptr<Plan>> Plan::compile(Graph graph, Backend& backend, const PlanOptions& options) {
  auto plan = std::unique_ptr<Plan>(new Plan(std::move(graph), backend));
  plan->log_ = options.log;
  OAR_RETURN_IF_ERROR(plan->lower(options));
  OAR_RETURN_IF_ERROR(plan->foresee_scratch());
  return plan;
}

Status Plan::lower(const PlanOptions& options) {
  graph_.sort();
  // Composites without a kernel become their definitions until every node has a kernel or is a primitive.
  auto has_kernel = [&](const Node& n) {
    if (!n.op->lower) return false;
    std::vector<Buffer> unused;
    LowerContext probe{graph_, n, backend_, options.progress, unused};
    probe.probe = true;
    auto r = n.op->lower(probe);
    return r.ok() && *r != nullptr;
  };
  OAR_RETURN_IF_ERROR(decompose(graph_, has_kernel).status());
  OAR_ASSIGN(expressions_, take_weight_nodes(graph_, backend_.host_pool()));
  OAR_RETURN_IF_ERROR(insert_copies(graph_));
  OAR_ASSIGN(memory_, plan_memory(graph_));

  place_states(options);
  Missing missing;
  std::set<const void*> in_place;
  live_.assign(graph_.num_values(), 0);
  steps_.reserve(graph_.nodes().size());
  for (const Node& n : graph_.nodes()) {
    for (ValueId v : n.outputs) live_[v] = 1;
    for (ValueId v : n.inputs) {
      if (v != kNoValue) live_[v] = 1;
    }
    // Views move no bytes.
    const bool view =
        (n.is("reshape") || n.is("slice")) && memory_.placements[n.outputs[0]].root != n.outputs[0];
    if (view) continue;
    Step step;
    step.node = &n;
    OAR_RETURN_IF_ERROR(lower_step(n, options, missing, step));
    owned_bytes_ += step.op->owned_bytes;
    if (step.op->owned_bytes == 0) {
      for (ValueId v : n.inputs) {
        if (v == kNoValue || graph_.value(v).kind != ValueKind::kConstant) continue;
        const Tensor& t = graph_.value(v).constant;
        if (in_place.insert(t.data()).second) in_place_bytes_ += t.bytes();
      }
    }
    step.in.assign(n.inputs.begin(), n.inputs.end());
    step.out.assign(n.outputs.begin(), n.outputs.end());
    step.in_operands.resize(n.inputs.size());
    step.out_operands.resize(n.outputs.size());
    steps_.push_back(std::move(step));
  }
  expressions_.clear();
  for (const auto& [op, entry] : missing.ops) {
    std::string cost;
    if (backend_.memory() != MemoryKind::kHost) {
      cost = cat(" on the CPU (", entry.where, "), ", entry.calls, entry.calls == 1 ? " call" : " calls",
                 " with up to ", format_bytes(static_cast<uint64_t>(entry.bytes)),
                 " of copies and a wait each run");
    } else {
      cost = " by its reference, slowly";
    }
    log_(LogLevel::kWarning,
         cat("no kernel for ", op.first, " (", op.second, ") on ", backend_.name(), ": it runs", cost));
  }
  find_next_weights();
  capturable_ = backend_.captures() && std::all_of(steps_.begin(), steps_.end(),
                                                   [](const Step& s) { return s.op->kernel() != nullptr; });
  for (ValueId v : graph_.inputs()) live_[v] = 1;
  for (const auto& o : graph_.outputs()) live_[o.value] = 1;

  operands_.resize(graph_.num_values());
  std::vector<Dim> dims;
  for (size_t v = 0; v < operands_.size(); ++v) {
    if (!live_[v]) continue;
    const TensorType& t = graph_.value(static_cast<ValueId>(v)).type;
    if (t.shape.size() > Shape::kMaxRank) return unimplemented("tensors of more than 8 axes");
    operands_[v].format = t.format;
    operands_[v].rank = static_cast<int>(t.shape.size());
    dims.insert(dims.end(), t.shape.begin(), t.shape.end());
    dims.push_back(memory_.placements[v].row_stride);
  }
  dims.insert(dims.end(), memory_.slot_bytes.begin(), memory_.slot_bytes.end());
  program_ = std::make_unique<DimProgram>(dims);
  evaluated_.resize(dims.size());
  slot_offsets_.resize(memory_.slot_bytes.size());
  states_.resize(graph_.states().size());
  // Every version of a state is the same memory.
  for (size_t v = 0; v < operands_.size(); ++v) {
    for (size_t s = 0; s < states_.size(); ++s) {
      if (live_[v] && memory_.placements[v].root == graph_.states()[s]) state_values_.emplace_back(v, s);
    }
  }

  const int64_t arena = memory_.total_bytes().upper_bound(graph_.symbols());
  if (arena > (int64_t{1} << 46)) return resource_exhausted(cat("activations would take ", arena, " bytes"));
  OAR_ASSIGN(arena_, backend_.allocate(static_cast<uint64_t>(std::max<int64_t>(arena, 64))));
  return ok_status();
}

// A state's ops share its memory. On a device that lacks one of them, all run on the CPU, and so do
// those that also use another state of theirs.
void Plan::place_states(const PlanOptions& options) {
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
        std::vector<Buffer> unused;
        LowerContext probe{graph_, n, backend_, options.progress, unused, expressions_};
        const auto op = n.op->lower ? n.op->lower(probe) : Lowered(std::unique_ptr<LoweredOp>());
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

Status Plan::lower_step(const Node& n, const PlanOptions& options, Missing& missing, Step& step) {
  const bool device = backend_.memory() != MemoryKind::kHost;
  const bool pinned = std::any_of(n.inputs.begin(), n.inputs.end(),
                                  [&](ValueId v) { return v != kNoValue && on_host_state(v); });
  if (n.op->lower && !pinned) {
    LowerContext ctx{graph_, n, backend_, options.progress, owned_, expressions_};
    OAR_ASSIGN(step.op, n.op->lower(ctx));
    // An op that runs on the host by itself would read the device's memory.
    if (device && step.op && step.op->kernel() == nullptr) step.op.reset();
    if (device && step.op) return upload_constants(ctx.taken, step);
  }
  return step.op ? ok_status() : lower_to_host(n, options, missing, step);
}

Status Plan::lower_to_host(const Node& n, const PlanOptions& options, Missing& missing, Step& step) {
  const bool device = backend_.memory() != MemoryKind::kHost;
  if (device && n.op->lower) {
    LowerContext ctx{graph_, n, backend_.host(), options.progress, owned_, expressions_};
    OAR_ASSIGN(step.op, n.op->lower(ctx));
  }
  if (!step.op) {
    if (!n.op->reference && !n.op->define) {
      return unimplemented(cat("neither ", backend_.name(), " nor the CPU has a kernel for ", n.op->name,
                               " of ", node_format(graph_, n)));
    }
    step.op = make_reference_op(n);
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

Status Plan::upload_constants(const std::vector<size_t>& taken, Step& step) {
  const Node& n = *step.node;
  for (size_t k = 0; k < n.inputs.size(); ++k) {
    if (n.inputs[k] == kNoValue || std::find(taken.begin(), taken.end(), k) != taken.end()) continue;
    const Value& v = graph_.value(n.inputs[k]);
    if (v.kind != ValueKind::kConstant) continue;
    OAR_ASSIGN(Buffer buffer, backend_.allocate(std::max<uint64_t>(v.constant.bytes(), 4)));
    OAR_RETURN_IF_ERROR(backend_.upload(buffer.mutable_data(), v.constant.data(), v.constant.bytes()));
    step.device_constants.emplace_back(k, buffer.mutable_data());
    owned_.push_back(std::move(buffer));
  }
  return ok_status();
}

void Plan::resolve(std::span<const int64_t> symbols, std::byte* arena) {
  program_->evaluate(symbols, evaluated_);
  size_t at = evaluated_.size() - slot_offsets_.size();
  uint64_t offset = 0;
  for (size_t s = 0; s < slot_offsets_.size(); ++s) {
    slot_offsets_[s] = offset;
    offset += static_cast<uint64_t>(evaluated_[at + s]);
  }
  at = 0;
  for (size_t v = 0; v < operands_.size(); ++v) {
    if (!live_[v]) continue;
    Operand& o = operands_[v];
    for (int k = 0; k < o.rank; ++k) o.dims[k] = evaluated_[at++];
    o.row_stride = evaluated_[at++];
    const Placement& p = memory_.placements[v];
    if (p.slot >= 0) {
      o.data = arena + slot_offsets_[p.slot] + p.column * o.format.block_bytes();
    } else if (graph_.value(static_cast<ValueId>(v)).kind == ValueKind::kConstant) {
      o.data = const_cast<void*>(graph_.value(static_cast<ValueId>(v)).constant.data());
    }
  }
  for (const auto& [value, state] : state_values_) {
    operands_[value].data = states_[state].size() > 0 ? states_[state].mutable_data() : nullptr;
  }
  for (Step& step : steps_) {
    for (size_t k = 0; k < step.in.size(); ++k) {
      step.in_operands[k] = step.in[k] >= 0 ? operands_[step.in[k]] : Operand{};
    }
    for (const auto& [k, data] : step.device_constants) step.in_operands[k].data = data;
    for (size_t k = 0; k < step.out.size(); ++k) step.out_operands[k] = operands_[step.out[k]];
  }
}

uint64_t Plan::weight_bytes(KernelFamily family) const {
  uint64_t bytes = 0;
  for (const Step& step : steps_) {
    if (step.op->kernel() && step.op->kernel()->family == family) bytes += step.op->weight_bytes;
  }
  return bytes;
}

Status Plan::foresee_scratch() {
  // Scratch need not grow with every symbol: decode splits what prefill does not, and a matrix product packs
  // few rows once per worker (up to 256 of them, matmul_driver.h). So each symbol is tried at every value up
  // to there and at powers of two behind, the others at their bounds.
  constexpr int64_t kEvery = 256;
  uint64_t shared = 0, worker = 0;
  prepared_ = false;
  std::vector<int64_t> most;
  for (const Symbol& s : graph_.symbols()) most.push_back(s.max);
  auto try_sizes = [&](std::span<const int64_t> symbols) -> Status {
    resolve(symbols, static_cast<std::byte*>(arena_.mutable_data()));
    for (Step& step : steps_) {
      if (!step.op->kernel()) continue;
      step.op->bind(step.in_operands.data(), step.out_operands.data());
      KernelPlan kp;
      OAR_RETURN_IF_ERROR(backend_.plan(*step.op->kernel(), step.op->args(), &kp));
      shared = std::max<uint64_t>(shared, kp.shared_scratch);
      worker = std::max<uint64_t>(worker, kp.worker_scratch);
    }
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(try_sizes(most));
  for (size_t s = 0; s < most.size(); ++s) {
    for (int64_t value = 1; value < most[s]; value += value < kEvery ? 1 : value) {
      std::vector<int64_t> sizes = most;
      sizes[s] = value;
      OAR_RETURN_IF_ERROR(try_sizes(sizes));
    }
  }
  return grow_scratch(shared, worker);
}

Status Plan::grow_scratch(uint64_t shared, uint64_t worker) {
  if (worker > worker_scratch_) {
    backend_.reserve_worker_scratch(worker);
    worker_scratch_ = worker;
  }
  if (shared > scratch_.size()) {
    captures_.clear();  // they hold the old one
    OAR_ASSIGN(scratch_, backend_.allocate(shared));
  }
  return ok_status();
}

void Plan::bind_state(size_t index, Buffer buffer) {
  captures_.clear();
  states_[index] = std::move(buffer);
  prepared_ = false;
}

Status Plan::prepare(std::span<const int64_t> symbols) {
  if (prepared_ && std::ranges::equal(symbols, prepared_for_)) return ok_status();
  prepared_ = false;
  resolve(symbols, static_cast<std::byte*>(arena_.mutable_data()));
  for (Step& step : steps_) {
    step.op->bind(step.in_operands.data(), step.out_operands.data());
    const Kernel* kernel = step.op->kernel();
    if (!kernel) continue;
    OAR_RETURN_IF_ERROR(backend_.plan(*kernel, step.op->args(), &step.plan));
    if (step.plan.shared_scratch > scratch_.size() || step.plan.worker_scratch > worker_scratch_) {
      log_(LogLevel::kWarning, cat(kernel->name, " needs ", step.plan.shared_scratch, " + ",
                                   step.plan.worker_scratch, " bytes of scratch, more than foreseen"));
      OAR_RETURN_IF_ERROR(grow_scratch(step.plan.shared_scratch, step.plan.worker_scratch));
    }
  }
  prepared_for_.assign(symbols.begin(), symbols.end());
  prepared_ = true;
  return ok_status();
}

Status Plan::run(std::span<const int64_t> symbols, std::span<const void* const> inputs) {
  OAR_CHECK(symbols.size() == graph_.symbols().size() && inputs.size() == graph_.inputs().size(),
            "wrong bindings");
  for (size_t s = 0; s < symbols.size(); ++s) {
    OAR_CHECK(symbols[s] >= 0 && symbols[s] <= graph_.symbols()[s].max, "symbol above its bound");
  }
  OAR_RETURN_IF_ERROR(prepare(symbols));
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Operand& o = operands_[graph_.inputs()[k]];
    if (!inputs[k]) continue;
    OAR_RETURN_IF_ERROR(
        backend_.upload(o.data, inputs[k], static_cast<uint64_t>(o.numel() * o.format.block_bytes())));
  }
  CaptureCache::Entry* const seen = capturable_ ? captures_.find(symbols) : nullptr;
  if (seen == nullptr) return run_steps();
  if (!seen->capture) {
    OAR_RETURN_IF_ERROR(backend_.begin_capture());
    OAR_RETURN_IF_ERROR(run_steps());
    OAR_ASSIGN(seen->capture, backend_.end_capture());
  }
  return backend_.replay(seen->capture);
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

Status Plan::run_steps() {
  for (size_t i = 0; i < steps_.size(); ++i) {
    const Step& step = steps_[i];
    if (const Kernel* kernel = step.op->kernel()) {
      NextKernel next;
      if (step.next != i) {
        const Step& s = steps_[step.next];
        next = {s.op->kernel(), s.op->args(), s.plan.chunks[s.plan.phases - 1]};
      }
      OAR_RETURN_IF_ERROR(
          backend_.launch(*kernel, step.op->args(), step.plan, scratch_.mutable_data(), next));
    } else {
      OAR_RETURN_IF_ERROR(step.op->execute());
    }
  }
  return ok_status();
}

Operand Plan::output(size_t index) const { return operands_[graph_.outputs()[index].value]; }

Status Plan::read_output(size_t index, std::span<float> to) {
  const Operand o = output(index);
  OAR_CHECK(o.format == Format::f32() && static_cast<int64_t>(to.size()) == o.numel(), "another output");
  const int64_t outer = o.rank > 0 ? o.dims[0] : 1;
  const int64_t row = outer > 0 ? o.numel() / outer : 0;
  if (row == 0) return ok_status();
  const bool dense = o.rank == 0 || o.row_stride == row;
  const auto span = static_cast<size_t>(dense ? outer * row : (outer - 1) * o.row_stride + row);
  if (!dense) strided_.resize(span);
  OAR_RETURN_IF_ERROR(backend_.download(dense ? to.data() : strided_.data(), o.data, span * sizeof(float)));
  OAR_RETURN_IF_ERROR(backend_.synchronize());
  for (int64_t r = 0; !dense && r < outer; ++r) {
    std::copy_n(strided_.begin() + r * o.row_stride, row, to.begin() + r * row);
  }
  return ok_status();
}

std::string Plan::to_string() const {
  const SymbolTable& symbols = graph_.symbols();
  const auto column = [](std::string text, size_t width) {
    text.resize(std::max(text.size() + 1, width), ' ');
    return text;
  };
  std::string out = cat("plan on ", backend_.name(), ": ", steps_.size(), " steps, arena ",
                        format_bytes(arena_.size()), ", scratch ", format_bytes(scratch_.size()),
                        ", packed weights ", format_bytes(owned_bytes_), "\nslots of the arena, in bytes\n");
  for (size_t s = 0; s < memory_.slot_bytes.size(); ++s) {
    const Dim& bytes = memory_.slot_bytes[s];
    out += cat("  ", column(cat(s), 4), column(format_bytes(bytes.upper_bound(symbols)) + " at most", 20),
               bytes.to_string(symbols), "\n");
  }
  out += "steps: op, kernel, results in slots\n";
  // Two steps are alike when they differ in nothing but which values they work on.
  std::vector<std::string> kinds, results;
  for (const Step& step : steps_) {
    std::string types, places;
    for (ValueId v : step.node->outputs) {
      const std::string type = graph_.type_string(graph_.value(v).type);
      const int slot = memory_.placements[v].slot;
      types += " " + type;
      places += cat(places.empty() ? "%" : ", %", v, " ", type, slot < 0 ? "" : cat(" in ", slot));
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
