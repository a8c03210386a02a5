#include "server/repository/model_config.h"

#include <algorithm>

#include "engine/base/format.h"
#include "engine/base/nearest.h"
#include "server/api/tensor_wire.h"
#include "server/repository/config_fields.h"

namespace oar {
namespace {

using api::TensorModelConfig;
using api::TensorSpec;
using namespace config_fields;  // NOLINT: this file reads little else

constexpr int64_t kMaxBatch = 1 << 20, kMaxInstances = 256, kMaxQueue = 1 << 20;

Result<DType> read_data_type(const json::object& tensor) {
  OAR_ASSIGN(std::string name, read_string(tensor, "data_type"));
  if (name == "TYPE_STRING") return DType::kString;
  const std::string_view wire =
      std::string_view(name).starts_with("TYPE_") ? std::string_view(name).substr(5) : std::string_view("?");
  const api::Datatype* type = api::find_datatype(wire);
  if (!type || wire == "BYTES") return invalid_argument(cat("config: the data_type '", name, "' is unknown"));
  return type->dtype;
}

TensorSpec from_model(const IoSpec& io) {
  TensorSpec spec;
  spec.name = io.name;
  spec.dtype = io.dtype;
  spec.ranked = io.ranked;
  spec.optional = io.kind == IoSpec::Kind::kOptional;
  spec.list = io.kind == IoSpec::Kind::kSequence;
  for (const IoDim& d : io.dims) {
    spec.dims.push_back(d.value);
    spec.symbols.push_back(d.value < 0 ? d.name : std::string());
  }
  return spec;
}

Status check_servable(const IoSpec& io, const char* kind) {
  if (io.kind == IoSpec::Kind::kSequence) {
    return unimplemented(cat(kind, " '", io.name,
                             "' is a sequence of tensors, which the Open Inference Protocol cannot carry"));
  }
  if (io.typed && !api::datatype_of(io.dtype)) {
    return unimplemented(cat(kind, " '", io.name, "' has the dtype ", dtype_name(io.dtype),
                             ", which the Open Inference Protocol cannot carry; cast it in the model"));
  }
  if (std::string_view(kind) == "input" && !io.typed)
    return unimplemented(cat("input '", io.name, "' has no dtype in the model file"));
  return ok_status();
}

// What a config says of one tensor, over what the model says.
Status override_spec(const json::object& declared, bool input, bool batched, TensorSpec& spec) {
  const char* kind = input ? "input" : "output";
  const auto disagrees = [&](std::string_view what, std::string_view config, std::string_view model) {
    return invalid_argument(
        cat("config: ", kind, " '", spec.name, "' has ", what, " ", config, ", the model has ", model));
  };
  OAR_ASSIGN(const DType dtype, read_data_type(declared));
  if (dtype != spec.dtype)
    return disagrees("data_type", api::datatype_of(dtype)->name, api::datatype_of(spec.dtype)->name);
  for (const char* field : {"reshape", "allow_ragged_batch", "is_shape_tensor"}) {
    const json::value* v = declared.if_contains(field);
    if (v && !(v->is_bool() && !v->get_bool()))
      return unimplemented(
          cat("config: ", kind, " '", spec.name, "': '", field, "' is not offered; leave it out"));
  }
  bool optional = spec.optional;
  OAR_RETURN_IF_ERROR(read_bool(declared, "optional", optional));
  if (optional && !spec.optional)
    return invalid_argument(cat("config: ", kind, " '", spec.name, "' is optional, but the model needs it"));
  OAR_ASSIGN(std::vector<int64_t> dims, read_ints(declared, "dims", -1, int64_t{1} << 40));
  if (dims.empty() && declared.if_contains("dims") == nullptr) return ok_status();
  if (batched) dims.insert(dims.begin(), -1);
  const std::string config_shape = api::describe_tensor("", dims);
  if (!spec.ranked) {
    spec.dims = std::move(dims);
    spec.symbols.clear();
    spec.ranked = input;  // outputs are reported, not checked
    return ok_status();
  }
  const std::string model_shape = api::describe_tensor("", spec.dims);
  if (dims.size() != spec.dims.size()) return disagrees("dims (with the batch)", config_shape, model_shape);
  for (size_t k = 0; k < dims.size(); ++k) {
    if (dims[k] < 0) continue;  // the model's own, which may be narrower
    if (spec.dims[k] >= 0 && spec.dims[k] != dims[k])
      return disagrees("dims (with the batch)", config_shape, model_shape);
    spec.dims[k] = dims[k];
  }
  return ok_status();
}

bool names_a_batch(std::string_view symbol) {
  std::string lower;
  for (const char c : symbol) lower += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return lower.find("batch") != std::string::npos || lower == "n" || lower == "b" || lower == "bs";
}

Status check_batch_axis(const std::vector<TensorSpec>& specs, const char* kind, int64_t max_batch) {
  for (const TensorSpec& s : specs) {
    if (!s.ranked) continue;
    if (s.dims.empty() || s.dims[0] >= 0) {
      return invalid_argument(cat("max_batch_size is ", max_batch, ", but ", kind, " '", s.name,
                                  "' of the model is ",
                                  api::describe_tensor(api::datatype_of(s.dtype)->name, s.dims),
                                  ", whose first axis is no variable batch; set max_batch_size to 0"));
    }
  }
  return ok_status();
}

Status read_dynamic_batching(const json::object& batching, TensorModelConfig& out) {
  OAR_ASSIGN(out.preferred_batches, read_ints(batching, "preferred_batch_size", 1, kMaxBatch));
  for (const int64_t rows : out.preferred_batches) {
    if (rows > out.max_batch) {
      return invalid_argument(
          cat("config: preferred_batch_size ", rows, " is larger than max_batch_size ", out.max_batch));
    }
  }
  OAR_RETURN_IF_ERROR(
      read_int(batching, "max_queue_delay_microseconds", 0, 60'000'000, out.max_queue_delay_us));
  if (batching.if_contains("priority_levels") || batching.if_contains("priority_queue_policy"))
    return unimplemented("config: priority levels are not offered; leave priority_levels out");
  OAR_ASSIGN(const json::object* policy, message(batching, "default_queue_policy"));
  if (!policy) return ok_status();
  OAR_ASSIGN(const std::string action, read_string(*policy, "timeout_action"));
  if (!action.empty() && action != "REJECT")
    return unimplemented(cat("config: timeout_action ", action, " is not offered; use REJECT"));
  out.allow_timeout_override = false;  // the protocol's default once a policy is given
  OAR_RETURN_IF_ERROR(read_int(*policy, "default_timeout_microseconds", 0, int64_t{86400} * 1'000'000,
                               out.default_timeout_us));
  OAR_RETURN_IF_ERROR(read_bool(*policy, "allow_timeout_override", out.allow_timeout_override));
  int64_t size = 0;
  OAR_RETURN_IF_ERROR(read_int(*policy, "max_queue_size", 0, kMaxQueue, size));
  if (size > 0) out.max_queue = size;
  return ok_status();
}

Status read_instances(const json::object& config, TensorModelConfig& out) {
  const auto groups = each(config, "instance_group");
  if (groups.empty()) return ok_status();
  int64_t total = 0;
  for (const json::value* v : groups) {
    if (!v->is_object()) return wrong("instance_group", "a list of messages", *v);
    int64_t count = 1;
    OAR_RETURN_IF_ERROR(read_int(v->get_object(), "count", 1, kMaxInstances, count));
    total += count;
  }
  if (total > kMaxInstances)
    return invalid_argument(cat("config: ", total, " instances; at most ", kMaxInstances));
  out.instances = static_cast<int>(total);
  return ok_status();
}

// Fields of Triton's model_config.proto: what is read here, and what tunes back ends that are not here.
constexpr std::string_view kRead[] = {
    "name",   "platform",       "backend",          "max_batch_size", "input",
    "output", "version_policy", "dynamic_batching", "instance_group", "default_model_filename"};
constexpr std::string_view kWithoutEffect[] = {"optimization",
                                               "parameters",
                                               "model_warmup",
                                               "cc_model_filenames",
                                               "metric_tags",
                                               "model_operations",
                                               "response_cache",
                                               "model_metrics",
                                               "runtime",
                                               "model_repository_agents",
                                               "model_transaction_policy"};

Status check_name(const std::string& name, const json::object& config) {
  OAR_ASSIGN(const std::string own, read_string(config, "name"));
  if (own.empty() || own == name) return ok_status();
  return invalid_argument(cat("config: the name is '", own, "', the model's folder is '", name, "'"));
}

// `format`: what the model's own runner calls itself.
Status check_offered(const std::string& name, const json::object& config, const std::string& format) {
  OAR_RETURN_IF_ERROR(check_fields(name, config, kRead));
  for (const char* field : {"backend", "platform"}) {
    OAR_ASSIGN(const std::string value, read_string(config, field));
    static constexpr std::string_view kKnown[] = {"",       "oar",  "onnxruntime", "onnxruntime_onnx",
                                                  "paddle", "onnx", "openvino",    "paddle.pir"};
    if (value != format && std::ranges::find(kKnown, value) == std::end(kKnown)) {
      return unimplemented(
          cat("config: the ", field, " '", value,
              "' is not offered; ONNX models say onnxruntime, Paddle models paddle, both may say oar"));
    }
  }
  return ok_status();
}

}  // namespace

Status check_fields(const std::string& name, const json::object& config,
                    std::span<const std::string_view> read) {
  OAR_RETURN_IF_ERROR(check_name(name, config));
  for (const char* field : {"sequence_batching", "batch_input", "batch_output"}) {
    if (config.if_contains(field)) return unimplemented(cat("config: '", field, "' is not offered"));
  }
  for (const auto& field : config) {
    const std::string_view key = field.key();
    if (std::ranges::find(read, key) != read.end()) continue;
    if (std::ranges::find(kWithoutEffect, key) != std::end(kWithoutEffect)) continue;
    const std::string_view near = nearest_name(key, read);
    return invalid_argument(cat("config: there is no field '", key, "'",
                                near.empty() ? "" : cat("; did you mean '", near, "'?")));
  }
  return ok_status();
}

Status override_specs(const json::object& config, const char* field, bool input, bool batched,
                      std::vector<TensorSpec>& specs) {
  for (const json::value* v : each(config, field)) {
    if (!v->is_object()) return wrong(field, "a list of messages", *v);
    OAR_ASSIGN(const std::string name, read_string(v->get_object(), "name"));
    const auto it =
        std::find_if(specs.begin(), specs.end(), [&](const TensorSpec& s) { return s.name == name; });
    if (it == specs.end()) {
      std::string names;
      for (const TensorSpec& s : specs) names += cat(names.empty() ? "" : ", ", s.name);
      return invalid_argument(cat("config: the model has no ", field, " '", name, "'; it has ", names));
    }
    OAR_RETURN_IF_ERROR(override_spec(v->get_object(), input, batched, *it));
  }
  return ok_status();
}

Status check_language_config(const std::string& name, const json::object& config) {
  OAR_RETURN_IF_ERROR(check_name(name, config));
  for (const auto& field : config) {
    const std::string_view key = field.key();
    if (key == "name" || key == "version_policy") continue;
    if (std::ranges::find(kWithoutEffect, key) != std::end(kWithoutEffect)) continue;
    return unimplemented(cat("config: '", key, "' is for ordinary models, and '", name,
                             "' is a language model; flags of `oar serve` say how those are served"));
  }
  return ok_status();
}

Result<std::string> device_of(const json::object& config, const std::string& given) {
  const bool device = !given.empty() && given != "cpu";
  std::string asked;
  for (const json::value* v : each(config, "instance_group")) {
    if (!v->is_object()) return wrong("instance_group", "a list of messages", *v);
    OAR_ASSIGN(std::string kind, read_string(v->get_object(), "kind"));
    if (kind.empty() || kind == "KIND_MODEL") kind = "KIND_AUTO";
    if (kind != "KIND_AUTO" && kind != "KIND_CPU" && kind != "KIND_GPU")
      return unimplemented(
          cat("config: instance_group kind ", kind, " is not known; use KIND_CPU or KIND_GPU"));
    if (kind == "KIND_GPU" && !device)
      return unimplemented(
          "config: instance_group kind KIND_GPU needs a device: start the server with --device, "
          "or use KIND_CPU");
    if (!asked.empty() && kind != asked)
      return unimplemented(cat("config: instance_group has ", asked, " and ", kind,
                               "; all instances of a model run in one place"));
    asked = kind;
  }
  return asked == "KIND_CPU" ? std::string() : given;
}

std::vector<std::string> fields_without_effect(const json::object& config) {
  std::vector<std::string> found;
  for (const std::string_view field : kWithoutEffect) {
    if (config.if_contains(field)) found.emplace_back(field);
  }
  return found;
}

Result<VersionPolicy> read_version_policy(const json::object& config) {
  VersionPolicy out;
  OAR_ASSIGN(const json::object* policy, message(config, "version_policy"));
  if (!policy) return out;
  OAR_ASSIGN(const json::object* latest, message(*policy, "latest"));
  OAR_ASSIGN(const json::object* specific, message(*policy, "specific"));
  if (policy->if_contains("all")) {
    out.kind = VersionPolicy::Kind::kAll;
  } else if (specific) {
    out.kind = VersionPolicy::Kind::kSpecific;
    OAR_ASSIGN(out.versions, read_ints(*specific, "versions", 1, INT64_MAX));
  } else if (latest) {
    OAR_RETURN_IF_ERROR(read_int(*latest, "num_versions", 1, INT32_MAX, out.count));
  }
  return out;
}

bool has_batch_axis(const TensorRunner& model) {
  const bool paddle = model.format().starts_with("paddle");
  const auto batched = [&](const IoSpec& io) {
    if (io.kind != IoSpec::Kind::kTensor || !io.ranked || io.dims.empty() || io.dims[0].value >= 0)
      return false;
    return io.dims[0].name.empty() ? paddle : names_a_batch(io.dims[0].name);
  };
  if (model.inputs().empty() || model.outputs().empty()) return false;
  if (!model.rows_are_independent()) return false;
  return std::all_of(model.inputs().begin(), model.inputs().end(), batched) &&
         std::all_of(model.outputs().begin(), model.outputs().end(), batched);
}

Result<TensorModelConfig> make_model_config(const std::string& name, const json::object& config,
                                            const TensorRunner& model, const ConfigDefaults& defaults,
                                            bool built_in) {
  OAR_RETURN_IF_ERROR(check_offered(name, config, model.format()));
  TensorModelConfig out;
  out.name = name;
  out.platform = model.format();
  out.max_queue = defaults.max_queue;
  out.instances = defaults.instances;
  for (const IoSpec& io : model.inputs()) {
    if (!built_in) OAR_RETURN_IF_ERROR(check_servable(io, "input"));
    out.inputs.push_back(from_model(io));
  }
  for (const IoSpec& io : model.outputs()) {
    if (!built_in) OAR_RETURN_IF_ERROR(check_servable(io, "output"));
    out.outputs.push_back(from_model(io));
  }
  if (built_in) {
    OAR_RETURN_IF_ERROR(read_int(config, "max_batch_size", 0, 0, out.max_batch));
  } else if (config.if_contains("max_batch_size") || config.if_contains("input") ||
             config.if_contains("output")) {
    OAR_RETURN_IF_ERROR(read_int(config, "max_batch_size", 0, kMaxBatch, out.max_batch));
  } else {
    const bool variable =
        check_batch_axis(out.inputs, "input", 1).ok() && check_batch_axis(out.outputs, "output", 1).ok();
    if (defaults.max_batch > 0) out.max_batch = variable ? defaults.max_batch : 0;
    else out.max_batch = has_batch_axis(model) ? defaults.auto_max_batch : 0;
    out.max_queue_delay_us = defaults.max_queue_delay_us;
    for (const int64_t rows : defaults.preferred_batches)
      if (rows <= out.max_batch) out.preferred_batches.push_back(rows);
    out.merge = true;
  }
  const bool batched = out.max_batch > 0;
  if (batched) {
    OAR_RETURN_IF_ERROR(check_batch_axis(out.inputs, "input", out.max_batch));
    OAR_RETURN_IF_ERROR(check_batch_axis(out.outputs, "output", out.max_batch));
  }
  OAR_RETURN_IF_ERROR(override_specs(config, "input", true, batched, out.inputs));
  OAR_RETURN_IF_ERROR(override_specs(config, "output", false, batched, out.outputs));
  OAR_RETURN_IF_ERROR(read_instances(config, out));
  OAR_ASSIGN(const json::object* batching, message(config, "dynamic_batching"));
  if (batching) {
    if (built_in) return unimplemented("config: 'dynamic_batching' is not offered for built-in steps");
    out.merge = true;
    OAR_RETURN_IF_ERROR(read_dynamic_batching(*batching, out));
  }
  return out;
}

}  // namespace oar
