// Inverse frequencies for every kind of rope scaling we run. Computed in double, stored in f32, as the
// checkpoints' authors do.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/format.h"
#include "engine/models/config_reader.h"
#include "engine/models/model.h"

namespace oar {
namespace {

Result<double> number(const json::object& o, const char* key, std::optional<double> fallback) {
  const json::value* v = o.if_contains(key);
  if (!v || v->is_null()) {
    if (fallback) return *fallback;
    return invalid_argument(cat("config.json: rope_scaling has no '", key, "'"));
  }
  if (!v->is_number()) return invalid_argument(cat("config.json: rope_scaling '", key, "' is not a number"));
  return v->to_number<double>();
}

// Low frequencies divided by `factor`, high ones kept, a blend between (Llama 3.1's release).
Status scale_llama3(const json::object& s, const ModelConfig& c, std::vector<double>& freq) {
  OAR_ASSIGN(const double factor, number(s, "factor", std::nullopt));
  OAR_ASSIGN(const double low, number(s, "low_freq_factor", std::nullopt));
  OAR_ASSIGN(const double high, number(s, "high_freq_factor", std::nullopt));
  OAR_ASSIGN(const double original,
             number(s, "original_max_position_embeddings", static_cast<double>(c.max_context)));
  if (!(factor >= 1 && low > 0 && high > low && original > 0))
    return invalid_argument("config.json: rope_scaling of type llama3 has values out of range");
  for (double& f : freq) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength > original / low) {
      f /= factor;
    } else if (wavelength > original / high) {
      const double smooth = (original / wavelength - low) / (high - low);
      f = (1 - smooth) * f / factor + smooth * f;
    }
  }
  return ok_status();
}

// YaRN: dims that turn more than beta_fast times over the original context are kept, less than beta_slow
// interpolated.
Status scale_yarn(const json::object& s, const ModelConfig& c, int64_t dim, std::vector<double>& freq,
                  double* mscale) {
  const auto context = static_cast<double>(c.max_context);
  OAR_ASSIGN(const double original, number(s, "original_max_position_embeddings", context));
  OAR_ASSIGN(const double factor, number(s, "factor", context / original));
  OAR_ASSIGN(double fast, number(s, "beta_fast", 32));
  OAR_ASSIGN(double slow, number(s, "beta_slow", 1));
  if (fast == 0) fast = 32;  // as transformers reads them
  if (slow == 0) slow = 1;
  if (!(factor > 0 && fast > 0 && slow > 0 && original > 0))
    return invalid_argument("config.json: rope_scaling of type yarn has values out of range");
  const auto turns_to_dim = [&](double turns) {
    return static_cast<double>(dim) * std::log(original / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(c.rope_theta));
  };
  const json::value* truncate = s.if_contains("truncate");
  const bool round = !truncate || !truncate->is_bool() || truncate->get_bool();
  double low = turns_to_dim(fast), high = turns_to_dim(slow);
  if (round) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  for (size_t k = 0; k < freq.size(); ++k) {
    const double keep = 1 - std::clamp((static_cast<double>(k) - low) / (high - low), 0.0, 1.0);
    freq[k] = freq[k] / factor * (1 - keep) + freq[k] * keep;
  }
  const auto get_mscale = [&](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1; };
  OAR_ASSIGN(const double m, number(s, "mscale", 0));
  OAR_ASSIGN(const double all, number(s, "mscale_all_dim", 0));
  OAR_ASSIGN(*mscale, number(s, "attention_factor",
                             m != 0 && all != 0 ? get_mscale(m) / get_mscale(all) : get_mscale(1)));
  return ok_status();
}

}  // namespace

Status read_rope(ConfigReader& r, double theta, ModelConfig& c) {
  OAR_ASSIGN(c.rope_theta, r.number({"rope_theta"}, theta));
  OAR_ASSIGN(c.partial_rotary, r.number({"partial_rotary_factor"}, 1));
  for (const char* key :
       {"rope_parameters", "rope_scaling"}) {  // the older spelling goes first where both are
    const json::value* v = r.value(key);
    if (v == nullptr) continue;
    if (!v->is_object()) return invalid_argument(cat("config.json: '", key, "' is not an object"));
    if (!v->get_object().empty()) c.rope_scaling = v->get_object();
  }
  ConfigReader inner(c.rope_scaling);
  OAR_ASSIGN(c.rope_theta, inner.number({"rope_theta"}, c.rope_theta));
  OAR_ASSIGN(c.partial_rotary, inner.number({"partial_rotary_factor"}, c.partial_rotary));
  inner.without_effect(
      "type rope_type factor factors low_freq_factor high_freq_factor original_max_position_embeddings "
      "beta_fast beta_slow mscale mscale_all_dim attention_factor truncate short_factor long_factor "
      "finetuned");
  OAR_ASSIGN(const std::string unknown, inner.finish("rope_scaling"));
  if (!unknown.empty()) return unimplemented(cat("config.json: rope_scaling has ", unknown));
  if (const json::value* v = r.value("original_max_position_embeddings"))
    c.rope_scaling["original_max_position_embeddings"] = *v;
  if (!(c.rope_theta > 0))
    return invalid_argument(cat("config.json: 'rope_theta' is ", c.rope_theta, ", expected more than 0"));
  if (!(c.partial_rotary > 0 && c.partial_rotary <= 1))
    return invalid_argument("config.json: 'partial_rotary_factor' is not in (0, 1]");
  return ok_status();
}

Result<RopeTable> rope_table(const ModelConfig& c) {
  const auto dim = static_cast<int64_t>(static_cast<double>(c.head_dim) * c.partial_rotary) / 2 * 2;
  if (dim < 2) return invalid_argument(cat("config.json: heads of ", c.head_dim, " have nothing to rotate"));
  std::vector<double> freq(static_cast<size_t>(dim / 2));
  for (size_t k = 0; k < freq.size(); ++k)
    freq[k] = std::pow(c.rope_theta, -2.0 * static_cast<double>(k) / static_cast<double>(dim));
  RopeTable table;
  const json::object& s = c.rope_scaling;
  std::string type = "default";
  for (const char* key : {"type", "rope_type"}) {
    if (const json::value* v = s.if_contains(key); v && v->is_string()) type = std::string(v->get_string());
  }
  if (type == "linear") {
    OAR_ASSIGN(const double factor, number(s, "factor", std::nullopt));
    if (!(factor > 0)) return invalid_argument("config.json: rope_scaling 'factor' must be more than 0");
    for (double& f : freq) f /= factor;
  } else if (type == "llama3") {
    OAR_RETURN_IF_ERROR(scale_llama3(s, c, freq));
  } else if (type == "yarn") {
    OAR_RETURN_IF_ERROR(scale_yarn(s, c, dim, freq, &table.mscale));
  } else if (type == "freq_factors") {
    const json::value* list = s.if_contains("factors");
    if (!list || !list->is_array() || list->get_array().size() != freq.size()) {
      return invalid_argument(cat("rope factors: expected ", freq.size(), " numbers"));
    }
    for (size_t k = 0; k < freq.size(); ++k) {
      const json::value& v = list->get_array()[k];
      if (!v.is_number() || !(v.to_number<double>() > 0))
        return invalid_argument("rope factors must be positive numbers");
      freq[k] /= v.to_number<double>();
    }
  } else if (type != "default") {
    return unimplemented(cat("rope_scaling of type '", type, "'; known are default, linear, llama3, yarn"));
  }
  table.inv_freq.assign(freq.begin(), freq.end());
  return table;
}

}  // namespace oar
