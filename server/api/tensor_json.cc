#include "server/api/tensor_json.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/base/format.h"
#include "engine/text/utf8.h"
#include "server/api/classification.h"
#include "server/api/fields.h"
#include "server/api/json_writer.h"
#include "server/api/openai_request.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

// A parsed number takes ten times its text: larger tensors travel as binary data.
constexpr size_t kMaxJsonBytes = 16 << 20;
constexpr size_t kMaxTensors = 1024;

Status bad(std::string_view tensor, std::string why, const char* param) {
  return invalid_argument(cat("input ", in_quotes(tensor), ": ", why), param);
}

// ---- reading ----

// Appends the elements of nested arrays, row-major, to a tensor.
class DataReader {
 public:
  DataReader(std::string_view name, const Tensor& t) : name_(name), tensor_(t), count_(t.numel()) {}

  Status read(const json::value& data) {
    OAR_RETURN_IF_ERROR(walk(data));
    if (at_ != count_)
      return bad(name_, cat("has ", at_, " elements in data but its shape needs ", count_), "data");
    return ok_status();
  }

 private:
  Status walk(const json::value& v) {
    if (const json::array* list = v.if_array()) {
      for (const json::value& x : *list) OAR_RETURN_IF_ERROR(walk(x));
      return ok_status();
    }
    if (at_ >= count_)
      return bad(name_, cat("has more elements in data than the ", count_, " of its shape"), "data");
    OAR_RETURN_IF_ERROR(element(v));
    ++at_;
    return ok_status();
  }
  Status element(const json::value& v) {
    const DType dtype = tensor_.format().dtype();
    if (dtype == DType::kString) {
      if (!v.is_string()) return wrong(v, "a string");
      static_cast<std::string*>(tensor_.mutable_data())[at_] = std::string(v.get_string());
      return ok_status();
    }
    if (dtype == DType::kBool) {
      const bool number = v.is_int64() && (v.get_int64() == 0 || v.get_int64() == 1);
      if (!v.is_bool() && !number) return wrong(v, "true, false, 1 or 0");
      static_cast<uint8_t*>(tensor_.mutable_data())[at_] = v.is_bool() ? v.get_bool() : v.get_int64() == 1;
      return ok_status();
    }
    Status status;
    const bool known =
        dispatch_integer(dtype, [&](auto tag) { status = integer<typename decltype(tag)::type>(v); }) ||
        dispatch_float(dtype, [&](auto tag) { status = real<typename decltype(tag)::type>(v); });
    return known ? status : bad(name_, "its datatype travels as binary data only", "datatype");
  }
  template <class T>
  Status integer(const json::value& v) {
    json::error_code ec;
    const T x = v.is_number() ? v.to_number<T>(ec) : T{};
    if (ec || !v.is_number()) return wrong(v, "an integer in the datatype's range");
    static_cast<T*>(tensor_.mutable_data())[at_] = x;
    return ok_status();
  }
  template <class T>
  Status real(const json::value& v) {
    if (!v.is_number()) return wrong(v, "a number");
    using Compute = typename Element<T>::Compute;
    static_cast<T*>(tensor_.mutable_data())[at_] =
        Element<T>::store(static_cast<Compute>(v.to_number<double>()));
    return ok_status();
  }
  Status wrong(const json::value& v, std::string_view wanted) const {
    return bad(name_, cat("element ", at_, " of data must be ", wanted, ", got ", describe(v)), "data");
  }

  std::string_view name_;
  const Tensor& tensor_;
  const int64_t count_;
  int64_t at_ = 0;
};

// As ServedModels::config() describes language models.
bool takes_text(const TensorModelConfig& config) { return config.platform == "oar"; }

class BodyReader {
 public:
  BodyReader(std::string_view binary, std::shared_ptr<const void> owner, bool text, MemoryAccess memory)
      : binary_(binary), owner_(std::move(owner)), text_(text), memory_(std::move(memory)) {}

