// What became of a model on its way to a Plan, as text for people: the graph before and after its passes, the
// plan's steps, where memory goes. `oar inspect` prints it. Builds and plans; allocates no weights and runs
// nothing.
#pragma once

#include <string>
#include <vector>

#include "engine/runtime/language_model.h"

namespace oar {

struct ReportOptions {
  bool graph = false;   // ops in order, after all passes
  bool plan = false;    // kernel calls in order with arena offsets
  bool memory = false;  // weights, KV pool, arena, per-token cost
  std::vector<std::string> disabled_passes;
  std::string dump_pass;  // print the graph before and after this pass
  LanguageModelOptions model;
};

// INVALID_ARGUMENT for the name of a pass that does not exist, listing those that do.
Result<std::string> model_report(const std::string& path, const ReportOptions& options);

}  // namespace oar
