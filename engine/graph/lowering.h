// Lowering: how an op becomes a kernel call. lower() of an op (op.h) is asked once, when a plan is made: it
// finds the kernel, asks the WeightStore for its weights and returns a LoweredOp, which is immutable and
// shared by every run. It reads no values, and allocates nothing but small tables that follow from sizes
// (taps of an interpolation). Each run then has its own argument struct, filled from that run's operands.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/base/log.h"
#include "engine/graph/memory_planner.h"
#include "engine/graph/op.h"
#include "engine/graph/weight_store.h"
#include "engine/tensor/backend.h"

namespace oar {

// A value as a kernel sees it in one run.
struct Operand {
  void* data = nullptr;  // device memory; null for an operand left out
  Format format;
  int rank = 0;
  int64_t dims[Shape::kMaxRank] = {};
  int64_t row_stride = 0;  // elements between indices of axis 0
  int64_t head_step =
      0;  // of three axes, between indices of axis 1 where these lie apart; 0: the last extent
  // Of a value with phases (Graph::has_phases): rows from here on are of prompts, those before of generated
  // tokens.
  int64_t prompts_from = 0;

  int64_t rows() const {  // all axes but the last
    int64_t n = 1;
    for (int k = 0; k + 1 < rank; ++k) n *= dims[k];
    return n;
  }
  int64_t cols() const { return rank > 0 ? dims[rank - 1] : 1; }
  int64_t numel() const { return rows() * cols(); }
  int64_t step_of_heads() const { return head_step != 0 ? head_step : dims[2]; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// What is known of an operand or result when a node is bound to sizes.
struct ValueInfo {
  Format format;
  Shape shape;
  bool given = false;  // false: an optional operand left out
  bool operator==(const ValueInfo&) const = default;
};

// What is known of an operand when its node is lowered, whoever says it: a run its sizes, or a graph its
// types, whose extents may be expressions of symbols. Views what it was asked of.
class Known {
 public:
  Known() = default;
  explicit Known(const ValueInfo& run) : run_(run.given ? &run : nullptr) {}
  explicit Known(const TensorType& type) : type_(&type) {}
  // False of an operand left out, of which nothing else may be asked.
  bool given() const { return run_ != nullptr || type_ != nullptr; }
  const Format& format() const { return run_ != nullptr ? run_->format : type_->format; }
  bool f32() const { return given() && format() == Format::f32(); }
  int rank() const { return run_ != nullptr ? run_->shape.rank() : static_cast<int>(type_->shape.size()); }
  // Whether axis i has n entries, or as many as axis j of another operand.
  bool is(int i, int64_t n) const {
    return run_ != nullptr ? run_->shape[i] == n : type_->shape[static_cast<size_t>(i)] == Dim(n);
  }
  bool same(int i, const Known& o, int j) const {
    return run_ != nullptr ? run_->shape[i] == o.run_->shape[j]
                           : type_->shape[static_cast<size_t>(i)] == o.type_->shape[static_cast<size_t>(j)];
  }
  bool same_shape(const Known& o) const {
    return run_ != nullptr ? run_->shape == o.run_->shape : type_->shape == o.type_->shape;
  }

 private:
  const ValueInfo* run_ = nullptr;
  const TensorType* type_ = nullptr;
};

// What an op that runs on the host keeps from run to run: buffers that grow to the largest run and stay.
struct HostScratch {
  std::vector<Buffer> buffers;
  // At least `bytes` of host memory; buffer `index` of this op.
  Result<void*> reserve(size_t index, uint64_t bytes);
};

class LoweredCalls;

// One op instance bound to a kernel. Immutable: any number of runs fill argument structs of their own.
class LoweredOp {
 public:
  virtual ~LoweredOp() = default;
  virtual const Kernel* kernel() const = 0;  // null: execute() runs on the host instead
  // The kernel's argument struct: its size, and how it is written for these operands, whole. Must not
  // allocate; looks at no operand's bytes.
  virtual size_t args_bytes() const { return 0; }
  virtual void fill(void*, const Operand*, const Operand*) const {}
  virtual Status execute(const Operand*, const Operand*, HostScratch&) const { return ok_status(); }
  // Null unless several kernel calls make the node; kernel() is null then.
  virtual const LoweredCalls* several() const { return nullptr; }
  // Looks at operands that a run brings in host memory, before their call: what a kernel must be able to rely
  // on and no shape tells. Of calls on a device, operands that only lie there have no data.
  virtual Status check(const Operand*) const { return ok_status(); }
  // Who computes it, for people.
  virtual const char* where() const { return kernel() != nullptr ? kernel()->name : "host reference"; }
  uint64_t weight_bytes = 0;  // weights a run streams through once, copied or in place; a table's few rows: 0
  // Of nodes bound to sizes: roughly how long one thread takes, and over which operands result 0 may be
  // written (bit i: operand i).
  double nanoseconds = 0;
  uint32_t overwrites = 0;
  // Where rows of prompts have another kernel: a step of its own for them, behind this one, with the same
  // operands and results. Never of nodes bound to sizes.
  std::unique_ptr<LoweredOp> prompts;
  // Where one call cannot do it all: the step behind it, with the same operands and results, and what follows
  // that one. Never beside `prompts`, nor of nodes bound to sizes.
  std::unique_ptr<LoweredOp> more;
};
using Lowered = Result<std::unique_ptr<LoweredOp>>;

// A kernel call among others that make a node. Which values it works on: operands of the node are counted
// from 0, its results from kResult, what calls leave for those behind them from kBetween.
struct LoweredCall {
  static constexpr uint8_t kResult = 8, kBetween = 11, kMost = 14;
  std::unique_ptr<LoweredOp> op;
  std::vector<uint8_t> in, out;
};

// Kernel calls of one node, each behind the one before it. Only of nodes bound to sizes (bound_call.h).
class LoweredCalls : public LoweredOp {
 public:
  std::vector<LoweredCall> calls;  // one at least
  std::vector<ValueInfo> between;  // memory of the run, for as long as the node takes
  const Kernel* kernel() const final { return nullptr; }
  const LoweredCalls* several() const final { return this; }
  Status execute(const Operand*, const Operand*, HostScratch&) const final {
    return internal_error("several kernel calls are run one by one");
  }
  const char* where() const final { return calls.back().op->where(); }
};
// Whether lower() may be asked of a graph that knows its types. Ops without a shape rule look at a run's
// sizes.
inline bool lowers_by_types(const OpDef& op) { return op.lower != nullptr && op.infer != nullptr; }
// No kernel for these operands: the definition, the reference or evaluate() does the node.
inline Lowered not_lowered() { return std::unique_ptr<LoweredOp>(); }

struct LowerContext {
  const Graph& graph;
  const Node& node;
  Backend& backend;
  WeightStore& weights;
  const Progress& progress;
  // The weight expressions (weights.h) of ops that declare weight_expressions.
  std::span<const Node> expressions = {};
  // Only whether there is a kernel is asked: weights need not be prepared, and may be expressions.
  bool probe = false;
  // Ordinary models: what a run gives for each input, and what prepare() made of the constants; lower() then
  // says what the results are. Empty where the graph knows its types.
  std::span<const ValueInfo> operands = {};
  std::vector<ValueInfo>* results = nullptr;
  const void* prepared = nullptr;
  // Inputs whose bytes the op took over by f32_constant() or weight(), and so will not look for at run time.
  mutable std::vector<size_t> taken = {};

  bool given(size_t input) const { return known(input).given(); }
  // Operand `input`, by the run's operands or the graph's types.
  Known known(size_t input) const;
  // Lowered for one run's sizes; else by the types of its graph.
  bool in_run() const { return results != nullptr; }
  // Whether operand `input` is a constant or an expression over constants.
  bool is_weight(size_t input) const;
  bool is_expression(size_t input) const {
    return is_weight(input) && graph.value(node.inputs[input]).kind != ValueKind::kConstant;
  }
  // Format and shape in which evaluate() gives it.
  Format weight_format(size_t input) const;
  Shape weight_shape(size_t input) const;
  // Its tensor: the constant itself, or the expression evaluated now, in memory that goes with the tensor.
  Result<Tensor> evaluate(size_t input) const;
  // Weight operand `input` in `layout`, from the store; made of its tensor by `make` where it is not there.
  // Without bytes when only probing.
  Result<const StoredWeight*> weight(size_t input, std::string_view layout,
                                     const std::function<Result<StoredWeight>(const Tensor&)>& make) const;
  // A constant operand as f32 in device memory (norm weights, biases); null for an operand left out.
  Result<const float*> f32_constant(size_t input) const;
  // Whether f32_operand() does it: an operand left out, a constant, or computed in f32.
  bool is_f32_operand(size_t input) const;
  // The same for an operand that may be computed as well: null then, and fill() finds it in the run.
  Result<const float*> f32_operand(size_t input) const;
};

// Of rotations: heads may lie apart, where the backend has such a kernel. A device is asked for it by a
// layout of its own; the processor's kernels do both.
KernelKey rope_key(const Backend& backend);
// Where values of a graph that it runs may lie.
MemoryRules memory_rules(const Backend& backend);

// The usual LoweredOp: an Args struct and a function that fills it.
template <class Args, class Fill>
class KernelOp final : public LoweredOp {
  static_assert(std::is_trivially_copyable_v<Args>, "arguments are copied as bytes");

 public:
  KernelOp(const Kernel* kernel, Args args, Fill fill)
      : kernel_(kernel), args_(std::move(args)), fill_(std::move(fill)) {}
  const Kernel* kernel() const override { return kernel_; }
  size_t args_bytes() const override { return sizeof(Args); }
  void fill(void* args, const Operand* in, const Operand* out) const override {
    fill_(*new (args) Args(args_), in, out);
  }

 private:
  const Kernel* kernel_;
  Args args_;
  Fill fill_;
};

// Null (no error) when the backend has no such kernel.
template <class Args, class Fill>
Lowered lower_kernel(LowerContext& ctx, const KernelKey& key, Args args, Fill fill) {
  const Kernel* k = ctx.backend.find_kernel(key);
  if (!k) return not_lowered();
  return std::unique_ptr<LoweredOp>(
      std::make_unique<KernelOp<Args, Fill>>(k, std::move(args), std::move(fill)));
}

// The same for an op whose one result is f32 and shaped like operand `like`. In a run it also says what
// LoweredOp has of nodes bound to sizes: `nanoseconds` an element, and `overwrites`. Null for a run of no
// elements.
template <class Args, class Fill>
Lowered lower_like(LowerContext& ctx, size_t like, KernelFamily family, const Args& args, double nanoseconds,
                   uint32_t overwrites, Fill fill) {
  if (ctx.in_run() && ctx.operands[like].shape.numel() == 0) return not_lowered();
  OAR_ASSIGN(auto op, lower_kernel(ctx, {family}, args, std::move(fill)));
  if (op == nullptr || !ctx.in_run()) return op;
  ctx.results->assign(1, {Format::f32(), ctx.operands[like].shape, true});
  op->nanoseconds = nanoseconds * static_cast<double>(ctx.operands[like].shape.numel());
  op->overwrites = overwrites;
  return op;
}

}  // namespace oar
