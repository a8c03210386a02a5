#include "engine/loader/peft.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/safetensors_writer.h"

namespace oar {
namespace {

constexpr int64_t kMaxRank = 4096;
constexpr double kMaxAlpha = 1e6;
constexpr uint64_t kMaxPeftConfigBytes = uint64_t{1} << 20;
constexpr const char* kConfig = "adapter_config.json";

// Keys that change nothing of what a saved adapter computes, or that are read below.
constexpr std::string_view kKnown[] = {"peft_type",
                                       "task_type",
                                       "r",
                                       "lora_alpha",
                                       "use_rslora",
                                       "rank_pattern",
                                       "alpha_pattern",
                                       "fan_in_fan_out",
                                       "bias",
                                       "init_lora_weights",
                                       "auto_mapping",
                                       "peft_version",
                                       "base_model_name_or_path",
                                       "revision",
                                       "inference_mode",
                                       "target_modules",
                                       "exclude_modules",
                                       "lora_dropout",
                                       "layers_to_transform",
                                       "layers_pattern",
                                       "loftq_config",
                                       "eva_config",
                                       "corda_config",
                                       "runtime_config",
                                       "megatron_core",
                                       "qalora_group_size",
                                       "ensure_weight_tying"};

// Keys that must say nothing: false, null or empty.
struct Refused {
  std::string_view key, what;
};
constexpr Refused kRefused[] = {
    {"use_dora", "weight-decomposed adapters (DoRA)"},
    {"use_qalora", "QA-LoRA"},
    {"use_bdlora", "block-diagonal adapters"},
    {"modules_to_save", "modules that are saved whole"},
    {"trainable_token_indices", "trained tokens of the embedding"},
    {"target_parameters", "adapters of parameters, as of experts"},
    {"layer_replication", "replicated layers"},
    {"alora_invocation_tokens", "adapters that begin at a token (aLoRA)"},
    {"lora_bias", "a bias in B"},
    {"megatron_config", "Megatron's parallel layers"},
    {"arrow_config", "Arrow routing"},
    {"kasa_config", "KaSA"},
    {"velora_config", "VeLoRA"},
    {"monteclora_config", "MonteCLoRA"},
    {"lora_ga_config", "LoRA-GA, which changes the base"},
};

Status wrong(std::string_view key, std::string_view expected) {
  return invalid_argument(cat(kConfig, ": '", key, "' is not ", expected), std::string(key));
}

Result<bool> flag(const json::object& config, const char* key) {
  const json::value* v = config.if_contains(key);
  if (v == nullptr || v->is_null()) return false;
  if (!v->is_bool()) return wrong(key, "true or false");
  return v->get_bool();
}

Result<int64_t> rank_of(const json::value* v, std::string_view key) {
  if (v == nullptr || !v->is_int64() || v->get_int64() < 1 || v->get_int64() > kMaxRank)
    return wrong(key, cat("a whole number from 1 to ", kMaxRank));
  return v->get_int64();
}

Result<double> alpha_of(const json::value* v, std::string_view key) {
  if (v == nullptr || !v->is_number() || !(std::abs(v->to_number<double>()) <= kMaxAlpha))
    return wrong(key, cat("a number up to ", kMaxAlpha));
  return v->to_number<double>();
}

Status check_keys(const json::object& config) {
  for (const auto& [key, value] : config) {
    const std::string_view name = key;
    const auto* refused = std::ranges::find(kRefused, name, &Refused::key);
    if (refused != std::end(kRefused)) {
      if (is_empty(value)) continue;
      return unimplemented(cat(kConfig, ": '", name, "' is set: ", refused->what,
                               " are not offered; merge it into the model by PEFT (merge_and_unload)"));
    }
    if (std::ranges::find(kKnown, name) == std::end(kKnown) && !is_empty(value))
      return unimplemented(cat(kConfig, " has ", show_name(name),
                               ", which this program does not know; it may change what is computed"));
  }
  const json::value* type = config.if_contains("peft_type");
  if (type == nullptr || *type != json::value("LORA"))
    return unimplemented(cat(kConfig, ": 'peft_type' is ", type ? json::serialize(*type) : "missing",
                             ", of adapters LORA alone is offered"));
  const json::value* task = config.if_contains("task_type");
  if (task != nullptr && !task->is_null() && *task != json::value("CAUSAL_LM"))
    return unimplemented(cat(kConfig, ": 'task_type' is ", json::serialize(*task), ", expected CAUSAL_LM"));
  const json::value* bias = config.if_contains("bias");
  if (bias != nullptr && *bias != json::value("none"))
    return unimplemented(cat(kConfig, ": 'bias' is ", json::serialize(*bias),
                             ": trained biases are not offered, only \"none\""));
  // Some ways to begin change the base model too, and what is saved counts from there.
  const json::value* init = config.if_contains("init_lora_weights");
  if (init != nullptr && !init->is_bool() && !init->is_null()) {
    static constexpr std::string_view kPlain[] = {"gaussian", "eva", "orthogonal"};
    const bool plain = init->is_string() &&
                       std::ranges::find(kPlain, std::string_view(init->get_string())) != std::end(kPlain);
    if (!plain)
      return unimplemented(cat(kConfig, ": 'init_lora_weights' is ", json::serialize(*init),
                               ", which changes the base model; save the adapter converted to plain LoRA"));
  }
  return ok_status();
}

// rank_pattern and alpha_pattern: the first key that is the module's name or its end. Keys are regular
// expressions there; of these, names with dots and a leading ^ are read.
class Patterns {
 public:
  static Result<Patterns> read(const json::object& config, const char* key) {
    Patterns out;
    const json::value* v = config.if_contains(key);
    if (v == nullptr || v->is_null()) return out;
    if (!v->is_object()) return wrong(key, "an object");
    for (const auto& [pattern, value] : v->get_object()) {
      std::string name(pattern);
      const bool whole = name.starts_with('^');
      if (whole) name.erase(0, 1);
      if (name.ends_with('$')) name.pop_back();
      for (size_t at; (at = name.find("\\.")) != std::string::npos;) name.erase(at, 1);
      const bool plain = !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
        return std::isalnum(c) || c == '_' || c == '.' || c == '-';
      });
      if (!plain)
        return unimplemented(cat(kConfig, ": '", key, "' has the pattern ",
                                 show_name(std::string_view(pattern)),
                                 "; of patterns, names of modules and their ends are read"));
      out.all_.push_back({std::move(name), whole, &value});
    }
    return out;
  }
  const json::value* find(const std::string& module) const {
    for (const Pattern& p : all_) {
      if (module == p.name || (!p.whole && module.ends_with("." + p.name))) return p.value;
    }
    return nullptr;
  }

