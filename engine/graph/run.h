// Run: one execution of a Program at a time, again and again. Each evaluates the plan's extents for its T
// tokens, B sequences and so on, fills its argument structs in place and launches; nothing is allocated per
// run (a kernel whose scratch exceeds what was foreseen is the logged exception).
//
// Threads: one at a time. Runs of one program share nothing but its weights; on one backend they take turns.
#pragma once

#include <memory>
#include <vector>

#include "engine/graph/capture_cache.h"
#include "engine/graph/program.h"

namespace oar {

class Run {
 public:
  // Allocates the arena, and scratch for every size that the symbols allow.
  static Result<std::unique_ptr<Run>> create(std::shared_ptr<const Program> program);

  const Program& program() const { return *program_; }
  const Graph& graph() const { return plan_.graph(); }
  uint64_t arena_bytes() const { return arena_.size(); }
  uint64_t scratch_bytes() const { return scratch_.size(); }

  // Binds graph.states()[index]; `buffer`, memory of state_backend(index), stays with the run.
  Backend& state_backend(size_t index) const { return plan_.on_host(index) ? backend_.host() : backend_; }
  void bind_state(size_t index, Buffer buffer);

  // load() and then execute().
  Status run(std::span<const int64_t> symbols, std::span<const void* const> inputs);
  // Uploads the inputs: host bytes, in graph.inputs() order, sized by this run's symbols; null: not used. To
  // a device all of them in one copy, and `beside` in the same: bytes that are no input of the plan. The one
  // of a host takes none.
  Status load(std::span<const int64_t> symbols, std::span<const void* const> inputs,
              std::span<const std::byte> beside = {});
  // Of a device: these alone. What load() brought is gone then, once execute() has used it.
  Status load_beside(std::span<const std::byte> bytes);
  // Where they lie on the device, 64-byte aligned, until either is called again.
  const std::byte* beside() const { return static_cast<const std::byte*>(inputs_.data()) + inputs_end_; }
  // Runs on what was loaded last.
  Status execute();
  // Memory of graph.inputs()[index] as loaded, which may be written before execute().
  Operand input(size_t index) const { return operands_[graph().inputs()[index]]; }
  // Device memory of graph.outputs()[index], valid until the next run; shape from the last run.
  Operand output(size_t index) const;
  // Copies an f32 output to the host, its rows one behind the other, and waits; `to` has its numel().
  Status read_output(size_t index, std::span<float> to);

 private:
  // What one step of the plan needs of its own.
  struct Call {
    void* args = nullptr;
    std::vector<Operand> in, out;
    KernelPlan plan;  // of the last prepare()
    HostScratch host;
  };
  explicit Run(std::shared_ptr<const Program> program);
  Status foresee_scratch();
  void resolve(std::span<const int64_t> symbols);
  void fill(size_t step);
  // resolve(), fill() and plan() for these sizes, unless the last run had the same: one decode step mostly
  // does as the one before, and a small model's step is no longer than this takes.
  Status prepare(std::span<const int64_t> symbols);
  Status grow_scratch(uint64_t shared, uint64_t worker);
  // Beside the host's memory: inputs of these sizes lie one behind the other, so that one copy brings them.
  void place_inputs();
  // Makes room for so many bytes behind the inputs of these sizes.
  Status reserve_beside(uint64_t bytes);
  // `guarded`: asks the RunGuard between steps; a capture must not end half way.
  Status run_steps(bool guarded);

  const std::shared_ptr<const Program> program_;
  const Plan& plan_;
  Backend& backend_;
  Buffer arena_, scratch_;          // scratch_ is shared by the workers
  Buffer inputs_;                   // of a device: what a step brings along, inputs first
  uint64_t inputs_end_ = 0;         // their bytes at these sizes
  std::vector<std::byte> staged_;   // the same bytes, on the host
  std::vector<uint64_t> input_at_;  // by input: where it lies in both
  std::vector<std::pair<size_t, size_t>> viewed_inputs_;  // values that lie in inputs, and which
  uint64_t worker_scratch_ = 0;                           // bytes each worker owns
  std::vector<std::byte> args_;
  std::vector<Call> calls_;        // by step
  std::vector<Operand> operands_;  // by value
  std::vector<int64_t> evaluated_, registers_;
  std::vector<Buffer> states_;
  std::vector<int64_t> prepared_for_;  // the symbols of the last prepare()
  bool prepared_ = false;
  CaptureCache captures_;
  std::vector<float> strided_;  // of read_output()
};

}  // namespace oar
