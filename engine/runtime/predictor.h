// Predictor: runs a tensor graph (an ONNX or Paddle model). The facade for ordinary models, as Engine is for
// language models.
//
//   Threads: run() may be called from any thread, by many at once: the model is immutable, values of a run
//   are its own. clone() gives another handle on the same weights.
//   Shapes: any that the model accepts, new ones at each run; nothing is kept per shape.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/graph/evaluate.h"
#include "engine/graph/pass.h"
#include "engine/import/import.h"

namespace oar {

struct PredictorOptions {
  int threads = 0;                        // 0: the processors this process may use; 1: the caller's
  std::shared_ptr<ThreadPool> pool;       // shared with others instead of one of its own
  std::set<std::string> disabled_passes;  // by name, see tensor_passes()
  std::function<void(const Pass&, const Graph&, bool after)> pass_observer;
  uint64_t tensor_limit = uint64_t{1} << 36;  // bytes one tensor may take
  int64_t loop_limit = int64_t{1} << 31;      // trips of one loop
  ImportOptions import;
};

// What one node took, in the order of execution.
struct NodeTime {
  std::string op, name;
  uint64_t start_ns = 0, end_ns = 0;
};

class Predictor {
 public:
  // Imports the file, runs the passes, packs weights.
  static Result<std::unique_ptr<Predictor>> open(const std::string& path,
                                                 const PredictorOptions& options = {});
  static Result<std::unique_ptr<Predictor>> create(ImportedModel model, const PredictorOptions& options = {});
  // Another handle on the same model and pool.
  std::unique_ptr<Predictor> clone() const;

  const std::vector<IoSpec>& inputs() const;
  const std::vector<IoSpec>& outputs() const;
  const std::vector<PassReport>& passes() const;
  const Graph& graph() const;
  const std::string& format() const;

  // One value per input in the model's order; checked against the declared dtypes, ranks and extents. Errors
  // name the input. Outputs in the model's order.
  Result<std::vector<Datum>> run(std::vector<Datum> inputs) const;
  // The same by name; every input must be given, names that do not exist are errors.
  Result<std::map<std::string, Datum>> run(const std::map<std::string, Datum>& inputs) const;
  // As run(), measuring each node; one thread at a time.
  Result<std::vector<Datum>> profile(std::vector<Datum> inputs, std::vector<NodeTime>* times) const;

 private:
  struct Shared;
  explicit Predictor(std::shared_ptr<const Shared> shared) : shared_(std::move(shared)) {}
  EvalOptions eval_options() const;
  std::shared_ptr<const Shared> shared_;
};

}  // namespace oar
