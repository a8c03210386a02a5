#include "engine/runtime/predictor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/passes/narrow_layers.h"
#include "engine/runtime/prepared_model.h"
#include "engine/runtime/run_plans.h"
#include "engine/tensor/charge.h"

namespace oar {

struct Predictor::Shared {
  ImportedModel model;
  std::unique_ptr<const Evaluator> evaluator;
  std::shared_ptr<Backend> backend;
  Resources resources;
  mutable Reservation reserved;  // holds mapped weights; buffers of runs are charged to it
  std::vector<PassReport> passes;
  uint64_t tensor_limit = 0;
  int64_t loop_limit = 0;
  uint64_t packed_bytes = 0;
  mutable RunPlans plans;
  // Of the device, where there is one: the values of the run that has the lock, and whether what runs beside
  // the device was said.
  mutable std::mutex device_mutex;
  std::unique_ptr<RunMemory> device_memory;
  mutable bool said_detours = false;
  mutable std::atomic<uint64_t> sizing_passes = 0;
  mutable std::atomic<bool> timed_loops = false;  // by the first run
  Logger log;

  explicit Shared(uint64_t plan_bytes) : plans(plan_bytes) {}
};

// Of one handle: an arena for each of its runs at the same time, waiting for the next.
struct Predictor::Arenas {
  std::mutex mutex;
  std::vector<std::unique_ptr<RunMemory>> idle;

  std::unique_ptr<RunMemory> take() {
    const std::lock_guard lock(mutex);
    if (idle.empty()) return std::make_unique<RunMemory>();
    auto memory = std::move(idle.back());
    idle.pop_back();
    return memory;
  }
  void give_back(std::unique_ptr<RunMemory> memory) {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(memory));
  }
};

Predictor::Predictor(std::shared_ptr<const Shared> shared)
    : shared_(std::move(shared)), arenas_(std::make_unique<Arenas>()) {}
Predictor::~Predictor() = default;

Result<std::shared_ptr<Backend>> make_backend(const PredictorOptions& options) {
  auto pool = options.resources.pool;
  // One thread is the caller's, who waits for nobody.
  if (pool && options.threads != 1) pool = pool->share(options.threads);
  else pool = std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = options.threads});
  return make_backend(options.device, std::move(pool), options.reference ? Isa::kReference : best_isa(),
                      options.log);
}

