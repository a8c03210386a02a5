// What `oar inspect` says of an ordinary model (an ONNX or Paddle file).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/status.h"

namespace oar::cli {

struct PredictorInspection {
  std::set<std::string> disabled_passes;
  std::vector<std::string> inputs;  // NAME=2x3x224x224: extents for the plan
  std::string dump_pass;
  std::string precision = "f32";
  std::string device;  // as PredictorOptions::device
  std::string params;  // a Paddle model's parameter file; empty: found beside the program
  int threads = 0;
  bool reference = false, mmap = true;
  Logger log;
  bool graph = false, plan = false;
  // What each pass did, why neighbouring ops were not fused, and who computes each step.
  bool explain = false;
};

// True for files that hold a graph of ops: what `oar infer` runs.
bool is_predictor_path(const std::string& path);
// Prints the summary; on request the graph after all passes, the graph around one pass, and the memory plan
// of a run.
Status inspect_predictor(const std::string& path, const PredictorInspection& what);

}  // namespace oar::cli
