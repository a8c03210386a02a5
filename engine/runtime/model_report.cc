#include "engine/runtime/model_report.h"

#include "engine/base/format.h"
#include "engine/graph/passes/rotate.h"
#include "engine/runtime/model_path.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/serving_plan.h"

namespace oar {

Result<std::string> model_report(const std::string& path, const ReportOptions& options) {
  OAR_ASSIGN(const std::string resolved, resolve_model_path(path));
  LanguageModelOptions model = options.model;
  model.disabled_passes = options.disabled_passes;
  OAR_ASSIGN(const std::shared_ptr<Backend> backend, make_backend(model));
  OAR_ASSIGN(Checkpoint stored, load_checkpoint(resolved));
  const uint64_t stored_bytes = stored.bytes;
  OAR_ASSIGN(const Checkpoint checkpoint,
             quantize_at_load(std::move(stored), model.weights, {model.cache_dir, model.cache_bytes},
                              backend->host_pool(), model.log, {}, model.rotate));
  OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
  OAR_ASSIGN(model, with_kv_of(*backend, checkpoint, config, std::move(model)));
  if (!options.dump_pass.empty()) {
    // The pass to dump is looked up like the passes to switch off, for the same error.
    Graph empty;
    PassOptions check;
    check.disabled = {options.dump_pass};
    OAR_RETURN_IF_ERROR(run_passes(empty, language_model_passes({}), check).status());
  }
  std::string out;
  OAR_ASSIGN(
      ServingGraph graph,
      build_serving_graph(checkpoint, config, model, [&](const Pass& pass, const Graph& g, bool after) {
        if (options.dump_pass == pass.name)
          out += cat("# ", after ? "after " : "before ", pass.name, "\n", g.to_string(), "\n");
      }));
  if (options.graph) {
    out += "# passes\n";
    const auto& passes = graph.pass_list;
    for (size_t k = 0; k < passes.size(); ++k) {
      const PassReport& r = graph.passes[k];
      out += cat(r.name,
                 r.disabled
                     ? ": switched off"
                     : cat(": ", r.rewrites, " rewrites, ", r.nodes_before, " -> ", r.nodes_after, " nodes"),
                 "  (", passes[k].summary, ")\n");
    }
    out += "\n# graph\n" + graph.model.graph.to_string() + "\n";
  }
  if (!options.plan && !options.memory) return out;

  const ForeseenWeights foreseen = foresee_weights(graph.model.graph, *backend);
  OAR_ASSIGN(const ServingPlan serving, compile_serving_plan(std::move(graph), config, model, backend, {}));
  if (options.plan) out += "# plan\n" + serving.run->program().plan().to_string() + "\n";
  if (options.memory) {
    uint64_t per_block = 0;
    for (const auto& g : serving.layout.groups)
      per_block += g.pages == ServeLayout::Pages::kAll ? g.block_bytes : 0;
    const Run& run = *serving.run;
    out += cat("# memory\n", "weights, in place    ", format_bytes(run.program().in_place_weight_bytes()),
               " (foreseen ", format_bytes(foreseen.in_place), ", ", format_bytes(stored_bytes),
               " in the file)\n", "weights, made        ", format_bytes(run.program().copied_weight_bytes()),
               " (foreseen ", format_bytes(foreseen.made), ")\n", "activations (peak)   ",
               format_bytes(run.arena_bytes()), "\n", "kernel scratch       ",
               format_bytes(run.scratch_bytes()), "\n", "KV cache per token   ",
               format_bytes(kv_bytes_per_token(serving.layout, model.page_tokens)), "\n",
               "KV cache per page    ", format_bytes(per_block), " of ", model.page_tokens, " tokens\n");
    for (size_t g = 0; g < serving.layout.groups.size(); ++g) {
      const auto& group = serving.layout.groups[g];
      static const char* const kPages[] = {"", " (open pages, 16 bits)", " (first tokens, 16 bits)",
                                           " (recurrent state)", " (rows of open pages)"};
      out += cat("cache group ", g, kPages[static_cast<int>(group.pages)], ": ", group.states.size(),
                 " layers, window ", group.window == 0 ? "none" : cat(group.window), ", ",
                 format_bytes(group.block_bytes), " per block\n");
    }
  }
  return out;
}

}  // namespace oar
