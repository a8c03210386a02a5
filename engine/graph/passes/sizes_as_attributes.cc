// The canonical form of ops that take sizes as operands: those that are constants become attributes. What
// matches such nodes then looks in one place, and an op bound to a run reads no operand for them.
#include "engine/graph/op.h"
#include "engine/graph/pass.h"
#include "engine/tensor/element.h"

namespace oar::passes {
namespace {

struct Sizes {
  const char* op;
  std::vector<const char*> names;  // attributes for operands 1, 2, ...
};

// Null for an op that takes none.
const Sizes* sizes_of(const Node& n) {
  static const Sizes kOps[] = {{"reshape", {"shape"}}, {"slice", {"starts", "ends", "axes", "steps"}},
                               {"squeeze", {"axes"}},  {"unsqueeze", {"axes"}},
                               {"expand", {"shape"}},  {"tile", {"repeats"}},
                               {"split", {"sizes"}}};
  static const Sizes kReductions{"reduce_", {"axes"}};
  for (const Sizes& s : kOps) {
    if (n.is(s.op)) return &s;
  }
  return std::string_view(n.op->name).starts_with(kReductions.op) ? &kReductions : nullptr;
}

// Constants of rank 0 or 1 that hold integers.
bool is_list(const Graph& g, ValueId v) {
  if (v == kNoValue) return true;
  const Value& value = g.value(v);
  return value.kind == ValueKind::kConstant && value.constant.shape().rank() <= 1 &&
         dtype_is_integer(value.constant.format().dtype());
}

}  // namespace

Result<int> sizes_as_attributes(Graph& graph) {
  int rewrites = 0;
  for (Node& n : graph.nodes()) {
    const Sizes* sizes = sizes_of(n);
    if (sizes == nullptr || n.inputs.size() < 2 || n.inputs.size() > sizes->names.size() + 1) continue;
    if (!std::all_of(n.inputs.begin() + 1, n.inputs.end(), [&](ValueId v) { return is_list(graph, v); }))
      continue;
    for (size_t k = 1; k < n.inputs.size(); ++k) {
      if (n.inputs[k] == kNoValue) continue;
      const Tensor& t = graph.value(n.inputs[k]).constant;
      std::vector<int64_t> values(static_cast<size_t>(t.numel()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = element_as_int(t, static_cast<int64_t>(i));
      n.attrs.set(sizes->names[k - 1], std::move(values));
    }
    n.inputs.resize(1);
    ++rewrites;
  }
  return rewrites;
}

}  // namespace oar::passes
