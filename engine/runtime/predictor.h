// Predictor: runs a tensor graph (an ONNX or Paddle model). The facade for ordinary models, as Engine is for
// language models. docs/predictor.md is its guide.
//
//   Threads: run() may be called from any thread, by many at once: the model is immutable, values of a run
//   are its own. clone() gives another handle on the same weights, threads and memory plans.
//   Shapes: any that the model accepts, new ones at each run.
//   Devices: runs of one model on a device follow each other, whatever the number of handles; errors of a
//   device are UNAVAILABLE, and stay.
//   Memory: the intermediate values of a run lie in one arena, at offsets planned for its input shapes; the
//   plans of the shapes used last are kept. A handle keeps one arena per run at once, as large as the largest
//   run so far needed, and allocates none once that is reached; shrink() gives it back. Results are memory of
//   their own and live as long as the caller holds them. Weights, arenas and results are taken out of
//   the budget of PredictorOptions::resources; what it does not hold is refused with RESOURCE_EXHAUSTED.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/resources.h"
#include "engine/graph/evaluate.h"
#include "engine/graph/pass.h"
#include "engine/import/import.h"
#include "engine/runtime/cache_folder.h"
#include "engine/runtime/calibration.h"
#include "engine/runtime/tensor_runner.h"

namespace oar {

struct PreparedModel;  // prepared_model.h

struct PredictorOptions {
  int threads = 0;         // 0: the processors this process may use; 1: the caller's
  Resources resources;     // shared with other models; without: a pool of its own, no budget
  std::string name;        // for messages about memory; empty: the path
  bool reference = false;  // scalar kernels with sums in double: slow, and right by eye
  // cpu (also when empty), or a plug-in's, see make_plugin_backend(). What it has no kernel for runs on the
  // processor, on copies of its operands; the first run logs what that was.
  std::string device;
  std::set<std::string> disabled_passes;  // by name, see tensor_passes()
  std::function<void(const Pass&, const Graph&, bool after)> pass_observer;
  // In how many bits convolutions and layers of f32 are computed. Results differ from f32's by what rounding
  // their operands costs (docs/predictor.md). Where nothing can be computed so, that is logged and said by
  // summary(), and the model runs in f32.
  Precision precision = Precision::kF32;
  // With kInt8: samples of the user's own, from which layers get fixed ranges and hand over bytes; null: the
  // range of each image or row is found in the run. Layers that cannot be quantized so still are as without.
  std::shared_ptr<const CalibrationSamples> calibration;
  // Of an encoder's checkpoint (EncoderModel): auto (as in the file, also when empty), or a name of
  // weight_scheme(); what is quantized at load is kept in `cache_dir`, or, where that is empty, in
  // default_cache_dir(). Files with a graph of their own compute as they say.
  std::string weights;
  bool explain = false;                       // passes() says what was not fused, and why
  uint64_t tensor_limit = uint64_t{1} << 36;  // bytes one tensor may take
  int64_t loop_limit = int64_t{1} << 31;      // trips of one loop
  // Folder where the graph after all passes and its packed weights are kept for the next load of the same
  // file (prepared_model.h); empty: nowhere. What cannot be kept is logged, never an error.
  std::string cache_dir;
  uint64_t cache_bytes = kDefaultCacheBytes;  // see cache_folder.h
  // Told at load which steps have no kernel, with likely extents where the model leaves them open, and by the
  // first run what they took where that is a tenth of it.
  Logger log;
  // Plans are kept for the sets of input shapes used last, as many as fit: some 100 KB for each of a network
  // of a hundred ops.
  uint64_t plan_bytes = 4 << 20;
  ImportOptions import;
};

// What one node took, in the order of execution. chrome_trace() (chrome_trace.h) makes a file of it.
struct NodeTime {
  std::string op, name;
  std::string where;  // the kernel, or "evaluated"
  uint64_t start_ns = 0, end_ns = 0;
};

// The nodes of one op that run in one place.
struct StepGroup {
  std::string op;
  std::string where;  // the kernel; empty: no kernel for these operands, a plain loop on the processor
  bool on_device = false;
  int steps = 0;
  uint64_t bytes = 0;  // of their operands and results
};

// The processor or the device that the options name.
Result<std::shared_ptr<Backend>> make_backend(const PredictorOptions& options);

class Predictor final : public TensorRunner {
 public:
  // Imports the file, runs the passes, packs weights; or maps what `cache_dir` has of that.
  static Result<std::unique_ptr<Predictor>> open(const std::string& path,
                                                 const PredictorOptions& options = {});
  static Result<std::unique_ptr<Predictor>> create(ImportedModel model, const PredictorOptions& options = {});
  ~Predictor() override;
  // Another handle on the same model and pool, with arenas of its own.
  std::unique_ptr<Predictor> clone() const;
  std::unique_ptr<TensorRunner> another() const override { return clone(); }