  Result<JsonInferRequest> read(const json::object& body) {
    JsonInferRequest out;
    Fields f(body);
    f.string("id", out.id, 256);
    const json::array* inputs = f.array("inputs");
    const json::array* outputs = f.array("outputs");
    const json::object* parameters = f.object("parameters");
    if (f.ok() && !inputs) f.fail("inputs", "inputs is missing; send an array of tensors");
    f.refuse_rest();
    if (!f.ok()) return f.status();
    if (inputs->size() > kMaxTensors || (outputs && outputs->size() > kMaxTensors))
      return invalid_argument(cat("at most ", kMaxTensors, " inputs and outputs"), "inputs");
    if (parameters) {
      Fields p(*parameters, "parameters.");
      p.boolean("binary_data_output", out.binary_by_default);
      if (!p.ok()) return p.status();
      if (text_) out.parameters = *parameters;
      if (!text_) { OAR_ASSIGN(out.timeout_us, read_timeout(*parameters)); }
    }
    for (const json::value& v : *inputs) {
      if (!v.is_object())
        return invalid_argument(cat("inputs must hold objects, got ", describe(v)), "inputs");
      OAR_ASSIGN(NamedTensor t, input(v.get_object()));
      out.inputs.push_back(std::move(t));
    }
    out.memory = memory_;
    if (!binary_.empty())
      return invalid_argument(
          cat(binary_.size(), " bytes follow the JSON that no input's binary_data_size claims"),
          "binary_data_size");
    for (size_t k = 0; outputs && k < outputs->size(); ++k) {
      const json::value& v = (*outputs)[k];
      if (!v.is_object())
        return invalid_argument(cat("outputs must hold objects, got ", describe(v)), "outputs");
      OAR_ASSIGN(JsonInferRequest::Output o, output(v.get_object(), out.binary_by_default));
      out.outputs.push_back(std::move(o));
    }
    return out;
  }

 private:
  Result<NamedTensor> input(const json::object& o) {
    NamedTensor out;
    std::string datatype;
    Fields f(o, "inputs[].");
    f.string("name", out.name, 1 << 16);
    f.string("datatype", datatype, 64);
    const json::array* dims = f.array("shape");
    const json::object* parameters = f.object("parameters");
    const json::value* data = f.find("data");
    f.refuse_rest();
    if (!f.ok()) return f.status();
    if (out.name.empty()) return invalid_argument("an input has no name", "name");
    if (!dims) return bad(out.name, "has no shape", "shape");
    OAR_ASSIGN(const Datatype* type, parse_datatype(out.name, datatype));
    std::vector<int64_t> sizes;
    for (const json::value& v : *dims) {
      json::error_code ec;
      const int64_t size = v.is_number() ? v.to_number<int64_t>(ec) : -1;
      if (ec || !v.is_number()) return bad(out.name, cat("its shape holds ", describe(v)), "shape");
      sizes.push_back(size);
      if (sizes.size() > 64) break;  // check_shape() says the rest
    }
    OAR_ASSIGN(const Shape shape, check_shape(out.name, sizes));
    int64_t binary = -1;
    RegionSpan place;
    if (parameters) {
      Fields p(*parameters, "parameters.");
      p.integer("binary_data_size", binary, 0, INT64_MAX);
      read_span(p, place);
      p.refuse_rest();
      if (!p.ok()) return p.status();
    }
    if (!place.region.empty()) {
      if (data || binary >= 0)
        return bad(out.name, "has data beside shared_memory_region; use one of the two", "data");
      OAR_ASSIGN(std::string bytes, memory_.read(place));
      const auto held = std::make_shared<const std::string>(std::move(bytes));
      OAR_ASSIGN(out.tensor, tensor_from_raw(out.name, *type, shape, *held, held));
      return out;
    }
    if (binary >= 0) {
      if (data) return bad(out.name, "has data beside binary_data_size; use one of the two", "data");
      if (static_cast<uint64_t>(binary) > binary_.size()) {
        return bad(
            out.name,
            cat("binary_data_size is ", binary, " but ", binary_.size(), " bytes are left in the body"),
            "binary_data_size");
      }
      OAR_ASSIGN(out.tensor, tensor_from_raw(out.name, *type, shape,
                                             binary_.substr(0, static_cast<size_t>(binary)), owner_));
      binary_.remove_prefix(static_cast<size_t>(binary));
      return out;
    }
    if (!data) return bad(out.name, "has neither data nor binary_data_size", "data");
    // Each element takes a character of the body at least: no allocation for a shape of billions.
    if (shape.numel() > static_cast<int64_t>(kMaxJsonBytes))
      return bad(out.name,
                 cat("its shape needs ", shape.numel(), " elements; send large tensors as binary data"),
                 "data");
    OAR_ASSIGN(out.tensor, allocate_wire(*type, shape));
    OAR_RETURN_IF_ERROR(DataReader(out.name, out.tensor).read(*data));
    return out;
  }

