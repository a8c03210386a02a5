#include "engine/runtime/predictor.h"

namespace oar {

struct Predictor::Shared {
  ImportedModel model;
  std::unique_ptr<const Evaluator> evaluator;
  std::shared_ptr<ThreadPool> pool;
  std::vector<PassReport> passes;
  uint64_t tensor_limit = 0;
  int64_t loop_limit = 0;
};

Result<std::unique_ptr<Predictor>> Predictor::open(const std::string& path, const PredictorOptions& options) {
  OAR_ASSIGN(ImportedModel model, import_model(path, options.import));
  return create(std::move(model), options);
}

Result<std::unique_ptr<Predictor>> Predictor::create(ImportedModel model, const PredictorOptions& options) {
  auto shared = std::make_shared<Shared>();
  PassOptions passes;
  passes.disabled = options.disabled_passes;
  passes.observer = options.pass_observer;
  OAR_ASSIGN(shared->passes, run_passes(*model.graph, tensor_passes(), passes));
  shared->model = std::move(model);
  shared->pool = options.pool;
  if (!shared->pool && options.threads != 1) {
    shared->pool = std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = options.threads});
  }
  shared->tensor_limit = options.tensor_limit;
  shared->loop_limit = options.loop_limit;
  OAR_ASSIGN(shared->evaluator, Evaluator::create(shared->model.graph));
  return std::unique_ptr<Predictor>(new Predictor(std::move(shared)));
}

std::unique_ptr<Predictor> Predictor::clone() const {
  return std::unique_ptr<Predictor>(new Predictor(shared_));
}

const std::vector<IoSpec>& Predictor::inputs() const { return shared_->model.inputs; }
const std::vector<IoSpec>& Predictor::outputs() const { return shared_->model.outputs; }
const std::vector<PassReport>& Predictor::passes() const { return shared_->passes; }
const Graph& Predictor::graph() const { return *shared_->model.graph; }
const std::string& Predictor::format() const { return shared_->model.format; }

namespace {

Status check_input(const IoSpec& spec, const Datum& d, std::map<std::string, int64_t>& symbols) {
  auto wrong = [&](std::string why) {
    return Status(StatusCode::kInvalidArgument,
                  cat("input '", spec.name, "': ", why, "; the model wants ", spec.to_string()), spec.name);
  };
  if (spec.kind == IoSpec::Kind::kOptional) return ok_status();
  if (spec.kind == IoSpec::Kind::kSequence) {
    return d.kind == Datum::Kind::kSequence ? ok_status() : wrong(cat("given ", d.to_string()));
  }
  if (!d.is_tensor()) return wrong(d.kind == Datum::Kind::kNone ? "missing" : "given a sequence");
  if (spec.typed && !(d.tensor.format() == element_format(spec.dtype)))
    return wrong(cat("given ", d.to_string()));
  if (!spec.ranked) return ok_status();
  const Shape& s = d.tensor.shape();
  if (s.rank() != static_cast<int>(spec.dims.size())) return wrong(cat("given ", d.to_string()));
  for (int k = 0; k < s.rank(); ++k) {
    const IoDim& dim = spec.dims[static_cast<size_t>(k)];
    if (dim.value >= 0 && dim.value != s[k]) return wrong(cat("given ", d.to_string()));
    if (dim.value >= 0 || dim.name.empty()) continue;
    const auto [it, fresh] = symbols.emplace(dim.name, s[k]);
    if (!fresh && it->second != s[k]) {
      return wrong(cat("'", dim.name, "' is ", s[k], " here and ", it->second, " in another input"));
    }
  }
  return ok_status();
}

}  // namespace

EvalOptions Predictor::eval_options() const {
  EvalOptions o;
  o.pool = shared_->pool.get();
  o.tensor_limit = shared_->tensor_limit;
  o.loop_limit = shared_->loop_limit;
  return o;
}

Result<std::vector<Datum>> Predictor::run(std::vector<Datum> in) const {
  return profile(std::move(in), nullptr);
}

Result<std::vector<Datum>> Predictor::profile(std::vector<Datum> in, std::vector<NodeTime>* times) const {
  if (in.size() != inputs().size()) {
    return invalid_argument(cat("the model has ", inputs().size(), " inputs, ", in.size(), " are given"));
  }
  std::map<std::string, int64_t> symbols;
  for (size_t k = 0; k < in.size(); ++k) OAR_RETURN_IF_ERROR(check_input(inputs()[k], in[k], symbols));
  EvalOptions options = eval_options();
  if (times) {
    options.profile = [times](const Node& node, uint64_t start, uint64_t end) {
      times->push_back({node.op->name, node.name, start, end});
    };
  }
  return shared_->evaluator->run(std::move(in), options);
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
