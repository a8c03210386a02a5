// Elementwise ops among what is held: where they join, and how they are launched without products.
#include <algorithm>
#include <variant>

#include "kernels/cuda/held_launches.h"
#include "kernels/cuda/norm.h"

namespace oar::cuda {

// Copies that are held last, no longer in their place, and the op behind them; empty where it is of no launch
// with them.
ElementSteps HeldLaunches::take_copies(const ElementStep& behind) {
  int first = count_;
  ElementStep copies[kMost];
  const auto is_copy = [&](int i) {
    const auto* const rope = std::get_if<RopeArgs>(&held_[i].args);
    return rope != nullptr && element_step(*rope, &copies[i]);
  };
  while (first > 0 && is_copy(first - 1)) --first;
  ElementSteps all;
  bool together = first < count_;
  for (int i = first; i < count_; ++i) together = together && all.add(copies[i]);
  if (!together || !all.add(behind)) return {};
  count_ = first;
  return all;
}

// Those of the same elements as the last ones, or a step of their own behind all that is held, if products
// are: these have a kernel for both. A gate behind experts is for their second layer, and one where rows are
// held is for products that round.
bool HeldLaunches::joins_elements(const DeviceKernel& kernel, const ElementStep& element) {
  if (products_count_ == 0) return false;
  HeldProduct& last = products_[products_count_ - 1];
  if (kernel.family == KernelFamily::kSwiGlu && (last.experts || holds_rows_)) return false;
  const auto multiplies = std::ranges::find_if(products(), &HeldProduct::multiplies);
  if (multiplies != products().end() && multiplies->chain.launch == nullptr) return false;
  int all = 0;
  for (const HeldProduct& p : products()) all += p.elements.count;
  if (all == ProductChain::kElements) return false;
  if (!last.multiplies() && last.norms_count == 0 && last.elements.add(element)) return true;
  return products_count_ < ProductChain::kSteps && hold_elements().elements.add(element);
}

HeldLaunches::HeldProduct& HeldLaunches::hold_elements() {
  HeldProduct& held = products_[products_count_++];
  held = {};
  return held;
}

// Without products. One by itself has wide accesses.
CudaStatus HeldLaunches::launch_elements(const HeldProduct& held) {
  const auto* const one = std::get_if<UnaryArgs>(&held.first_element);
  const auto* const two = std::get_if<BinaryArgs>(&held.first_element);
  const bool alone = held.elements.count == 1;
  CudaStatus status = alone && one != nullptr   ? unary(*one, stream_)
                      : alone && two != nullptr ? binary(*two, stream_)
                                                : elements(held.elements, stream_);
  for (size_t i = 0; i < held.norms_count && status.ok(); ++i) status = rms_norm(held.norms[i], stream_);
  return status;
}

}  // namespace oar::cuda
