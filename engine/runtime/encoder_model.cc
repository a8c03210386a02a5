#include "engine/runtime/encoder_model.h"

#include <algorithm>
#include <chrono>
#include <mutex>

#include "engine/base/format.h"
#include "engine/graph/run.h"
#include "engine/models/config_reader.h"
#include "engine/models/exported_encoder.h"
#include "engine/ops/weights.h"
#include "engine/runtime/serving_plan.h"
#include "engine/tensor/charge.h"
#include "engine/tensor/element.h"

namespace oar {

struct EncoderModel::Shared {
  EncoderConfig config;
  EncoderOperands operands{0, 1, -1};         // among `inputs`
  std::vector<BuiltEncoder::Output> results;  // as `outputs`
  std::string name, weights, format = "safetensors";
  std::vector<IoSpec> inputs, outputs;
  SymbolId T = 0, B = 0;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<const Program> program;
  mutable Reservation reserved;  // arenas are charged to it
  Reservation mapped;            // weights that are read where the file has them
  mutable std::mutex device;     // held by the run that is on it
};

// Of one handle: a Run for each of its calls at the same time, waiting for the next.
struct EncoderModel::Runs {
  std::mutex mutex;
  std::vector<std::unique_ptr<Run>> idle;

  Result<std::unique_ptr<Run>> take(const Shared& s) {
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        auto run = std::move(idle.back());
        idle.pop_back();
        return run;
      }
    }
    const ChargeTo charge(s.reserved);
    return Run::create(s.program);
  }
  void give_back(std::unique_ptr<Run> run) {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(run));
  }
};

EncoderModel::EncoderModel(std::shared_ptr<const Shared> shared)
    : shared_(std::move(shared)), runs_(std::make_unique<Runs>()) {}
EncoderModel::~EncoderModel() = default;

const EncoderConfig& EncoderModel::config() const { return shared_->config; }
const std::string& EncoderModel::weights() const { return shared_->weights; }
uint64_t EncoderModel::weight_bytes() const {
  return shared_->program->in_place_weight_bytes() + shared_->program->copied_weight_bytes();
}
const Graph& EncoderModel::graph() const { return shared_->program->graph(); }
const std::string& EncoderModel::format() const { return shared_->format; }
const std::vector<IoSpec>& EncoderModel::inputs() const { return shared_->inputs; }
const std::vector<IoSpec>& EncoderModel::outputs() const { return shared_->outputs; }
std::unique_ptr<TensorRunner> EncoderModel::another() const {
  return std::unique_ptr<TensorRunner>(new EncoderModel(shared_));
}

