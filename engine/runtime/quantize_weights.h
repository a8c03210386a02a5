// Which matrices of a model are quantized, in which format, and the data-free quantizers over a thread pool:
// what `--weights` at load and `oar quantize` have in common. Calibrated methods are in engine/tune.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "engine/base/log.h"
#include "engine/graph/graph.h"
#include "engine/loader/checkpoint.h"
#include "engine/runtime/cache_folder.h"
#include "kernels/thread_pool.h"
#include "quant/calibrate/grid.h"

namespace oar {

struct ModelConfig;

// What a word of --weights means. Formats are names of quant/formats; empty: as in the file.
struct WeightScheme {
  std::string name;
  std::string body, head;
  // Scales and levels are chosen by this when the format is an integer grid; otherwise by its own encode().
  calibrate::FitMethod method = calibrate::FitMethod::kMse;
  // Left to the kernels, which pack such weights from 16 bits themselves when they load.
  bool by_kernel = false;
};
// INVALID_ARGUMENT lists what there is.
Result<WeightScheme> weight_scheme(const std::string& name);
std::vector<std::string> weight_scheme_names();

enum class WeightRole : uint8_t { kBody, kHead, kRouter };
struct WeightTarget {
  std::string source;  // tensor of the checkpoint
  std::string name;    // what it is called once quantized; differs for a head that shares the embedding
  WeightRole role = WeightRole::kBody;
};
// The checkpoint with each matrix of a mixture that is a slice of a stacked tensor as a tensor of its own,
// under the name that its model's graph has for it, and without such stacks. Nothing is copied.
Result<Checkpoint> unstack_experts(Checkpoint checkpoint);

// The matrices of all linear layers of the checkpoint's model, a language model or an encoder, in the order
// of its graph. Slices of stacked experts are left out. A head is a layer whose result is one of the model's,
// scaled and capped or not.
Result<std::vector<WeightTarget>> weight_targets(const Checkpoint& checkpoint);
// The same of a graph whose constants have the names of these tensors. `embedding`: the table that a tied
// head shares.
std::vector<WeightTarget> weight_targets(const Graph& graph, const TensorMap& tensors,
                                         const std::string& embedding = {});

// The format a target gets; none means as in the file. None for routers, for tensors other than 16- and
// 32-bit floats, and where rows do not divide into the format's blocks.
std::optional<Format> target_format(const WeightScheme& scheme, const WeightTarget& target, const Tensor& w);

// Whether a matrix of this width keeps its plain format: it divides neither into the scheme's blocks nor into
// those of 32 that stand in for them.
bool stays_plain(const WeightScheme& scheme, int64_t cols);
struct UnevenMatrix {
  std::string name;
  int64_t rows = 0, cols = 0;
  std::string format;  // what it stays in
};
// What is said where `weights` finds nothing that it could quantize.
std::string nothing_to_quantize(const std::string& weights);
// One sentence that names each of them; empty where there are none.
std::string uneven_text(const std::vector<UnevenMatrix>& matrices);

struct QuantizedWeight {
  Tensor tensor;
  double error = 0, energy = 0;  // sums of squares: of the difference, of the weights
};
// Rows in parallel. `importance` (may be empty): by column, see fit_row().
Result<QuantizedWeight> quantize_weight(const Tensor& w, Format format, const calibrate::FitOptions& fit,
                                        std::span<const float> importance, ThreadPool& pool);

// Of schemes that are left to kernels: what these would pack, as tensors of the checkpoint, for who reads
// them by other kernels too. A tied head has a matrix of its own then. Told where there is none.
Status quantize_as_kernels(Checkpoint& checkpoint, ModelConfig& config, const std::string& weights,
                           ThreadPool& pool, const Logger& log);

// The checkpoint with its linear layers in `weights`: mapped from the cache, whose every byte is checked, or
// quantized now, after the rotations that `rotate` puts into weights (rotated_model.h). Where the cache
// cannot be written, says so and keeps the weights in memory.
Result<Checkpoint> quantize_at_load(Checkpoint checkpoint, const std::string& weights,
                                    const CacheOptions& cache, ThreadPool& pool, const Logger& log,
                                    const Progress& progress, const std::string& rotate = "none");
// The same of the constants of a graph that came from a file of its own, `source_path`.
Status quantize_graph_at_load(Graph& graph, const std::string& source_path, const std::string& weights,
                              const CacheOptions& cache, ThreadPool& pool, const Logger& log);

}  // namespace oar