namespace {

// Convolutions and layers of floats, and how many of them are computed in fewer bits.
struct Layers {
  int all = 0, lowered = 0;
  int integers = 0, ranged = 0;  // of the first those whose operand's range a run tells
  std::string precision;
};
Layers layers_of(const Graph& graph) {
  Layers out;
  for (const Node& n : graph.nodes()) {
    const bool integers = n.is("quantized_conv") || n.is("quantized_linear");
    out.integers += integers;
    constexpr size_t kRunScale = 5;
    out.ranged += integers && n.inputs.size() > kRunScale && n.inputs[kRunScale] != kNoValue;
    if (!n.is("conv") && !n.is("linear")) continue;
    ++out.all;
    if (!n.attrs.has("precision")) continue;
    ++out.lowered;
    out.precision = n.attrs.get_string("precision");
  }
  return out;
}

// ", bf16, tf32"
std::string words_of_precisions(const Backend& backend) {
  std::string words;
  for (const Precision p : {Precision::kBf16, Precision::kF16, Precision::kTf32, Precision::kInt8})
    if (passes::has_products(backend, p)) words += cat(", ", precision_name(p));
  return words;
}

Result<std::shared_ptr<Backend>> backend_of(const PredictorOptions& options) {
  OAR_ASSIGN(auto backend, make_backend(options));
  const Precision p = options.precision;
  const bool device = backend->memory() == MemoryKind::kDevice;
  // The processor may be without products of bf16; such a model runs in f32, with a warning.
  if (p == Precision::kF32 || (!device && p == Precision::kBf16) || passes::has_products(*backend, p))
    return backend;
  return Status(StatusCode::kInvalidArgument,
                cat("precision ", precision_name(p),
                    device ? " is not of device " : " is of a device, not of ", backend->name(),
                    ", which has f32", words_of_precisions(*backend), ": name one of these, or leave it out"),
                "precision");
}

// Values in double precision by name: constants, and what casts make, by the casts'.
void find_doubles(const Graph& graph, std::vector<std::string>& names) {
  for (size_t v = 0; v < graph.num_values(); ++v) {
    const Value& value = graph.value(static_cast<ValueId>(v));
    if (value.kind == ValueKind::kConstant && value.constant.format() == Format::of(DType::kF64))
      names.push_back(value.name.empty() ? "a constant" : value.name);
  }
  for (const Node& n : graph.nodes()) {
    if (n.is("cast") && n.attrs.get_string("to", "") == "f64")
      names.push_back(n.name.empty() ? "a cast" : n.name);
    for (const auto& inner : n.subgraphs) find_doubles(*inner, names);
  }
}
std::string words_of_doubles(const ImportedModel& model, const char* device) {
  std::vector<std::string> names;
  for (const IoSpec& spec : model.inputs)
    if (spec.typed && spec.dtype == DType::kF64) names.push_back(spec.name);
  find_doubles(*model.graph, names);
  if (names.empty()) return {};
  constexpr size_t kMost = 3;
  std::string words = cat("device ", device, " computes in f32, and ", names.size(),
                          names.size() == 1 ? " value is f64: " : " values are f64: ");
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i) words += cat(i > 0 ? ", " : "", names[i]);
  if (names.size() > kMost) words += ", ...";
  return words + "; what works on them runs on the processor. In f32 the model runs on the device";
}

// What the processor does beside the device, for people; empty: nothing that costs a copy.
std::string words_of(const HostDetours& d, const char* device) {
  if (d.ops.empty()) return {};
  std::string ops;
  int steps = 0;
  for (const auto& [op, count] : d.ops) {
    steps += count;
    ops += cat(ops.empty() ? "" : ", ", op);
    if (count > 1) ops += cat(" x ", count);
  }
  return cat("device ", device, " ran ", d.launches, " steps; ", steps,
             " waited for it to run on the processor, which it has no kernels for (", ops, "): a run copied ",
             format_bytes(d.uploaded), " to the device and ", format_bytes(d.downloaded), " from it");
}

void add_place(std::vector<StepGroup>& groups, const NodePlace& p) {
  const std::string where = p.where != nullptr ? p.where : "";
  auto g = std::find_if(groups.begin(), groups.end(), [&](const StepGroup& o) {
    return o.op == p.node.op->name && o.where == where && o.on_device == p.on_device;
  });
  if (g == groups.end()) g = groups.insert(g, {p.node.op->name, where, p.on_device, 0, 0});
  ++g->steps;
  g->bytes += p.bytes;
}

// "3.1"
std::string milliseconds(uint64_t ns) {
  const uint64_t tenths = (ns + 50'000) / 100'000;
  return cat(tenths / 10, ".", tenths % 10);
}

// What plain loops took in a run, by op.
struct LoopTimes {
  struct Entry {
    int steps = 0;
    uint64_t ns = 0;
  };
  std::map<std::string, Entry> ops;
  uint64_t ns = 0;

  // Loops of a tenth of a run, and a millisecond, are said; those of less than a twentieth of that are not.
  std::string words(uint64_t run_ns) const {
    if (ns < 1'000'000 || ns * 10 < run_ns) return {};
    std::vector<std::pair<std::string, Entry>> sorted(ops.begin(), ops.end());
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.second.ns > b.second.ns; });
    std::string s;
    for (const auto& [op, e] : sorted) {
      if (e.ns * 20 < ns) break;
      s += cat(s.empty() ? "" : ", ", op, e.steps > 1 ? cat(" x ", e.steps) : "", " ", milliseconds(e.ns),
               " ms");
    }
    return cat("steps without a kernel took ", milliseconds(ns), " of the ", milliseconds(run_ns),
               " ms of the first run: ", s);
  }
};

