// Evaluation of ordinary graphs: each op runs on concrete host tensors of any dtype. The shapes of its
// results follow from the values it is given (a Reshape's target, NonZero's count, a Loop's trips). This is
// the executor beneath a Predictor, the host evaluator of shape arithmetic and what folds constants. A node
// whose op has a kernel for its operands runs as a call that was bound to their sizes (bound_call.h).
// Language models do not pass here: their Plan (plan.h) knows every size from symbols.
//
// To add an op for ordinary models: a function `Status f(EvalContext&)` in engine/ops that reads
// ctx.tensor(i), checks ranks and dtypes (any file may hold anything) and sets ctx.set(i); an OpDef with
// `.evaluate = f`; one line in engine/ops/CMakeLists.txt. Importers then emit it with Graph::append(). Where
// that is too slow: OpDef::lower, or OpDef::by_kernels with a KernelContext.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/bound_call.h"
#include "engine/graph/op.h"
#include "engine/graph/packed_weights.h"
#include "engine/graph/run_memory.h"
#include "engine/tensor/backend.h"
#include "engine/tensor/element.h"
#include "kernels/thread_pool.h"

namespace oar {

// A value in flight: a tensor, a sequence of such, or nothing (an optional without a value). Cheap to copy.
struct Datum {
  enum class Kind : uint8_t { kNone, kTensor, kSequence };
  Kind kind = Kind::kNone;
  Tensor tensor;
  std::shared_ptr<const std::vector<Datum>> items;

  Datum() = default;
  Datum(Tensor t) : kind(Kind::kTensor), tensor(std::move(t)) {}  // NOLINT: implicit by design
  static Datum sequence(std::vector<Datum> items) {
    Datum d;
    d.kind = Kind::kSequence;
    d.items = std::make_shared<const std::vector<Datum>>(std::move(items));
    return d;
  }
  bool is_tensor() const { return kind == Kind::kTensor; }
  // "f32[2, 3]", "sequence of 4", "none".
  std::string to_string() const;
};

// How a profile names nodes that no kernel computes.
inline constexpr const char* kEvaluated = "evaluated";

// Who computes a node, and what it moves.
struct NodePlace {
  const Node& node;
  const char* where = nullptr;  // the kernel's name; null: no kernel, a plain loop on the processor
  bool on_device = false;
  uint64_t bytes = 0;  // of operands and results
};

// What an evaluation beside a device did on the processor.
struct HostDetours {
  std::map<std::string, int> ops;  // names of those that waited for values of the device, and how often
  int launches = 0;                // on the device
  uint64_t uploaded = 0, downloaded = 0;  // bytes of values
};

struct EvalOptions {
  Backend* backend = nullptr;                 // the processor; null: its best kernels on the calling thread
  RunMemory* memory = nullptr;                // what results are allocated from; null: the system
  RunMemory* device_memory = nullptr;         // the same of the device, where the evaluator was made for one
  uint64_t tensor_limit = uint64_t{1} << 36;  // bytes of one tensor; a hostile file may ask for more
  int64_t loop_limit = int64_t{1} << 31;      // trips of one loop
  std::span<const Tensor> states = {};        // of graph.states(), in order; effect ops write them in place
  int depth = 0;                              // of nested subgraphs, bounded against hostile files
  bool sizing = false;                        // loops over elements are left out, see Evaluator::size()
  bool plainly = false;                       // by evaluate() alone: what kernels are held against
  // Calls bound by an earlier run with inputs of these sizes; null: nodes are bound as they are met. `bound`,
  // where given, receives what this run binds, by node of the graph itself.
  const BoundCalls* calls = nullptr;
  BoundCalls* bound = nullptr;
  // Told each node's nanoseconds and who computed it: a kernel's name, or "evaluated". Null: not measured.
  std::function<void(const Node&, const char* where, uint64_t start_ns, uint64_t end_ns)> profile = nullptr;
  // Told where each node runs, of branches and loops too, also while sizing; null: not wanted.
  std::function<void(const NodePlace&)> placed = nullptr;
  // Beside a device: what was computed without it and what it cost; null: not wanted.
  HostDetours* detours = nullptr;
  // Shown each node's results, of the graph itself and not of its branches and loops, before anything reads
  // them. An error ends the run. Null: not observed.
  std::function<Status(const Node&, std::span<const Datum> results)> observe = nullptr;
};

class RunValues;  // run_values.h

// One op instance with its operands in one run: all that evaluate() has.
class EvalContext {
 public:
  // By operand, empty: none. What a node may know of its operands beyond their values.
  struct OperandFacts {
    std::span<const uint8_t> last_use;  // results of this graph that nobody reads after this node
    std::span<const uint8_t> unknown;   // sizing: values are not known, only their shapes
  };
  EvalContext(const Node& node, std::span<const Datum* const> inputs, std::span<Datum> outputs,
              const EvalOptions& options, const void* prepared = nullptr, OperandFacts facts = {})
      : node_(node),
        inputs_(inputs),
        outputs_(outputs),
        options_(options),
        prepared_(prepared),
        facts_(facts) {}

