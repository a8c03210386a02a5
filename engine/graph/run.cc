#include "engine/graph/run.h"

#include <algorithm>
#include <cstring>

#include "engine/base/format.h"
#include "engine/graph/run_guard.h"

namespace oar {

Run::Run(std::shared_ptr<const Program> program)
    : program_(std::move(program)), plan_(program_->plan()), backend_(program_->backend()) {
  const Graph& graph = plan_.graph();
  // Each struct begins on a cache line of its own.
  args_.resize(plan_.args_bytes() + Buffer::kAlignment);
  const auto at = reinterpret_cast<uintptr_t>(args_.data());
  std::byte* const args = args_.data() + (Buffer::kAlignment - at % Buffer::kAlignment) % Buffer::kAlignment;
  calls_.resize(plan_.steps().size());
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Plan::Step& step = plan_.steps()[i];
    calls_[i].args = args + step.args;
    calls_[i].in.resize(step.in.size());
    calls_[i].out.resize(step.out.size());
  }
  operands_.resize(graph.num_values());
  for (size_t v = 0; v < operands_.size(); ++v) {
    const TensorType& type = graph.value(static_cast<ValueId>(v)).type;
    if (!plan_.live(static_cast<ValueId>(v))) continue;
    operands_[v].format = type.format;
    operands_[v].rank = static_cast<int>(type.shape.size());
    operands_[v].head_step = plan_.place(static_cast<ValueId>(v)).head_step;
  }
  evaluated_.resize(plan_.extents().size());
  registers_.resize(plan_.extents().num_registers());
  states_.resize(graph.states().size());
  if (backend_.memory() == MemoryKind::kHost) return;
  input_at_.resize(graph.inputs().size());
  for (size_t v = 0; v < operands_.size(); ++v) {
    if (!plan_.live(static_cast<ValueId>(v))) continue;
    const auto& inputs = graph.inputs();
    const auto at = std::ranges::find(inputs, plan_.place(static_cast<ValueId>(v)).root);
    if (at != inputs.end()) viewed_inputs_.emplace_back(v, static_cast<size_t>(at - inputs.begin()));
  }
}

Result<std::unique_ptr<Run>> Run::create(std::shared_ptr<const Program> program) {
  auto run = std::unique_ptr<Run>(new Run(std::move(program)));
  OAR_ASSIGN(run->arena_, run->backend_.allocate(std::max<uint64_t>(run->plan_.arena_bytes(), 64)));
  if (run->backend_.memory() != MemoryKind::kHost) {
    std::vector<int64_t> most;
    for (const Symbol& s : run->graph().symbols()) most.push_back(s.max);
    run->resolve(most);
    OAR_ASSIGN(run->inputs_, run->backend_.allocate(std::max<uint64_t>(run->inputs_end_, 1)));
  }
  OAR_RETURN_IF_ERROR(run->foresee_scratch());
  return run;
}

void Run::place_inputs() {
  constexpr uint64_t kAlign = Buffer::kAlignment;
  uint64_t end = 0;
  for (size_t k = 0; k < input_at_.size(); ++k) {
    const Operand& o = operands_[graph().inputs()[k]];
    input_at_[k] = end;
    end += (static_cast<uint64_t>(o.numel() * o.format.block_bytes()) + kAlign - 1) / kAlign * kAlign;
  }
  inputs_end_ = end;
  if (inputs_.size() == 0) return;  // only to know how many bytes there are
  auto* const base = static_cast<std::byte*>(inputs_.mutable_data());
  for (const auto& [v, k] : viewed_inputs_) {
    Operand& o = operands_[v];
    o.data = base + input_at_[k] + plan_.place(static_cast<ValueId>(v)).column * o.format.block_bytes();
  }
}

void Run::resolve(std::span<const int64_t> symbols) {
  plan_.extents().evaluate(symbols, evaluated_, registers_);
  auto* const arena = static_cast<std::byte*>(arena_.mutable_data());
  const Graph& graph = plan_.graph();
  size_t at = 0;
  for (size_t v = 0; v < operands_.size(); ++v) {
    const auto id = static_cast<ValueId>(v);
    if (!plan_.live(id)) continue;
    Operand& o = operands_[v];
    for (int k = 0; k < o.rank; ++k) o.dims[k] = evaluated_[at++];
    o.row_stride = evaluated_[at++];
    if (graph.has_phases(graph.value(id).type))
      o.prompts_from = std::max<int64_t>(0, o.dims[0] - symbols[graph.phases->prompts]);
    const Placement& p = plan_.place(id);
    if (p.offset >= 0) {
      o.data = arena + p.offset + p.column * o.format.block_bytes();
    } else if (graph.value(id).kind == ValueKind::kConstant) {
      o.data = const_cast<void*>(graph.value(id).constant.data());
    }
  }
  for (const auto& [value, state] : plan_.state_values()) {
    operands_[value].data = states_[state].size() > 0 ? states_[state].mutable_data() : nullptr;
  }
  if (!input_at_.empty()) place_inputs();
}