namespace {

IoSpec io_spec(const char* name, DType dtype, std::vector<IoDim> dims) {
  IoSpec io;
  io.name = name;
  io.dtype = dtype;
  io.typed = io.ranked = true;
  io.dims = std::move(dims);
  return io;
}

// The word of weight_scheme() that the options ask for.
Result<std::string> wanted_weights(const PredictorOptions& o) {
  if (o.calibration)
    return invalid_argument(
        "calibration is of ordinary models; a checkpoint's encoder takes weights int8, int4 or fp8",
        "calibration");
  const bool given = !o.weights.empty() && o.weights != "auto";
  if (o.precision == Precision::kF32) return given ? o.weights : std::string("auto");
  const std::string precision = precision_name(o.precision);
  // A graph that was exported runs as it is then.
  if (o.precision == Precision::kF16 || o.precision == Precision::kTf32)
    return unimplemented(
        cat("precision ", precision,
            " is of ordinary models; an encoder over packed rows takes weights bf16, int8, int4 "
            "or fp8"));
  if (given && o.weights != precision)
    return invalid_argument(cat("weights is ", o.weights, " and precision ", precision,
                                ", which mean the same of an encoder; leave one of the two out"),
                            "precision");
  return precision;
}

// Passes of ordinary models may be named too: one list serves all models of a server.
PassOptions pass_options(const PredictorOptions& o) {
  PassOptions out;
  out.explain = o.explain;
  out.observer = o.pass_observer;
  const auto has = [](std::span<const Pass> passes, const std::string& name) {
    return std::any_of(passes.begin(), passes.end(), [&](const Pass& p) { return name == p.name; });
  };
  for (const std::string& name : o.disabled_passes)
    if (has(default_passes(), name) || name == "fuse_epilogues" || !has(tensor_passes(), name))
      out.disabled.insert(name);
  return out;
}

// Of the passes of ordinary models, which make a file's spelling into ops: those about images are left out.
PassOptions export_passes(const PredictorOptions& o) {
  PassOptions out;
  out.disabled = {"channels_last", "winograd"};
  for (const std::string& name : o.disabled_passes)
    if (std::any_of(tensor_passes().begin(), tensor_passes().end(),
                    [&](const Pass& p) { return name == p.name; }))
      out.disabled.insert(name);
  return out;
}

// Which inputs of a file are an encoder's, by their names; sizes must be open, and values i64.
Result<EncoderOperands> operands_of(const ImportedModel& m) {
  EncoderOperands out;
  for (size_t k = 0; k < m.inputs.size(); ++k) {
    const IoSpec& io = m.inputs[k];
    const auto has = [&](const char* word) { return io.name.find(word) != std::string::npos; };
    const bool open = io.kind == IoSpec::Kind::kTensor && io.typed && io.dtype == DType::kI64 && io.ranked &&
                      io.dims.size() == 2 && io.dims[0].value < 0 && io.dims[1].value < 0;
    if (!open) return unimplemented(cat("input ", io.to_string(), " is not i64 of any batch and sequence"));
    if (has("input_ids") || io.name == "ids") out.ids = static_cast<int>(k);
    else if (has("mask")) out.mask = static_cast<int>(k);
    else if (has("token_type") || has("segment")) out.types = static_cast<int>(k);
    else return unimplemented(cat("input '", io.name, "' is none of ids, mask and types"));
  }
  for (const IoSpec& io : m.outputs)
    if (io.kind != IoSpec::Kind::kTensor || !io.typed || io.dtype != DType::kF32)
      return unimplemented(cat("output ", io.to_string(), " is not f32"));
  return out;
}

// Activations into the layers before them, where all layers are in panels: those end so, other layouts do
// not.
Status fuse_activations(Graph& graph, const Backend& backend, const PassOptions& options) {
  for (const Node& n : graph.nodes()) {
    if (!n.is("linear")) continue;
    const TensorType& w = graph.value(n.inputs[2]).type;
    const Shape shape{w.shape[0].const_value(), w.shape[1].const_value()};
    if (!in_panels(n, compute_format(w.format, shape, n.attrs.get_string("format"), backend), backend))
      return ok_status();
  }
  for (const Pass& pass : tensor_passes()) {
    if (std::string_view(pass.name) != "fuse_epilogues") continue;
    PassOptions all = options;
    all.disabled.clear();
    OAR_RETURN_IF_ERROR(run_passes(graph, {&pass, 1}, all).status());
  }
  return ok_status();
}

}  // namespace

Result<std::unique_ptr<EncoderModel>> EncoderModel::load(const std::string& folder,
                                                         const PredictorOptions& options) {
  const TrimMemoryAfter trim;
  OAR_ASSIGN(const std::string weights, wanted_weights(options));
  auto shared = std::make_shared<Shared>();
  OAR_ASSIGN(shared->backend, make_backend(options));
  shared->name = options.name.empty() ? folder : options.name;
  OAR_ASSIGN(shared->reserved, options.resources.reserve(shared->name));
  const ChargeTo charge(shared->reserved);
  LoadOptions load;
  load.mmap = options.import.mmap;
  OAR_ASSIGN(Checkpoint checkpoint, load_checkpoint(folder, load));
  for (const std::string& notice : checkpoint.notices) options.log(LogLevel::kWarning, notice);
  OAR_ASSIGN(checkpoint,
             quantize_at_load(std::move(checkpoint), weights, {options.cache_dir, options.cache_bytes},
                              shared->backend->host_pool(), options.log, {}));
  OAR_ASSIGN(shared->config, read_encoder_config(checkpoint.config));
  const EncoderConfig& c = shared->config;
  if (!c.unknown_keys.empty())
    options.log(LogLevel::kWarning, unknown_keys_notice(c.model_type, c.unknown_keys));

  const int64_t run_tokens = std::max(kRunTokens, c.max_tokens());
  OAR_ASSIGN(BuiltEncoder built, build_encoder(checkpoint, c, run_tokens, run_tokens));
  const IoDim batch{-1, "batch"}, sequence{-1, "sequence"};
  for (const char* input : {"input_ids", "attention_mask", "token_type_ids"})
    if (shared->inputs.size() < 2 || c.types > 0)
      shared->inputs.push_back(io_spec(input, DType::kI64, {batch, sequence}));
  if (c.types > 0) shared->operands.types = 2;
  for (const BuiltEncoder::Output& o : built.outputs) {
    std::vector<IoDim> dims{batch};
    if (o.per_token) dims.push_back(sequence);
    dims.push_back({o.width, ""});
    shared->outputs.push_back(io_spec(o.name.c_str(), DType::kF32, std::move(dims)));
  }
  return finish(std::move(shared), std::move(built), weights, options);
}