  const Attrs& attrs() const { return node_.attrs; }
  const Node& node() const { return node_; }
  const EvalOptions& options() const { return options_; }
  size_t num_inputs() const { return inputs_.size(); }
  size_t num_outputs() const { return outputs_.size(); }
  // Given, and not an optional without a value.
  bool has(size_t i) const {
    return i < inputs_.size() && inputs_[i] != nullptr && inputs_[i]->kind != Datum::Kind::kNone;
  }
  // The operand whatever its kind; kNone when it is missing.
  const Datum& datum(size_t i) const {
    static const Datum none;
    return i < inputs_.size() && inputs_[i] ? *inputs_[i] : none;
  }
  // The tensor operand i; INVALID_ARGUMENT when it is missing or no tensor.
  Result<Tensor> tensor(size_t i) const;
  // Operand i as integers, of rank at most 1 (axes, shapes, pads).
  Result<std::vector<int64_t>> ints(size_t i) const;
  Result<int64_t> scalar_int(size_t i) const;
  Result<double> scalar(size_t i) const;
  // Integers from operand i if given, else from the attribute.
  Result<std::vector<int64_t>> ints_or_attr(size_t i, const char* attr) const;

  // Uninitialized, and zeroed.
  Result<Tensor> allocate(const Shape& shape, DType dtype) const;
  Result<Tensor> zeros(const Shape& shape, DType dtype) const;
  // RESOURCE_EXHAUSTED when one such tensor would be too large.
  Status check_size(const Shape& shape, DType dtype) const {
    return element_bytes(shape, dtype, options_.tensor_limit).status();
  }
  // Whether a result may be written over operand i: nobody else will read it, and it is as large. For ops
  // that read element k of it no later than they write element k. `x` is what tensor(i) gave, the op's only
  // copy.
  bool may_overwrite(size_t i, const Tensor& x, const Shape& shape, DType dtype) const;
  // As allocate(), over operand i where that may be.
  Result<Tensor> allocate_over(size_t i, const Tensor& x, const Shape& shape, DType dtype) const {
    if (may_overwrite(i, x, shape, dtype)) return x;
    return allocate(shape, dtype);
  }
  void set(size_t i, Datum d) {
    if (i < outputs_.size()) outputs_[i] = std::move(d);
  }
  bool wants(size_t i) const { return i < outputs_.size(); }

  // Nanoseconds of work that are worth waking the pool and meeting at its barrier, a few microseconds.
  static constexpr double kWorthPool = 10000;
  // Runs fn(begin, end) over [0, count), in parallel where there is a pool and enough work: `cost` is a rough
  // number of nanoseconds per item.
  template <class F>
  void parallel(int64_t count, double cost, F&& fn) const {
    if (options_.sizing) return;
    ThreadPool* const threads = static_cast<double>(count) * cost < kWorthPool ? nullptr : pool();
    if (threads == nullptr) return fn(int64_t{0}, count);
    const auto grain = std::max<int64_t>(1, static_cast<int64_t>(5000 / std::max(cost, 1e-3)));
    using Fn = std::remove_reference_t<F>;
    threads->parallel_for(
        count, grain, [](void* f, int64_t begin, int64_t end) { (*static_cast<Fn*>(f))(begin, end); }, &fn);
  }

  // Runs subgraph `which` of this node: a branch or a loop body.
  Result<std::vector<Datum>> run_subgraph(size_t which, std::vector<Datum> inputs) const;

 protected:
  Backend& processor() const {
    return options_.backend != nullptr ? *options_.backend : calling_thread_backend();
  }
  const void* prepared_made() const { return prepared_; }

 private:
  // Null where the calling thread is alone.
  ThreadPool* pool() const { return processor().workers() > 1 ? &processor().host_pool() : nullptr; }
  const Node& node_;
  std::span<const Datum* const> inputs_;
  std::span<Datum> outputs_;
  Status known(size_t i) const;
  const EvalOptions& options_;
  const void* prepared_;
  const OperandFacts facts_;
};

// What by_kernels() has beside that: kernels, and weights in their layouts.
class KernelContext : public EvalContext {
 public:
  using EvalContext::EvalContext;
  // Memory of the host, kernels of one instruction-set level.
  Backend& backend() const { return processor(); }
  template <class T>
  const T* prepared() const {
    return static_cast<const T*>(prepared_made());
  }
  // Says that the op's work is this kernel's; of several the last is named. On the calling thread.
  void uses(const Kernel& kernel) const { kernel_ = kernel.name; }
  const char* used_kernel() const { return kernel_; }  // null: none