// Weights that are read where they lie in a file, each once. Branches and loop bodies have constants of their
// own.
uint64_t mapped_bytes(const Graph& graph, std::set<const void*>& seen) {
  uint64_t bytes = 0;
  for (size_t v = 0; v < graph.num_values(); ++v) {
    const Value& value = graph.value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kConstant || !value.constant.buffer().mapped()) continue;
    if (seen.insert(value.constant.data()).second) bytes += value.constant.bytes();
  }
  for (const Node& n : graph.nodes())
    for (const auto& inner : n.subgraphs) bytes += mapped_bytes(*inner, seen);
  return bytes;
}

// With the user's samples: first integers where they lie, then the passes as for any quantized model.
Status calibrate_model(ImportedModel& model, const PredictorOptions& options, Backend& backend) {
  if (!options.calibration) return ok_status();
  if (options.precision != Precision::kInt8) {
    return Status(
        StatusCode::kInvalidArgument,
        cat("calibration is for precision int8, and the precision is ", precision_name(options.precision)),
        "precision");
  }
  OAR_ASSIGN(const CalibrationReport report, quantize_statically(model, *options.calibration, backend));
  options.log(LogLevel::kInfo, cat(report.quantized, " of ", report.layers, " layers have ranges from ",
                                   report.samples, " samples"));
  return ok_status();
}

Result<PreparedModel> run_model_passes(ImportedModel model, const PredictorOptions& options,
                                       Backend& backend) {
  OAR_RETURN_IF_ERROR(calibrate_model(model, options, backend.host()));
  for (const std::string& warning : model.warnings) options.log(LogLevel::kWarning, warning);
  PassOptions passes;
  passes.disabled = options.disabled_passes;
  passes.explain = options.explain;
  passes.observer = options.pass_observer;
  PreparedModel out;
  OAR_ASSIGN(out.passes, run_passes(*model.graph, tensor_passes(options.precision, backend), passes));
  out.model = std::move(model);
  const Layers layers = layers_of(*out.model.graph);
  if (options.precision != Precision::kF32 && layers.lowered + layers.integers == 0) {
    options.log(LogLevel::kWarning, cat("precision ", precision_name(options.precision),
                                        ": no layer of this model can be computed so here; it runs in f32 "
                                        "(`oar inspect --explain` says why)"));
  }
  return out;
}

}  // namespace

// Packs what is not packed, and drops from the graph what no run will read. The options have the pool.
Result<std::unique_ptr<Predictor>> Predictor::make(PreparedModel& prepared, const PredictorOptions& options,
                                                   std::shared_ptr<Backend> backend) {
  auto shared = std::make_shared<Shared>(options.plan_bytes);
  shared->resources = options.resources;
  OAR_ASSIGN(shared->reserved, options.resources.reserve(options.name));
  const ChargeTo charge(shared->reserved);
  OAR_ASSIGN(shared->evaluator, Evaluator::create(prepared.model.graph, *backend, &prepared.packed));
  const std::vector<ValueId>& spent = shared->evaluator->spent_constants();
  std::vector<uint64_t> sizes;
  for (const ValueId v : spent) sizes.push_back(prepared.model.graph->value(v).constant.bytes());
  for_each_largest_first(backend->workers(), sizes, [&](size_t k) {
    Tensor& constant = prepared.model.graph->value(spent[k]).constant;
    constant.buffer().release_pages();
    constant = Tensor::without_bytes(constant.shape(), constant.format());
  });
  shared->model = prepared.model;
  shared->passes = prepared.passes;
  std::set<const void*> seen;
  uint64_t mapped = mapped_bytes(*shared->model.graph, seen);
  for (const auto& [name, tensor] : prepared.packed.tensors) {
    if (!seen.insert(tensor.data()).second) continue;  // several nodes read it
    shared->packed_bytes += tensor.bytes();
    if (tensor.buffer().mapped()) mapped += tensor.bytes();
  }
  OAR_RETURN_IF_ERROR(shared->reserved.grow(mapped, "mapped weights"));
  if (backend->memory() == MemoryKind::kDevice) {
    shared->device_memory = std::make_unique<RunMemory>(backend.get());
    const std::string doubles = words_of_doubles(shared->model, backend->name());
    if (!doubles.empty()) options.log(LogLevel::kWarning, doubles);
  }
  shared->backend = std::move(backend);
  shared->log = options.log;
  shared->tensor_limit = options.tensor_limit;
  shared->loop_limit = options.loop_limit;
  auto predictor = std::unique_ptr<Predictor>(new Predictor(std::move(shared)));
  predictor->say_loops();
  return predictor;
}