  static Result<JsonInferRequest::Output> output(const json::object& o, bool binary_by_default) {
    JsonInferRequest::Output out;
    out.binary = binary_by_default;
    Fields f(o, "outputs[].");
    f.string("name", out.name, 1 << 16);
    const json::object* parameters = f.object("parameters");
    f.refuse_rest();
    if (!f.ok()) return f.status();
    if (!parameters) return out;
    Fields p(*parameters, "parameters.");
    p.boolean("binary_data", out.binary);
    p.integer("classification", out.classification, 0, kMaxClasses);
    read_span(p, out.place);
    p.refuse_rest();
    if (!p.ok()) return p.status();
    return out;
  }

  std::string_view binary_;  // what is left of it
  std::shared_ptr<const void> owner_;
  const bool text_;  // the model is a language model, which reads the parameters itself
  const MemoryAccess memory_;
};

// A body that is nothing but the one input's bytes, a batch of one; one unknown extent follows from the size.
Result<JsonInferRequest> read_raw_body(const TensorModelConfig& config, std::string_view body,
                                       std::shared_ptr<const void> owner) {
  if (config.inputs.size() != 1 || !config.inputs[0].ranked)
    return invalid_argument(
        cat("Raw request must only have 1 input (found 1) to be deduced but got ", config.inputs.size(),
            " inputs in the model ", in_quotes(config.name), ", and a known rank; send JSON"),
        "Inference-Header-Content-Length");
  const TensorSpec& spec = config.inputs[0];
  const Datatype* type = datatype_of(spec.dtype);
  std::vector<int64_t> dims = spec.dims;
  if (config.max_batch > 0 && !dims.empty()) dims[0] = 1;
  JsonInferRequest out;
  out.binary_by_default = true;
  if (type->bytes == 0) {
    // Of several texts nothing would say where one ends.
    if (std::any_of(dims.begin(), dims.end(), [](int64_t d) { return d != 1; }))
      return invalid_argument(cat("For BYTE datatype raw input '", spec.name,
                                  "', the model must have input shape [1]; send JSON"),
                              "shape");
    OAR_ASSIGN(Tensor t,
               allocate_wire(*type, Shape(std::vector<int64_t>(std::max<size_t>(1, dims.size()), 1))));
    static_cast<std::string*>(t.mutable_data())[0] = std::string(body);
    out.inputs.push_back({spec.name, std::move(t)});
    return out;
  }
  if (std::count_if(dims.begin(), dims.end(), [](int64_t d) { return d < 0; }) > 1)
    return invalid_argument(cat("The shape of the raw input '", spec.name,
                                "' can not be deduced because there are more than one variable-sized "
                                "dimension; send JSON"),
                            "shape");
  uint64_t known = static_cast<uint64_t>(type->bytes);
  for (const int64_t d : dims)
    if (d > 0 && known <= body.size()) known *= static_cast<uint64_t>(d);
  for (int64_t& d : dims)
    if (d < 0) d = static_cast<int64_t>(body.size() / known);
  OAR_ASSIGN(const Shape shape, check_shape(spec.name, dims));
  OAR_ASSIGN(Tensor t, tensor_from_raw(spec.name, *type, shape, body, std::move(owner)));
  out.inputs.push_back({spec.name, std::move(t)});
  return out;
}

