#include "engine/loader/quantization_config.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>

#include "engine/base/format.h"
#include "engine/loader/byte_reader.h"
#include "engine/loader/oar_quantized.h"
#include "engine/tensor/load_threads.h"
#include "kernels/thread_pool.h"

namespace oar {
namespace {

struct QuantMethod {
  std::string_view name;
  Result<std::unique_ptr<QuantReader>> (*open)(const json::object& config);
};
constexpr QuantMethod kMethods[] = {
    {"gptq", &open_gptq},
    {"awq", &open_awq},
    {"fp8", &open_fp8},
    {"compressed-tensors", &open_compressed_tensors},
};

// Scales of activations and of the KV cache, in any method.
constexpr std::string_view kActivationParts[] = {
    "input_scale", "input_zero_point", "input_global_scale", "activation_scale", "output_scale", "k_scale",
    "v_scale",     "q_scale",          "kv_scale",           "prob_scale"};

// Parts of a quantized weight in any method: without a config that says what they mean, nothing can.
constexpr std::string_view kTellTale[] = {"qweight", "weight_packed", "weight_scale", "weight_scale_inv"};

template <class List>
bool contains(const List& list, std::string_view item) {
  return std::find(std::begin(list), std::end(list), item) != std::end(list);
}

struct SplitName {
  std::string_view module, part;
};
SplitName split(std::string_view tensor) {
  const size_t dot = tensor.rfind('.');
  if (dot == std::string_view::npos) return {{}, tensor};
  return {tensor.substr(0, dot), tensor.substr(dot + 1)};
}

std::string method_list() {
  std::string list = "'oar', 'mxfp4'";
  for (const QuantMethod& m : kMethods) list += cat(", '", m.name, "'");
  return list;
}

Status refuse_unexplained(const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (contains(kTellTale, split(name).part)) {
      return data_loss(cat("tensor ", show_name(name),
                           " is part of a quantized weight, but config.json has no quantization_config that "
                           "says how; use the config.json the checkpoint came with"));
    }
  }
  return ok_status();
}

void erase_activation_scales(TensorMap& tensors, std::vector<std::string>* notices) {
  const size_t erased = std::erase_if(
      tensors, [](const auto& item) { return contains(kActivationParts, split(item.first).part); });
  if (erased > 0) {
    notices->push_back(cat(erased,
                           " stored scales of activations or of the KV cache are not used: activations keep ",
                           "their own precision, the option kv chooses the cache's"));
  }
}

// gpt-oss's experts: <name>_blocks (..., groups, 16) with two codes a byte, <name>_scales (..., groups). They
// stay as they are: who writes the graph takes them apart by expert (engine/models/experts.cc).
Status check_mxfp4(const TensorMap& tensors) {
  constexpr std::string_view kCodes = "_blocks", kScales = "_scales";
  const auto shown = [](const auto& t) {
    return cat("tensor ", show_name(t.first), " is ", t.second.format().name(), " ",
               t.second.shape().to_string());
  };
  for (const auto& t : tensors) {
    const std::string_view name = t.first;
    const bool codes = name.ends_with(kCodes);
    if (!codes && !name.ends_with(kScales)) continue;
    const std::string_view stem = name.substr(0, name.size() - kCodes.size());
    const auto partner = tensors.find(cat(stem, codes ? kScales : kCodes));
    if (partner == tensors.end())
      return data_loss(cat(shown(t), " without ", show_name(cat(stem, codes ? kScales : kCodes)),
                           " beside it; is a shard missing?"));
    if (!codes) continue;
    const Shape &blocks = t.second.shape(), &scales = partner->second.shape();
    const Format u8 = Format::of(DType::kU8);
    bool fit = t.second.format() == u8 && partner->second.format() == u8 && blocks.rank() == 4 &&
               scales.rank() == 3 && blocks[3] == 16;
    for (int k = 0; fit && k < 3; ++k) fit = blocks[k] == scales[k];
    if (!fit)
      return data_loss(cat(shown(t), " and ", shown(*partner),
                           "; mxfp4 is u8 [experts, rows, groups, 16] and u8 [experts, rows, groups]"));
  }
  return ok_status();
}

struct Repacked {
  std::string module, notice;
  Tensor weight;
  Status status;
};

// The weights of all quantized modules, by name, several at a time. Of several errors the first module's.
Result<std::vector<Repacked>> repack(const QuantReader& reader, const TensorMap& tensors) {
  std::set<std::string> modules;
  uint64_t bytes = 0;
  for (const auto& [tensor, value] : tensors) {
    const SplitName s = split(tensor);
    if (!contains(reader.parts(), s.part)) continue;
    modules.emplace(s.module);
    bytes += value.bytes();
  }
  std::vector<Repacked> out;
  for (const std::string& module : modules) out.push_back({module, {}, {}, {}});
  std::atomic<size_t> failed{out.size()};
  auto work = [&](size_t i) {
    if (i >= failed) return;
    auto weight = reader.weight(QuantModule(out[i].module, tensors), &out[i].notice);
    out[i].status = weight.status();
    if (weight.ok()) {
      out[i].weight = std::move(*weight);
      return;
    }
    for (size_t first = failed; i < first && !failed.compare_exchange_weak(first, i);) {}
  };
  // Threads of its own: this is long before a backend with a pool is chosen. Modules are about as large.
  const std::vector<uint64_t> sizes(out.size(), out.empty() ? 0 : bytes / out.size());
  for_each_largest_first(usable_processors(), sizes, work);
  if (failed < out.size()) return out[failed].status;
  return out;
}

}  // namespace