// By the extents that the model fixes, whose plan then serves the first run, or, for words alone, by likely
// ones. What loops take is said by that run.
void Predictor::say_loops() const {
  if (shared_->device_memory != nullptr) return;  // the first run says what the device lacks
  const auto shapes_with = [this](int64_t extent, std::string& assumed) -> Result<std::vector<Shape>> {
    std::vector<Shape> shapes;
    for (const IoSpec& spec : inputs()) {
      if (!spec.ranked) return invalid_argument(cat(spec.name, " has any rank"));
      std::vector<int64_t> dims;
      bool open = false;
      for (const IoDim& d : spec.dims) {
        open = open || d.value < 0;
        // The first open axis is mostly one of samples.
        dims.push_back(d.declared() >= 0 ? d.declared() : dims.empty() ? 1 : extent);
      }
      OAR_ASSIGN(const Shape shape, checked_shape(dims));
      shapes.push_back(shape);
      if (open) assumed += cat(assumed.empty() ? "" : ", ", spec.name, " ", shape.to_string());
    }
    return shapes;
  };
  const auto groups_with = [&](int64_t extent, std::string& assumed) -> Result<std::vector<StepGroup>> {
    OAR_ASSIGN(const std::vector<Shape> shapes, shapes_with(extent, assumed));
    if (!assumed.empty() && !shared_->log.callback) return invalid_argument("nobody listens");
    return steps(shapes);
  };
  std::string assumed;
  auto groups = groups_with(64, assumed);
  if (!groups.ok() && !assumed.empty()) groups = groups_with(1, assumed = "");
  if (!assumed.empty()) shared_->plans.clear();
  if (!groups.ok()) return;
  std::string words;
  int all = 0, loops = 0;
  for (const StepGroup& g : *groups) {
    all += g.steps;
    if (!g.where.empty()) continue;
    loops += g.steps;
    words += cat(words.empty() ? "" : ", ", g.op, g.steps > 1 ? cat(" x ", g.steps) : "", " (",
                 format_bytes(g.bytes), ")");
  }
  if (loops == 0) return;
  shared_->log(LogLevel::kInfo,
               cat(loops, " of ", all, " steps have no kernel and run as plain loops over ",
                   "operands and results of: ", words, assumed.empty() ? "" : cat("; with ", assumed)));
}

Result<std::unique_ptr<Predictor>> Predictor::create(ImportedModel model, const PredictorOptions& options) {
  const TrimMemoryAfter trim;
  OAR_ASSIGN(std::shared_ptr<Backend> backend, backend_of(options));
  OAR_ASSIGN(Reservation loading, options.resources.reserve(options.name));
  const ChargeTo charge(loading);
  OAR_ASSIGN(PreparedModel prepared, run_model_passes(std::move(model), options, *backend));
  return make(prepared, options, std::move(backend));
}

