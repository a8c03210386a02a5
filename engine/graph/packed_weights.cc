#include "engine/graph/packed_weights.h"

#include "engine/base/format.h"
#include "engine/graph/op.h"
#include "engine/tensor/element.h"

namespace oar {

Result<Tensor> PrepareContext::pack(std::string_view name, const Shape& shape, DType dtype,
                                    const std::function<void(Tensor&)>& fill) {
  const std::string key = cat(name_, ".", name);
  if (weights_) {
    const auto it = weights_->tensors.find(key);
    if (it != weights_->tensors.end() && it->second.shape() == shape &&
        it->second.format() == element_format(dtype)) {
      return it->second;
    }
    if (weights_->complete) {
      return data_loss(cat("the packed weights '", key, "' of ", node_.op->name, " are missing"));
    }
  }
  for (const Tensor* c : constants_) {
    if (c && !c->has_bytes()) return data_loss(cat("a constant of ", node_.op->name, " has left memory"));
  }
  OAR_ASSIGN(Tensor t, allocate_elements(shape, dtype, uint64_t{1} << 36, false));
  fill(t);
  packed_.emplace_back(key, t);
  return t;
}

}  // namespace oar