 private:
  struct Pattern {
    std::string name;
    bool whole;
    const json::value* value;
  };
  std::vector<Pattern> all_;
};

// The half of a pair that a tensor is.
struct Half {
  std::string module;
  bool second = false;  // B
};

Result<Half> half_of(const std::string& name) {
  constexpr std::string_view kPrefix = "base_model.model.";
  const auto refuse = [&](std::string_view what) {
    return unimplemented(cat("adapter_model.safetensors: ", show_name(name), ": ", what,
                             " are not offered; merge it into the model by PEFT (merge_and_unload)"));
  };
  if (name.find(".lora_magnitude_vector") != std::string::npos)
    return refuse("weight-decomposed adapters (DoRA)");
  if (name.find(".lora_embedding_") != std::string::npos) return refuse("adapters of embeddings");
  if (name.ends_with(".lora_B.bias")) return refuse("biases in B");
  if (!name.starts_with(kPrefix))
    return unimplemented(
        cat("adapter_model.safetensors: ", show_name(name), " does not begin with '", kPrefix, "'"));
  for (const bool second : {false, true}) {
    const std::string_view end = second ? ".lora_B.weight" : ".lora_A.weight";
    if (!name.ends_with(end)) continue;
    Half half{name.substr(kPrefix.size(), name.size() - kPrefix.size() - end.size()), second};
    if (half.module.find(".experts.") != std::string::npos || half.module.ends_with(".experts"))
      return refuse("adapters of experts");
    if (half.module == "lm_head" || half.module.ends_with("embed_tokens") || half.module.ends_with("wte"))
      return refuse("adapters of embeddings and of the head");
    return half;
  }
  return refuse("modules that are saved whole");
}