Result<std::unique_ptr<EncoderModel>> EncoderModel::create(ImportedModel model,
                                                           const PredictorOptions& options) {
  const TrimMemoryAfter trim;
  OAR_ASSIGN(const std::string weights, wanted_weights(options));
  auto shared = std::make_shared<Shared>();
  OAR_ASSIGN(shared->operands, operands_of(model));
  const std::string file = model.files.empty() ? std::string() : model.files.back();
  shared->name = options.name.empty() ? file : options.name;
  OAR_ASSIGN(shared->backend, make_backend(options));
  OAR_ASSIGN(shared->reserved, options.resources.reserve(shared->name));
  const ChargeTo charge(shared->reserved);
  OAR_RETURN_IF_ERROR(run_passes(*model.graph, tensor_passes(), export_passes(options)).status());
  OAR_ASSIGN(ExportedEncoder packed, pack_exported_encoder(*model.graph, shared->operands, kRunTokens));
  model.graph.reset();
  OAR_RETURN_IF_ERROR(quantize_graph_at_load(packed.built.graph, file, weights,
                                             {options.cache_dir, options.cache_bytes},
                                             shared->backend->host_pool(), options.log));
  shared->config = std::move(packed.config);
  shared->format = std::move(model.format);
  shared->inputs = std::move(model.inputs);
  shared->outputs = std::move(model.outputs);
  return finish(std::move(shared), std::move(packed.built), weights, options);
}

Result<std::unique_ptr<EncoderModel>> EncoderModel::finish(std::shared_ptr<Shared> shared, BuiltEncoder built,
                                                           const std::string& weights,
                                                           const PredictorOptions& options) {
  Backend& backend = *shared->backend;
  const std::string& name = shared->name;
  shared->T = built.T, shared->B = built.B, shared->results = std::move(built.outputs);
  PassOptions passes = pass_options(options);
  const bool epilogues = passes.disabled.erase("fuse_epilogues") == 0;
  OAR_RETURN_IF_ERROR(run_passes(built.graph, default_passes(), passes).status());
  OAR_ASSIGN(LinearWeights linears, compute_linears_in(built.graph, weights, options.log));
  shared->weights = std::move(linears.name);
  if (epilogues) OAR_RETURN_IF_ERROR(fuse_activations(built.graph, backend, passes));
  // What the weights will take, before they are made.
  const ForeseenWeights foreseen = foresee_weights(built.graph, backend);
  const bool device = backend.memory() == MemoryKind::kDevice;
  OAR_ASSIGN(Reservation mapped, options.resources.reserve(name));
  OAR_RETURN_IF_ERROR(mapped.grow(device ? 0 : foreseen.mapped, "mapped weights"));
  OAR_RETURN_IF_ERROR(shared->reserved.grow(device ? 0 : foreseen.made, "weights"));
  OAR_ASSIGN(shared->program, Program::create(std::move(built.graph), backend, {options.log, {}}));
  // What buffers took is theirs, what they did not take is nobody's.
  shared->reserved.shrink();
  shared->mapped = std::move(mapped);

  auto model = std::unique_ptr<EncoderModel>(new EncoderModel(std::move(shared)));
  // The memory of a first run: better missing now than at the first request.
  OAR_ASSIGN(auto run, model->runs_->take(*model->shared_));
  model->runs_->give_back(std::move(run));
  options.log(LogLevel::kInfo, cat(name, ": weights ", model->weights(), ", ",
                                   format_bytes(model->weight_bytes()), ", ", backend.name()));
  return model;
}

