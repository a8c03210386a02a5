#include "server/api/ollama_models.h"

#include <sys/stat.h>

#include <cstdio>

#include "engine/base/format.h"
#include "server/api/json_writer.h"
#include "server/api/text_tools.h"
#include "server/api/utc_text.h"

namespace oar::api {
namespace {

bool is_listed(const ServedModel& m) { return m.language || m.kind() == ModelKind::kEncoder; }

const std::string& path_of(const ServedModel& m) {
  return m.language ? m.language->info.path : m.tensor->config.path;
}

std::string family_of(const ServedModel& m) {
  return m.language ? m.language->info.architecture : m.tensor->encoder->info().name;
}

// 1.2M, 7.6B
std::string short_count(uint64_t n) {
  const char* const units[] = {"", "K", "M", "B", "T"};
  double value = static_cast<double>(n);
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(units); ++unit) value /= 1000;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f" : "%.1f", value);
  return cat(text, units[unit]);
}

void write_details(JsonWriter& w, const ServedModel& m) {
  const bool gguf = path_of(m).ends_with(".gguf");
  const std::string family = family_of(m);
  w.key("details").begin_object();
  w.key("parent_model").string(m.language ? m.language->parent : std::string());
  w.key("format").string(gguf ? "gguf" : m.language ? "safetensors" : m.tensor->config.platform);
  w.key("family").string(family).key("families").begin_array().string(family).end_array();
  if (m.language) {
    w.key("parameter_size").string(short_count(m.language->info.parameters));
    w.key("quantization_level").string(m.language->info.weights);
  } else {
    w.key("parameter_size").string("").key("quantization_level").string("");
  }
  w.end_object();
}

// When its file was last written; nothing for the model in the program itself.
void write_modified(JsonWriter& w, const ServedModel& m) {
  struct stat file {};
  if (path_of(m).empty() || ::stat(path_of(m).c_str(), &file) != 0) return;
  w.key("modified_at").string(utc_text(std::chrono::system_clock::from_time_t(file.st_mtime)));
}

void write_listed(JsonWriter& w, const ServedModel& m, bool running) {
  w.begin_object().key("name").string(m.name()).key("model").string(m.name());
  if (!running) write_modified(w, m);
  w.key("size").number(m.language ? m.language->info.weight_bytes : uint64_t{0});
  write_details(w, m);
  if (running)
    w.key("context_length")
        .number(m.language ? m.language->engine->request_limits().max_context
                           : m.tensor->encoder->info().max_tokens);
  w.end_object();
}

void write_capabilities(JsonWriter& w, const ServedModel& m) {
  w.key("capabilities").begin_array();
  if (m.language) {
    w.string("completion");
    if (m.language->tool_style) w.string("tools");
    if (m.language->reasoning_style) w.string("thinking");
    if (fills_gaps(*m.language)) w.string("insert");
  } else if (m.tensor->encoder->embeds()) {
    w.string("embedding");
  }
  w.end_array();
}

// The model's own defaults, as a Modelfile writes them.
std::string parameters_of(const ModelHandle& model) {
  const GenerationDefaults& d = model.defaults;
  std::string out;
  const auto line = [&](const char* name, const auto& value) {
    if (value) out += cat(out.empty() ? "" : "\n", name, " ", *value);
  };
  line("temperature", d.temperature);
  line("top_k", d.top_k);
  line("top_p", d.top_p);
  line("min_p", d.min_p);
  line("repeat_penalty", d.repetition_penalty);
  return out;
}

}  // namespace

std::string ollama_list(const std::vector<ServedModel>& models, bool running) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("models").begin_array();
  for (size_t i = 0; i < models.size(); ++i) {
    const ServedModel& m = models[i];
    // Of several versions the newest is the one that a name stands for.
    const bool newest = i + 1 == models.size() || models[i + 1].name() != m.name();
    if (!newest || !is_listed(m)) continue;
    write_listed(w, m, running);
    for (const ModelHandlePtr& adapter : ModelCatalog::adapters_of(m))
      write_listed(w, {adapter, nullptr}, running);
  }
  w.end_array().end_object();
  return out;
}

std::string ollama_show(const ServedModel& m, const OllamaShowRequest& request) {
  std::string out;
  JsonWriter w(out);
  w.begin_object();
  if (m.language) {
    w.key("parameters").string(parameters_of(*m.language));
    w.key("template").string(m.language->chat_template ? m.language->chat_template->source() : std::string());
  }
  write_details(w, m);
  w.key("model_info").begin_object();
  const std::string family = family_of(m);
  w.key("general.architecture").string(family);
  if (m.language) {
    const ModelInfo& info = m.language->info;
    w.key("general.parameter_count").number(info.parameters);
    w.key(cat(family, ".context_length")).number(m.language->engine->request_limits().max_context);
    w.key(cat(family, ".block_count")).number(static_cast<int64_t>(info.layers));
    w.key(cat(family, ".vocab_size")).number(m.language->engine->request_limits().vocab_size);
    if (request.verbose) {
      w.key("tokenizer.ggml.bos_token").string(m.language->bos_token);
      w.key("tokenizer.ggml.eos_token").string(m.language->eos_token);
    }
  } else {
    w.key(cat(family, ".context_length")).number(m.tensor->encoder->info().max_tokens);
    w.key(cat(family, ".embedding_length")).number(m.tensor->encoder->info().dimensions);
  }
  w.end_object();
  write_capabilities(w, m);
  write_modified(w, m);
  w.end_object();
  return out;
}

}  // namespace oar::api