// ---- writing ----

Status write_data(JsonWriter& w, std::string_view name, const Tensor& t) {
  w.begin_array();
  const DType dtype = t.format().dtype();
  for (int64_t i = 0; i < t.numel(); ++i) {
    if (dtype == DType::kString) {
      const std::string& s = elements<std::string>(t)[i];
      if (!is_valid_utf8(s)) {
        return invalid_argument(cat("output ", in_quotes(name), ": element ", i,
                                    " is no UTF-8 text, which JSON needs; ask for it with binary_data true"),
                                "outputs");
      }
      w.string(s);
    } else if (dtype == DType::kBool) {
      w.boolean(elements<uint8_t>(t)[i] != 0);
    } else {
      dispatch_numeric(dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        const auto v = Element<T>::load(elements<T>(t)[i]);
        if constexpr (std::is_same_v<T, double>) w.number(v);
        else if constexpr (std::is_floating_point_v<std::decay_t<decltype(v)>>)
          w.number(static_cast<float>(v));
        else if constexpr (std::is_same_v<T, uint64_t>) w.number(v);
        else w.number(static_cast<int64_t>(v));
      });
    }
  }
  w.end_array();
  return ok_status();
}

void write_dims(JsonWriter& w, std::string_view key, std::span<const int64_t> dims) {
  w.key(key).begin_array();
  for (const int64_t d : dims) w.number(d);
  w.end_array();
}

void write_spec(JsonWriter& w, const TensorSpec& spec) {
  const Datatype* type = datatype_of(spec.dtype);
  w.begin_object()
      .key("name")
      .string(spec.name)
      .key("datatype")
      .string(type ? type->name : std::string_view());
  write_dims(w, "shape", spec.dims);
  w.end_object();
}

void write_duration(JsonWriter& w, std::string_view key, uint64_t count, uint64_t ns) {
  w.key(key).begin_object().key("count").number(count).key("ns").number(ns).end_object();
}

void write_statistics(JsonWriter& w, const ModelStatistics& m) {
  const InferStats& s = m.stats;
  w.begin_object().key("name").string(m.name).key("version").string(m.version);
  w.key("last_inference").number(s.last_ms);
  w.key("inference_count").number(s.inferences).key("execution_count").number(s.executions);
  w.key("inference_stats").begin_object();
  write_duration(w, "success", s.success, s.success_ns);
  write_duration(w, "fail", s.failure, s.failure_ns);
  write_duration(w, "queue", s.success, s.times.queue);
  write_duration(w, "compute_input", s.success, s.times.input);
  write_duration(w, "compute_infer", s.success, s.times.compute);
  write_duration(w, "compute_output", s.success, s.times.output);
  w.end_object().key("batch_stats").begin_array();
  for (const InferStats::Batch& b : s.batches) {
    w.begin_object().key("batch_size").number(b.rows);
    write_duration(w, "compute_input", b.count, b.input_ns);
    write_duration(w, "compute_infer", b.count, b.compute_ns);
    write_duration(w, "compute_output", b.count, b.output_ns);
    w.end_object();
  }
  w.end_array().end_object();
}

std::string config_type(DType dtype) {
  const Datatype* type = datatype_of(dtype);
  return dtype == DType::kString ? "TYPE_STRING" : type ? cat("TYPE_", type->name) : "TYPE_INVALID";
}

}  // namespace

