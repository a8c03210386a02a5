// oar models: the language models that run: ops and states of their graphs and what was compared, as
// docs/models.md has them, and of released ones what their keys and values take.
#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cli/command.h"
#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/models/model.h"
#include "kernels/attention.h"

namespace oar::cli {
namespace {

struct ShapeFile {
  const char *name, *text;
};
// configs/shapes: config.json of released models, with `_name_or_path` and `_source`.
constexpr ShapeFile kShapes[] = {
#include "oar_shapes.inc"
};

// docs/models.md, which docs/generate.py writes from graphs and goldens.
constexpr std::string_view kPage =
#include "oar_models_page.inc"
    ;

// The cells of a row of a table, without their marks.
std::vector<std::string> cells_of(std::string_view row) {
  std::vector<std::string> cells;
  for (size_t at = 1; at < row.size();) {
    const size_t end = std::min(row.find('|', at), row.size());
    std::string cell(row.substr(at, end - at));
    std::erase(cell, '`');
    cell.erase(0, std::min(cell.find_first_not_of(' '), cell.size()));
    cell.erase(cell.find_last_not_of(' ') + 1);
    cells.push_back(std::move(cell));
    at = end + 1;
  }
  return cells;
}

// What the page says of each model type, in the order of its columns.
constexpr const char* kColumns[] = {"model_type", "ops", "pages", "states", "compared"};
std::map<std::string, json::object> described_types() {
  std::map<std::string, json::object> out;
  for (size_t at = 0; at < kPage.size();) {
    const size_t end = std::min(kPage.find('\n', at), kPage.size());
    const std::string_view line = kPage.substr(at, end - at);
    at = end + 1;
    if (!line.starts_with("| `")) continue;  // rows of released models begin with a name
    const std::vector<std::string> cells = cells_of(line);
    json::object row;
    for (size_t k = 0; k < std::min(cells.size(), std::size(kColumns)); ++k) row[kColumns[k]] = cells[k];
    out[cells[0]] = std::move(row);
  }
  return out;
}

constexpr int32_t kPageTokens = 64;

// Of one sequence of so many tokens, in bf16: whole pages, of layers with a window those that a query sees
// and the one that is being left.
uint64_t kv_bytes(const ModelConfig& c, int64_t tokens) {
  uint64_t bytes = 0;
  for (const CachedLayer& kept : cached_layers(c)) {
    if (kept.heads.kv_heads == 0) continue;
    const int64_t pages = (tokens + kPageTokens - 1) / kPageTokens;
    const int64_t seen =
        kept.window > 0 ? std::min(pages, (kept.window + kPageTokens - 1) / kPageTokens + 1) : pages;
    bytes += static_cast<uint64_t>(seen) *
             kv_block_bytes({DType::kBF16, kPageTokens, static_cast<int32_t>(kept.heads.kv_heads),
                             static_cast<int32_t>(kept.heads.head_dim), static_cast<int32_t>(kept.latent)});
  }
  return bytes;
}

// "5 full, 30 in windows of 512, 20 share", layers.
std::string layers_of(const ModelConfig& c) {
  int64_t full = 0, windowed = 0, window = 0, states = 0, latents = 0;
  for (const CachedLayer& kept : cached_layers(c)) {
    if (kept.convolution > 0) ++states;
    if (kept.heads.kv_heads == 0) continue;
    if (kept.latent > 0) ++latents;
    else if (kept.window > 0) ++windowed, window = std::max(window, kept.window);
    else ++full;
  }
  std::string out;
  const auto add = [&](const std::string& what) { out += (out.empty() ? "" : ", ") + what; };
  if (full > 0) add(cat(full, " full"));
  if (latents > 0) add(cat(latents, " latents of ", c.latent.rank, " + ", c.latent.rope));
  if (windowed > 0) add(cat(windowed, " in windows of ", window));
  if (c.shared_kv_layers > 0) add(cat(c.shared_kv_layers, " without keys of their own"));
  if (states > 0) add(cat(states, " with a state"));
  return out;
}

// Of one sequence: its state behind a page, over all layers, and the rows of an open page.
struct StateBytes {
  uint64_t border = 0, open = 0;
};
StateBytes state_bytes(const ModelConfig& c) {
  StateBytes bytes;
  for (const CachedLayer& kept : cached_layers(c)) {
    bytes.border += kept.border_bytes(c);
    bytes.open += kept.open_bytes(c, kPageTokens);
  }
  return bytes;
}

Result<json::array> released_models() {
  json::array out;
  for (const ShapeFile& shape : kShapes) {
    OAR_ASSIGN(const json::value v, parse_json(shape.text, shape.name));
    OAR_ASSIGN(const ModelConfig c, read_model_config(v.as_object()));
    const StateBytes state = state_bytes(c);
    out.emplace_back(json::object{{"model_type", c.model_type},
                                  {"shape", shape.name},
                                  {"model", v.at("_name_or_path")},
                                  {"source", v.at("_source")},
                                  {"layers", layers_of(c)},
                                  {"context", c.max_context},
                                  {"kv_bytes_4k", kv_bytes(c, 4096)},
                                  {"kv_bytes_32k", kv_bytes(c, 32768)},
                                  {"state_bytes", state.border},
                                  {"open_rows_bytes", state.open}});
  }
  return out;
}

int print_models(bool as_json) {
  auto released = released_models();
  if (!released.ok()) return fail(released.status());
  auto described = described_types();
  if (as_json) {
    json::array names, types;
    for (const std::string& name : architecture_names()) {
      names.emplace_back(name);
      if (described.contains(name)) types.emplace_back(std::move(described[name]));
    }
    std::printf("%s\n", json::serialize(json::object{{"model_types", std::move(names)},
                                                     {"types", std::move(types)},
                                                     {"released", std::move(*released)}})
                            .c_str());
    return kSuccess;
  }
  for (const std::string& name : architecture_names()) {
    std::printf("%s\n", name.c_str());
    for (const auto& [column, text] : described[name])
      if (column != kColumns[0] && !text.as_string().empty())
        std::printf("  %-9s %s\n", std::string(column).c_str(), text.as_string().c_str());
    for (const json::value& r : *released) {
      if (r.at("model_type") != json::value(name)) continue;
      const auto bytes = [&](const char* key) { return r.at(key).to_number<uint64_t>(); };
      std::string kept;
      if (bytes("kv_bytes_4k") > 0)
        kept = cat("KV ", format_bytes(bytes("kv_bytes_4k")), " at 4k, ", format_bytes(bytes("kv_bytes_32k")),
                   " at 32k; ");
      if (bytes("state_bytes") > 0)
        kept += cat("state ", format_bytes(bytes("state_bytes")), ", open rows ",
                    format_bytes(bytes("open_rows_bytes")), "; ");
      std::printf("  %-9s %s: %s%s\n", "released", r.at("model").as_string().c_str(), kept.c_str(),
                  r.at("layers").as_string().c_str());
    }
  }
  std::printf(
      "\nops, pages, states: of a served graph of tiny size (docs/models.md). KV: keys and values of one "
      "sequence in bf16. state: of one, in f32, behind a page of 64 tokens; open rows: those of a page that "
      "is "
      "not full. `oar inspect MODEL --memory` has all of a model's.\n");
  return kSuccess;
}

}  // namespace

void add_models(CLI::App& app, Action& action) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* c = app.add_subcommand(
      "models", "The language models that run, their ops and states, and the memory of released ones");
  c->add_flag("--json", *as_json, "print one JSON object");
  c->footer("Examples:\n  oar models\n  oar models --json");
  c->callback([as_json, &action] { action = [as_json] { return print_models(*as_json); }; });
}

}  // namespace oar::cli