namespace {

// A row of a request: which of its tokens are seen.
struct Row {
  size_t request = 0;
  int64_t row = 0;
  std::vector<int32_t> columns;
};

Status out_of_range(const char* input, int64_t value, int64_t row, int64_t column, int64_t end) {
  return invalid_argument(
      cat("input '", input, "' has ", value, " at [", row, ", ", column, "]; the model takes 0 to ", end - 1),
      input);
}

// The rows of a request that have a token at all.
Status read_rows(const EncoderConfig& c, const EncoderOperands& operands, const std::vector<Datum>& request,
                 size_t index, std::vector<Row>& rows) {
  const Shape& shape = request[0].tensor.shape();
  for (size_t k = 1; k < request.size(); ++k) {
    if (request[k].tensor.shape() == shape) continue;
    return invalid_argument(
        cat("inputs are ", shape.to_string(), " and ", request[k].tensor.shape().to_string(),
            "; an encoder's have one shape (batch, sequence)"),
        "inputs");
  }
  const int64_t S = shape[1];
  for (int64_t r = 0; r < shape[0]; ++r) {
    Row row{index, r, {}};
    const auto at = [&](int input, int64_t s) {
      return elements<int64_t>(request[static_cast<size_t>(input)].tensor)[r * S + s];
    };
    for (int64_t s = 0; s < S; ++s) {
      if (at(operands.mask, s) == 0) continue;
      if (s >= c.max_tokens()) {
        return Status(StatusCode::kOutOfRange,
                      cat("row ", r, " has a token at ", s, "; the model takes at most ", c.max_tokens()),
                      "input_ids");
      }
      const int64_t id = at(operands.ids, s), type = operands.types < 0 ? 0 : at(operands.types, s);
      if (id < 0 || id >= c.vocab) return out_of_range("input_ids", id, r, s, c.vocab);
      if (operands.types >= 0 && (type < 0 || type >= c.types))
        return out_of_range("token_type_ids", type, r, s, c.types);
      row.columns.push_back(static_cast<int32_t>(s));
    }
    if (!row.columns.empty()) rows.push_back(std::move(row));
  }
  return ok_status();
}

// Rows one behind the other, as the graph takes them.
struct PackedRows {
  std::vector<int32_t> tokens, positions, segments, types, first_rows;

