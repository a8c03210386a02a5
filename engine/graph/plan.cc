#include "engine/graph/plan.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/pass.h"
#include "engine/graph/reference.h"
#include "engine/graph/weights.h"

namespace oar {
namespace {

// Runs a node by its reference on host memory: slow, right, and only for backends whose memory the host can
// read.
class HostOp final : public LoweredOp {
 public:
  explicit HostOp(const Node& node) : node_(node) {}
  const Kernel* kernel() const override { return nullptr; }
  void bind(const Operand* in, const Operand* out) override { in_ = in, out_ = out; }

  Status execute() override {
    std::vector<HostValue> values(node_.inputs.size());
    std::vector<const HostValue*> operands;
    for (size_t k = 0; k < node_.inputs.size(); ++k) {
      if (node_.inputs[k] == kNoValue) {
        operands.push_back(nullptr);
        continue;
      }
      OAR_ASSIGN(values[k], load(in_[k]));
      operands.push_back(&values[k]);
    }
    OAR_ASSIGN(const auto results, evaluate_node(*node_.op, operands, node_.attrs));
    for (size_t k = 0; k < results.size(); ++k) {
      OAR_ASSIGN(const Tensor t, to_tensor(results[k]));
      std::memcpy(out_[k].data, t.data(), t.bytes());
    }
    return ok_status();
  }

 private:
  static Result<HostValue> load(const Operand& o) {
    const Shape shape(std::span<const int64_t>(o.dims, static_cast<size_t>(o.rank)));
    const int64_t width = o.format.block_bytes();
    OAR_ASSIGN(Tensor t, Tensor::allocate(shape, o.format));
    const int64_t outer = o.rank > 0 ? o.dims[0] : 1;
    const int64_t row = outer > 0 ? shape.numel() / outer : 0;
    for (int64_t r = 0; r < outer; ++r) {
      std::memcpy(static_cast<std::byte*>(t.mutable_data()) + r * row * width,
                  static_cast<const std::byte*>(o.data) + r * (o.rank > 0 ? o.row_stride : row) * width,
                  static_cast<size_t>(row * width));
    }
    return host_value(t);
  }

  const Node& node_;
  const Operand* in_ = nullptr;
  const Operand* out_ = nullptr;
};

}  // namespace

Result<const float*> LowerContext::f32_constant(size_t input) {
  if (input >= node.inputs.size() || node.inputs[input] == kNoValue)
    return static_cast<const float*>(nullptr);
  const Value& v = graph.value(node.inputs[input]);
  if (v.kind != ValueKind::kConstant)
    return invalid_argument(cat(node.op->name, ": operand ", input, " is not a constant"));
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
    auto r = n.op->lower(probe);
    return r.ok() && *r != nullptr;
  };
  OAR_RETURN_IF_ERROR(decompose(graph_, has_kernel).status());
  OAR_ASSIGN(expressions_, take_weight_nodes(graph_, backend_.host_pool()));
  OAR_RETURN_IF_ERROR(insert_copies(graph_));
  OAR_ASSIGN(memory_, plan_memory(graph_));

  std::set<std::string> warned;
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
    if (n.op->lower) {
      LowerContext ctx{graph_, n, backend_, options.progress, owned_, expressions_};
      OAR_ASSIGN(step.op, n.op->lower(ctx));
    }
    if (!step.op) {
      if (backend_.memory() != MemoryKind::kHost) {
        return unimplemented(cat("backend ", backend_.name(), " has no kernel for ", n.op->name));
      }
      if (warned.insert(n.op->name).second) {
        log_(LogLevel::kWarning, cat("no kernel for ", n.op->name, " on ", backend_.name(),
                                     ": it runs by its reference, slowly"));
      }
      step.op = std::make_unique<HostOp>(n);
    }
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
  // Scratch need not grow with every symbol (decode splits what prefill does not), so powers of two of each
  // symbol are tried against all or one of the others.
  uint64_t shared = 0, worker = 0;
  prepared_ = false;
  std::vector<int64_t> most;
  for (const Symbol& s : graph_.symbols()) most.push_back(s.max);
  auto try_sizes = [&](std::span<const int64_t> symbols) {
    resolve(symbols, static_cast<std::byte*>(arena_.mutable_data()));
    for (Step& step : steps_) {
      if (!step.op->kernel()) continue;
      step.op->bind(step.in_operands.data(), step.out_operands.data());
      KernelPlan kp;
      step.op->kernel()->plan(step.op->args(), backend_.workers(), &kp);
      shared = std::max<uint64_t>(shared, kp.shared_scratch);
      worker = std::max<uint64_t>(worker, kp.worker_scratch);
    }
  };
  try_sizes(most);
  for (size_t s = 0; s < most.size(); ++s) {
    for (int64_t value = 1; value < most[s]; value *= 2) {
      std::vector<int64_t> sizes = most;
      sizes[s] = value;
      try_sizes(sizes);
    }
  }
  return grow_scratch(shared, worker);
}

Status Plan::grow_scratch(uint64_t shared, uint64_t worker) {
  if (worker > worker_scratch_) {
    backend_.reserve_worker_scratch(worker);
    worker_scratch_ = worker;
  }
  if (shared > scratch_.size()) { OAR_ASSIGN(scratch_, backend_.allocate(shared)); }
  return ok_status();
}

void Plan::bind_state(size_t index, Buffer buffer) {
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
    kernel->plan(step.op->args(), backend_.workers(), &step.plan);
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
  for (Step& step : steps_) {
    if (const Kernel* kernel = step.op->kernel()) {
      OAR_RETURN_IF_ERROR(backend_.launch(*kernel, step.op->args(), step.plan, scratch_.mutable_data()));
    } else {
      OAR_RETURN_IF_ERROR(step.op->execute());
    }
  }
  return ok_status();
}

Operand Plan::output(size_t index) const { return operands_[graph_.outputs()[index].value]; }

std::string Plan::to_string() const {
  const SymbolTable& symbols = graph_.symbols();
  std::string out =
      cat("plan on ", backend_.name(), ": ", steps_.size(), " steps, arena ", format_bytes(arena_.size()),
          ", scratch ", format_bytes(scratch_.size()), ", packed weights ", format_bytes(owned_bytes_), "\n");
  for (size_t s = 0; s < memory_.slot_bytes.size(); ++s) {
    out += cat("slot ", s, ": ", memory_.slot_bytes[s].to_string(symbols), " bytes\n");
  }
  for (const Step& step : steps_) {
    const Kernel* k = step.op->kernel();
    out += cat(step.node->op->name, " -> ", k ? k->name : "host reference", "  ");
    for (ValueId v : step.node->outputs) {
      const TensorType& t = graph_.value(v).type;
      out += cat(" %", v, ":", graph_.type_string(t), "@", memory_.placements[v].slot);
    }
    out += "\n";
  }
  return out;
}

}  // namespace oar
