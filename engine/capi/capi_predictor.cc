// Predictors: oar_predictor_*(), oar_outputs_*().
#include <algorithm>
#include <atomic>
#include <chrono>

#include "engine/capi/call.h"
#include "engine/capi/dtype.h"
#include "engine/capi/handles.h"
#include "engine/capi/outputs.h"
#include "engine/capi/predictor_options.h"
#include "engine/graph/run_guard.h"
#include "engine/runtime/predictor.h"

namespace oar::capi {

class PredictorObject {
 public:
  explicit PredictorObject(std::unique_ptr<Predictor> p) : predictor(std::move(p)) {}
  const std::unique_ptr<Predictor> predictor;
  std::atomic<uint64_t> cancels{0};    // a run ends once there are more than when it began
  std::atomic<int64_t> timeout_ms{0};  // 0: none
};

namespace {

Result<Shape> shape_of(const oar_tensor& t, const std::string& name) {
  if (t.rank < 0 || t.rank > OAR_MAX_RANK)
    return invalid_argument(
        cat("input ", name, ": rank is ", t.rank, "; it must be between 0 and ", int{OAR_MAX_RANK}), "rank");
  for (int32_t i = 0; i < t.rank; ++i)
    if (t.shape[i] < 0)
      return invalid_argument(cat("input ", name, ": shape[", i, "] is ", t.shape[i], "; it must be >= 0"),
                              "shape");
  return Shape(std::span<const int64_t>(t.shape, static_cast<size_t>(t.rank)));
}

Status check_count(size_t count, size_t ports, const char* param = "count", const char* what = "inputs") {
  if (count == ports) return ok_status();
  return invalid_argument(cat(param, " is ", count, " but the model has ", ports, " ", what), param);
}

// The caller's tensors in the model's order.
Result<std::vector<oar_tensor>> in_order(const std::vector<IoSpec>& specs, const char* const* names,
                                         const oar_tensor* inputs, size_t count) {
  OAR_RETURN_IF_ERROR(check_count(count, specs.size()));
  if (count > 0 && names == nullptr) return null_argument("names");
  if (count > 0 && inputs == nullptr) return null_argument("inputs");
  std::vector<const oar_tensor*> found(count, nullptr);
  for (size_t i = 0; i < count; ++i) {
    if (names[i] == nullptr) return null_argument("names");
    const auto spec =
        std::find_if(specs.begin(), specs.end(), [&](const IoSpec& s) { return s.name == names[i]; });
    const auto k = static_cast<size_t>(spec - specs.begin());
    if (spec == specs.end() || found[k] != nullptr) {
      std::string known;
      for (const IoSpec& s : specs) known += cat(known.empty() ? "" : ", ", s.name);
      return invalid_argument(
          cat("names: '", names[i], "' is ", spec == specs.end() ? "no input of the model" : "given twice",
              "; its inputs are ", known),
          "names");
    }
    found[k] = &inputs[i];
  }
  std::vector<oar_tensor> ordered;
  for (const oar_tensor* t : found) ordered.push_back(*t);
  return ordered;
}

// A view of the caller's memory.
Result<Tensor> view(const oar_tensor& t, const std::string& name) {
  const auto type = from_c(t.dtype);
  if (!type)
    return invalid_argument(cat("input ", name, ": dtype ", static_cast<int>(t.dtype), " is no oar_dtype"),
                            "dtype");
  OAR_ASSIGN(const Shape shape, shape_of(t, name));
  const Format format = Format::of(*type);
  OAR_ASSIGN(const int64_t bytes, tensor_bytes(shape, format));
  if (t.bytes != static_cast<uint64_t>(bytes))
    return invalid_argument(cat("input ", name, ": bytes is ", t.bytes, " but dtype and shape make ", bytes),
                            "bytes");
  if (t.data == nullptr && bytes > 0) return null_argument("data");
  return Tensor::make(shape, format, Buffer::wrap_const(t.data, t.bytes, nullptr));
}

bool inside(const Tensor& t, const oar_tensor& input) {
  const auto at = reinterpret_cast<uintptr_t>(t.data()), begin = reinterpret_cast<uintptr_t>(input.data);
  return at >= begin && at < begin + input.bytes;
}

// What ends a run of this handle that begins now.
std::function<Status()> limits(const PredictorObject& p) {
  using Clock = std::chrono::steady_clock;
  const int64_t timeout = p.timeout_ms;
  const auto begin = Clock::now();
  return [&p, timeout, begin, cancels = p.cancels.load()]() -> Status {
    if (p.cancels != cancels)
      return {StatusCode::kCancelled, "the run was cancelled by oar_predictor_cancel()"};
    if (timeout > 0 && Clock::now() - begin >= std::chrono::milliseconds(timeout))
      return {StatusCode::kDeadlineExceeded, cat("the run took longer than its timeout of ", timeout, " ms")};
    return ok_status();
  };
}

Status run(const PredictorObject& p, const oar_tensor* inputs, size_t count, OutputsObject& out) {
  const std::vector<IoSpec>& specs = p.predictor->inputs();
  OAR_RETURN_IF_ERROR(check_count(count, specs.size()));
  if (inputs == nullptr && count > 0) return null_argument("inputs");
  std::vector<Datum> data;
  data.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    OAR_ASSIGN(Tensor t, view(inputs[i], specs[i].name));
    data.emplace_back(std::move(t));
  }
  const RunGuard guard(limits(p));
  OAR_ASSIGN(std::vector<Datum> results, p.predictor->run(std::move(data)));
  OAR_RETURN_IF_ERROR(RunGuard::check());  // the last step has none behind it
  for (size_t k = 0; k < results.size(); ++k) {
    Datum& d = results[k];
    const std::string& name = p.predictor->outputs()[k].name;
    if (!d.is_tensor())
      return unimplemented(cat("output ", name, " is a ", d.to_string(), ", which is no tensor"));
    if (d.tensor.shape().rank() > OAR_MAX_RANK || to_c(d.tensor.format().dtype()) == OAR_DTYPE_NONE)
      return unimplemented(
          cat("output ", name, " is ", d.to_string(), ", which this interface cannot hand out"));
    // A graph may hand an input through; the caller's memory ends with the call.
    for (size_t i = 0; i < count; ++i) {
      if (!inside(d.tensor, inputs[i])) continue;
      OAR_ASSIGN(Tensor own, Tensor::allocate(d.tensor.shape(), d.tensor.format()));
      std::memcpy(own.mutable_data(), d.tensor.data(), d.tensor.bytes());
      d.tensor = std::move(own);
      break;
    }
    out.tensors.push_back(std::move(d.tensor));
  }
  return ok_status();
}

void fill(const Tensor& t, oar_tensor& out) {
  out.dtype = to_c(t.format().dtype());
  out.rank = static_cast<int32_t>(t.shape().rank());
  for (int32_t i = 0; i < out.rank; ++i) out.shape[i] = t.shape()[i];
  out.bytes = t.bytes();
}

Status write_results(const OutputsObject& from, oar_tensor* results) {
  bool fits = true;
  for (size_t k = 0; k < from.tensors.size(); ++k) {
    if (results[k].data == nullptr && from.tensors[k].bytes() > 0) return null_argument("data");
    fits = fits && from.tensors[k].bytes() <= results[k].bytes;
  }
  for (size_t k = 0; k < from.tensors.size(); ++k) {
    const Tensor& t = from.tensors[k];
    fill(t, results[k]);
    if (fits && t.bytes() > 0) std::memcpy(const_cast<void*>(results[k].data), t.data(), t.bytes());
  }
  if (fits) return ok_status();
  return {StatusCode::kOutOfRange, "results: a result is larger than its memory; bytes says what each needs",
          "results"};
}

}  // namespace

