#include "engine/tune/measure/quant_report.h"

#include <cstdio>
#include <map>
#include <set>

#include "engine/base/format.h"
#include "engine/runtime/quantize_weights.h"

namespace oar {
namespace {

std::vector<QuantReport::Format> by_format(const Graph& graph) {
  std::map<std::string, QuantReport::Format> rows;
  std::set<ValueId> counted;
  for_each_matrix(graph, [&](size_t, ValueId id, Format format) {
    if (!counted.insert(id).second) return;
    const TensorType& type = graph.value(id).type;
    const int64_t cols = type.shape.back().const_value(), count = type.shape[0].const_value();
    QuantReport::Format& row = rows[format.name()];
    row.name = format.name();
    ++row.matrices;
    row.weights += static_cast<uint64_t>(count * cols);
    row.bytes += static_cast<uint64_t>(count * format.row_bytes(cols).value_or(0));
  });
  std::vector<QuantReport::Format> out;
  for (auto& [name, row] : rows) out.push_back(std::move(row));
  return out;
}

double bits_of(uint64_t bytes, uint64_t weights) {
  return weights > 0 ? 8.0 * static_cast<double>(bytes) / static_cast<double>(weights) : 0;
}

}  // namespace

Result<QuantReport> quant_report(const Checkpoint& source, const LanguageModelOptions& asked,
                                 const Progress& progress) {
  OAR_ASSIGN(const std::shared_ptr<Backend> backend, make_backend(asked));
  OAR_ASSIGN(const Checkpoint checkpoint,
             quantize_at_load(source, asked.weights, {asked.cache_dir, asked.cache_bytes},
                              backend->host_pool(), asked.log, progress, asked.rotate));
  OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
  OAR_ASSIGN(const LanguageModelOptions options, with_kv_of(*backend, checkpoint, config, asked));
  OAR_ASSIGN(ServingGraph graph, build_serving_graph(checkpoint, config, options));
  QuantReport out;
  out.formats = by_format(graph.model.graph);
  out.bits = model_bits(graph, options.page_tokens);
  out.weights = graph.weights;
  out.kv = graph.kv;
  out.rotation = graph.rotation;
  out.uneven = graph.uneven;
  out.max_context = graph.max_context;
  for (const auto& group : graph.layout.groups) {
    if (group.pages != ServeLayout::Pages::kAll) out.open_bytes += group.block_bytes;
  }
  OAR_ASSIGN(const ServingPlan serving,
             compile_serving_plan(std::move(graph), config, options, backend, progress));
  out.in_place_bytes = serving.run->program().in_place_weight_bytes();
  out.packed_bytes = serving.run->program().copied_weight_bytes();
  out.scratch_bytes = serving.run->arena_bytes() + serving.run->scratch_bytes();
  return out;
}

std::string quant_text(const QuantReport& r) {
  char line[160];
  std::string out = cat("weights        ", r.weights, ", rotation ", r.rotation, "\n");
  for (const auto& f : r.formats) {
    std::snprintf(line, sizeof line, "  %-14s %5.2f bits  %6llu matrices  %14llu weights  %s\n",
                  f.name.c_str(), bits_of(f.bytes, f.weights), static_cast<unsigned long long>(f.matrices),
                  static_cast<unsigned long long>(f.weights), format_bytes(f.bytes).c_str());
    out += line;
  }
  if (!r.uneven.empty()) out += cat("  ", uneven_text(r.uneven), "\n");
  std::snprintf(line, sizeof line, "  all linear     %5.2f bits per weight, %.2f without the head; %s\n",
                r.bits.bits_per_weight, r.bits.body_bits_per_weight,
                format_bytes(r.bits.linear_bytes).c_str());
  out += line;
  out += cat("  other          ", format_bytes(r.bits.other_bytes), " (embedding, norms, biases)\n",
             "  in memory      ", format_bytes(r.in_place_bytes), " where the file lies, ",
             format_bytes(r.packed_bytes), " packed or rewritten\n");
  std::snprintf(
      line, sizeof line, "%.2f bits per element, %s per token, %s at %lld tokens", r.bits.kv_bits(),
      format_bytes(static_cast<uint64_t>(r.bits.kv_bytes_per_token)).c_str(),
      format_bytes(static_cast<uint64_t>(r.bits.kv_bytes_per_token * static_cast<double>(r.max_context)))
          .c_str(),
      static_cast<long long>(r.max_context));
  out += cat("KV cache       ", r.kv, ": ", line, "\n");
  if (r.open_bytes > 0) {
    out +=
        cat("  16-bit pages   ", format_bytes(r.open_bytes), " per sequence (newest page, first tokens)\n");
  }
  return out + cat("scratch        ", format_bytes(r.scratch_bytes), " for all sequences together\n");
}

json::object quant_json(const QuantReport& r) {
  json::array formats;
  for (const auto& f : r.formats) {
    formats.push_back(json::object{{"format", f.name},
                                   {"matrices", f.matrices},
                                   {"weights", f.weights},
                                   {"bytes", f.bytes},
                                   {"bits_per_weight", bits_of(f.bytes, f.weights)}});
  }
  json::array uneven;
  for (const UnevenMatrix& m : r.uneven) {
    uneven.push_back(json::object{{"name", m.name}, {"shape", {m.rows, m.cols}}, {"format", m.format}});
  }
  return {{"weights", r.weights},
          {"rotation", r.rotation},
          {"formats", std::move(formats)},
          {"not_quantized", std::move(uneven)},
          {"bits_per_weight", r.bits.bits_per_weight},
          {"bits_per_weight_without_head", r.bits.body_bits_per_weight},
          {"linear_bytes", r.bits.linear_bytes},
          {"other_bytes", r.bits.other_bytes},
          {"in_place_bytes", r.in_place_bytes},
          {"packed_bytes", r.packed_bytes},
          {"kv", r.kv},
          {"kv_bits", r.bits.kv_bits()},
          {"kv_bytes_per_token", r.bits.kv_bytes_per_token},
          {"kv_open_bytes_per_sequence", r.open_bytes},
          {"scratch_bytes", r.scratch_bytes},
          {"max_context", r.max_context}};
}

}  // namespace oar
