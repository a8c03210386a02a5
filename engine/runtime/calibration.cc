#include "engine/runtime/calibration.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "engine/base/format.h"
#include "engine/graph/pass.h"
#include "engine/graph/passes/insert_quantization.h"
#include "engine/graph/passes/match.h"

namespace oar {
namespace {

using calibrate::ActivationHistogram;
using passes::QuantizationSites;

// What the samples said of one value.
struct Observed {
  ActivationHistogram histogram;
  int64_t most_pixels = 0;  // of its images, where they have four axes
};

// The walks over the samples, each a run of the model as it was imported.
class Collector {
 public:
  Collector(const ImportedModel& model, const CalibrationSamples& samples, Backend& backend)
      : model_(model), samples_(samples), backend_(backend) {}

  Result<std::map<ValueId, Observed>> collect(const std::set<ValueId>& watched) {
    OAR_ASSIGN(const auto evaluator, Evaluator::create(model_.graph, backend_));
    for (const ValueId v : watched) observed_[v];
    // Percentiles and losses are counted between extremes that must be known.
    const bool counts = samples_.method != RangeMethod::kMinMax;
    for (int walk = 0; walk < (counts ? 2 : 1); ++walk) {
      for (size_t k = 0; k < samples_.names.size(); ++k) {
        Status s = run(*evaluator, k, walk == 1);
        if (!s.ok()) return Status(s.code(), cat(samples_.names[k], ": ", s.message()), "calibrate");
      }
    }
    return std::move(observed_);
  }

 private:
  Status run(const Evaluator& evaluator, size_t k, bool counting) {
    OAR_ASSIGN(std::vector<Datum> in, samples_.read(k, model_.inputs));
    OAR_RETURN_IF_ERROR(check_model_inputs(model_.inputs, in));
    for (size_t i = 0; i < in.size(); ++i) {
      if (has_nan(in[i])) return invalid_argument(cat("input '", model_.inputs[i].name, "' holds a NaN"));
      OAR_RETURN_IF_ERROR(see(model_.graph->inputs()[i], in[i], counting, nullptr));
    }
    EvalOptions options;
    options.backend = &backend_;
    options.observe = [&](const Node& node, std::span<const Datum> results) -> Status {
      for (size_t i = 0; i < results.size(); ++i)
        OAR_RETURN_IF_ERROR(see(node.outputs[i], results[i], counting, &node));
      return ok_status();
    };
    return evaluator.run(std::move(in), options).status();
  }

  static bool has_nan(const Datum& d) {
    if (!d.is_tensor() || d.tensor.format() != Format::f32()) return false;
    const auto v = d.tensor.values<float>();
    return std::any_of(v.begin(), v.end(), [](float x) { return std::isnan(x); });
  }

  Status see(ValueId v, const Datum& d, bool counting, const Node* maker) {
    const auto it = observed_.find(v);
    if (it == observed_.end() || !d.is_tensor()) return ok_status();
    const auto describe = [&] {
      return maker ? cat("the result of ", passes::node_label(*maker))
                   : cat("input '", model_.graph->value(v).name, "'");
    };
    if (d.tensor.format() != Format::f32())
      return invalid_argument(cat(describe(), " is ", d.to_string(), ", not f32"));
    if (counting) {
      it->second.histogram.add_counts(d.tensor.values<float>());
      return ok_status();
    }
    const Shape& s = d.tensor.shape();
    if (s.rank() == 4) it->second.most_pixels = std::max(it->second.most_pixels, s[2] * s[3]);
    if (!it->second.histogram.add_extremes(d.tensor.values<float>()))
      return invalid_argument(cat(describe(), " holds a value that is not finite"));
    return ok_status();
  }

