#include "engine/graph/program.h"

#include "engine/graph/pass.h"
#include "engine/graph/weights.h"

namespace oar {

Result<std::shared_ptr<const Program>> Program::create(Graph graph, Backend& backend,
                                                       const ProgramOptions& options) {
  auto program = std::shared_ptr<Program>(new Program(std::move(graph), backend, options.log));
  Graph& g = program->graph_;
  g.sort();
  // Composites without a kernel become their definitions until every node has a kernel or is a primitive.
  std::vector<Node> weights;
  const std::vector<bool> is_weight = weight_nodes(g);
  for (size_t i = 0; i < is_weight.size(); ++i)
    if (is_weight[i]) weights.push_back(g.nodes()[i]);
  const auto lowers = [&](const Node& n, WeightStore& store) {
    LowerContext probe{g, n, store.backend(), store, options.progress};
    probe.probe = true;
    probe.expressions = weights;
    const auto op = n.op->lower(probe);
    return op.ok() && *op != nullptr;
  };
  const auto has_kernel = [&](const Node& n) {
    if (!lowers_by_types(*n.op)) return false;
    return lowers(n, program->weights_) || (n.op->costly_definition && lowers(n, program->host_weights_));
  };
  OAR_RETURN_IF_ERROR(decompose(g, has_kernel).status());
  OAR_ASSIGN(const std::vector<Node> expressions, take_weight_nodes(g, backend.host_pool()));
  OAR_RETURN_IF_ERROR(insert_copies(g, memory_rules(backend)));
  OAR_ASSIGN(program->plan_, Plan::make(g, program->weights_, program->host_weights_, expressions,
                                        options.log, options.progress));
  // Weights that were quantized at load would lie in memory twice: as they were, and packed.
  for (size_t v = 0; v < g.num_values(); ++v) {
    Value& value = g.value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kConstant || program->plan_->reads_constant(static_cast<ValueId>(v)))
      continue;
    value.constant = Tensor::without_bytes(value.constant.shape(), value.constant.format());
  }
  return std::shared_ptr<const Program>(std::move(program));
}

}  // namespace oar
