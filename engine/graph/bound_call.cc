#include "engine/graph/bound_call.h"

#include <algorithm>

#include "engine/graph/evaluate.h"

namespace oar {
namespace {

constexpr size_t kMostOperands = 8, kMostResults = 2, kMostArgs = 512;

ValueInfo info_of(const Datum* d) {
  if (d == nullptr || !d->is_tensor()) return {};
  return {d->tensor.format(), d->tensor.shape(), true};
}

Operand operand_of(const ValueInfo& info, void* data) {
  Operand o;
  if (!info.given) return o;
  o.data = data;
  o.format = info.format;
  o.rank = info.shape.rank();
  std::copy(info.shape.begin(), info.shape.end(), o.dims);
  const int64_t outer = o.rank > 0 ? o.dims[0] : 1;
  o.row_stride = outer > 0 ? info.shape.numel() / outer : 0;
  return o;
}

// A kernel's argument struct on the stack.
struct Args {
  alignas(64) std::byte bytes[kMostArgs];
};

// On a device, whose memory `ctx` allocates. The stream keeps order: scratch may be used again at once.
Status launch(const BoundCall& call, const void* args, const EvalContext& ctx) {
  Tensor scratch;
  if (call.plan.shared_scratch > 0) {
    OAR_ASSIGN(scratch, ctx.allocate({static_cast<int64_t>(call.plan.shared_scratch)}, DType::kU8));
  }
  if (ctx.options().sizing) return ok_status();
  return call.backend->launch(*call.op->kernel(), args, call.plan,
                              scratch.defined() ? scratch.mutable_data() : nullptr);
}

}  // namespace

bool BoundCall::fits(std::span<const Datum* const> values) const {
  return std::equal(operands.begin(), operands.end(), values.begin(), values.end(),
                    [](const ValueInfo& info, const Datum* d) {
                      if (d == nullptr || !d->is_tensor()) return !info.given;
                      return info.given && info.format == d->tensor.format() &&
                             info.shape == d->tensor.shape();
                    });
}

Result<std::shared_ptr<const BoundCall>> bind_call(const Graph& graph, const Node& node,
                                                   std::span<const Datum* const> values, WeightStore& weights,
                                                   const Prepared& prepared) {
  auto call = std::make_shared<BoundCall>();
  for (const Datum* d : values) call->operands.push_back(info_of(d));
  if (values.size() > kMostOperands || node.outputs.size() > kMostResults)
    return std::shared_ptr<const BoundCall>(call);
  static const Progress none;
  LowerContext ctx{graph, node, weights.backend(), weights, none};
  ctx.operands = call->operands;
  ctx.results = &call->results;
  ctx.prepared = prepared.made.get();
  OAR_ASSIGN(auto op, node.op->lower(ctx));
  if (op == nullptr) return std::shared_ptr<const BoundCall>(call);
  OAR_CHECK(op->kernel() != nullptr && op->args_bytes() <= kMostArgs && call->results.size() <= kMostResults,
            "an op of an ordinary model is lowered to one kernel");
  Operand in[kMostOperands], out[kMostResults];
  for (size_t k = 0; k < call->operands.size(); ++k) in[k] = operand_of(call->operands[k], nullptr);
  for (size_t k = 0; k < call->results.size(); ++k) out[k] = operand_of(call->results[k], nullptr);
  Args args;
  op->fill(args.bytes, in, out);
  Backend& backend = weights.backend();
  if (backend.memory() == MemoryKind::kDevice) {
    OAR_RETURN_IF_ERROR(backend.plan(*op->kernel(), args.bytes, &call->plan));
  } else {
    call->alone = backend.workers() == 1 || op->nanoseconds <= EvalContext::kWorthPool;
    op->kernel()->plan(args.bytes, call->alone ? 1 : backend.workers(), &call->plan);
  }
  call->weights.resize(values.size());
  for (const size_t k : ctx.taken) call->weights[k] = 1;
  for (size_t k = 0; k < values.size(); ++k) call->weights[k] |= prepared.spent >> k & 1;
  call->backend = &backend;
  call->op = std::move(op);
  return std::shared_ptr<const BoundCall>(std::move(call));
}

Status run_call(const BoundCall& call, EvalContext& ctx) {
  Operand in[kMostOperands], out[kMostResults];
  Tensor results[kMostResults];
  for (size_t k = 0; k < call.operands.size(); ++k) {
    const ValueInfo& info = call.operands[k];
    if (info.given) in[k] = operand_of(info, const_cast<void*>(ctx.datum(k).tensor.data()));
  }
  for (size_t k = 0; k < call.results.size(); ++k) {
    const ValueInfo& info = call.results[k];
    const DType dtype = info.format.dtype();
    for (size_t i = 0; k == 0 && i < call.operands.size() && !results[k].defined(); ++i) {
      if ((call.op->overwrites >> i & 1) == 0 || !ctx.has(i)) continue;
      OAR_ASSIGN(const Tensor x, ctx.tensor(i));
      if (ctx.may_overwrite(i, x, info.shape, dtype)) results[k] = x;
    }
    if (!results[k].defined()) { OAR_ASSIGN(results[k], ctx.allocate(info.shape, dtype)); }
    out[k] = operand_of(info, results[k].mutable_data());
  }
  Args args;
  call.op->fill(args.bytes, in, out);
  if (call.on_device()) {
    OAR_RETURN_IF_ERROR(launch(call, args.bytes, ctx));
  } else {
    OAR_RETURN_IF_ERROR(run_on_host(ctx, *call.op->kernel(), args.bytes, call.plan, call.alone));
  }
  for (size_t k = 0; k < call.results.size(); ++k) ctx.set(k, std::move(results[k]));
  return ok_status();
}

Status run_on_host(const EvalContext& ctx, const Kernel& kernel, const void* args, const KernelPlan& plan,
                   bool alone) {
  ctx.uses(kernel);
  Tensor shared, own;
  if (plan.shared_scratch > 0) {
    OAR_ASSIGN(shared, ctx.allocate({static_cast<int64_t>(plan.shared_scratch)}, DType::kU8));
  }
  void* const common = plan.shared_scratch > 0 ? shared.mutable_data() : nullptr;
  if (!alone) {
    if (ctx.options().sizing) return ok_status();
    ctx.backend().reserve_worker_scratch(plan.worker_scratch);
    return ctx.backend().launch(kernel, args, plan, common);
  }
  if (plan.worker_scratch > 0) {
    OAR_ASSIGN(own, ctx.allocate({static_cast<int64_t>(plan.worker_scratch)}, DType::kU8));
  }
  if (ctx.options().sizing) return ok_status();
  const KernelScratch scratch{plan.worker_scratch > 0 ? own.mutable_data() : nullptr, common};
  for (int phase = 0; phase < plan.phases; ++phase) kernel.run(args, phase, 0, plan.chunks[phase], scratch);
  return ok_status();
}

}  // namespace oar
