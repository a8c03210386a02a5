// Inverse frequencies for every kind of rope scaling we run. Computed in double, stored in f32, as the
// checkpoints' authors do.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/format.h"
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

// That `key` is out of its range.
Status not_within(const char* key, double value, const char* expected) {
  return invalid_argument(cat("config.json: rope_scaling '", key, "' is ", value, ", expected ", expected));
}

// Frequencies divided by the list `key`, one number for each.
Status divide(const json::object& s, const char* key, std::vector<double>& freq) {
  const json::value* list = s.if_contains(key);
  if (!list || !list->is_array() || list->get_array().size() != freq.size()) {
    return invalid_argument(
        cat("config.json: rope_scaling '", key, "' is not a list of ", freq.size(), " numbers"));
  }
  for (size_t k = 0; k < freq.size(); ++k) {
    const json::value& v = list->get_array()[k];
    if (!v.is_number() || !(v.to_number<double>() > 0))
      return invalid_argument(cat("config.json: rope_scaling '", key, "' must hold positive numbers"));
    freq[k] /= v.to_number<double>();
  }
  return ok_status();
}

// A larger base for a longer context: by a fixed `alpha`, or as much as the served context exceeds the
// model's own.
Result<double> dynamic_theta(const json::object& s, const ModelConfig& c, double theta, int64_t dim,
                             int64_t served) {
  const double power = static_cast<double>(dim) / static_cast<double>(std::max<int64_t>(dim - 2, 1));
  OAR_ASSIGN(const double alpha, number(s, "alpha", 0));
  OAR_ASSIGN(const double factor, number(s, "factor", 1));
  if (!(alpha >= 0)) return not_within("alpha", alpha, "at least 0");
  if (!(factor >= 1)) return not_within("factor", factor, "at least 1");
  if (alpha > 0) return theta * std::pow(alpha, power);
  const double longer =
      static_cast<double>(std::max(served, c.max_context)) / static_cast<double>(c.max_context);
  return theta * std::pow(factor * longer - (factor - 1), power);
}

// Low frequencies divided by `factor`, high ones kept, a blend between.
Status scale_llama3(const json::object& s, const ModelConfig& c, std::vector<double>& freq) {
  OAR_ASSIGN(const double factor, number(s, "factor", std::nullopt));
  OAR_ASSIGN(const double low, number(s, "low_freq_factor", std::nullopt));
  OAR_ASSIGN(const double high, number(s, "high_freq_factor", std::nullopt));
  OAR_ASSIGN(const double original,
             number(s, "original_max_position_embeddings", static_cast<double>(c.max_context)));
  if (!(factor >= 1)) return not_within("factor", factor, "at least 1");
  if (!(low > 0)) return not_within("low_freq_factor", low, "more than 0");
  if (!(high >= low)) return not_within("high_freq_factor", high, "at least 'low_freq_factor'");
  if (!(original > 0)) return not_within("original_max_position_embeddings", original, "more than 0");
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
Status scale_yarn(const json::object& s, const ModelConfig& c, double theta, int64_t dim,
                  std::vector<double>& freq, double* mscale) {
  const auto context = static_cast<double>(c.max_context);
  OAR_ASSIGN(const double original, number(s, "original_max_position_embeddings", context));
  if (!(original > 0)) return not_within("original_max_position_embeddings", original, "more than 0");
  OAR_ASSIGN(const double factor, number(s, "factor", context / original));
  OAR_ASSIGN(double fast, number(s, "beta_fast", 32));
  OAR_ASSIGN(double slow, number(s, "beta_slow", 1));
  if (fast == 0) fast = 32;  // as transformers reads them
  if (slow == 0) slow = 1;
  if (!(factor > 0)) return not_within("factor", factor, "more than 0");
  if (!(fast > 0)) return not_within("beta_fast", fast, "more than 0");
  if (!(slow > 0)) return not_within("beta_slow", slow, "more than 0");
  const auto turns_to_dim = [&](double turns) {
    return static_cast<double>(dim) * std::log(original / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(theta));
  };
  const json::value* truncate = s.if_contains("truncate");
  if (truncate && !truncate->is_null() && !truncate->is_bool())
    return invalid_argument("config.json: rope_scaling 'truncate' is neither true nor false");
  const bool round = !truncate || truncate->is_null() || truncate->get_bool();
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

// Each frequency divided by a factor of its own: a list for contexts up to the original length and one for
// longer ones, and queries and keys grown a little where the context is longer than the original.
Status scale_longrope(const json::object& s, const ModelConfig& c, int64_t served, std::vector<double>& freq,
                      double* mscale) {
  const auto context = static_cast<double>(c.max_context);
  OAR_ASSIGN(const double original, number(s, "original_max_position_embeddings", context));
  if (!(original > 1))
    return invalid_argument("config.json: rope_scaling 'original_max_position_embeddings' must be above 1");
  OAR_RETURN_IF_ERROR(
      divide(s, static_cast<double>(served) > original ? "long_factor" : "short_factor", freq));
  OAR_ASSIGN(const double factor, number(s, "factor", context / original));
  OAR_ASSIGN(*mscale, number(s, "attention_factor",
                             factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original))));
  return ok_status();
}

}  // namespace