Result<std::unique_ptr<Predictor>> Predictor::open(const std::string& path, const PredictorOptions& given) {
  const TrimMemoryAfter trim;
  PredictorOptions options = given;
  if (options.name.empty()) options.name = path;
  OAR_ASSIGN(const std::shared_ptr<Backend> backend, backend_of(options));
  OAR_ASSIGN(Reservation loading, options.resources.reserve(options.name));
  const ChargeTo charge(loading);
  options.import.threads = backend->workers();
  std::string entry;
  // An observer wants to see the passes run, and samples without a key cannot be told from others.
  const CalibrationSamples* samples = options.calibration.get();
  std::string calibration =
      samples ? cat(calibrate::range_method_name(samples->method), " ", samples->key) : "";
  if (!options.import.parameters.empty()) {
    std::error_code ec;
    calibration += cat(" params ", std::filesystem::weakly_canonical(options.import.parameters, ec).string());
  }
  // What is kept is packed for the processor's kernels.
  const bool known = (!samples || !samples->key.empty()) && backend->memory() == MemoryKind::kHost;
  if (!options.cache_dir.empty() && options.cache_bytes > 0 && !options.pass_observer && known) {
    OAR_ASSIGN(entry, prepared_model_path(options.cache_dir, path, options.disabled_passes, options.precision,
                                          backend->name(), calibration));
  }
  const auto load = [&]() -> Result<std::unique_ptr<Predictor>> {
    OAR_ASSIGN(PreparedModel prepared, load_prepared_model(entry, backend->workers()));
    return make(prepared, options, backend);
  };
  if (!entry.empty()) {
    auto loaded = load();
    if (loaded.ok()) return loaded;
    if (loaded.status().code() != StatusCode::kNotFound) {
      options.log(LogLevel::kWarning, cat("the prepared model ", entry, " cannot be used (",
                                          loaded.status().message(), "); it is made anew"));
    }
  }
  OAR_ASSIGN(ImportedModel model, import_model(path, options.import));
  OAR_ASSIGN(PreparedModel prepared, run_model_passes(std::move(model), options, *backend));
  OAR_ASSIGN(auto predictor, make(prepared, options, backend));
  if (entry.empty()) return predictor;
  const Status saved = save_prepared_model(entry, prepared, options.cache_bytes, backend->workers());
  if (!saved.ok()) {
    options.log(LogLevel::kWarning,
                cat("the prepared model cannot be kept for the next load: ", saved.message()));
    return predictor;
  }
  options.log(LogLevel::kInfo, cat("the prepared model is kept in ", entry));
  // Mapped weights are shared by all processes that serve the model.
  if (auto mapped = load(); mapped.ok()) return mapped;
  return predictor;
}

std::unique_ptr<Predictor> Predictor::clone() const {
  return std::unique_ptr<Predictor>(new Predictor(shared_));
}

const std::vector<IoSpec>& Predictor::inputs() const { return shared_->model.inputs; }
const std::vector<IoSpec>& Predictor::outputs() const { return shared_->model.outputs; }
const std::vector<PassReport>& Predictor::passes() const { return shared_->passes; }
const Graph& Predictor::graph() const { return *shared_->model.graph; }
bool Predictor::rows_are_independent() const {
  return std::none_of(graph().nodes().begin(), graph().nodes().end(), [](const Node& n) {
    return n.op && std::string_view(n.op->name).find("dynamic_quantize") != std::string_view::npos;
  });
}
const std::string& Predictor::format() const { return shared_->model.format; }

std::string Predictor::summary() const {
  std::string s = cat("format   ", shared_->model.format);
  if (!shared_->model.producer.empty()) s += cat(" by ", shared_->model.producer);
  for (const IoSpec& spec : inputs()) s += cat("\ninput    ", spec.to_string());
  for (const IoSpec& spec : outputs()) s += cat("\noutput   ", spec.to_string());
  for (const PassReport& p : passes()) {
    s += cat(
        "\npass     ", p.name, ": ",
        p.disabled ? "off" : cat(p.rewrites, " rewrites, ", p.nodes_before, " -> ", p.nodes_after, " ops"));
  }
  const Layers l = layers_of(graph());
  if (l.integers > l.ranged) s += cat("\nintegers ", l.integers - l.ranged, " layers with fixed ranges");
  if (l.ranged > 0) s += cat("\nintegers ", l.ranged, " layers with ranges of the run");
  if (l.all > 0) {
    s += cat("\nprecision ",
             l.lowered > 0 ? cat(l.precision, ": ", l.lowered, " of ", l.all, " layers") : "f32");
  }
  std::map<std::string, size_t> ops;
  for (const Node& node : graph().nodes()) ++ops[node.op->name];
  for (const auto& [name, count] : ops) s += cat("\nop       ", count, " x ", name);
  uint64_t constants = 0;
  for (size_t v = 0; v < graph().num_values(); ++v) {
    const Value& value = graph().value(static_cast<ValueId>(v));
    if (value.kind == ValueKind::kConstant) constants += value.constant.bytes();
  }
  s += cat("\nweights  ", format_bytes(shared_->packed_bytes), " packed, ", format_bytes(constants),
           " as in the file");
  if (shared_->device_memory) s += cat("\ndevice   ", shared_->backend->name());
  s += cat("\nthreads  ", shared_->backend->workers());
  return s + "\n";
}

