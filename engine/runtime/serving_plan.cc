#include "engine/runtime/serving_plan.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/passes/rotate.h"
#include "engine/runtime/quantize_weights.h"

namespace oar {
namespace {

bool is_linear(const Node& n) {
  return std::strcmp(n.op->name, "linear") == 0 || std::strcmp(n.op->name, "grouped_linear") == 0;
}

size_t first_weight(const Node& n) { return std::strcmp(n.op->name, "linear") == 0 ? 2 : 3; }
size_t weight_step(const Node& n) { return std::strcmp(n.op->name, "linear") == 0 ? 2 : 1; }

// What kernels shall compute in; empty: as stored. Schemes that are not by_kernel have quantized the
// checkpoint before the graph was built (quantize_at_load).
Result<std::string> weight_format(const std::string& name) {
  OAR_ASSIGN(const WeightScheme scheme, weight_scheme(name));
  return scheme.by_kernel ? scheme.body : std::string();
}

// "bf16", or "q4_k+q6_k" where linear layers differ.
std::string stored_formats(const Graph& graph) {
  std::set<std::string> names;
  for (const Node& n : graph.nodes()) {
    if (!is_linear(n)) continue;
    for (size_t k = first_weight(n); k < n.inputs.size(); k += weight_step(n)) {
      const std::string wanted = n.attrs.get_string("format");  // what a rewritten weight is stored as
      names.insert(wanted.empty() ? graph.value(n.inputs[k]).type.format.name() : wanted);
    }
  }
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : "+") + name;
  return all;
}

// The widest plain float among the weights that feed attention decides how wide an automatic cache is.
DType widest_weight(const Checkpoint& checkpoint) {
  DType widest = DType::kBF16;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (tensor.shape().rank() < 2 || !tensor.format().plain()) continue;
    if (tensor.format().dtype() == DType::kF32) return DType::kF32;
    if (tensor.format().dtype() == DType::kF16) widest = DType::kF16;
  }
  return widest;
}

}  // namespace

Result<ServingGraph> build_serving_graph(
    const Checkpoint& checkpoint, const ModelConfig& config, const LanguageModelOptions& options,
    std::function<void(const Pass&, const Graph&, bool after)> observer) {
  ServingGraph out;
  OAR_ASSIGN(const std::string format, weight_format(options.weights));
  if (options.kv == "auto") {
    out.kv_type = widest_weight(checkpoint);
  } else if (options.kv == "f32" || options.kv == "f16" || options.kv == "bf16") {
    out.kv_type = options.kv == "f32" ? DType::kF32 : options.kv == "f16" ? DType::kF16 : DType::kBF16;
  } else {
    return invalid_argument(cat("kv '", options.kv, "' is not one of auto, f32, f16, bf16"), "kv");
  }
  if (options.page_tokens < 16 || options.page_tokens % 16 != 0 || options.page_tokens > 4096) {
    return invalid_argument(cat("page_tokens ", options.page_tokens, " is not a multiple of 16 up to 4096"),
                            "page_tokens");
  }
  if (options.max_batch_tokens < 1 || options.max_sequences < 1 || options.max_context < 0) {
    return invalid_argument("max_batch_tokens and max_sequences must be at least 1, max_context at least 0");
  }
  out.max_context = options.max_context > 0 ? options.max_context : config.max_context;
  if (out.max_context > config.max_context) {
    if (config.model_type == "gpt2") {
      return invalid_argument(
          cat("max_context ", out.max_context, " exceeds the ", config.max_context, " learned positions"),
          "max_context");
    }
    options.log(LogLevel::kWarning, cat("context of ", out.max_context,
                                        " tokens: the model says it was made for ", config.max_context));
  }

  BuildOptions build;
  build.max_batch_tokens = std::max(options.max_batch_tokens, options.max_sequences);
  build.max_logit_rows = options.max_sequences;
  OAR_ASSIGN(out.model, build_model(checkpoint, config, build));
  PassOptions passes;
  passes.disabled = {options.disabled_passes.begin(), options.disabled_passes.end()};
  passes.observer = std::move(observer);
  OAR_ASSIGN(const RotationOptions wanted, parse_rotation(options.rotate));
  OAR_ASSIGN(const RotationOptions stored, stored_rotation(checkpoint.config));
  out.pass_list = language_model_passes(merge_rotation(stored, wanted));
  OAR_ASSIGN(out.passes, run_passes(out.model.graph, out.pass_list, passes));
  if (!format.empty()) {
    for (Node& n : out.model.graph.nodes()) {
      if (is_linear(n)) n.attrs.set("format", format);
    }
  }
  out.weights = format.empty() ? stored_formats(out.model.graph) : options.weights;
  ServeOptions serving;
  serving.kv_type = out.kv_type;
  serving.page_tokens = options.page_tokens;
  serving.max_sequences = options.max_sequences;
  serving.max_context = out.max_context;
  OAR_ASSIGN(out.layout, serve(out.model.graph, serving));
  if (out.layout.groups.empty()) return invalid_argument("the model has no attention layer");
  return out;
}