void Run::fill(size_t i) {
  const Plan::Step& step = plan_.steps()[i];
  Call& call = calls_[i];
  for (size_t k = 0; k < step.in.size(); ++k) {
    call.in[k] = step.in[k] >= 0 ? operands_[step.in[k]] : Operand{};
  }
  for (const auto& [k, data] : step.device_constants) call.in[k].data = const_cast<void*>(data);
  for (size_t k = 0; k < step.out.size(); ++k) call.out[k] = operands_[step.out[k]];
  if (step.op->kernel()) step.op->fill(call.args, call.in.data(), call.out.data());
}

Status Run::foresee_scratch() {
  // Scratch need not grow with every symbol: decode splits what prefill does not, and a matrix product packs
  // few rows once per worker (up to 256 of them, matmul_driver.h). So each symbol is tried at every value up
  // to there and at powers of two behind, the others at their bounds.
  constexpr int64_t kEvery = 256;
  uint64_t shared = 0, worker = 0;
  std::vector<int64_t> most;
  for (const Symbol& s : graph().symbols()) most.push_back(s.max);
  std::vector<size_t> all;
  for (size_t i = 0; i < calls_.size(); ++i)
    if (plan_.steps()[i].op->kernel() != nullptr) all.push_back(i);
  const auto plan_steps = [&](std::span<const size_t> steps) -> Status {
    for (const size_t i : steps) {
      fill(i);
      KernelPlan kp;
      OAR_RETURN_IF_ERROR(backend_.plan(*plan_.steps()[i].op->kernel(), calls_[i].args, &kp));
      shared = std::max<uint64_t>(shared, kp.shared_scratch);
      worker = std::max<uint64_t>(worker, kp.worker_scratch);
    }
    return ok_status();
  };
  const auto try_each = [&]() -> Status {
    resolve(most);
    OAR_RETURN_IF_ERROR(plan_steps(all));
    const std::vector<Operand> widest = operands_;
    const auto changed = [&](int32_t v) {
      if (v < 0) return false;
      const Operand &a = operands_[static_cast<size_t>(v)], &b = widest[static_cast<size_t>(v)];
      return a.row_stride != b.row_stride || a.prompts_from != b.prompts_from ||
             !std::equal(a.dims, a.dims + a.rank, b.dims);
    };
    for (size_t s = 0; s < most.size(); ++s) {
      std::vector<int64_t> sizes = most;
      std::vector<size_t> steps;  // extents grow with a symbol: what 1 leaves as it is no other value changes
      for (int64_t value = 1; value < most[s]; value += value < kEvery ? 1 : value) {
        sizes[s] = value;
        resolve(sizes);
        if (value == 1)
          std::copy_if(all.begin(), all.end(), std::back_inserter(steps), [&](size_t i) {
            const Plan::Step& step = plan_.steps()[i];
            return std::any_of(step.in.begin(), step.in.end(), changed) ||
                   std::any_of(step.out.begin(), step.out.end(), changed);
          });
        if (steps.empty()) break;
        OAR_RETURN_IF_ERROR(plan_steps(steps));
      }
    }
    return ok_status();
  };
  OAR_RETURN_IF_ERROR(try_each());
  if (graph().phases) {  // and where no row is of a prompt
    most[graph().phases->prompts] = 0;
    OAR_RETURN_IF_ERROR(try_each());
  }
  return grow_scratch(shared, worker);
}