const Tensor* QuantModule::find(std::string_view part) const {
  const auto at = tensors_.find(cat(name_, ".", part));
  return at == tensors_.end() ? nullptr : &at->second;
}

Result<const Tensor*> QuantModule::require(std::string_view part) const {
  const Tensor* t = find(part);
  if (t == nullptr) {
    return data_loss(cat("tensor ", show_name(cat(name_, ".", part)),
                         " is missing: other parts of this quantized weight are there; is a shard missing?"));
  }
  return t;
}

Result<const Tensor*> QuantModule::require_words(std::string_view part) const {
  OAR_ASSIGN(const Tensor* t, require(part));
  const bool words = t->format() == Format::i32() || t->format() == Format::of(DType::kU32);
  if (!words || t->shape().rank() != 2 || t->numel() == 0) {
    return data_loss(cat(describe(part), "; packed codes are a matrix of i32"));
  }
  return t;
}

std::string QuantModule::describe(std::string_view part) const {
  const Tensor* t = find(part);
  const std::string tensor = cat("tensor ", show_name(cat(name_, ".", part)));
  return t == nullptr ? cat(tensor, " is missing")
                      : cat(tensor, " is ", t->format().name(), " ", t->shape().to_string());
}

Result<int64_t> quant_int(const json::object& config, std::string_view key, int64_t fallback) {
  const json::value* v = config.if_contains(key);
  if (v == nullptr || v->is_null()) return fallback;
  if (v->is_int64()) return v->get_int64();
  return invalid_argument(
      cat("config.json: quantization_config.", key, " must be an integer, not ", json::serialize(*v)));
}

Result<bool> quant_bool(const json::object& config, std::string_view key, bool fallback) {
  const json::value* v = config.if_contains(key);
  if (v == nullptr || v->is_null()) return fallback;
  if (v->is_bool()) return v->get_bool();
  return invalid_argument(
      cat("config.json: quantization_config.", key, " must be true or false, not ", json::serialize(*v)));
}

Result<std::string> quant_string(const json::object& config, std::string_view key,
                                 std::string_view fallback) {
  const json::value* v = config.if_contains(key);
  if (v == nullptr || v->is_null()) return std::string(fallback);
  if (v->is_string()) return std::string(v->get_string());
  return invalid_argument(
      cat("config.json: quantization_config.", key, " must be a string, not ", json::serialize(*v)));
}

Status apply_quantization_config(const json::object& config, TensorMap& tensors,
                                 std::vector<std::string>* notices) {
  const json::value* v = config.if_contains("quantization_config");
  if (v == nullptr || v->is_null()) v = config.if_contains("compression_config");  // its name before 2024
  if (v == nullptr || v->is_null()) return refuse_unexplained(tensors);
  if (!v->is_object()) return invalid_argument("config.json: quantization_config must be an object");
  const json::object& quant = v->get_object();
  OAR_ASSIGN(const std::string name, quant_string(quant, "quant_method", ""));
  if (name == "oar") return apply_oar_quantization(config, tensors);
  if (name == "mxfp4") return check_mxfp4(tensors);

  const auto* method = std::find_if(std::begin(kMethods), std::end(kMethods),
                                    [&](const QuantMethod& m) { return m.name == name; });
  if (method == std::end(kMethods)) {
    return unimplemented(cat("config.json: quantization_config.quant_method is ", show_name(name),
                             "; read are ", method_list(),
                             "; use such a checkpoint, or the unquantized one with weights int4"));
  }
  OAR_ASSIGN(const std::unique_ptr<QuantReader> reader, method->open(quant));
  erase_activation_scales(tensors, notices);

  OAR_ASSIGN(std::vector<Repacked> modules, repack(*reader, tensors));
  std::map<std::string, int> told;
  for (Repacked& m : modules) {
    if (!m.notice.empty()) ++told[m.notice];
    for (std::string_view part : reader->parts()) {
      if (const auto at = tensors.find(cat(m.module, ".", part)); at != tensors.end()) tensors.erase(at);
    }
    tensors.insert_or_assign(cat(m.module, ".weight"), std::move(m.weight));
  }
  for (const auto& [notice, count] : told) notices->push_back(cat(count, " weights: ", notice));

  // A scaled type without its scale would be read as the unscaled number.
  for (const auto& [tensor, value] : tensors) {
    const DType dtype = value.format().dtype();
    if (tensor.ends_with(".weight") &&
        (dtype == DType::kE4M3 || dtype == DType::kE5M2 || dtype == DType::kI8)) {
      return data_loss(cat("tensor ", show_name(tensor), " is ", value.format().name(), " ",
                           value.shape().to_string(), " and has no scale beside it, which quant_method '",
                           name, "' needs; is a shard missing?"));
    }
  }
  return refuse_unexplained(tensors);
}

}  // namespace oar