 private:
  mutable const char* kernel_ = nullptr;
};

// Shape from sizes computed by an op: INVALID_ARGUMENT when negative, of more than 8 axes or overflowing.
Result<Shape> checked_shape(std::span<const int64_t> dims);
// A negative axis counts from the end; INVALID_ARGUMENT outside [-rank, rank).
Result<int> checked_axis(int64_t axis, int rank);

// A graph made ready to be evaluated: constants packed, last uses known. run() from any thread; what runs
// make for those after them (calls, weights of the processor beside a device) changes no result.
class Evaluator {
 public:
  // Weights are packed for kernels of `backend` by its threads; runs are to be given the same one, or, where
  // it is a device, the processor beside it. A node runs on the device where that has a kernel for its
  // operands, on the processor where not, and values are copied to who reads them. A device makes one run at
  // a time: the caller sees to it. `kept`, where given, holds what is packed already and receives what is
  // packed now (without a device: beside one, weights are packed when they are met, for whoever runs them).
  static Result<std::unique_ptr<const Evaluator>> create(std::shared_ptr<const Graph> graph,
                                                         Backend& backend = calling_thread_backend(),
                                                         PackedWeights* kept = nullptr);
  // The same without a device, with weights that other graphs of the store pack too.
  static Result<std::unique_ptr<const Evaluator>> create(std::shared_ptr<const Graph> graph,
                                                         std::shared_ptr<WeightStore> weights);
  const Graph& graph() const { return *graph_; }
  // Constants whose values no run will read: packed into another layout, or of no use. Whoever owns the graph
  // may replace them by Tensor::without_bytes() before the first run.
  const std::vector<ValueId>& spent_constants() const { return spent_; }
  // `inputs` in graph.inputs() order; outputs in graph.outputs() order. A value is dropped after its last
  // use.
  Result<std::vector<Datum>> run(std::vector<Datum> inputs, const EvalOptions& options) const;
  // What run() would ask memory for, given inputs of these shapes; their values are not read. Shape
  // arithmetic is computed, all else evaluated with its loops left out, in memory that is not touched.
  // FAILED_PRECONDITION, naming the node, where a size depends on values. `device`, where given, receives the
  // same of the device's memory.
  Result<BlockPlan> size(std::vector<Datum> inputs, const EvalOptions& options,
                         BlockPlan* device = nullptr) const;
  // How often a node was bound to sizes, those of branches and loops included.
  uint64_t bindings() const;

 private:
  Evaluator() = default;
  // What is shared by a graph and the branches and loop bodies in it.
  struct Weights {
    std::shared_ptr<WeightStore> host;    // for kernels of the processor
    std::shared_ptr<WeightStore> device;  // null: the processor is alone
    PackedWeights* kept = nullptr;
  };
  using Bodies = std::vector<std::unique_ptr<const Evaluator>>;
  static Result<std::unique_ptr<const Evaluator>> create(std::shared_ptr<const Graph> graph,
                                                         const Weights& weights, const std::string& prefix);
  Status prepare_nodes(PackedWeights* kept, const std::string& prefix, std::vector<uint8_t>& read);
  // What prepare() made of node i for the kernels of the store's backend, made now where that was not worth
  // it at load.
  Result<const Prepared*> prepared(size_t i, WeightStore& weights) const;
  Result<std::shared_ptr<const BoundCall>> bind(size_t i, std::span<const Datum* const> operands,
                                                bool on_host) const;
  Result<std::shared_ptr<const BoundCall>> recent_or_bound(size_t i, std::span<const Datum* const> operands,
                                                           bool on_host) const;
  // What one node reads and writes, kept from node to node.
  struct NodeValues {
    std::vector<const Datum*> operands;
    std::vector<Datum> results;
  };
  // `device_options`: the same with the device's memory; null: there is no device.
  Status evaluate_node(size_t i, RunValues& values, const EvalOptions& options,
                       const EvalOptions* device_options, EvalContext::OperandFacts facts,
                       NodeValues& scratch) const;
  bool beside_device() const { return device_weights_ != nullptr; }
  std::shared_ptr<const Graph> graph_;
  std::shared_ptr<WeightStore> weights_, device_weights_;  // as in Weights
  std::vector<ValueId> spent_;
  std::vector<std::shared_ptr<const Bodies>> bodies_;  // by node; null where it has no subgraphs
  mutable std::mutex lazy_;  // guards what is made when it is met: but not sizes_vary_, last_ and last_use_
  mutable std::vector<std::optional<Prepared>> prepared_, device_prepared_;  // by node
  // By node: the calls bound last, the very last in front. Several where sizes change within a run or from
  // run to run with inputs of one size: behind ops whose sizes depend on values, and in branches and loops.
  static constexpr size_t kMostRecent = 8;
  mutable std::vector<std::vector<std::shared_ptr<const BoundCall>>> recent_;
  std::vector<uint8_t> sizes_vary_;  // by node
  mutable uint64_t bindings_ = 0;
  std::vector<std::vector<ValueId>> last_;      // by node: values not needed after it
  std::vector<std::vector<uint8_t>> last_use_;  // by node and operand
};

// One node by itself, by evaluate(): the oracle.
Result<std::vector<Datum>> evaluate_op(const Node& node, std::span<const Datum* const> inputs,
                                       const EvalOptions& options);
// The same by kernels where the op calls some: constant folding, nodes without a call of their own.
Result<std::vector<Datum>> compute_op(const Node& node, std::span<const Datum* const> inputs,
                                      const EvalOptions& options);

}  // namespace oar
