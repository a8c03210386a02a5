#include "server/repository/ensemble_config.h"

#include <algorithm>
#include <map>

#include "engine/base/format.h"
#include "server/api/tensor_wire.h"
#include "server/repository/config_fields.h"
#include "server/repository/model_config.h"

namespace oar {
namespace {

using api::EnsembleStep;
using api::TensorModelConfig;
using api::TensorSpec;
using namespace config_fields;  // NOLINT: this file reads little else

constexpr size_t kMaxSteps = 64;
constexpr std::string_view kOfEnsembles[] = {
    "name", "platform", "backend", "input", "max_batch_size", "ensemble_scheduling", "output"};

std::string describe(const TensorSpec& s) {
  const api::Datatype* type = api::datatype_of(s.dtype);
  return cat(s.list ? "a list of " : "",
             api::describe_tensor(type ? type->name : dtype_name(s.dtype), s.dims));
}

Result<std::vector<EnsembleStep>> read_steps(const json::object& config) {
  OAR_ASSIGN(const json::object* scheduling, message(config, "ensemble_scheduling"));
  std::vector<EnsembleStep> steps;
  if (!scheduling) return steps;
  for (const auto& field : *scheduling) {
    if (field.key() != "step")
      return invalid_argument(
          cat("config: ensemble_scheduling has no field '", std::string_view(field.key()), "'; it has step"));
  }
  for (const json::value* v : each(*scheduling, "step")) {
    if (!v->is_object()) return wrong("step", "a list of messages", *v);
    const json::object& o = v->get_object();
    for (const auto& field : o) {
      const std::string_view key = field.key();
      if (key != "model_name" && key != "model_version" && key != "input_map" && key != "output_map")
        return invalid_argument(cat("config: a step of ensemble_scheduling has no field '", key,
                                    "' here; it has model_name, model_version, input_map and output_map"));
    }
    EnsembleStep& step = steps.emplace_back();
    OAR_ASSIGN(step.model, read_string(o, "model_name"));
    OAR_RETURN_IF_ERROR(read_int(o, "model_version", -1, INT64_MAX, step.version));
    OAR_ASSIGN(step.inputs, read_map(o, "input_map"));
    OAR_ASSIGN(step.outputs, read_map(o, "output_map"));
    const auto missing = [&](const char* field) {
      return invalid_argument(cat("config: step ", steps.size(), " of ensemble_scheduling has no ", field),
                              field);
    };
    if (step.model.empty()) return missing("model_name");
    if (step.inputs.empty()) return missing("input_map");
    if (step.outputs.empty()) return missing("output_map");
  }
  if (steps.size() > kMaxSteps)
    return invalid_argument(cat("config: ", steps.size(), " steps; at most ", kMaxSteps), "step");
  return steps;
}

std::string names_of(const std::vector<TensorSpec>& specs) {
  std::string out;
  for (const TensorSpec& s : specs) out += cat(out.empty() ? "" : ", ", s.name);
  return out;
}

// What is known of the ensemble's tensors, and whether the steps fit to each other.
class Check {
 public:
  Check(const json::object& config, TensorModelConfig& out) : config_(config), out_(out) {}

  Status run(const api::Ensemble::FindStep& find);

 private:
  struct Tensor {
    TensorSpec spec;     // what all who touch it say
    std::string first;   // who said it first: "the output 'y' of step 'a'"
    std::string writer;  // empty: an input of the ensemble
    bool read = false, known = false, input = false;
  };
  Status declare(const char* field, bool input, std::vector<std::string>& names);
  Status add_step(const EnsembleStep& step, const TensorModelConfig& model);
  Status sort();
  Status agree(Tensor& t, TensorSpec spec, const std::string& who);
  Status finish(const char* field, bool input, const std::vector<std::string>& names,
                std::vector<TensorSpec>& specs);

