// Weights in the layouts of kernels, by name: what OpDef::prepare() makes and a cache of prepared models
// keeps, so that the next load maps them instead of making them again.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/graph/graph.h"
#include "engine/tensor/backend.h"

namespace oar {

struct PackedWeights {
  std::map<std::string, Tensor, std::less<>> tensors;
  // From a cache: all of them are there, and the matrices they were made of may not be.
  bool complete = false;
};

// One node whose constants are made ready, once, before any run. Nodes may be made ready by several threads,
// each with a context of its own: `weights` is only read, and take_packed() hands over what is to be kept.
class PrepareContext {
 public:
  // `constants` has one entry per operand, null where it is not constant. `weights` may be null: there are
  // none yet.
  PrepareContext(const Node& node, std::vector<const Tensor*> constants, const Backend& backend,
                 const PackedWeights* weights, std::string name)
      : node_(node),
        constants_(std::move(constants)),
        backend_(&backend),
        weights_(weights),
        name_(std::move(name)) {}

  const Node& node() const { return node_; }
  // Whose kernels will read the weights.
  const Backend& backend() const { return *backend_; }
  // Null where operand i is missing or not constant. Its bytes are only there inside of pack()'s `fill`.
  const Tensor* constant(size_t i) const { return i < constants_.size() ? constants_[i] : nullptr; }

  // Weights of this node: those that are kept under `name`, or new memory that `fill` writes. DATA_LOSS when
  // a cache lacks them or has others.
  Result<Tensor> pack(std::string_view name, const Shape& shape, DType dtype,
                      const std::function<void(Tensor&)>& fill);
  // evaluate() will not read the values of constant operand i, only its shape and type: where every use is
  // like that, they leave memory.
  void spend(size_t i) { spent_ |= uint32_t{1} << i; }
  bool spent(size_t i) const { return i < 32 && (spent_ >> i & 1) != 0; }
  // What pack() made, by the name under which PackedWeights keeps it.
  std::vector<std::pair<std::string, Tensor>> take_packed() { return std::move(packed_); }

 private:
  const Node& node_;
  std::vector<const Tensor*> constants_;
  const Backend* backend_;
  const PackedWeights* weights_;
  std::string name_;
  uint32_t spent_ = 0;
  std::vector<std::pair<std::string, Tensor>> packed_;
};

}  // namespace oar