  const std::vector<IoSpec>& inputs() const override;
  const std::vector<IoSpec>& outputs() const override;
  // False where a tensor's range is found over all of its rows.
  bool rows_are_independent() const override;
  const std::vector<PassReport>& passes() const;
  const Graph& graph() const;
  const std::string& format() const override;
  // Inputs, outputs, passes with their rewrites, ops by number, weights: for people.
  std::string summary() const;

  // One value per input in the model's order; checked against the declared dtypes, ranks and extents. Errors
  // name the input. Outputs in the model's order.
  Result<std::vector<Datum>> run(std::vector<Datum> inputs) const override;
  // The same by name; every input must be given, names that do not exist are errors.
  Result<std::map<std::string, Datum>> run(const std::map<std::string, Datum>& inputs) const;
  // As run(), measuring each node; one thread at a time.
  Result<std::vector<Datum>> profile(std::vector<Datum> inputs, std::vector<NodeTime>* times) const;

  // The memory that a run with inputs of these shapes, in the model's order, will take beside the weights:
  // before any run, and what that run will then use; beside a device, the host's share. FAILED_PRECONDITION
  // where sizes depend on values.
  Result<std::shared_ptr<const BlockPlan>> plan(std::span<const Shape> shapes) const;
  // Who computes what in a run with inputs of these shapes, most bytes first; errors as plan()'s. Views and
  // shape arithmetic are left out.
  Result<std::vector<StepGroup>> steps(std::span<const Shape> shapes) const;
  // Bytes of the arenas this handle keeps between runs, and how many plans the clones share.
  uint64_t arena_bytes() const;
  size_t kept_plans() const;
  // Passes over the graph that computed sizes alone: one for the first run of a handle, and of plan().
  uint64_t sizing_passes() const;
  // Frees arenas that no run is using, the device's among them, and the plans; returns the arenas' bytes.
  uint64_t shrink() const;

 private:
  struct Shared;
  struct Arenas;
  static Result<std::unique_ptr<Predictor>> make(PreparedModel& prepared, const PredictorOptions& options,
                                                 std::shared_ptr<Backend> backend);
  explicit Predictor(std::shared_ptr<const Shared> shared);
  EvalOptions eval_options() const;
  void say_loops() const;  // at load: the steps without a kernel
  // Of the processor and the device, for inputs of these shapes; kept for the runs to come.
  Result<std::shared_ptr<const BlockPlan>> make_plan(std::span<const Shape> shapes,
                                                     const EvalOptions& options) const;
  std::shared_ptr<const Shared> shared_;
  std::unique_ptr<Arenas> arenas_;
};

// A fixed number of clones, by index: one for each thread of a program that keeps its own.
class PredictorPool {
 public:
  // `size` handles in all, at least 1.
  PredictorPool(std::unique_ptr<Predictor> first, size_t size);
  size_t size() const { return handles_.size(); }
  const Predictor& at(size_t index) const { return *handles_.at(index); }
  // Of all handles.
  uint64_t shrink() const;

 private:
  std::vector<std::unique_ptr<Predictor>> handles_;
};

// The caller's memory as an input, without a copy: dense, row-major, aligned for its element type (64 bytes
// are best), unchanged until the run is over. `owner`, where given, is held as long as the tensor is used.
// INVALID_ARGUMENT when `bytes` is not what dtype and shape make.
Result<Tensor> share_memory(const void* data, uint64_t bytes, const Shape& shape, DType dtype,
                            std::shared_ptr<const void> owner = nullptr);

}  // namespace oar