EvalOptions Predictor::eval_options() const {
  EvalOptions o;
  o.backend = &shared_->backend->host();
  o.tensor_limit = shared_->tensor_limit;
  o.loop_limit = shared_->loop_limit;
  return o;
}

Result<std::vector<Datum>> Predictor::run(std::vector<Datum> in) const {
  return profile(std::move(in), nullptr);
}

namespace {

// Results that turned out to lie in the arena, which the next run will write over, move out of it. Planned
// runs have none.
Status move_out(const RunMemory& memory, Datum& d) {
  if (d.kind == Datum::Kind::kSequence) {
    std::vector<Datum> items = *d.items;
    for (Datum& item : items) OAR_RETURN_IF_ERROR(move_out(memory, item));
    d = Datum::sequence(std::move(items));
    return ok_status();
  }
  if (!d.is_tensor() || d.tensor.bytes() == 0 || !memory.in_arena(d.tensor.data())) return ok_status();
  OAR_ASSIGN(Tensor own, Tensor::allocate(d.tensor.shape(), d.tensor.format()));
  std::memcpy(own.mutable_data(), d.tensor.data(), own.bytes());
  d.tensor = std::move(own);
  return ok_status();
}

}  // namespace

Result<std::vector<Datum>> Predictor::profile(std::vector<Datum> in, std::vector<NodeTime>* times) const {
  OAR_RETURN_IF_ERROR(check_model_inputs(inputs(), in));
  const ChargeTo charge(shared_->reserved);
  const std::string key = shapes_key(in);
  std::unique_ptr<RunMemory> memory = arenas_->take();
  RunMemory* const device_memory = shared_->device_memory.get();
  std::unique_lock<std::mutex> device;
  if (device_memory != nullptr) device = std::unique_lock(shared_->device_mutex);
  RunPlans::Known known = key.empty() ? RunPlans::Known() : shared_->plans.find(key);
  RunPlans::Places places = known.places;
  if (!places.host && !key.empty() && memory->arena_bytes() == 0) {
    // The first run: so that its arena has the right size at once. Later ones with new shapes place their
    // values in the arena that there is, and leave a plan for the next with these shapes.
    BlockPlan on_device;
    ++shared_->sizing_passes;
    if (auto sized = shared_->evaluator->size(in, eval_options(), &on_device); sized.ok()) {
      places.host = std::make_shared<const BlockPlan>(std::move(*sized));
      if (device_memory != nullptr) places.device = std::make_shared<const BlockPlan>(std::move(on_device));
      shared_->plans.put(key, places);
    }
  }
  OAR_RETURN_IF_ERROR(memory->begin(places.host));
  if (device_memory != nullptr) OAR_RETURN_IF_ERROR(device_memory->begin(places.device));
  EvalOptions options = eval_options();
  options.memory = memory.get();
  options.device_memory = device_memory;
  HostDetours detours;
  if (device_memory != nullptr && !shared_->said_detours) options.detours = &detours;
  std::shared_ptr<BoundCalls> bound;
  if (known.calls) {
    options.calls = known.calls.get();
  } else if (!key.empty()) {
    bound = std::make_shared<BoundCalls>(graph().nodes().size());
    options.bound = bound.get();
  }
  if (times) {
    options.profile = [times](const Node& node, const char* where, uint64_t start, uint64_t end) {
      times->push_back({node.op->name, node.name, where, start, end});
    };
  }
  LoopTimes loops;
  const bool first = !times && device_memory == nullptr && !shared_->timed_loops.exchange(true);
  if (first) {
    options.profile = [&](const Node& node, const char* where, uint64_t start, uint64_t end) {
      // Views and shape arithmetic move nothing; what a branch or loop takes is its own nodes' time.
      if (std::string_view(where) != kEvaluated || node.op->view || node.op->sizes == SizesFrom::kItself ||
          !node.subgraphs.empty()) {
        return;
      }
      LoopTimes::Entry& e = loops.ops[node.op->name];
      ++e.steps;
      e.ns += end - start;
      loops.ns += end - start;
    };
  }
  const auto start = std::chrono::steady_clock::now();
  auto results = shared_->evaluator->run(std::move(in), options);
  if (first && results.ok()) {
    const std::chrono::nanoseconds took = std::chrono::steady_clock::now() - start;
    const std::string words = loops.words(static_cast<uint64_t>(took.count()));
    if (!words.empty()) shared_->log(LogLevel::kWarning, words);
  }
  std::vector<BlockLife> lives = memory->end();
  std::vector<BlockLife> device_lives;
  if (device_memory != nullptr) device_lives = device_memory->end();
  if (results.ok()) {
    for (Datum& d : *results) OAR_RETURN_IF_ERROR(move_out(*memory, d));
    if (!key.empty()) shared_->plans.learn(key, std::move(lives), std::move(device_lives), std::move(bound));
    if (options.detours != nullptr) {
      shared_->said_detours = true;
      const std::string words = words_of(detours, shared_->backend->name());
      if (!words.empty()) shared_->log(LogLevel::kWarning, words);
    }
  }
  arenas_->give_back(std::move(memory));
  return results;
}

