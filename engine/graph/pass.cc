#include "engine/graph/pass.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/graph/builder.h"
#include "engine/graph/passes/narrow_layers.h"
#include "engine/graph/passes/rotate.h"

namespace oar {

std::span<const Pass> default_passes() {
  static const Pass kPasses[] = {
      {"fold_constants", "evaluate nodes whose operands are all constants", passes::fold_constants},
      {"cse", "compute equal expressions once", passes::cse},
      {"fuse_definitions", "recognize composites (rms_norm, silu, swiglu, rope, ...) spelled in primitives",
       passes::fuse_definitions},
      {"fuse_residual_norm", "residual addition into the norm that reads it", passes::fuse_residual_norm},
      {"fuse_head_norm_rope", "norm of query and key heads into their rotation", passes::fuse_head_norm_rope},
      {"fuse_linear", "linear layers of one input in one call (q/k/v, gate/up); residual into the epilogue",
       passes::fuse_linear},
      {"fuse_gated_linear", "silu(gate) * up into the packing of the layer behind it",
       passes::fuse_gated_linear},
      {"dce", "drop what no output needs", passes::dce},
  };
  return kPasses;
}

std::span<const Pass> tensor_passes() {
  static const Pass kPasses[] = {
      {"fuse_quantized", "quantized layers as ops of 8-bit integers", passes::fuse_quantized,
       passes::explain_quantized},
      {"fuse_dynamic", "layers whose operand is quantized in the run, as ops of 8-bit integers",
       passes::fuse_dynamic, passes::explain_dynamic},
      {"fuse_quantized_sums", "sums of 8-bit integers into the convolutions before them",
       passes::fuse_quantized_sums, passes::explain_quantized_sums},
      {"fold_evaluated", "evaluate nodes whose operands are all constants", passes::fold_evaluated},
      {"sizes_as_attributes", "constant sizes, axes and repeats as attributes", passes::sizes_as_attributes},
      {"cse", "compute equal expressions once", passes::cse},
      {"fuse_definitions", "activations and norms that the file spells in smaller ops",
       passes::fuse_definitions, passes::explain_definitions},
      {"fuse_quantized_epilogues", "what follows a layer of 8-bit integers into its call",
       passes::fuse_quantized_epilogues, passes::explain_quantized_epilogues},
      {"matmul_to_linear", "products with a constant matrix become layers", passes::matmul_to_linear,
       passes::explain_linear},
      {"fuse_attention", "softmax(q k^T) v with its transposes in one call", passes::fuse_attention,
       passes::explain_attention},
      {"fuse_epilogues", "bias, residual, activation and batch norm into convolutions and layers",
       passes::fuse_epilogues, passes::explain_epilogues},
      {"channels_last", "images as (N, H, W, C), the layout of the kernels", passes::channels_last},
      {"winograd", "3x3 convolutions with a quarter of the multiplications", passes::winograd,
       passes::explain_winograd},
      {"dce", "drop what no output needs", passes::dce},
  };
  return kPasses;
}

std::vector<Pass> tensor_passes(Precision precision, const Backend& backend) {
  std::vector<Pass> all;
  for (const Pass& p : tensor_passes()) {
    all.push_back(p);
    if (backend.memory() == MemoryKind::kDevice) {
      // Each part has a kernel, and the layer none.
      if (std::string_view(p.name) == "fuse_dynamic")
        all.back() = {p.name, p.summary, [](Graph&) -> Result<int> { return 0; }};
      if (std::string_view(p.name) == "fuse_quantized")
        all.back() = {p.name, p.summary, passes::fuse_quantized_symmetric,
                      passes::explain_quantized_symmetric};
    }
    if (std::string_view(p.name) != "channels_last" || precision == Precision::kF32) continue;
    all.push_back({"lower_precision", "convolutions and layers in fewer bits, where asked for",
                   [precision, &backend](Graph& g) { return passes::lower_precision(g, precision, backend); },
                   passes::explain_precision});
  }
  return all;
}

std::vector<Pass> language_model_passes(const RotationOptions& rotation, const LeftOutList& left_out) {
  std::vector<Pass> all;
  for (const Pass& p : default_passes()) {
    if (std::string_view(p.name) == "fuse_linear")
      all.push_back({"order_columns", "columns of heads that are read part by part lie part behind part",
                     passes::order_columns});
    all.push_back(p);
    if (std::string_view(p.name) != "fuse_definitions") continue;
    for (Pass& r : rotation_passes(rotation, left_out)) all.push_back(std::move(r));
  }
  return all;
}

namespace {

// Replaces branches and loop bodies, which may be shared with other graphs, by copies that may be rewritten.
// `owned` receives those of all depths.
void own_subgraphs(Graph& graph, std::vector<std::shared_ptr<Graph>>& owned) {
  for (Node& node : graph.nodes()) {
    for (std::shared_ptr<const Graph>& sub : node.subgraphs) {
      auto own = std::make_shared<Graph>(*sub);
      own_subgraphs(*own, owned);
      owned.push_back(own);
      sub = std::move(own);
    }
  }
}

}  // namespace

Result<std::vector<PassReport>> run_passes(Graph& graph, std::span<const Pass> passes,
                                           const PassOptions& options) {
  for (const std::string& name : options.disabled) {
    if (std::none_of(passes.begin(), passes.end(), [&](const Pass& p) { return name == p.name; })) {
      std::string names;
      for (const Pass& p : passes) names += cat(names.empty() ? "" : ", ", p.name);
      return invalid_argument(cat("there is no pass '", name, "' to switch off; the passes are ", names));
    }
  }
  std::vector<std::shared_ptr<Graph>> inner;
  own_subgraphs(graph, inner);
  std::vector<Graph*> graphs{&graph};
  for (const auto& g : inner) graphs.push_back(g.get());
  const auto count_nodes = [&] {
    size_t n = 0;
    for (const Graph* g : graphs) n += g->nodes().size();
    return n;
  };
  std::vector<PassReport> reports;
  for (const Pass& pass : passes) {
    PassReport r{pass.name, 0, count_nodes(), 0, options.disabled.count(pass.name) > 0};
    for (Graph* g : graphs) {
      if (r.disabled) break;
      if (options.observer) options.observer(pass, *g, false);
      OAR_ASSIGN(const int rewrites, pass.run(*g));
      r.rewrites += rewrites;
      if (options.observer) options.observer(pass, *g, true);
      if (!options.explain || !pass.explain) continue;
      for (Refusal& refusal : pass.explain(*g)) r.refusals.push_back(std::move(refusal));
    }
    r.nodes_after = count_nodes();
    reports.push_back(std::move(r));
  }
  return reports;
}

Result<int> decompose(Graph& graph, const std::function<bool(const Node&)>& keep) {
  int rewrites = 0;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const Node node = graph.nodes()[i];  // a copy: the definition appends nodes
    if (!node.op->define || keep(node)) continue;
    Builder b(graph);
    std::vector<Val> inputs;
    for (ValueId v : node.inputs) inputs.push_back({v});
    const std::vector<Val> outputs = node.op->define(b, inputs, node.attrs);
    OAR_RETURN_IF_ERROR(b.status());
    // A node may leave results out that nobody asked for.
    for (size_t k = 0; k < node.outputs.size() && k < outputs.size(); ++k)
      graph.replace_uses(node.outputs[k], outputs[k].id);
    ++rewrites;
  }
  OAR_RETURN_IF_ERROR(passes::dce(graph).status());
  graph.sort();
  return rewrites;
}

}  // namespace oar
