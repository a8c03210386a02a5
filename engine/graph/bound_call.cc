#include "engine/graph/bound_call.h"

#include <algorithm>

#include "engine/graph/evaluate.h"

namespace oar {
namespace {

constexpr size_t kMostOperands = LoweredCall::kResult,
                 kMostResults = LoweredCall::kBetween - LoweredCall::kResult,
                 kMostBetween = LoweredCall::kMost - LoweredCall::kBetween, kMostArgs = 512;

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

// Everything that a node's calls work on, counted as LoweredCall does.
struct Values {
  Operand all[LoweredCall::kMost];
  Operand* operands() { return all; }
  Operand* results() { return all + LoweredCall::kResult; }
  Operand* between() { return all + LoweredCall::kBetween; }
};

// One call's argument struct, on the stack.
struct Args {
  alignas(64) std::byte bytes[kMostArgs];

  void fill(const BoundCall::Launch& launch, Values& values) {
    if (launch.in.empty() && launch.out.empty())
      return launch.op->fill(bytes, values.operands(), values.results());
    Operand in[LoweredCall::kMost], out[LoweredCall::kMost];
    for (size_t k = 0; k < launch.in.size(); ++k) in[k] = values.all[launch.in[k]];
    for (size_t k = 0; k < launch.out.size(); ++k) out[k] = values.all[launch.out[k]];
    launch.op->fill(bytes, in, out);
  }
};

// The calls of an op, not planned yet.
std::vector<BoundCall::Launch> launches_of(const LoweredOp& op) {
  std::vector<BoundCall::Launch> launches;
  if (const LoweredCalls* const several = op.several()) {
    for (const LoweredCall& c : several->calls) launches.push_back({c.op.get(), {}, false, c.in, c.out});
  } else {
    launches.push_back({&op, {}, false, {}, {}});
  }
  for (const BoundCall::Launch& l : launches) {
    OAR_CHECK(l.op->kernel() != nullptr && l.op->args_bytes() <= kMostArgs,
              "an op of an ordinary model is lowered to kernels");
  }
  return launches;
}

// By how many threads a call on the host is made.
void plan_on_host(BoundCall::Launch& launch, const void* args, Backend& backend) {
  launch.alone = backend.workers() == 1 || launch.op->nanoseconds <= EvalContext::kWorthPool;
  launch.op->kernel()->plan(args, launch.alone ? 1 : backend.workers(), &launch.plan);
}

// Memory for what the calls hand to each other; `held` keeps it.
Status place_between(const LoweredOp& op, const EvalContext& ctx, Values& values,
                     Tensor (&held)[kMostBetween]) {
  const LoweredCalls* const several = op.several();
  for (size_t k = 0; several != nullptr && k < several->between.size(); ++k) {
    const ValueInfo& info = several->between[k];
    OAR_ASSIGN(held[k], ctx.allocate(info.shape, info.format.dtype()));
    values.between()[k] = operand_of(info, held[k].mutable_data());
  }
  return ok_status();
}

// On a device, whose memory `ctx` allocates. The stream keeps order: scratch may be used again at once.
Status launch_on_device(Backend& backend, const BoundCall::Launch& l, const void* args,
                        const EvalContext& ctx) {
  constexpr uint64_t kScratchAlignment =
      256;  // what plug-ins are promised (plugin.h); a run's memory has less
  Tensor scratch;
  void* aligned = nullptr;
  if (l.plan.shared_scratch > 0) {
    const uint64_t bytes = l.plan.shared_scratch + kScratchAlignment - Buffer::kAlignment;
    OAR_ASSIGN(scratch, ctx.allocate({static_cast<int64_t>(bytes)}, DType::kU8));
    const auto at = reinterpret_cast<uintptr_t>(scratch.mutable_data());
    aligned = reinterpret_cast<void*>((at + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment);
  }
  if (ctx.options().sizing) return ok_status();
  return backend.launch(*l.op->kernel(), args, l.plan, aligned);
}

}  // namespace

uint64_t BoundCall::bytes() const {
  uint64_t sum = sizeof(*this) + (operands.capacity() + results.capacity()) * sizeof(ValueInfo) +
                 weights.capacity() + launches.capacity() * sizeof(Launch);
  for (const Launch& l : launches)
    sum += sizeof(LoweredOp) + l.op->args_bytes() + l.in.capacity() + l.out.capacity();
  return sum;
}

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
  OAR_CHECK(call->results.size() <= kMostResults &&
                (op->several() == nullptr || op->several()->between.size() <= kMostBetween),
            "a node of few results");
  call->launches = launches_of(*op);
  // A plan reads no operand but may ask which of them are given.
  alignas(Buffer::kAlignment) static std::byte somewhere[Buffer::kAlignment];
  Values v;
  for (size_t k = 0; k < call->operands.size(); ++k)
    v.operands()[k] = operand_of(call->operands[k], somewhere);
  for (size_t k = 0; k < call->results.size(); ++k) v.results()[k] = operand_of(call->results[k], somewhere);
  if (const LoweredCalls* const several = op->several()) {
    for (size_t k = 0; k < several->between.size(); ++k)
      v.between()[k] = operand_of(several->between[k], somewhere);
  }
  Backend& backend = weights.backend();
  for (BoundCall::Launch& launch : call->launches) {
    Args args;
    args.fill(launch, v);
    if (backend.memory() == MemoryKind::kDevice) {
      OAR_RETURN_IF_ERROR(backend.plan(*launch.op->kernel(), args.bytes, &launch.plan));
    } else {
      plan_on_host(launch, args.bytes, backend);
    }
  }
  call->weights.resize(values.size());
  for (const size_t k : ctx.taken) call->weights[k] = 1;
  for (size_t k = 0; k < values.size(); ++k) call->weights[k] |= prepared.spent >> k & 1;
  call->backend = &backend;
  call->op = std::move(op);
  return std::shared_ptr<const BoundCall>(std::move(call));
}

Status run_call(const BoundCall& call, KernelContext& ctx) {
  Values v;
  Tensor results[kMostResults], between[kMostBetween];
  for (size_t k = 0; k < call.operands.size(); ++k) {
    const ValueInfo& info = call.operands[k];
    if (info.given) v.operands()[k] = operand_of(info, const_cast<void*>(ctx.datum(k).tensor.data()));
  }
  if (!call.on_device() && !ctx.options().sizing) OAR_RETURN_IF_ERROR(call.op->check(v.operands()));
  for (size_t k = 0; k < call.results.size(); ++k) {
    const ValueInfo& info = call.results[k];
    const DType dtype = info.format.dtype();
    for (size_t i = 0; k == 0 && i < call.operands.size() && !results[k].defined(); ++i) {
      if ((call.op->overwrites >> i & 1) == 0 || !ctx.has(i)) continue;
      OAR_ASSIGN(const Tensor x, ctx.tensor(i));
      if (ctx.may_overwrite(i, x, info.shape, dtype)) results[k] = x;
    }
    if (!results[k].defined()) { OAR_ASSIGN(results[k], ctx.allocate(info.shape, dtype)); }
    v.results()[k] = operand_of(info, results[k].mutable_data());
  }
  OAR_RETURN_IF_ERROR(place_between(*call.op, ctx, v, between));
  for (const BoundCall::Launch& launch : call.launches) {
    Args args;
    args.fill(launch, v);
    if (call.on_device()) {
      OAR_RETURN_IF_ERROR(launch_on_device(*call.backend, launch, args.bytes, ctx));
    } else {
      OAR_RETURN_IF_ERROR(run_on_host(ctx, *launch.op->kernel(), args.bytes, launch.plan, launch.alone));
    }
  }
  for (size_t k = 0; k < call.results.size(); ++k) ctx.set(k, std::move(results[k]));
  return ok_status();
}

Status run_lowered(const LoweredOp& op, std::span<const Operand> in, std::span<const Operand> out,
                   const KernelContext& ctx) {
  OAR_CHECK(in.size() <= kMostOperands && out.size() <= kMostResults, "operands of one node");
  Values v;
  Tensor between[kMostBetween];
  std::copy(in.begin(), in.end(), v.operands());
  std::copy(out.begin(), out.end(), v.results());
  OAR_RETURN_IF_ERROR(place_between(op, ctx, v, between));
  for (BoundCall::Launch& launch : launches_of(op)) {
    Args args;
    args.fill(launch, v);
    plan_on_host(launch, args.bytes, ctx.backend());
    OAR_RETURN_IF_ERROR(run_on_host(ctx, *launch.op->kernel(), args.bytes, launch.plan, launch.alone));
  }
  return ok_status();
}

Status run_on_host(const KernelContext& ctx, const Kernel& kernel, const void* args, const KernelPlan& plan,
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