  const ImportedModel& model_;
  const CalibrationSamples& samples_;
  Backend& backend_;
  std::map<ValueId, Observed> observed_;
};

}  // namespace

Result<RangeMethod> parse_range_method(std::string_view name) {
  if (const auto m = calibrate::parse_range_method(name)) return *m;
  return Status(StatusCode::kInvalidArgument,
                cat("the range method is '", name, "'; it must be minmax, percentile or mse"), "method");
}

Result<CalibrationReport> quantize_statically(ImportedModel& model, const CalibrationSamples& samples,
                                              Backend& backend) {
  if (samples.names.empty() || !samples.read)
    return Status(StatusCode::kInvalidArgument, "there are no samples to calibrate with", "calibrate");
  Graph& graph = *model.graph;
  for (const Node& n : graph.nodes()) {
    if (n.is("quantize_linear") || n.is("dequantize_linear") || n.is("qlinear_conv") ||
        n.is("qlinear_matmul"))
      return Status(
          StatusCode::kFailedPrecondition,
          cat("the model is quantized already (", passes::node_label(n), "); calibrate its f32 form"),
          "calibrate");
  }
  // Layers as the integer kernels compute them: constants computed, activations and norms one op each, batch
  // norms in the filters.
  OAR_RETURN_IF_ERROR(passes::fold_evaluated(graph).status());
  OAR_RETURN_IF_ERROR(passes::fuse_definitions(graph).status());
  OAR_RETURN_IF_ERROR(passes::fold_layer_constants(graph).status());
  const QuantizationSites all = passes::find_quantization_sites(graph, [](const Node&) { return true; });
  if (all.layers.empty()) {
    return Status(StatusCode::kFailedPrecondition,
                  "the model has no convolution or product with constant f32 weights that could be quantized",
                  "calibrate");
  }
  std::map<ValueId, Observed> observed;
  { OAR_ASSIGN(observed, Collector(model, samples, backend).collect(all.values)); }
  // Gates (squeeze and excite) compute with one pixel per image: nothing to gain, and the whole map is scaled
  // by what is lost there.
  // A shared scale takes steps from the operands of narrower range: at most two bits.
  constexpr float kMostWidening = 4;
  const auto width = [&](ValueId v) {
    const auto it = observed.find(v);
    if (it == observed.end()) return 0.f;
    const calibrate::ActivationRange r = it->second.histogram.range(samples.method);
    return r.high - r.low;
  };
  const auto wanted = [&](const Node& n) {
    if (n.is("concat")) {
      return std::all_of(n.inputs.begin(), n.inputs.end(),
                         [&](ValueId v) { return kMostWidening * width(v) >= width(n.outputs[0]); });
    }
    const auto it = observed.find(n.inputs[0]);
    return !n.is("conv") || (it != observed.end() && it->second.most_pixels != 1);
  };
  QuantizationSites sites = passes::find_quantization_sites(graph, wanted);
  CalibrationReport report{static_cast<int>(all.layers.size()), static_cast<int>(sites.layers.size()),
                           static_cast<int>(sites.values.size()), samples.names.size()};
  std::map<ValueId, passes::ValueRange> ranges;
  for (const auto& [v, o] : observed) {
    const calibrate::ActivationRange r = o.histogram.range(samples.method);
    ranges[v] = {r.low, r.high};
  }
  OAR_RETURN_IF_ERROR(passes::insert_quantization(graph, sites, ranges));
  return report;
}

namespace {

Status check_model_input(const IoSpec& spec, const Datum& d, std::map<std::string, int64_t>& symbols) {
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

Status check_model_inputs(const std::vector<IoSpec>& specs, const std::vector<Datum>& values) {
  if (values.size() != specs.size()) {
    return invalid_argument(cat("the model has ", specs.size(), " inputs, ", values.size(), " are given"));
  }
  std::map<std::string, int64_t> symbols;
  for (size_t k = 0; k < values.size(); ++k)
    OAR_RETURN_IF_ERROR(check_model_input(specs[k], values[k], symbols));
  return ok_status();
}

}  // namespace oar