Result<PredictorOptions> options_of(const oar_predictor_options& o) {
  OAR_RETURN_IF_ERROR(check_open());
  OAR_RETURN_IF_ERROR(check_threads(o.threads));
  PredictorOptions options;
  options.threads = o.threads;
  options.resources.pool = shared_pool(o.threads);
  if (o.precision != nullptr) { OAR_ASSIGN(options.precision, parse_precision(o.precision)); }
  if (o.cache_dir != nullptr) options.cache_dir = o.cache_dir;
  if (o.params != nullptr) options.import.parameters = o.params;
  std::string_view names = o.disabled_passes == nullptr ? "" : o.disabled_passes;
  if (names == "all") {
    for (const Pass& p : tensor_passes()) options.disabled_passes.insert(p.name);
    names = {};
  }
  while (!names.empty()) {
    const size_t comma = std::min(names.find(','), names.size());
    options.disabled_passes.emplace(names.substr(0, comma));
    names.remove_prefix(std::min(comma + 1, names.size()));
  }
  if (o.device != nullptr) options.device = o.device;
  if (o.weights != nullptr) options.weights = o.weights;
  options.log = logger(o.log, o.log_user);
  return options;
}

namespace {

Status hand_out(std::unique_ptr<Predictor> opened, oar_predictor* predictor) {
  OAR_ASSIGN(*predictor, put(std::make_shared<PredictorObject>(std::move(opened))));
  return ok_status();
}

Status refuse_weights(const oar_predictor_options& o) {
  if (o.weights == nullptr) return ok_status();
  return invalid_argument("weights is of oar_encoder_open(); a predictor takes precision", "weights");
}

Status open(const char* path, const oar_predictor_options& o, oar_predictor* predictor) {
  if (predictor == nullptr) return null_argument("predictor");
  *predictor = 0;
  if (path == nullptr) return null_argument("path");
  OAR_RETURN_IF_ERROR(refuse_weights(o));
  OAR_ASSIGN(const PredictorOptions options, options_of(o));
  OAR_ASSIGN(auto opened, Predictor::open(path, options));
  return hand_out(std::move(opened), predictor);
}

Result<Buffer> copied(const void* bytes, size_t size) {
  OAR_ASSIGN(Buffer own, Buffer::allocate(size));
  if (size > 0) std::memcpy(own.mutable_data(), bytes, size);
  return own;
}

Status open_memory(std::pair<const void*, size_t> model, std::pair<const void*, size_t> params,
                   const oar_predictor_options& o, oar_predictor* predictor) {
  if (predictor == nullptr) return null_argument("predictor");
  *predictor = 0;
  if (model.first == nullptr) return null_argument("model");
  if (params.first == nullptr && params.second > 0) return null_argument("params");
  if (o.params != nullptr || o.cache_dir != nullptr) {
    const char* name = o.params != nullptr ? "params" : "cache_dir";
    return invalid_argument(cat(name, " is of a model in a file; this one is in memory"), name);
  }
  OAR_RETURN_IF_ERROR(refuse_weights(o));
  OAR_ASSIGN(const PredictorOptions options, options_of(o));
  OAR_ASSIGN(Buffer program, copied(model.first, model.second));
  OAR_ASSIGN(Buffer weights, copied(params.first, params.second));
  OAR_ASSIGN(ImportedModel imported,
             import_model_bytes(std::move(program), std::move(weights), "the model in memory"));
  OAR_ASSIGN(auto opened, Predictor::create(std::move(imported), options));
  return hand_out(std::move(opened), predictor);
}

Status describe(const std::vector<IoSpec>& specs, size_t index, oar_tensor_info* info, size_t size) {
  if (index >= specs.size())
    return {StatusCode::kOutOfRange, cat("index is ", index, " but there are ", specs.size()), "index"};
  const IoSpec& s = specs[index];
  oar_tensor_info out = {};
  out.name = s.name.c_str();
  out.dtype = s.typed && s.kind == IoSpec::Kind::kTensor ? to_c(s.dtype) : OAR_DTYPE_NONE;
  out.rank = s.ranked ? static_cast<int32_t>(s.dims.size()) : -1;
  for (size_t i = 0; i < s.dims.size() && i < OAR_MAX_RANK; ++i) out.shape[i] = s.dims[i].value;
  return write_struct(out, "info", info, size);
}

}  // namespace
}  // namespace oar::capi

