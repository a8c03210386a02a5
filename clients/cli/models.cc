// oar models: the language models that run, and of released ones what their keys and values take.
// docs/models.md has this table with what was compared.
#include <algorithm>
#include <cstdio>
#include <string>
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

// Of one sequence of so many tokens, in bf16: whole pages, of layers with a window those that a query sees
// and the one that is being left.
uint64_t kv_bytes(const ModelConfig& c, int64_t tokens) {
  constexpr int32_t kPage = 64;
  uint64_t bytes = 0;
  for (int64_t n = 0; n < c.kv_layers(); ++n) {
    const HeadShape heads = c.head_shape(n);
    const int64_t window = c.windows[static_cast<size_t>(n)];
    const int64_t pages = (tokens + kPage - 1) / kPage;
    const int64_t seen = window > 0 ? std::min(pages, (window + kPage - 1) / kPage + 1) : pages;
    bytes += static_cast<uint64_t>(seen) *
             kv_block_bytes({DType::kBF16, kPage, static_cast<int32_t>(heads.kv_heads),
                             static_cast<int32_t>(heads.head_dim), static_cast<int32_t>(c.latent.rank)});
  }
  return bytes;
}

// "5 full, 30 in windows of 512, 20 share", layers.
std::string layers_of(const ModelConfig& c) {
  const auto windowed = std::ranges::count_if(c.windows, [](int64_t w) { return w > 0; });
  std::string out = cat(c.layers - windowed, " full");
  if (windowed > 0) out += cat(", ", windowed, " in windows of ", *std::ranges::max_element(c.windows));
  if (c.shared_kv_layers > 0) out += cat(", ", c.shared_kv_layers, " without keys of their own");
  return out;
}

Result<json::array> released_models() {
  json::array out;
  for (const ShapeFile& shape : kShapes) {
    OAR_ASSIGN(const json::value v, parse_json(shape.text, shape.name));
    OAR_ASSIGN(const ModelConfig c, read_model_config(v.as_object()));
    out.emplace_back(json::object{{"model_type", c.model_type},
                                  {"shape", shape.name},
                                  {"model", v.at("_name_or_path")},
                                  {"source", v.at("_source")},
                                  {"layers", layers_of(c)},
                                  {"context", c.max_context},
                                  {"kv_bytes_4k", kv_bytes(c, 4096)},
                                  {"kv_bytes_32k", kv_bytes(c, 32768)}});
  }
  return out;
}

int print_models(bool as_json) {
  auto released = released_models();
  if (!released.ok()) return fail(released.status());
  if (as_json) {
    json::array types;
    for (const std::string& name : architecture_names()) types.emplace_back(name);
    std::printf("%s\n", json::serialize(json::object{{"model_types", std::move(types)},
                                                     {"released", std::move(*released)}})
                            .c_str());
    return kSuccess;
  }
  std::printf("%-20s %-28s %10s %10s  %s\n", "model_type", "released", "KV at 4k", "at 32k", "layers");
  for (const std::string& name : architecture_names()) {
    bool any = false;
    for (const json::value& r : *released) {
      if (r.at("model_type") != json::value(name)) continue;
      any = true;
      std::printf("%-20s %-28s %10s %10s  %s\n", name.c_str(), r.at("model").as_string().c_str(),
                  format_bytes(r.at("kv_bytes_4k").to_number<uint64_t>()).c_str(),
                  format_bytes(r.at("kv_bytes_32k").to_number<uint64_t>()).c_str(),
                  r.at("layers").as_string().c_str());
    }
    if (!any) std::printf("%s\n", name.c_str());
  }
  std::printf(
      "\nKV: keys and values of one sequence in bf16; `oar inspect MODEL --memory` has all of a model's.\n");
  return kSuccess;
}

}  // namespace

void add_models(CLI::App& app, Action& action) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* c = app.add_subcommand("models", "The language models that run, and the memory of released ones");
  c->add_flag("--json", *as_json, "print one JSON object");
  c->footer("Examples:\n  oar models\n  oar models --json");
  c->callback([as_json, &action] { action = [as_json] { return print_models(*as_json); }; });
}

}  // namespace oar::cli