Result<Tensor> matrix(const std::string& name, const Tensor& t) {
  const bool floats =
      t.format().plain() && dtype_is_float(t.format().dtype()) && dtype_bits(t.format().dtype()) >= 16;
  if (!floats || t.shape().rank() != 2 || t.shape()[0] < 1 || t.shape()[1] < 1)
    return invalid_argument(cat("adapter_model.safetensors: ", show_name(name), " is ", t.format().name(),
                                " ", t.shape().to_string(), ", expected a matrix of f32, f16 or bf16"));
  OAR_ASSIGN(Tensor f32, to_f32(t));
  const auto values = f32.values<float>();
  const auto bad = std::ranges::find_if(values, [](float v) { return !std::isfinite(v); });
  if (bad != values.end())
    return data_loss(cat("adapter_model.safetensors: ", show_name(name), " has ",
                         std::isnan(*bad) ? "NaN" : "an infinite number", " at row ",
                         (bad - values.begin()) / t.shape()[1]));
  return f32;
}

}  // namespace

Result<PeftAdapter> parse_peft_adapter(const json::object& config, const TensorMap& tensors) {
  OAR_RETURN_IF_ERROR(check_keys(config));
  PeftAdapter out;
  if (const json::value* base = config.if_contains("base_model_name_or_path"); base && base->is_string())
    out.base = std::string(base->get_string());
  OAR_ASSIGN(out.fan_in_fan_out, flag(config, "fan_in_fan_out"));
  OAR_ASSIGN(const bool rslora, flag(config, "use_rslora"));
  OAR_ASSIGN(const Patterns ranks, Patterns::read(config, "rank_pattern"));
  OAR_ASSIGN(const Patterns alphas, Patterns::read(config, "alpha_pattern"));
  for (const auto& [name, tensor] : tensors) {
    OAR_ASSIGN(const Half half, half_of(name));
    PeftModule& module = out.modules[half.module];
    OAR_ASSIGN((half.second ? module.b : module.a), matrix(name, tensor));
  }
  if (out.modules.empty()) return invalid_argument("adapter_model.safetensors holds no adapter");
  for (auto& [name, m] : out.modules) {
    if (!m.a.defined() || !m.b.defined())
      return invalid_argument(
          cat("adapter_model.safetensors: ", show_name(name), " lacks its lora_", m.a.defined() ? "B" : "A"));
    const json::value* r = ranks.find(name);
    OAR_ASSIGN(const int64_t rank, r ? rank_of(r, "rank_pattern") : rank_of(config.if_contains("r"), "r"));
    if (m.a.shape()[0] != rank || m.b.shape()[1] != rank)
      return invalid_argument(cat("adapter_model.safetensors: ", show_name(name), ": A has ", m.a.shape()[0],
                                  " rows and B ", m.b.shape()[1], " columns, but ", kConfig, " says rank ",
                                  rank));
    const json::value* a = alphas.find(name);
    OAR_ASSIGN(const double alpha,
               a ? alpha_of(a, "alpha_pattern") : alpha_of(config.if_contains("lora_alpha"), "lora_alpha"));
    m.factor = alpha / (rslora ? std::sqrt(static_cast<double>(rank)) : static_cast<double>(rank));
    out.rank = std::max(out.rank, rank);
  }
  return out;
}

Result<PeftAdapter> load_peft_adapter(const std::string& folder) {
  namespace fs = std::filesystem;
  const std::string config_path = (fs::path(folder) / kConfig).string();
  const std::string model_path = (fs::path(folder) / "adapter_model.safetensors").string();
  for (const std::string& path : {config_path, model_path}) {
    if (!is_regular_file(path))
      return not_found(cat(path, " is not there; expected a folder as PEFT saves adapters: ", kConfig,
                           " and adapter_model.safetensors"));
  }
  OAR_ASSIGN(const std::string text, read_small_file(config_path, kMaxPeftConfigBytes));
  OAR_ASSIGN(const json::value config, parse_json(text, config_path));
  if (!config.is_object()) return invalid_argument(cat(config_path, " must hold a JSON object"));
  // Read, not mapped: a file that is written again while it is served would change answers.
  LoadOptions read;
  read.mmap = false;
  OAR_ASSIGN(const Safetensors file, open_safetensors(model_path, read));
  return parse_peft_adapter(config.get_object(), file.tensors);
}