namespace {
uint64_t matrix_bytes(const TensorType& t, Format format) {
  const auto row = format.row_bytes(t.shape[1].const_value());
  return row ? static_cast<uint64_t>(*row * t.shape[0].const_value()) : 0;
}
}  // namespace

uint64_t foreseen_weight_copies(const Graph& graph) {
  uint64_t bytes = 0;
  for (const Node& n : graph.nodes()) {
    if (!is_linear(n)) continue;
    const std::string wanted = n.attrs.get_string("format");
    for (size_t k = first_weight(n); k < n.inputs.size(); k += weight_step(n)) {
      const Value& w = graph.value(n.inputs[k]);
      const Format stored = w.type.format;
      const Format own = wanted.empty() ? stored : Format::find(wanted).value_or(stored);
      // Formats with one scalar per element are used as mapped; q8_0 is packed; expressions are always memory
      // of ours.
      if (w.kind == ValueKind::kConstant && own == stored) {
        if (own.plain() || std::strcmp(own.name(), "q8_0") != 0) continue;
      }
      bytes += matrix_bytes(w.type, own);
    }
  }
  for (const Node& n : graph.nodes()) {
    if (std::strcmp(n.op->name, "embedding") != 0) continue;
    const Value& table = graph.value(n.inputs[0]);
    if (table.kind == ValueKind::kConstant) continue;
    bytes +=
        matrix_bytes(table.type, Format::find(n.attrs.get_string("format", "f32")).value_or(Format::f32()));
  }
  return bytes;
}

std::shared_ptr<Backend> make_backend(const LanguageModelOptions& options) {
  ThreadPoolOptions pool;
  pool.threads = options.threads;
  return make_cpu_backend(std::make_shared<ThreadPool>(pool),
                          options.reference ? Isa::kReference : best_isa());
}

Result<ServingPlan> compile_serving_plan(ServingGraph graph, const ModelConfig& config,
                                         const LanguageModelOptions& options,
                                         std::shared_ptr<Backend> backend, const Progress& progress) {
  ServingPlan serving;
  serving.T = graph.model.T;
  serving.R = graph.model.R;
  serving.layout = std::move(graph.layout);
  serving.max_batch_tokens = std::max(options.max_batch_tokens, options.max_sequences);
  serving.max_sequences = options.max_sequences;
  serving.max_context = graph.max_context;
  serving.vocab_size = config.vocab;
  serving.page_tokens = options.page_tokens;
  PlanOptions plan;
  plan.log = options.log;
  plan.progress = progress;
  OAR_ASSIGN(serving.plan, Plan::compile(std::move(graph.model.graph), *backend, plan));
  serving.backend = std::move(backend);
  return serving;
}

std::vector<int32_t> blocks_for(const ServeLayout& layout, uint64_t bytes, int64_t max_tokens,
                                int32_t page_tokens) {
  // A group with a window never needs more than the window of each sequence, but prefix reuse and prefill
  // chunks may hold more; equal shares per token keep the rule simple and every group able to hold what the
  // others can.
  uint64_t per_block = 0;
  for (const auto& g : layout.groups) per_block += g.block_bytes;
  const uint64_t fits = per_block > 0 ? bytes / per_block : 0;
  const uint64_t useful = static_cast<uint64_t>((max_tokens + page_tokens - 1) / page_tokens) + 1;
  const uint64_t blocks = std::min<uint64_t>({fits, useful, INT32_MAX / static_cast<uint64_t>(page_tokens)});
  return std::vector<int32_t>(layout.groups.size(), static_cast<int32_t>(blocks));
}

}  // namespace oar