  void clear() {
    for (auto* v : {&tokens, &positions, &segments, &types, &first_rows}) v->clear();
  }
  void add(const EncoderConfig& c, const EncoderOperands& operands, const Row& row,
           const std::vector<Datum>& request) {
    const int64_t begin = row.row * request[0].tensor.shape()[1];
    const auto segment = static_cast<int32_t>(first_rows.size());
    first_rows.push_back(static_cast<int32_t>(tokens.size()));
    const auto at = [&](int input, int32_t s) {
      return static_cast<int32_t>(elements<int64_t>(request[static_cast<size_t>(input)].tensor)[begin + s]);
    };
    for (const int32_t s : row.columns) {
      tokens.push_back(at(operands.ids, s));
      positions.push_back(static_cast<int32_t>(s + c.first_position));
      segments.push_back(segment);
      types.push_back(operands.types < 0 ? 0 : at(operands.types, s));
    }
  }
  const void* input(const std::string& name) const {
    return name == "tokens"      ? tokens.data()
           : name == "positions" ? positions.data()
           : name == "segments"  ? segments.data()
           : name == "types"     ? types.data()
                                 : first_rows.data();
  }
};

uint64_t since(std::chrono::steady_clock::time_point t) {
  const auto passed = std::chrono::steady_clock::now() - t;
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

// An output where the host can read it: in place, or a copy in `own`.
Result<const float*> host_output(Run& run, Backend& backend, size_t index, std::vector<float>& own) {
  const Operand o = run.output(index);
  if (backend.memory() == MemoryKind::kHost) return o.as<const float>();
  own.resize(static_cast<size_t>(o.numel()));
  OAR_RETURN_IF_ERROR(run.read_output(index, own));
  return static_cast<const float*>(own.data());
}

}  // namespace

Result<std::vector<Datum>> EncoderModel::run(std::vector<Datum> inputs) const {
  OAR_ASSIGN(auto answers, run_together({&inputs, 1}, nullptr));
  return std::move(answers[0]);
}

Result<std::vector<std::vector<Datum>>> EncoderModel::run_together(
    std::span<const std::vector<Datum>> requests, RunTimes* times) const {
  const Shared& s = *shared_;
  const auto start = std::chrono::steady_clock::now();
  const ChargeTo charge(s.reserved);
  std::vector<Row> rows;
  std::vector<std::vector<Datum>> answers(requests.size());
  for (size_t k = 0; k < requests.size(); ++k) {
    OAR_RETURN_IF_ERROR(check_model_inputs(s.inputs, requests[k]));
    OAR_RETURN_IF_ERROR(read_rows(s.config, s.operands, requests[k], k, rows));
    const Shape& in = requests[k][0].tensor.shape();
    for (const BuiltEncoder::Output& o : s.results) {
      const Shape shape = o.per_token ? Shape{in[0], in[1], o.width} : Shape{in[0], o.width};
      OAR_ASSIGN(Tensor answer, allocate_elements(shape, DType::kF32));
      answers[k].emplace_back(std::move(answer));
    }
  }
  RunTimes sum;
  sum.input = since(start);
  std::unique_lock<std::mutex> device;
  if (s.backend->memory() == MemoryKind::kDevice) device = std::unique_lock(s.device);
  OAR_ASSIGN(std::unique_ptr<Run> run, runs_->take(s));
  PackedRows packed;
  std::vector<const void*> inputs;
  std::vector<int64_t> symbols(run->graph().symbols().size());
  std::vector<float> own;
  Status status;
  for (size_t begin = 0, end = 0; begin < rows.size() && status.ok(); begin = end) {
    const auto packing = std::chrono::steady_clock::now();
    packed.clear();
    for (; end < rows.size(); ++end) {
      const size_t tokens = packed.tokens.size() + rows[end].columns.size();
      if (end > begin && tokens > static_cast<size_t>(kRunTokens)) break;
      packed.add(s.config, s.operands, rows[end], requests[rows[end].request]);
    }
    symbols[s.T] = static_cast<int64_t>(packed.tokens.size());
    symbols[s.B] = static_cast<int64_t>(packed.first_rows.size());
    inputs.clear();
    for (const ValueId v : run->graph().inputs()) inputs.push_back(packed.input(run->graph().value(v).name));
    const auto computing = std::chrono::steady_clock::now();
    sum.input += since(packing);
    const auto compute = [&]() -> Status {
      OAR_RETURN_IF_ERROR(run->run(symbols, inputs));
      sum.compute += since(computing);
      const auto answering = std::chrono::steady_clock::now();
      for (size_t o = 0; o < s.results.size(); ++o) {
        OAR_ASSIGN(const float* result, host_output(*run, *s.backend, o, own));
        const int64_t width = s.results[o].width;
        for (size_t k = begin; k < end; ++k) {
          const Row& row = rows[k];
          Tensor& answer = answers[row.request][o].tensor;
          auto* to = mutable_elements<float>(answer);
          if (!s.results[o].per_token) {
            std::copy_n(result, width, to + row.row * width);
            result += width;
            continue;
          }
          to += row.row * answer.shape()[1] * width;
          for (const int32_t column : row.columns) {
            std::copy_n(result, width, to + column * width);
            result += width;
          }
        }
      }
      sum.output += since(answering);
      return ok_status();
    };
    status = compute();
  }
  runs_->give_back(std::move(run));
  OAR_RETURN_IF_ERROR(status);
  if (times != nullptr) *times = sum;
  return answers;
}

}  // namespace oar