Result<bool> call_as_base(PeftAdapter& adapter, std::string_view module) {
  constexpr std::string_view kParts[] = {"model.language_model.", "language_model.model.", "model.",
                                         "backbone."};
  const auto part_of = [&](std::string_view name) -> std::string_view {
    for (const std::string_view part : kParts)
      if (name.starts_with(part) && name.substr(part.size()).starts_with("layers.")) return part;
    return {};
  };
  const std::string_view base = part_of(module);
  if (base.empty()) return false;
  std::map<std::string, std::string> own_names;  // by the base's
  for (const auto& [name, m] : adapter.modules) {
    const std::string_view own = part_of(name);
    const auto [other, fits] =
        own_names.emplace(own.empty() ? name : cat(base, std::string_view(name).substr(own.size())), name);
    if (!fits)
      return invalid_argument(cat("adapter_model.safetensors: ", show_name(other->second), " and ",
                                  show_name(name), " are both ", show_name(other->first),
                                  " of the base; keep one of them"));
  }
  std::map<std::string, PeftModule> called;
  for (const auto& [name, own] : own_names) called.emplace(name, std::move(adapter.modules.at(own)));
  adapter.modules = std::move(called);
  return true;
}

Result<bool> call_as_base(PeftAdapter& adapter, const TensorMap& base) {
  for (const auto& [name, tensor] : base) {
    OAR_ASSIGN(const bool called, call_as_base(adapter, name));
    if (called) return true;
  }
  return false;
}

Result<Tensor> add_adapter(const Tensor& w, const std::string& name, const PeftModule& m,
                           bool fan_in_fan_out) {
  const int64_t N = m.b.shape()[0], K = m.a.shape()[1], r = m.a.shape()[0];
  const Shape there = fan_in_fan_out ? Shape{K, N} : Shape{N, K};
  if (!(w.shape() == there))
    return invalid_argument(cat("the adapter is of another base model: '", name, "' is ", there.to_string(),
                                " there, ", w.shape().to_string(), " here"));
  if (!w.format().plain() || !dtype_is_float(w.format().dtype()) || dtype_bits(w.format().dtype()) < 16)
    return unimplemented(
        cat("'", name, "' is stored as ", w.format().name(),
            ": merge into the model in 16 bits, and quantize what comes out (oar quantize)"));
  OAR_ASSIGN(Tensor sum, to_f32(w));
  if (sum.data() == w.data()) {
    OAR_ASSIGN(sum, Tensor::allocate(w.shape(), Format::f32()));
    std::memcpy(sum.mutable_data(), w.data(), w.bytes());
  }
  const auto down = m.a.values<float>(), up = m.b.values<float>();
  std::vector<double> row(static_cast<size_t>(K));
  for (int64_t n = 0; n < N; ++n) {
    std::fill(row.begin(), row.end(), 0);
    for (int64_t j = 0; j < r; ++j) {
      const double scale = up[static_cast<size_t>(n * r + j)] * m.factor;
      for (int64_t k = 0; k < K; ++k)
        row[static_cast<size_t>(k)] += scale * down[static_cast<size_t>(j * K + k)];
    }
    for (int64_t k = 0; k < K; ++k) {
      float& to = sum.mutable_values<float>()[static_cast<size_t>(fan_in_fan_out ? k * N + n : n * K + k)];
      to = static_cast<float>(to + row[static_cast<size_t>(k)]);
    }
  }
  return stored_as(sum, w.format());
}

Result<TensorMap> add_adapter(TensorMap base, PeftAdapter adapter) {
  OAR_RETURN_IF_ERROR(call_as_base(adapter, base).status());
  for (const auto& [module, m] : adapter.modules) {
    const auto it = base.find(module + ".weight");
    if (it == base.end())
      return invalid_argument(
          cat("the adapter is of another base model: it has '", module, "', the model does not"));
    OAR_ASSIGN(it->second, add_adapter(it->second, module, m, adapter.fan_in_fan_out));
  }
  return base;
}

json::object peft_config(const PeftSettings& settings) {
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", settings.base},
          {"r", settings.rank},
          {"lora_alpha", settings.alpha},
          {"lora_dropout", settings.dropout},
          {"target_modules", settings.targets},
          {"bias", "none"},
          {"fan_in_fan_out", settings.fan_in_fan_out},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"use_rslora", false},
          {"use_dora", false}};
}

}  // namespace oar