using namespace oar;        // NOLINT: the functions below are C
using namespace oar::capi;  // NOLINT

extern "C" {

oar_status oar_predictor_load(const char* path, int32_t threads, oar_predictor* predictor) {
  return call([&] {
    oar_predictor_options options = {};
    options.threads = threads;
    return open(path, options, predictor);
  });
}

oar_status oar_predictor_options_init(oar_predictor_options* options, size_t size) {
  return init_struct(oar_predictor_options{}, "options", options, size);
}

oar_status oar_predictor_open(const char* path, const oar_predictor_options* options,
                              oar_predictor* predictor) {
  return call([&]() -> Status {
    oar_predictor_options given = {};
    if (options != nullptr) OAR_RETURN_IF_ERROR(read_struct(options, "predictor_options", given));
    return open(path, given, predictor);
  });
}

oar_status oar_predictor_open_memory(const void* model, size_t model_bytes, const void* params,
                                     size_t params_bytes, const oar_predictor_options* options,
                                     oar_predictor* predictor) {
  return call([&]() -> Status {
    oar_predictor_options given = {};
    if (options != nullptr) OAR_RETURN_IF_ERROR(read_struct(options, "predictor_options", given));
    return open_memory({model, model_bytes}, {params, params_bytes}, given, predictor);
  });
}

oar_status oar_predictor_clone(oar_predictor predictor, oar_predictor* clone) {
  return call([&]() -> Status {
    if (clone == nullptr) return null_argument("clone");
    *clone = 0;
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    OAR_ASSIGN(*clone, put(std::make_shared<PredictorObject>(object->predictor->clone())));
    return ok_status();
  });
}

oar_status oar_predictor_close(oar_predictor predictor) {
  return call([&]() -> Status { return take<PredictorObject>(predictor).status(); });
}

oar_status oar_predictor_counts(oar_predictor predictor, size_t* inputs, size_t* outputs) {
  return call([&]() -> Status {
    if (inputs == nullptr) return null_argument("inputs");
    if (outputs == nullptr) return null_argument("outputs");
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    *inputs = object->predictor->inputs().size();
    *outputs = object->predictor->outputs().size();
    return ok_status();
  });
}

oar_status oar_predictor_input(oar_predictor predictor, size_t index, oar_tensor_info* info, size_t size) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    return describe(object->predictor->inputs(), index, info, size);
  });
}