Result<std::shared_ptr<const BlockPlan>> Predictor::plan(std::span<const Shape> shapes) const {
  return make_plan(shapes, eval_options());
}

Result<std::vector<StepGroup>> Predictor::steps(std::span<const Shape> shapes) const {
  std::vector<StepGroup> groups;
  EvalOptions options = eval_options();
  options.placed = [&](const NodePlace& p) { add_place(groups, p); };
  OAR_RETURN_IF_ERROR(make_plan(shapes, options).status());
  std::stable_sort(groups.begin(), groups.end(),
                   [](const StepGroup& a, const StepGroup& b) { return a.bytes > b.bytes; });
  return groups;
}

Result<std::shared_ptr<const BlockPlan>> Predictor::make_plan(std::span<const Shape> shapes,
                                                              const EvalOptions& options) const {
  if (shapes.size() != inputs().size()) {
    return invalid_argument(
        cat("the model has ", inputs().size(), " inputs, shapes of ", shapes.size(), " are given"));
  }
  RunMemory memory;
  memory.begin_sizing();
  std::vector<Datum> in;
  for (size_t k = 0; k < shapes.size(); ++k) {
    const IoSpec& spec = inputs()[k];
    if (spec.kind != IoSpec::Kind::kTensor || !spec.typed || spec.dtype == DType::kString) {
      return Status(StatusCode::kFailedPrecondition, cat("input '", spec.name, "' is no tensor of numbers"),
                    spec.name);
    }
    OAR_ASSIGN(const uint64_t bytes, element_bytes(shapes[k], spec.dtype, shared_->tensor_limit));
    OAR_ASSIGN(Buffer zeros, memory.allocate(bytes));
    OAR_ASSIGN(Tensor t, Tensor::make(shapes[k], element_format(spec.dtype), std::move(zeros)));
    in.emplace_back(std::move(t));
  }
  OAR_RETURN_IF_ERROR(check_model_inputs(inputs(), in));
  const ChargeTo charge(shared_->reserved);
  const std::string key = shapes_key(in);
  if (auto known = shared_->plans.find(key).places.host; known && !options.placed) return known;
  std::unique_lock<std::mutex> device;  // nodes are bound, which asks the device
  if (shared_->device_memory) device = std::unique_lock(shared_->device_mutex);
  RunPlans::Places places;
  BlockPlan on_device;
  ++shared_->sizing_passes;
  OAR_ASSIGN(BlockPlan sized, shared_->evaluator->size(std::move(in), options, &on_device));
  places.host = std::make_shared<const BlockPlan>(std::move(sized));
  if (shared_->device_memory) places.device = std::make_shared<const BlockPlan>(std::move(on_device));
  shared_->plans.put(key, places);
  return places.host;
}