Result<uint64_t> read_timeout(const json::object& parameters) {
  Fields p(parameters, "parameters.");
  int64_t timeout = 0;
  p.integer("timeout", timeout, 0, INT64_MAX);
  p.refuse_rest();
  if (!p.ok()) return p.status();
  return static_cast<uint64_t>(timeout);
}

Result<JsonInferRequest> parse_infer_body(const TensorModelConfig& config, std::string_view body,
                                          std::optional<size_t> json_bytes, std::shared_ptr<const void> owner,
                                          MemoryAccess memory) {
  if (json_bytes && *json_bytes > body.size()) {
    return invalid_argument(cat("the header Inference-Header-Content-Length says ", *json_bytes,
                                " but the body has ", body.size(), " bytes"),
                            "Inference-Header-Content-Length");
  }
  if (json_bytes && *json_bytes == 0) return read_raw_body(config, body, std::move(owner));
  const std::string_view text = body.substr(0, json_bytes.value_or(body.size()));
  if (text.size() > kMaxJsonBytes) {
    return invalid_argument(cat("the JSON of the request has ", text.size(), " bytes, more than ",
                                kMaxJsonBytes, "; send large tensors as binary data (binary_data_size)"),
                            "inputs");
  }
  OAR_ASSIGN(const json::object parsed, parse_body(text));
  return BodyReader(body.substr(text.size()), std::move(owner), takes_text(config), std::move(memory))
      .read(parsed);
}

Result<JsonInferAnswer> write_infer_body(const TensorModelConfig& config, const JsonInferRequest& request,
                                         const std::vector<Datum>& results,
                                         const std::vector<size_t>& wanted) {
  JsonInferAnswer out;
  std::string tail;
  JsonWriter w(out.body);
  w.begin_object().key("model_name").string(config.name).key("model_version").string(config.version);
  if (!request.id.empty()) w.key("id").string(request.id);
  w.key("outputs").begin_array();
  bool any_binary = false;
  for (size_t k = 0; k < wanted.size(); ++k) {
    const Datum& d = results[wanted[k]];
    const std::string& name = config.outputs[wanted[k]].name;
    const Datatype* type = d.is_tensor() ? datatype_of(d.tensor.format().dtype()) : nullptr;
    if (!type)
      return unimplemented(
          cat("output ", in_quotes(name), " is ", d.to_string(), ", which the protocol cannot carry"));
    w.begin_object().key("name").string(name).key("datatype").string(type->name);
    write_dims(w, "shape", {d.tensor.shape().begin(), d.tensor.shape().end()});
    const RegionSpan* place = request.outputs.empty() ? nullptr : &request.outputs[k].place;
    if (place && !place->region.empty()) {
      std::string bytes;
      append_raw(d.tensor, bytes);
      OAR_RETURN_IF_ERROR(request.memory.write(*place, bytes));
      w.key("parameters").begin_object().key("shared_memory_region").string(place->region);
      w.key("shared_memory_offset").number(place->offset);
      w.key("shared_memory_byte_size").number(static_cast<uint64_t>(bytes.size())).end_object();
    } else if (request.outputs.empty() ? request.binary_by_default : request.outputs[k].binary) {
      any_binary = true;
      w.key("parameters").begin_object().key("binary_data_size").number(raw_size(d.tensor)).end_object();
      append_raw(d.tensor, tail);
    } else {
      w.key("data");
      OAR_RETURN_IF_ERROR(write_data(w, name, d.tensor));
    }
    w.end_object();
  }
  w.end_array().end_object();
  if (any_binary) {
    out.json_bytes = out.body.size();
    out.body += tail;
  }
  return out;
}