Status Run::grow_scratch(uint64_t shared, uint64_t worker) {
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

void Run::bind_state(size_t index, Buffer buffer) {
  captures_.clear();
  states_[index] = std::move(buffer);
  prepared_ = false;
}

Status Run::prepare(std::span<const int64_t> symbols) {
  if (prepared_ && std::ranges::equal(symbols, prepared_for_)) return ok_status();
  prepared_ = false;
  resolve(symbols);
  for (size_t i = 0; i < calls_.size(); ++i) {
    fill(i);
    const Kernel* kernel = plan_.steps()[i].op->kernel();
    if (!kernel) continue;
    KernelPlan& plan = calls_[i].plan;
    OAR_RETURN_IF_ERROR(backend_.plan(*kernel, calls_[i].args, &plan));
    if (plan.shared_scratch > scratch_.size() || plan.worker_scratch > worker_scratch_) {
      program_->log()(LogLevel::kWarning, cat(kernel->name, " needs ", plan.shared_scratch, " + ",
                                              plan.worker_scratch, " bytes of scratch, more than foreseen"));
      OAR_RETURN_IF_ERROR(grow_scratch(plan.shared_scratch, plan.worker_scratch));
    }
  }
  prepared_for_.assign(symbols.begin(), symbols.end());
  prepared_ = true;
  return ok_status();
}

Status Run::run(std::span<const int64_t> symbols, std::span<const void* const> inputs) {
  OAR_RETURN_IF_ERROR(load(symbols, inputs));
  return execute();
}

Status Run::reserve_beside(uint64_t bytes) {
  if (inputs_end_ + bytes <= inputs_.size()) return ok_status();
  OAR_ASSIGN(Buffer larger, backend_.allocate(2 * (inputs_end_ + bytes)));
  captures_.clear();  // they hold the old memory
  prepared_ = false;
  inputs_ = std::move(larger);
  return ok_status();
}

Status Run::load_beside(std::span<const std::byte> bytes) {
  OAR_CHECK(backend_.memory() != MemoryKind::kHost, "the host's memory needs no upload");
  OAR_RETURN_IF_ERROR(reserve_beside(bytes.size()));
  return backend_.upload(static_cast<std::byte*>(inputs_.mutable_data()) + inputs_end_, bytes.data(),
                         bytes.size());
}

Status Run::load(std::span<const int64_t> symbols, std::span<const void* const> inputs,
                 std::span<const std::byte> beside) {
  OAR_CHECK(symbols.size() == graph().symbols().size() && inputs.size() == graph().inputs().size(),
            "wrong bindings");
  for (size_t s = 0; s < symbols.size(); ++s) {
    OAR_CHECK(symbols[s] >= 0 && symbols[s] <= graph().symbols()[s].max, "symbol above its bound");
  }
  OAR_RETURN_IF_ERROR(prepare(symbols));
  const bool together = !input_at_.empty();
  if (!beside.empty()) {
    OAR_CHECK(together, "the host's memory needs no upload");
    OAR_RETURN_IF_ERROR(reserve_beside(beside.size()));
    OAR_RETURN_IF_ERROR(prepare(symbols));  // again, where they lie elsewhere now
  }
  if (together) staged_.resize(inputs_end_ + beside.size());
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Operand& o = operands_[graph().inputs()[k]];
    const auto bytes = static_cast<uint64_t>(o.numel() * o.format.block_bytes());
    if (!inputs[k] || bytes == 0) continue;
    if (together) std::memcpy(staged_.data() + input_at_[k], inputs[k], bytes);
    else OAR_RETURN_IF_ERROR(backend_.upload(o.data, inputs[k], bytes));
  }
  if (!together) return ok_status();
  if (!beside.empty()) std::memcpy(staged_.data() + inputs_end_, beside.data(), beside.size());
  return backend_.upload(inputs_.mutable_data(), staged_.data(), staged_.size());
}

Status Run::execute() {
  CaptureCache::Entry* const seen = plan_.capturable() ? captures_.find(prepared_for_) : nullptr;
  if (seen == nullptr) return run_steps(true);
  if (!seen->capture) {
    OAR_RETURN_IF_ERROR(backend_.begin_capture());
    OAR_RETURN_IF_ERROR(run_steps(false));
    OAR_ASSIGN(seen->capture, backend_.end_capture());
  }
  return backend_.replay(seen->capture);
}

Status Run::run_steps(bool guarded) {
  const std::span<const Plan::Step> steps = plan_.steps();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (guarded) OAR_RETURN_IF_ERROR(RunGuard::check());
    const Plan::Step& step = steps[i];
    Call& call = calls_[i];
    if (const Kernel* kernel = step.op->kernel()) {
      NextKernel next;
      if (step.next != i) {
        const Call& c = calls_[step.next];
        next = {steps[step.next].op->kernel(), c.args, c.plan.chunks[c.plan.phases - 1]};
      }
      OAR_RETURN_IF_ERROR(backend_.launch(*kernel, call.args, call.plan, scratch_.mutable_data(), next));
    } else {
      OAR_RETURN_IF_ERROR(step.op->execute(call.in.data(), call.out.data(), call.host));
    }
  }
  return ok_status();
}

Operand Run::output(size_t index) const { return operands_[graph().outputs()[index].value]; }

Status Run::read_output(size_t index, std::span<float> to) {
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

}  // namespace oar
