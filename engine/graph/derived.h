// The derived gradient of an op as a definition: what an op means whose kernel takes gradients back at once.
#pragma once

#include <span>
#include <vector>

#include "engine/graph/op.h"

namespace oar {

// Emits what `forward` defines over `in`, and behind it the gradients of sum(d . results) by the first
// `wanted` operands, in their order: f32, and shaped like these. Empty where an operand is, or is stored in
// blocks. The builder keeps an error where there is a gradient that forward's ops do not have.
std::vector<Val> derived_gradient(Builder& b, decltype(OpDef::define) forward, std::span<const Val> in,
                                  const Attrs& attrs, std::span<const Val> d, size_t wanted);

}  // namespace oar