Result<RopeTable> rope_table(const ModelConfig& c, const RopeConfig& rope, int64_t served_context) {
  const int64_t head = rope.head_dim > 0 ? rope.head_dim : c.head_dim;
  const auto rotated = static_cast<int64_t>(static_cast<double>(head) * rope.partial) / 2 * 2;
  if (rotated < 2) return invalid_argument(cat("config.json: heads of ", head, " have nothing to rotate"));
  const int64_t served = served_context > 0 ? served_context : c.max_context;
  const json::object& s = rope.scaling;
  std::string type = "default", type_key = "rope_type";
  for (const char* key : {"type", "rope_type"}) {
    const json::value* v = s.if_contains(key);
    if (!v || v->is_null()) continue;
    if (!v->is_string()) return invalid_argument(cat("config.json: rope_scaling '", key, "' is not a text"));
    type = std::string(v->get_string()), type_key = key;
  }
  // "proportional": pairs and frequencies are those of the whole head, and all but the first stand still.
  const bool proportional = type == "proportional";
  const int64_t dim = proportional ? head : rotated;
  double theta = rope.theta;
  if (type == "dynamic") { OAR_ASSIGN(theta, dynamic_theta(s, c, theta, dim, served)); }
  std::vector<double> freq(static_cast<size_t>(dim / 2));
  for (size_t k = 0; k < freq.size(); ++k)
    freq[k] = std::pow(theta, -2.0 * static_cast<double>(k) / static_cast<double>(dim));
  RopeTable table;
  if (proportional) {
    OAR_ASSIGN(const double factor, number(s, "factor", 1));
    if (!(factor > 0)) return invalid_argument("config.json: rope_scaling 'factor' must be more than 0");
    for (double& f : freq) f /= factor;
    std::fill(freq.begin() + rotated / 2, freq.end(), 0.0);
  } else if (type == "linear") {
    OAR_ASSIGN(const double factor, number(s, "factor", std::nullopt));
    if (!(factor > 0)) return invalid_argument("config.json: rope_scaling 'factor' must be more than 0");
    for (double& f : freq) f /= factor;
  } else if (type == "llama3") {
    OAR_RETURN_IF_ERROR(scale_llama3(s, c, freq));
  } else if (type == "yarn") {
    OAR_RETURN_IF_ERROR(scale_yarn(s, c, theta, dim, freq, &table.mscale));
  } else if (type == "longrope" || type == "su") {  // its name before it had a paper
    OAR_RETURN_IF_ERROR(scale_longrope(s, c, served, freq, &table.mscale));
  } else if (type == "freq_factors") {
    OAR_RETURN_IF_ERROR(divide(s, "factors", freq));
  } else if (type != "default" && type != "dynamic") {
    return unimplemented(cat("config.json: rope_scaling '", type_key, "' is '", type.substr(0, 80),
                             "'; known are default, linear, dynamic, llama3, yarn, longrope, "
                             "proportional"));
  }
  table.inv_freq.assign(freq.begin(), freq.end());
  return table;
}

}  // namespace oar