  const json::object& config_;
  TensorModelConfig& out_;
  std::vector<std::string> inputs_, outputs_;
  std::map<std::string, Tensor> tensors_;
};

Status Check::declare(const char* field, bool input, std::vector<std::string>& names) {
  for (const json::value* v : each(config_, field)) {
    if (!v->is_object()) return wrong(field, "a list of messages", *v);
    OAR_ASSIGN(const std::string name, read_string(v->get_object(), "name"));
    if (name.empty()) return invalid_argument(cat("config: an ", field, " has no name"), field);
    if (std::ranges::find(names, name) != names.end())
      return invalid_argument(cat("config: the ", field, " '", name, "' is there twice"), field);
    names.push_back(name);
    if (input) tensors_[name].input = true;
  }
  if (names.empty()) return invalid_argument(cat("config: an ensemble names its ", field, "s"), field);
  return ok_status();
}

// Each behind those whose tensors it reads.
Status Check::sort() {
  std::map<std::string, const EnsembleStep*> writers;
  for (const EnsembleStep& s : out_.steps)
    for (const auto& [own, tensor] : s.outputs) {
      const auto [it, fresh] = writers.emplace(tensor, &s);
      if (!fresh)
        return invalid_argument(cat("config: the tensor '", tensor, "' is written by the steps '",
                                    it->second->model, "' and '", s.model, "'; name one of them otherwise"));
      if (tensors_[tensor].input)
        return invalid_argument(cat("config: the step '", s.model, "' writes the tensor '", tensor,
                                    "', which is an input of the ensemble"));
    }
  for (const EnsembleStep& s : out_.steps)
    for (const auto& [own, tensor] : s.inputs)
      if (!tensors_[tensor].input && !writers.contains(tensor))
        return invalid_argument(cat("config: the step '", s.model, "' reads the tensor '", tensor,
                                    "', which is no input of the ensemble and which no step writes"));
  std::vector<EnsembleStep> sorted;
  std::vector<bool> placed(out_.steps.size());
  while (sorted.size() < out_.steps.size()) {
    const size_t before = sorted.size();
    for (size_t k = 0; k < out_.steps.size(); ++k) {
      const EnsembleStep& s = out_.steps[k];
      const bool due = !placed[k] && std::ranges::all_of(s.inputs, [&](const auto& in) {
        const auto w = writers.find(in.second);
        return w == writers.end() || placed[static_cast<size_t>(w->second - out_.steps.data())];
      });
      if (!due) continue;
      placed[k] = true;
      sorted.push_back(s);
    }
    if (sorted.size() > before) continue;
    std::string waiting;
    for (size_t k = 0; k < placed.size(); ++k)
      if (!placed[k]) waiting += cat(waiting.empty() ? "'" : ", '", out_.steps[k].model, "'");
    return invalid_argument(cat("config: the steps ", waiting, " wait for each other's tensors"));
  }
  out_.steps = std::move(sorted);
  return ok_status();
}

Status Check::agree(Tensor& t, TensorSpec spec, const std::string& who) {
  spec.symbols.clear();
  if (!t.known) {
    t.known = true;
    t.spec = std::move(spec);
    t.first = who;
    return ok_status();
  }
  const auto conflict = [&] {
    return invalid_argument(
        cat("config: ", t.first, " is ", describe(t.spec), ", ", who, " is ", describe(spec)));
  };
  t.spec.optional = t.spec.optional && spec.optional;
  if (spec.dtype != t.spec.dtype || spec.list != t.spec.list) return conflict();
  if (!spec.ranked) return ok_status();
  if (!t.spec.ranked) {
    t.spec.ranked = true;
    t.spec.dims = std::move(spec.dims);
    return ok_status();
  }
  if (spec.dims.size() != t.spec.dims.size()) return conflict();
  for (size_t k = 0; k < spec.dims.size(); ++k)
    if (spec.dims[k] >= 0 && t.spec.dims[k] >= 0 && spec.dims[k] != t.spec.dims[k]) return conflict();
  for (size_t k = 0; k < spec.dims.size(); ++k) t.spec.dims[k] = std::max(spec.dims[k], t.spec.dims[k]);
  return ok_status();
}

Status Check::add_step(const EnsembleStep& step, const TensorModelConfig& model) {
  if (out_.max_batch > model.max_batch)
    return invalid_argument(
        cat("config: max_batch_size is ", out_.max_batch, ", and the step '", step.model,
            model.max_batch == 0 ? "' has no batch axis" : cat("' takes ", model.max_batch, " rows at most"),
            "; lower it"),
        "max_batch_size");
  const auto find = [&](const std::vector<TensorSpec>& specs, const std::string& own,
                        const char* kind) -> Result<const TensorSpec*> {
    const auto it = std::ranges::find_if(specs, [&](const TensorSpec& s) { return s.name == own; });
    if (it != specs.end()) return &*it;
    return invalid_argument(cat("config: the model of the step '", step.model, "' has no ", kind, " '", own,
                                "'; it has ", names_of(specs)));
  };
  const auto name = [&](const char* kind, const std::string& own) {
    return cat("the ", kind, " '", own, "' of the step '", step.model, "'");
  };
  // A step of single tensors is asked once for each item of a list, and its outputs are lists.
  bool each_item = false;
  for (const auto& [own, tensor] : step.inputs) {
    OAR_ASSIGN(const TensorSpec* spec, find(model.inputs, own, "input"));
    TensorSpec wanted = *spec;
    Tensor& t = tensors_[tensor];
    if (!wanted.list && t.known && t.spec.list && !t.input) each_item = wanted.list = true;
    t.read = true;
    OAR_RETURN_IF_ERROR(agree(t, std::move(wanted), name("input", own)));
  }
  for (const TensorSpec& spec : model.inputs) {
    const auto given = [&](const auto& in) { return in.first == spec.name; };
    if (spec.optional || std::ranges::any_of(step.inputs, given)) continue;
    return invalid_argument(cat("config: the step '", step.model, "' needs its input '", spec.name,
                                "', and its input_map has none of that name"));
  }
  for (const auto& [own, tensor] : step.outputs) {
    OAR_ASSIGN(const TensorSpec* spec, find(model.outputs, own, "output"));
    TensorSpec made = *spec;
    if (each_item && made.list)
      return unimplemented(
          cat("config: ", name("output", own), " would be a list of lists; its inputs are lists already"));
    made.list = made.list || each_item;
    Tensor& t = tensors_[tensor];
    t.writer = step.model;
    OAR_RETURN_IF_ERROR(agree(t, std::move(made), name("output", own)));
  }
  return ok_status();
}

Status Check::finish(const char* field, bool input, const std::vector<std::string>& names,
                     std::vector<TensorSpec>& specs) {
  for (const std::string& name : names) {
    Tensor& t = tensors_[name];
    if (input && !t.read)
      return invalid_argument(cat("config: no step reads the input '", name, "'; leave it out"), field);
    if (!input && t.writer.empty())
      return invalid_argument(cat("config: no step writes the output '", name, "'"), field);
    if (t.spec.list)
      return unimplemented(cat("config: the ", field, " '", name,
                               "' is a list of tensors, which no request can carry; let a step join them"));
    t.read = true;
    specs.push_back(t.spec);
    specs.back().name = name;
  }
  return override_specs(config_, field, input, out_.max_batch > 0, specs);
}

Status Check::run(const api::Ensemble::FindStep& find) {
  OAR_RETURN_IF_ERROR(declare("input", true, inputs_));
  OAR_RETURN_IF_ERROR(declare("output", false, outputs_));
  OAR_RETURN_IF_ERROR(sort());
  for (const EnsembleStep& s : out_.steps) {
    const Result<api::TensorModelPtr> model = find(s);
    if (!model.ok())
      return {model.status().code(), cat("config: the step '", s.model, "': ", model.status().message())};
    OAR_RETURN_IF_ERROR(add_step(s, (*model)->config));
  }
  OAR_RETURN_IF_ERROR(finish("input", true, inputs_, out_.inputs));
  OAR_RETURN_IF_ERROR(finish("output", false, outputs_, out_.outputs));
  for (const auto& [name, t] : tensors_) {
    if (!t.read)
      return invalid_argument(cat("config: nobody reads the tensor '", name, "' of the step '", t.writer,
                                  "'; leave it out of its output_map"));
  }
  return ok_status();
}

}  // namespace

bool is_ensemble(const json::object& config) {
  if (config.if_contains("ensemble_scheduling")) return true;
  const Result<std::string> platform = read_string(config, "platform");
  return platform.ok() && *platform == "ensemble";
}

std::vector<std::string> models_of_steps(const json::object& config) {
  std::vector<std::string> out;
  const auto steps = read_steps(config);
  if (!steps.ok()) return out;
  for (const EnsembleStep& s : *steps)
    if (std::ranges::find(out, s.model) == out.end()) out.push_back(s.model);
  return out;
}

Result<TensorModelConfig> make_ensemble_config(const std::string& name, const json::object& config,
                                               const api::Ensemble::FindStep& find) {
  for (const char* field : {"dynamic_batching", "instance_group"}) {
    if (config.if_contains(field))
      return invalid_argument(cat("config: '", field, "' is for models, and '", name,
                                  "' is an ensemble; its steps have their own"),
                              field);
  }
  OAR_RETURN_IF_ERROR(check_fields(name, config, kOfEnsembles));
  for (const char* field : {"platform", "backend"}) {
    OAR_ASSIGN(const std::string value, read_string(config, field));
    if (!value.empty() && value != "ensemble")
      return invalid_argument(
          cat("config: the ", field, " is '", value, "', and ensemble_scheduling makes it an ensemble"),
          field);
  }
  TensorModelConfig out;
  out.name = name;
  out.platform = "ensemble";
  OAR_RETURN_IF_ERROR(read_int(config, "max_batch_size", 0, 1 << 20, out.max_batch));
  OAR_ASSIGN(out.steps, read_steps(config));
  if (out.steps.empty())
    return invalid_argument("config: an ensemble has no steps; give ensemble_scheduling { step [ ... ] }");
  OAR_RETURN_IF_ERROR(Check(config, out).run(find));
  return out;
}

}  // namespace oar
