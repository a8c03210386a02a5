// Marks the convolutions and layers that are computed in bf16, f16, TF32 or 8-bit integers instead of f32
// (engine/ops/tensor/narrow.h). Off unless asked for: results then differ by what rounding the operands
// costs.
//
// Runs when layers have their final form. Left in f32: what is no product with constant f32 weights, grouped
// and depthwise convolutions (bound by memory, not by products), an input image in planes, and layers so
// small that rounding their operands costs what the products save.
#include <algorithm>
#include <cmath>

#include "engine/graph/passes/match.h"
#include "engine/graph/passes/narrow_layers.h"
#include "engine/tensor/backend.h"

namespace oar::passes {
namespace {

// A panel holds 16 filters; a product of fewer values per filter is mostly padding.
constexpr int64_t kFewFilters = 8, kFewValues = 16;
// Sums of 8-bit products in i32: 255 * 127 * K < 2^31.
constexpr int64_t kMostValues = 1 << 16;
constexpr float kLargest = 65504;  // of f16

}  // namespace

const char* why_not_narrow(const Matcher& m, const Node& n) {
  const Tensor* w = m.f32_constant(Matcher::operand(n, layer_operands(n).weight));
  const bool matrix = named(n, "linear");
  if (!w || w->shape().rank() != (matrix ? 2 : 4))
    return "the weights are no f32 constant of images or a matrix";
  int64_t M = w->shape()[0], K = w->numel() / std::max<int64_t>(M, 1);
  if (filter_axis(n) != 0) std::swap(M, K);
  if (!matrix) {
    if (n.attrs.get_string("layout", "") != "nhwc") return "the channels of a pixel do not lie together";
    if (n.attrs.get_int("planar_input") != 0) return "the input is in planes";
    if (n.attrs.get_int("group", 1) != 1) return "there are groups";
  }
  if (M < kFewFilters || K < kFewValues) return "there are fewer than 8 filters or 16 values of each";
  if (K >= kMostValues) return "a filter has 65536 values or more";
  const auto* p = static_cast<const float*>(w->data());
  if (!std::all_of(p, p + w->numel(), [](float v) { return std::fabs(v) <= kLargest; }))
    return "a weight is not finite, or beyond 65504";
  return nullptr;
}

bool has_products(const Backend& backend, Precision precision) {
  const bool integers = precision == Precision::kInt8;
  if (backend.memory() == MemoryKind::kDevice)
    return !integers && backend.find_kernel(rounded_conv_key(precision)) != nullptr;
  if (precision != Precision::kBf16) return integers;
  const Kernel* k = backend.find_kernel(bf16_conv_key());
  return k && k->isa > Isa::kReference;
}

Result<int> lower_precision(Graph& graph, Precision precision, const Backend& backend) {
  if (precision == Precision::kF32 || !has_products(backend, precision)) return 0;
  const Matcher m(graph);
  int marked = 0;
  for (Node& n : graph.nodes()) {
    if ((!named(n, "conv") && !named(n, "linear")) || why_not_narrow(m, n)) continue;
    n.attrs.set("precision", std::string(precision_name(precision)));
    ++marked;
  }
  return marked;
}

std::vector<Refusal> explain_precision(const Graph& graph) {
  const Matcher m(graph);
  std::vector<Refusal> out;
  for (const Node& n : graph.nodes()) {
    if ((!named(n, "conv") && !named(n, "linear")) || n.attrs.has("precision")) continue;
    const char* reason = why_not_narrow(m, n);
    // What could be narrow and is not: the pass found no instructions for it.
    out.push_back({node_label(n), "", reason ? reason : "there are no such products here"});
  }
  return out;
}

}  // namespace oar::passes