uint64_t Predictor::arena_bytes() const {
  const std::lock_guard lock(arenas_->mutex);
  uint64_t sum = 0;
  for (const auto& memory : arenas_->idle) sum += memory->arena_bytes();
  return sum;
}

size_t Predictor::kept_plans() const { return shared_->plans.size(); }
uint64_t Predictor::sizing_passes() const { return shared_->sizing_passes; }

uint64_t Predictor::shrink() const {
  shared_->plans.clear();
  std::vector<std::unique_ptr<RunMemory>> idle;
  {
    const std::lock_guard lock(arenas_->mutex);
    idle.swap(arenas_->idle);
  }
  uint64_t sum = 0;
  for (const auto& memory : idle) sum += memory->arena_bytes();
  if (shared_->device_memory) {
    const std::lock_guard device(shared_->device_mutex);
    sum += shared_->device_memory->shrink();
  }
  return sum;
}

PredictorPool::PredictorPool(std::unique_ptr<Predictor> first, size_t size) {
  handles_.push_back(std::move(first));
  while (handles_.size() < size) handles_.push_back(handles_.front()->clone());
}

uint64_t PredictorPool::shrink() const {
  uint64_t sum = 0;
  for (const auto& handle : handles_) sum += handle->shrink();
  return sum;
}

Result<Tensor> share_memory(const void* data, uint64_t bytes, const Shape& shape, DType dtype,
                            std::shared_ptr<const void> owner) {
  if (dtype == DType::kString || dtype == DType::kBytes) {
    return invalid_argument(cat("elements of type ", dtype_name(dtype), " have no memory to share"), "dtype");
  }
  const Format format = element_format(dtype);
  OAR_ASSIGN(const int64_t wanted, tensor_bytes(shape, format));
  if (bytes != static_cast<uint64_t>(wanted)) {
    return invalid_argument(
        cat("bytes is ", bytes, " but ", format.name(), shape.to_string(), " takes ", wanted), "bytes");
  }
  if (reinterpret_cast<uintptr_t>(data) % static_cast<size_t>(format.info().alignment) != 0) {
    return invalid_argument(cat("data is not aligned to ", format.info().alignment, " bytes"), "data");
  }
  return Tensor::make(shape, format, Buffer::wrap_const(data, bytes, std::move(owner)));
}

Result<std::map<std::string, Datum>> Predictor::run(const std::map<std::string, Datum>& named) const {
  std::vector<Datum> in;
  for (const IoSpec& spec : inputs()) {
    const auto it = named.find(spec.name);
    in.push_back(it == named.end() ? Datum() : it->second);
  }
  for (const auto& [name, value] : named) {
    bool known = false;
    std::string names;
    for (const IoSpec& spec : inputs())
      known = known || spec.name == name, names += cat(names.empty() ? "" : ", ", spec.name);
    if (!known)
      return Status(StatusCode::kInvalidArgument,
                    cat("the model has no input '", name, "'; its inputs are ", names), name);
  }
  OAR_ASSIGN(std::vector<Datum> results, run(std::move(in)));
  std::map<std::string, Datum> out;
  for (size_t k = 0; k < results.size(); ++k) out[outputs()[k].name] = std::move(results[k]);
  return out;
}

}  // namespace oar
