// Marks the convolutions that run as Winograd's minimal filtering (kernels/conv.h): windows of 3x3 with
// stride and dilation 1 over images whose channels lie together. A pass of its own, so that it can be
// switched off where the last digits matter more than the time: its results differ from a plain sum's by some
// 1e-6 of the largest value.
#include <algorithm>

#include "engine/graph/pass.h"
#include "engine/graph/passes/match.h"

namespace oar::passes {
namespace {

// Fewer channels make transforms cost what the products save. Transformed filters are four times the file's;
// beyond the upper bound reading them costs more than multiplying did: layers that large see few pixels.
constexpr int64_t kFewChannels = 16, kMostFilters = 1 << 16;

// Null where a convolution fits.
const char* why_not_winograd(const Matcher& m, const Node& n) {
  if (n.attrs.has("precision")) return "it is computed in fewer bits";
  const Tensor* w = m.f32_constant(Matcher::operand(n, 1));
  if (!w || w->shape().rank() != 4) return "the filters are no f32 constant of images";
  if (w->shape()[2] != 3 || w->shape()[3] != 3) return "the window is not 3x3";
  const auto all_ones = [&](const char* name) {
    const auto v = n.attrs.get_ints(name);
    return std::all_of(v.begin(), v.end(), [](int64_t e) { return e == 1; });
  };
  const int64_t M = w->shape()[0], C = w->shape()[1];
  if (n.attrs.get_string("layout", "") != "nhwc") return "the channels of a pixel do not lie together";
  if (n.attrs.get_int("planar_input") != 0) return "the input is in planes";
  if (n.attrs.get_int("group", 1) != 1) return "there are groups";
  if (!all_ones("strides")) return "the stride is not 1";
  if (!all_ones("dilations")) return "the dilation is not 1";
  if (C < kFewChannels || M < kFewChannels) return "there are fewer than 16 channels";
  if (C * M > kMostFilters) return "there are more than 65536 filters";
  return nullptr;
}

// Not inlined: g++ 12 warns about members of the variant that an integer does not have.
[[gnu::noinline]] void mark(Node& n, const AttrValue& value) { n.attrs.set("winograd", value); }

}  // namespace

Result<int> winograd(Graph& graph) {
  const Matcher m(graph);
  int marked = 0;
  for (Node& n : graph.nodes()) {
    if (!named(n, "conv") || why_not_winograd(m, n)) continue;
    mark(n, int64_t{1});
    ++marked;
  }
  return marked;
}

std::vector<Refusal> explain_winograd(const Graph& graph) {
  const Matcher m(graph);
  std::vector<Refusal> out;
  for (const Node& n : graph.nodes()) {
    const Tensor* w = named(n, "conv") ? m.constant(Matcher::operand(n, 1)) : nullptr;
    if (!w || w->shape().rank() != 4 || w->shape()[2] != 3 || w->shape()[3] != 3 ||
        n.attrs.get_int("group", 1) != 1)
      continue;
    if (const char* reason = why_not_winograd(m, n)) out.push_back({node_label(n), "", reason});
  }
  return out;
}

}  // namespace oar::passes
