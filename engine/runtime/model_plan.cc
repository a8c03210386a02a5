#include "engine/runtime/model_plan.h"

#include "engine/base/format.h"
#include "engine/models/config_reader.h"
#include "engine/runtime/quantize_weights.h"
#include "engine/runtime/stored_basis.h"

namespace oar {

Result<ModelSource> read_model_source(const std::string& path, const LanguageModelOptions& options,
                                      Backend& backend, const Progress& progress) {
  ModelSource out;
  LoadOptions load;
  load.mmap = options.use_mmap;
  OAR_ASSIGN(out.checkpoint, load_checkpoint(path, load, progress));
  for (const std::string& notice : out.checkpoint.notices) options.log(LogLevel::kWarning, notice);
  for (const auto& [name, t] : out.checkpoint.tensors) {
    if (!name.starts_with(kBasisPrefix)) out.parameters += static_cast<uint64_t>(t.numel());
    if (t.buffer().mapped()) out.stored.emplace(name, t);
  }
  OAR_ASSIGN(out.checkpoint, quantize_at_load(std::move(out.checkpoint), options.weights,
                                              {options.cache_dir, options.cache_bytes}, backend.host_pool(),
                                              options.log, progress, options.rotate));
  OAR_ASSIGN(out.config, read_model_config(out.checkpoint.config));
  if (!out.config.unknown_keys.empty())
    options.log(LogLevel::kWarning, unknown_keys_notice(out.config.model_type, out.config.unknown_keys));
  return out;
}

Result<ModelPlan> plan_model(const ModelSource& source, const std::string& name,
                             const LanguageModelOptions& options, const std::shared_ptr<Backend>& backend,
                             const ModelMemory& memory, const Progress& progress) {
  MemoryBudget& budget = *memory.budget;
  Reservation& reserved = memory.reserved;
  OAR_ASSIGN(const LanguageModelOptions settled,
             with_kv_of(*backend, source.checkpoint, source.config, options));
  OAR_ASSIGN(ServingGraph graph, build_serving_graph(source.checkpoint, source.config, settled));
  ForeseenWeights foreseen = foresee_weights(graph.model.graph, *backend);
  foreseen.made += adapter_bytes(graph.adapters);
  const uint64_t least_kv = least_kv_bytes(graph.layout) + memory.others_kv;
  const auto too_small = [&](uint64_t weights, uint64_t scratch) {
    const uint64_t others = budget.reserved() - reserved.bytes();
    return resource_exhausted(
        cat("the memory budget of ", format_bytes(budget.bytes()), " does not hold weights (",
            format_bytes(weights), scratch > 0 ? cat("), scratch (", format_bytes(scratch)) : "",
            ") and one page of KV cache (", format_bytes(least_kv), ")",
            others > 0 ? cat(" beside ", format_bytes(others), " in use") : "",
            "; raise the memory, or lower max_batch_tokens, max_sequences or max_context"));
  };
  // Buffers that hold weights already have paid; pages of files and what is made have not.
  const uint64_t to_come = foreseen.made + (memory.on_device ? foreseen.in_place : foreseen.mapped);
  if (to_come + least_kv > budget.free()) return too_small(foreseen.total(), 0);
  ModelPlan out;
  OAR_ASSIGN(out.mapped, budget.reserve(memory.on_device ? 0 : foreseen.mapped, name, "mapped weights"));
  OAR_RETURN_IF_ERROR(reserved.grow(memory.on_device ? to_come : foreseen.made, "weights"));
  options.log(LogLevel::kInfo, cat(name, " reserves ", format_bytes(to_come), " for weights; ",
                                   format_bytes(budget.free()), " of the budget are left"));

  out.kv = graph.kv;
  out.weights = graph.weights;
  OAR_ASSIGN(out.serving, compile_serving_plan(std::move(graph), source.config, options, backend, progress));
  const Run& run = *out.serving.run;
  out.weight_bytes = run.program().in_place_weight_bytes() + run.program().copied_weight_bytes();
  out.scratch_bytes = run.arena_bytes() + run.scratch_bytes();
  // A read of what stays in the file maps what lies around it too: weights that were quantized.
  for (const auto& [tensor, stored] : source.stored) {
    const auto now = source.checkpoint.tensors.find(tensor);
    if (now == source.checkpoint.tensors.end() || now->second.data() != stored.data())
      stored.buffer().release_pages();
  }
  // What buffers took is theirs, what they did not take is nobody's.
  if (!memory.on_device) reserved.shrink();
  if ((memory.on_device ? out.scratch_bytes : 0) + least_kv > budget.free())
    return too_small(out.weight_bytes, out.scratch_bytes);
  if (memory.on_device) OAR_RETURN_IF_ERROR(reserved.grow(out.scratch_bytes, "scratch"));
  return out;
}

}  // namespace oar
