// Program: a graph on one backend, made ready to run: composites without a kernel replaced by their
// definitions, weights in the layouts of kernels, a plan. See plan.h for its parts and run.h for runs.
//
// Threads: immutable once made; any thread. Owns its weights; views of the mapped file keep the mapping
// alive.
#pragma once

#include <memory>
#include <string>

#include "engine/graph/plan.h"

namespace oar {

struct ProgramOptions {
  Logger log;
  Progress progress;  // told bytes of weights packed
};

class Program {
 public:
  // `backend` must outlive the program.
  static Result<std::shared_ptr<const Program>> create(Graph graph, Backend& backend,
                                                       const ProgramOptions& options = {});

  const Graph& graph() const { return graph_; }
  Backend& backend() const { return weights_.backend(); }
  // Bytes of weights that were copied into another layout or memory, and of those read where the file has
  // them: together all weights in memory.
  uint64_t copied_weight_bytes() const { return weights_.copied_bytes() + host_weights_.copied_bytes(); }
  uint64_t in_place_weight_bytes() const {
    return weights_.in_place_bytes() + host_weights_.in_place_bytes();
  }
  const Plan& plan() const { return *plan_; }
  const Logger& log() const { return log_; }

 private:
  Program(Graph graph, Backend& backend, const Logger& log)
      : graph_(std::move(graph)), weights_(backend), host_weights_(backend.host()), log_(log) {}
  Graph graph_;
  WeightStore weights_;
  WeightStore host_weights_;  // beside a device, of what it has no kernel for
  std::unique_ptr<const Plan> plan_;
  Logger log_;
};

}  // namespace oar
