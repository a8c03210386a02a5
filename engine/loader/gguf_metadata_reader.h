// Reads a GGUF file's "<architecture>.*" as keys of config.json. Of the loader's own files: gguf_model.cc and
// gguf_hybrid.cc.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/gguf.h"

namespace oar::gguf {

// Keys that change what some architecture computes, and the value that changes nothing; NaN: none does here.
struct Neutral {
  std::string_view key;
  double value;
};
inline constexpr Neutral kNeutral[] = {{"vocab_size", NAN},
                                       {"tensor_data_layout", NAN},
                                       {"rope.scaling.finetuned", NAN},
                                       {"rope.dimension_count", NAN},
                                       {"rope.dimension_sections", NAN},  // of pictures: a text's are one
                                       {"ssm.inner_size", NAN},
                                       {"attention.causal", 1},
                                       {"attention.scale", 0},
                                       {"attention.clamp_kqv", 0},
                                       {"attention.max_alibi_bias", 0},
                                       {"attention.output_scale", 1},
                                       {"attention.temperature_scale", 0},
                                       {"attn_logit_softcapping", 0},
                                       {"final_logit_softcapping", 0},
                                       {"embedding_scale", 1},
                                       {"residual_scale", 1},
                                       {"logit_scale", 1},
                                       {"use_parallel_residual", 0},
                                       {"expert_count", 0},
                                       {"expert_used_count", 0},
                                       {"expert_shared_count", 0},
                                       {"expert_shared_feed_forward_length", 0},
                                       {"expert_weights_scale", 1},
                                       {"expert_weights_norm", 1},
                                       {"expert_gating_func", 1},
                                       {"leading_dense_block_count", 0},
                                       {"rope.scaling.yarn_ext_factor", 1},
                                       {"rope.scaling.yarn_log_multiplier", 0}};

// Reads "<architecture>.<key>" values into config keys, keeping the first error.
class MetadataReader {
 public:
  MetadataReader(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  json::object config;
  Status status = ok_status();

  // A count: at most 2^31 - 1. Some files give one value per layer, which serves when all are equal.
  std::optional<int64_t> count(std::string_view key) {
    if (!status.ok()) return std::nullopt;
    const std::string full = asked(key);
    const auto at = file_.metadata.find(full);
    if (at == file_.metadata.end()) return std::nullopt;
    if (at->second.type == GgufType::kArray) return uniform_count(full);
    const auto v = file_.get_uint(full);
    if (!v.ok()) return fail(v.status());
    if (**v > INT32_MAX)
      return fail(data_loss(cat(file_.name, ": metadata ", full, " is ", **v, "; at most ", INT32_MAX)));
    return static_cast<int64_t>(**v);
  }
  std::optional<double> number(std::string_view key) {
    if (!status.ok()) return std::nullopt;
    const auto v = file_.get_float(asked(key));
    if (!v.ok()) return fail(v.status());
    if (*v && !std::isfinite(**v)) {
      return fail(data_loss(cat(file_.name, ": metadata ", prefix_, key, " is not a finite number")));
    }
    return *v;
  }
  std::optional<bool> flag(std::string_view key) {
    if (!status.ok()) return std::nullopt;
    const auto v = file_.get_bool(asked(key));
    if (!v.ok()) {
      fail(v.status());
      return std::nullopt;
    }
    return *v;
  }
  std::optional<std::string> text(std::string_view key) {
    if (!status.ok()) return std::nullopt;
    auto v = file_.get_string(asked(key));
    if (!v.ok()) return fail(v.status());
    return *std::move(v);
  }

  // A count of each of `layers` layers, from one for all or a list.
  std::vector<int64_t> counts(std::string_view key, int64_t layers) {
    const std::string full = asked(key);
    const auto at = file_.metadata.find(full);
    if (at == file_.metadata.end() || !status.ok()) return {};
    if (at->second.type != GgufType::kArray)
      return std::vector<int64_t>(static_cast<size_t>(layers), count(key).value_or(0));
    const auto values = file_.get_numbers(full, static_cast<uint64_t>(layers));
    if (!values.ok()) return fail(values.status()), std::vector<int64_t>();
    if (values->size() != static_cast<size_t>(layers)) {
      fail(data_loss(
          cat(file_.name, ": metadata ", full, " has ", values->size(), " entries for ", layers, " layers")));
      return {};
    }
    std::vector<int64_t> out;
    for (double v : *values) {
      if (!(v >= 0 && v <= INT32_MAX) || v != std::floor(v)) {
        fail(data_loss(cat(file_.name, ": metadata ", full, " holds ", v, ", which is no count")));
        return {};
      }
      out.push_back(static_cast<int64_t>(v));
    }
    return out;
  }

  void put_count(std::string_view name, std::string_view key) {
    if (const auto v = count(key)) config[name] = *v;
  }
  // Which layers have a window: every so manieth does not, or a list of flags by layer.
  void put_window_pattern() {
    const std::string key = asked("attention.sliding_window_pattern");
    const auto at = file_.metadata.find(key);
    if (at == file_.metadata.end() || !status.ok()) return;
    if (at->second.type != GgufType::kArray)
      return put_count("sliding_window_pattern", "attention.sliding_window_pattern");
    constexpr uint64_t kMaxLayers = 1 << 16;
    const auto flags = file_.get_numbers(key, kMaxLayers);
    if (!flags.ok()) {
      fail(flags.status());
      return;
    }
    json::array types;
    for (double f : *flags) types.push_back(f != 0 ? "sliding_attention" : "full_attention");
    config["layer_types"] = std::move(types);
  }
  void put_number(std::string_view name, std::string_view key) {
    if (const auto v = number(key)) config[name] = *v;
  }

  // Of the architecture's keys that nobody asked for: one of kNeutral must have the value that changes
  // nothing, else UNIMPLEMENTED names it. The names of those that nobody knows, for the log.
  Result<std::string> finish() const {
    std::string unknown;
    for (const auto& [full, value] : file_.metadata) {
      if (!full.starts_with(prefix_) || asked_.contains(full)) continue;
      const std::string_view key = std::string_view(full).substr(prefix_.size());
      const auto* rule = std::ranges::find(kNeutral, key, &Neutral::key);
      if (rule == std::end(kNeutral)) {
        unknown += cat(unknown.empty() ? "" : ", ", show_name(full));
        continue;
      }
      if (std::isnan(rule->value)) continue;
      double v = 0;
      if (value.type == GgufType::kBool) v = file_.get_bool(full)->value();
      else {
        OAR_ASSIGN(const auto number, file_.get_float(full));
        v = *number;
      }
      if (v != rule->value) {
        return unimplemented(cat(file_.name, ": metadata ", full, " is ", v,
                                 ", which is not supported; expected ", rule->value));
      }
    }
    return unknown;
  }

 private:
  std::string asked(std::string_view key) { return *asked_.insert(cat(prefix_, key)).first; }
  std::nullopt_t fail(Status s) {
    status = std::move(s);
    return std::nullopt;
  }
  std::optional<int64_t> uniform_count(const std::string& key) {
    constexpr uint64_t kMaxLayers = 1 << 16;
    const auto values = file_.get_numbers(key, kMaxLayers);
    if (!values.ok()) return fail(values.status());
    if (values->empty()) return std::nullopt;
    for (double v : *values) {
      if (v != values->front()) {
        return fail(unimplemented(cat(file_.name, ": metadata ", key, " differs between layers (",
                                      values->front(), ", ", v, "), which is not supported")));
      }
    }
    const double v = values->front();
    if (!(v >= 0 && v <= INT32_MAX) || v != std::floor(v)) {
      return fail(data_loss(cat(file_.name, ": metadata ", key, " holds ", v, ", which is no count")));
    }
    return static_cast<int64_t>(v);
  }

  const GgufFile& file_;
  std::string prefix_;
  std::set<std::string, std::less<>> asked_;
};

}  // namespace oar::gguf