std::string metadata_json(const ModelMetadata& m) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("name").string(m.config.name).key("versions").begin_array();
  for (const std::string& v : m.versions) w.string(v);
  w.end_array().key("platform").string(m.config.platform).key("inputs").begin_array();
  for (const TensorSpec& spec : m.config.inputs) write_spec(w, spec);
  w.end_array().key("outputs").begin_array();
  for (const TensorSpec& spec : m.config.outputs) write_spec(w, spec);
  w.end_array();
  if (!m.properties.empty()) {
    w.key("properties").begin_object();
    for (const auto& [name, value] : m.properties) w.key(name).string(value);
    w.end_object();
  }
  w.end_object();
  return out;
}

namespace {
void write_steps(JsonWriter& w, const std::vector<EnsembleStep>& steps) {
  const auto map = [&](const char* key, const std::vector<std::pair<std::string, std::string>>& names) {
    w.key(key).begin_object();
    for (const auto& [own, tensor] : names) w.key(own).string(tensor);
    w.end_object();
  };
  w.key("ensemble_scheduling").begin_object().key("step").begin_array();
  for (const EnsembleStep& s : steps) {
    w.begin_object().key("model_name").string(s.model).key("model_version").number(s.version);
    map("input_map", s.inputs);
    map("output_map", s.outputs);
    w.end_object();
  }
  w.end_array().end_object();
}
}  // namespace

std::string config_json(const TensorModelConfig& c) {
  std::string out;
  JsonWriter w(out);
  const size_t skip = c.max_batch > 0 ? 1 : 0;  // a configuration's dims leave the batch axis out
  const auto tensors = [&](const char* key, const std::vector<TensorSpec>& specs, bool input) {
    w.key(key).begin_array();
    for (const TensorSpec& s : specs) {
      w.begin_object().key("name").string(s.name).key("data_type").string(config_type(s.dtype));
      write_dims(w, "dims", std::span(s.dims).subspan(std::min(skip, s.dims.size())));
      if (input) w.key("optional").boolean(s.optional);
      w.end_object();
    }
    w.end_array();
  };
  const bool ensemble = !c.steps.empty();
  w.begin_object().key("name").string(c.name).key("platform").string(c.platform);
  w.key("backend").string(ensemble ? "" : "oar");
  w.key("max_batch_size").number(c.max_batch);
  tensors("input", c.inputs, true);
  tensors("output", c.outputs, false);
  if (ensemble) {
    write_steps(w, c.steps);
  } else {
    w.key("instance_group").begin_array().begin_object();
    w.key("name")
        .string(c.name + "_0")
        .key("kind")
        .string("KIND_CPU")
        .key("count")
        .number(int64_t{c.instances});
    w.end_object().end_array();
  }
  if (c.decoupled)
    w.key("model_transaction_policy").begin_object().key("decoupled").boolean(true).end_object();
  if (c.merge && c.max_batch > 0) {
    w.key("dynamic_batching").begin_object();
    write_dims(w, "preferred_batch_size", c.preferred_batches);
    w.key("max_queue_delay_microseconds").number(c.max_queue_delay_us);
    w.key("default_queue_policy").begin_object();
    w.key("timeout_action").string("REJECT").key("default_timeout_microseconds").number(c.default_timeout_us);
    w.key("allow_timeout_override")
        .boolean(c.allow_timeout_override)
        .key("max_queue_size")
        .number(c.max_queue);
    w.end_object().end_object();
  }
  w.end_object();
  return out;
}

std::string statistics_json(const std::vector<ModelStatistics>& models) {
  std::string out;
  JsonWriter w(out);
  w.begin_object().key("model_stats").begin_array();
  for (const ModelStatistics& m : models) write_statistics(w, m);
  w.end_array().end_object();
  return out;
}

std::string index_json(const std::vector<ModelIndexEntry>& entries) {
  std::string out;
  JsonWriter w(out);
  w.begin_array();
  for (const ModelIndexEntry& e : entries) {
    w.begin_object().key("name").string(e.name).key("version").string(e.version);
    w.key("state").string(e.state).key("reason").string(e.reason).end_object();
  }
  w.end_array();
  return out;
}

}  // namespace oar::api