oar_status oar_predictor_output(oar_predictor predictor, size_t index, oar_tensor_info* info, size_t size) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    return describe(object->predictor->outputs(), index, info, size);
  });
}

oar_status oar_predictor_run(oar_predictor predictor, const oar_tensor* inputs, size_t count,
                             oar_outputs* outputs) {
  return call([&]() -> Status {
    if (outputs == nullptr) return null_argument("outputs");
    *outputs = 0;
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    auto results = std::make_shared<OutputsObject>();
    OAR_RETURN_IF_ERROR(run(*object, inputs, count, *results));
    OAR_ASSIGN(*outputs, put(std::move(results)));
    return ok_status();
  });
}

oar_status oar_predictor_run_named(oar_predictor predictor, const char* const* names,
                                   const oar_tensor* inputs, size_t count, oar_outputs* outputs) {
  return call([&]() -> Status {
    if (outputs == nullptr) return null_argument("outputs");
    *outputs = 0;
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    OAR_ASSIGN(const std::vector<oar_tensor> ordered,
               in_order(object->predictor->inputs(), names, inputs, count));
    auto results = std::make_shared<OutputsObject>();
    OAR_RETURN_IF_ERROR(run(*object, ordered.data(), count, *results));
    OAR_ASSIGN(*outputs, put(std::move(results)));
    return ok_status();
  });
}

oar_status oar_predictor_run_into(oar_predictor predictor, const oar_tensor* inputs, size_t count,
                                  oar_tensor* results, size_t result_count) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    OAR_RETURN_IF_ERROR(
        check_count(result_count, object->predictor->outputs().size(), "result_count", "outputs"));
    if (results == nullptr && result_count > 0) return null_argument("results");
    OutputsObject made;
    OAR_RETURN_IF_ERROR(run(*object, inputs, count, made));
    return write_results(made, results);
  });
}

oar_status oar_predictor_cancel(oar_predictor predictor) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    ++object->cancels;
    return ok_status();
  });
}

oar_status oar_predictor_set_timeout(oar_predictor predictor, int64_t timeout_ms) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    // As nanoseconds without overflow.
    constexpr int64_t most = int64_t{1} << 40;
    if (timeout_ms < 0 || timeout_ms > most)
      return invalid_argument(cat("timeout_ms is ", timeout_ms, "; give 0 (no limit) to ", most),
                              "timeout_ms");
    object->timeout_ms = timeout_ms;
    return ok_status();
  });
}

oar_status oar_predictor_memory(oar_predictor predictor, const oar_tensor* inputs, size_t count,
                                uint64_t* bytes) {
  return call([&]() -> Status {
    if (bytes == nullptr) return null_argument("bytes");
    *bytes = 0;
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    const std::vector<IoSpec>& specs = object->predictor->inputs();
    OAR_RETURN_IF_ERROR(check_count(count, specs.size()));
    if (inputs == nullptr && count > 0) return null_argument("inputs");
    std::vector<Shape> shapes;
    for (size_t i = 0; i < count; ++i) {
      OAR_ASSIGN(const Shape shape, shape_of(inputs[i], specs[i].name));
      shapes.push_back(shape);
    }
    OAR_ASSIGN(const auto plan, object->predictor->plan(shapes));
    *bytes = plan->peak_bytes();
    return ok_status();
  });
}

oar_status oar_predictor_shrink(oar_predictor predictor, uint64_t* freed) {
  return call([&]() -> Status {
    OAR_ASSIGN(const auto object, find<PredictorObject>(predictor));
    const uint64_t bytes = object->predictor->shrink();
    if (freed != nullptr) *freed = bytes;
    return ok_status();
  });
}

oar_status oar_outputs_get(oar_outputs outputs, size_t index, oar_tensor* tensor) {
  return call([&]() -> Status {
    if (tensor == nullptr) return null_argument("tensor");
    OAR_ASSIGN(const auto object, find<OutputsObject>(outputs));
    if (index >= object->tensors.size())
      return {StatusCode::kOutOfRange, cat("index is ", index, " but there are ", object->tensors.size()),
              "index"};
    const Tensor& t = object->tensors[index];
    *tensor = {};
    fill(t, *tensor);
    tensor->data = t.data();
    return ok_status();
  });
}

oar_status oar_outputs_close(oar_outputs outputs) {
  return call([&]() -> Status { return take<OutputsObject>(outputs).status(); });
}

}  // extern "C"
