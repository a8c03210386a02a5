// Program, Plan and Run: how a graph becomes kernel calls on one backend.
//
//   Program  one per model and backend: the graph after its last passes, its weights and its plan. Immutable,
//            any thread, shared by all runs (program.h).
//   Plan     the program bound to sizes: kernels, operands, places in the arena. Its extents are expressions
//            of the graph's symbols, so one plan serves every size. Immutable; holds no weights and no arena.
//   Run      one execution at a time: arena, scratch, states, argument structs (run.h).
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/graph/lowering.h"
#include "engine/graph/memory_planner.h"

namespace oar {

class Plan {
 public:
  struct Step {
    std::unique_ptr<const LoweredOp> op;
    std::unique_ptr<LoweredOp> behind;  // while lowering: the step behind it
    const Node* node = nullptr;
    std::vector<int32_t> in, out;  // values, -1 for left out
    // The step that reads weights next, in this run or the following one; itself: none other.
    size_t next = 0;
    // Constants that the op reads as operands, where they lie on the device.
    std::vector<std::pair<size_t, const void*>> device_constants;
    size_t args = 0;  // where its argument struct lies in a run's memory of them
  };

  // Lowers every node of `graph`, which must outlive the plan: composites without a kernel are gone, nodes in
  // order, copies of strided views inserted. A primitive without a kernel runs on the processor, beside a
  // device with copies of its operands; warned about once for each op and format, with the cost. Ops that
  // share a state run on the device together or not at all, so that a state lies in one place.
  // `host_weights` are those of weights.backend().host(), which is another backend beside a device.
  static Result<std::unique_ptr<const Plan>> make(const Graph& graph, WeightStore& weights,
                                                  WeightStore& host_weights,
                                                  std::span<const Node> expressions, const Logger& log,
                                                  const Progress& progress);

  const Graph& graph() const { return graph_; }
  Backend& backend() const { return backend_; }
  std::span<const Step> steps() const { return steps_; }
  const Placement& place(ValueId v) const { return memory_.placements[v]; }
  uint64_t arena_bytes() const { return memory_.arena_bytes; }
  uint64_t args_bytes() const { return args_bytes_; }
  // Values that steps, inputs and outputs name.
  bool live(ValueId v) const { return live_[v] != 0; }
  // Extents of live values, and the elements between indices of axis 0 behind each.
  const DimProgram& extents() const { return *extents_; }
  // A constant that a step reads where the graph has it; all others lie in the stores of weights.
  bool reads_constant(ValueId v) const { return graph_constants_.contains(v); }
  // By state: lies in host memory beside a device.
  bool on_host(size_t state) const { return host_states_[state] != 0; }
  // Every version of a state is the same memory: (value, state).
  std::span<const std::pair<ValueId, size_t>> state_values() const { return state_values_; }
  // Every step is a kernel of a backend that captures.
  bool capturable() const { return capturable_; }
  // Some step computes rows of prompts alone (Graph::phases).
  bool has_phases() const { return has_phases_; }
  // What one run streams through the kernels of a family, all experts of a mixture included.
  uint64_t weight_bytes(KernelFamily family) const;
  // The numbers of these weights, whatever bits each takes: a token is multiplied with each of them once.
  uint64_t weight_values(KernelFamily family) const;
  std::string to_string() const;  // steps, kernels, places, sizes as expressions

 private:
  struct Missing;
  Plan(const Graph& graph, Backend& backend) : graph_(graph), backend_(backend) {}
  LowerContext context(const Node& node, WeightStore& weights) const;
  Status lower();
  void add_step(Step step);
  Status lower_step(const Node& node, Missing& missing, Step& step);
  Status lower_to_host(const Node& node, Missing& missing, Step& step);
  void place_states();
  bool on_host_state(ValueId value) const;
  Status keep_constants(const std::vector<size_t>& taken, Step& step);
  void find_next_weights();

  const Graph& graph_;
  Backend& backend_;
  WeightStore* weights_ = nullptr;  // with the next four: while lowering
  WeightStore* host_weights_ = nullptr;
  std::span<const Node> expressions_;
  Logger log_;
  Progress progress_;
  MemoryPlan memory_;
  std::vector<Step> steps_;
  std::vector<uint8_t> live_;
  std::unique_ptr<const DimProgram> extents_;
  std::vector<uint8_t> host_states_;
  std::set<ValueId> graph_constants_;
  std::vector<std::pair<ValueId, size_t>> state_values_;
  uint64_t args_bytes_ = 0;
  bool capturable_ = false, has_phases_ = false;
};

}  // namespace oar
