// Plan: a Graph lowered to kernel calls on one Backend. Extents stay symbolic: each run evaluates the integer
// expressions for its T tokens, B sequences and so on, fills the argument structs in place and launches;
// nothing is allocated per run (a kernel whose scratch exceeds what was foreseen is the logged exception).
//
// Threads: one at a time. Owns its arena, converted small weights and packed weights; views of the mapped
// file keep the mapping alive.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/graph/capture_cache.h"
#include "engine/graph/memory_planner.h"
#include "engine/graph/op.h"
#include "engine/tensor/backend.h"

namespace oar {

// A value as a kernel sees it in one run.
struct Operand {
  void* data = nullptr;  // device memory; null for an operand left out
  Format format;
  int rank = 0;
  int64_t dims[Shape::kMaxRank] = {};
  int64_t row_stride = 0;  // elements between indices of axis 0

  int64_t rows() const {  // all axes but the last
    int64_t n = 1;
    for (int k = 0; k + 1 < rank; ++k) n *= dims[k];
    return n;
  }
  int64_t cols() const { return rank > 0 ? dims[rank - 1] : 1; }
  int64_t numel() const { return rows() * cols(); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// One op instance bound to a kernel. bind() fills the argument struct from this run's operands; it must not
// allocate.
class LoweredOp {
 public:
  virtual ~LoweredOp() = default;
  virtual const Kernel* kernel() const = 0;  // null: execute() runs on the host instead
  virtual const void* args() const { return nullptr; }
  virtual void bind(const Operand* in, const Operand* out) = 0;
  virtual Status execute() { return ok_status(); }
  // Who computes it, for people.
  virtual const char* where() const { return kernel() != nullptr ? kernel()->name : "host reference"; }
  uint64_t owned_bytes = 0;   // weights packed or converted for this op
  uint64_t weight_bytes = 0;  // weights a run streams through once, owned or in place; a table's few rows: 0
};

struct LowerContext {
  const Graph& graph;
  const Node& node;
  Backend& backend;
  const Progress& progress;
  // A constant operand as f32 in device memory (norm weights, biases); null for an operand left out.
  Result<const float*> f32_constant(size_t input);
  // Where `f32_constant` and packed weights live; the Plan keeps them.
  std::vector<Buffer>& owned;
  // The weight expressions (weights.h) of ops that declare weight_expressions.
  std::span<const Node> expressions = {};
  // Only whether there is a kernel is asked: weights need not be prepared, and may be expressions.
  bool probe = false;
  // Inputs whose bytes the op took over by f32_constant() or weight(), and so will not look for at run time.
  mutable std::vector<size_t> taken = {};

  // Whether operand `input` is a constant or an expression over constants.
  bool is_weight(size_t input) const;
  // Its tensor: the constant itself, or the expression evaluated now, as f32 in memory that goes with the
  // tensor.
  Result<Tensor> weight(size_t input) const;
  bool is_expression(size_t input) const {
    return is_weight(input) && graph.value(node.inputs[input]).kind != ValueKind::kConstant;
  }
};

// The usual LoweredOp: an Args struct and a function that fills it.
template <class Args, class Fill>
class KernelOp final : public LoweredOp {
 public:
  KernelOp(const Kernel* kernel, Args args, Fill fill)
      : kernel_(kernel), args_(std::move(args)), fill_(std::move(fill)) {}
  const Kernel* kernel() const override { return kernel_; }
  const void* args() const override { return &args_; }
  void bind(const Operand* in, const Operand* out) override { fill_(args_, in, out); }

 private:
  const Kernel* kernel_;
  Args args_;
  Fill fill_;
};

using Lowered = Result<std::unique_ptr<LoweredOp>>;

// Null (no error) when the backend has no such kernel.
template <class Args, class Fill>
Lowered lower_kernel(LowerContext& ctx, KernelFamily family, Format format, Args args, Fill fill) {
  const Kernel* k = ctx.backend.find_kernel(family, format);
  if (!k) return std::unique_ptr<LoweredOp>();
  return std::unique_ptr<LoweredOp>(
      std::make_unique<KernelOp<Args, Fill>>(k, std::move(args), std::move(fill)));
}

struct PlanOptions {
  Logger log;
  Progress progress;  // told bytes of weights packed
};

class Plan {
 public:
  // Lowers every node; a composite without a kernel is replaced by its definition, a primitive without one
  // runs on the CPU: beside a device with copies of its operands. Warned about once for each op and
  // format, with the cost. Ops that share a state run on the device together or not at all, so that a state
  // lies in one place.
  static Result<std::unique_ptr<Plan>> compile(Graph graph, Backend& backend, const PlanOptions& options);

  const Graph& graph() const { return graph_; }
  uint64_t arena_bytes() const { return arena_.size(); }
  uint64_t scratch_bytes() const { return scratch_.size(); }
  uint64_t owned_weight_bytes() const { return owned_bytes_; }
  // Constants that steps read where they lie, each counted once: with the owned ones, all weights in memory.
  uint64_t in_place_weight_bytes() const { return in_place_bytes_; }
  // What one run streams through the kernels of a family, all experts of a mixture included.
  uint64_t weight_bytes(KernelFamily family) const;
  std::string to_string() const;  // steps, kernels, slots, sizes as expressions

  // Binds graph.states()[index]; `buffer`, memory of state_backend(index), stays with the Plan.
  Backend& state_backend(size_t index) const { return host_states_[index] ? backend_.host() : backend_; }
  void bind_state(size_t index, Buffer buffer);

  // Uploads the inputs (host bytes, in graph.inputs() order, sized by this run's symbols; null: not used) and
  // runs.
  Status run(std::span<const int64_t> symbols, std::span<const void* const> inputs);
  // Device memory of graph.outputs()[index], valid until the next run; shape from the last run.
  Operand output(size_t index) const;
  // Copies an f32 output to the host, its rows one behind the other, and waits; `to` has its numel().
  Status read_output(size_t index, std::span<float> to);

 private:
  struct Step {
    std::unique_ptr<LoweredOp> op;
    const Node* node;
    std::vector<int32_t> in, out;  // indices into operands_, -1 for left out
    std::vector<Operand> in_operands, out_operands;
    KernelPlan plan;  // of the last prepare()
    // The step that reads weights next, in this run or the following one; itself: none other.
    size_t next = 0;
    // Constants that the op reads as operands, where they lie on the device.
    std::vector<std::pair<size_t, void*>> device_constants;
  };
  struct Missing;
  explicit Plan(Graph graph, Backend& backend) : graph_(std::move(graph)), backend_(backend) {}
  Status lower(const PlanOptions& options);
  Status lower_step(const Node& node, const PlanOptions& options, Missing& missing, Step& step);
  Status lower_to_host(const Node& node, const PlanOptions& options, Missing& missing, Step& step);
  void place_states(const PlanOptions& options);
  bool on_host_state(ValueId value) const;
  Status upload_constants(const std::vector<size_t>& taken, Step& step);
  void find_next_weights();
  Status run_steps();
  Status foresee_scratch();
  void resolve(std::span<const int64_t> symbols, std::byte* arena);
  // resolve(), bind() and plan() for these sizes, unless the last run had the same: one decode step mostly
  // does as the one before, and a small model's step is no longer than this takes.
  Status prepare(std::span<const int64_t> symbols);
  Status grow_scratch(uint64_t shared, uint64_t worker);

  Graph graph_;
  Backend& backend_;
  MemoryPlan memory_;
  std::vector<Node> expressions_;  // weight expressions, while lowering
  std::vector<Step> steps_;
  std::vector<Operand> operands_;        // by value
  std::vector<uint8_t> live_;            // values that operands_ describes
  std::unique_ptr<DimProgram> program_;  // dims and row strides of live values, then slot sizes
  std::vector<int64_t> evaluated_;
  std::vector<uint64_t> slot_offsets_;
  std::vector<Buffer> states_;
  std::vector<std::pair<size_t, size_t>> state_values_;  // (value, its state)
  std::vector<int64_t> prepared_for_;                    // the symbols of the last prepare()
  bool prepared_ = false;
  std::vector<uint8_t> host_states_;  // by state: lies in host memory beside a device
  CaptureCache captures_;
  bool capturable_ = false;     // every step is a kernel of a backend that captures
  std::vector<float> strided_;  // of read_output()
  std::vector<Buffer> owned_;
  uint64_t owned_bytes_ = 0, in_place_bytes_ = 0;
  Buffer arena_, scratch_;       // scratch_ is shared by the workers
  uint64_t worker_scratch_ = 0;  // bytes each worker owns
  Logger log_;
};

}  // namespace oar
