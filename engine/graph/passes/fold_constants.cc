// Constant folding: a pure node whose operands are all constants is evaluated once, in double.
// Transposing a weight (GPT-2 stores its linear layers as [in, out]) moves bytes without decoding them, so
// its format survives.

#include "engine/graph/op.h"
#include "engine/graph/pass.h"
#include "engine/graph/reference.h"

namespace oar::passes {
namespace {

// Above this many elements only byte moves are folded: evaluating a weight in double costs eight times its
// size.
constexpr int64_t kLargest = 1 << 22;

template <class T>
void transpose_bytes(const void* from, void* to, int64_t rows, int64_t cols) {
  const T* src = static_cast<const T*>(from);
  T* dst = static_cast<T*>(to);
  constexpr int64_t kTile = 32;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      for (int64_t r = r0; r < std::min(rows, r0 + kTile); ++r) {
        for (int64_t c = c0; c < std::min(cols, c0 + kTile); ++c) dst[c * rows + r] = src[r * cols + c];
      }
    }
  }
}

Result<Tensor> transpose_matrix(const Tensor& t) {
  const int64_t rows = t.shape()[0], cols = t.shape()[1];
  OAR_ASSIGN(Tensor out, Tensor::allocate({cols, rows}, t.format()));
  switch (t.format().block_bytes()) {
    case 1: transpose_bytes<uint8_t>(t.data(), out.mutable_data(), rows, cols); break;
    case 2: transpose_bytes<uint16_t>(t.data(), out.mutable_data(), rows, cols); break;
    case 4: transpose_bytes<uint32_t>(t.data(), out.mutable_data(), rows, cols); break;
    default: transpose_bytes<uint64_t>(t.data(), out.mutable_data(), rows, cols); break;
  }
  return out;
}

}  // namespace

Result<int> fold_constants(Graph& graph) {
  graph.sort();
  int folded = 0;
  std::vector<bool> dead(graph.nodes().size(), false);
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node node = graph.nodes()[i];
    if (node.op->effect || node.inputs.empty()) continue;
    bool constant = true;
    int64_t elements = 0;
    for (ValueId v : node.inputs) {
      constant = constant && v != kNoValue && graph.value(v).kind == ValueKind::kConstant;
      if (constant) elements += graph.value(v).constant.numel();
    }
    if (!constant) continue;
    std::vector<Tensor> results;
    const Tensor& first = graph.value(node.inputs[0]).constant;
    if (node.is("transpose") && first.shape().rank() == 2 && first.format().plain() &&
        node.attrs.get_ints("perm") == std::vector<int64_t>{1, 0}) {
      OAR_ASSIGN(Tensor t, transpose_matrix(first));
      results.push_back(std::move(t));
    } else if (elements <= kLargest &&
               (node.op->define || (node.op->evaluate && node.op->infer && !node.op->impure))) {
      std::vector<HostValue> values;
      for (ValueId v : node.inputs) {
        OAR_ASSIGN(HostValue value, host_value(graph.value(v).constant));
        values.push_back(std::move(value));
      }
      std::vector<const HostValue*> operands;
      for (const HostValue& v : values) operands.push_back(&v);
      OAR_ASSIGN(auto out, evaluate_node(*node.op, operands, node.attrs));
      for (const HostValue& v : out) {
        OAR_ASSIGN(Tensor t, to_tensor(v));
        results.push_back(std::move(t));
      }
    } else {
      continue;
    }
    for (size_t k = 0; k < results.size(); ++k) {
      const ValueId c = graph.add_constant(graph.value(node.inputs[0]).name + "'", std::move(results[k]));
      graph.replace_uses(node.outputs[k], c);
    }
    dead[i] = true;
    ++folded;
  }
  graph.remove_nodes(dead);
  return folded;
}

}  // namespace oar::passes
