#include "engine/runtime/quantize_weights.h"

#include <atomic>
#include <map>
#include <mutex>
#include <set>

#include "engine/base/format.h"
#include "engine/models/encoder.h"
#include "quant/calibrate/grid_format.h"

namespace oar {
namespace {

using calibrate::FitMethod;

const std::vector<WeightScheme>& schemes() {
  static const std::vector<WeightScheme> kSchemes = {
      {"auto", "", "", FitMethod::kAbsMax, true},
      {"f32", "f32", "f32", FitMethod::kAbsMax, true},
      {"bf16", "bf16", "bf16", FitMethod::kAbsMax, true},
      {"f16", "f16", "f16", FitMethod::kAbsMax, true},
      {"int8", "q8_0", "q8_0", FitMethod::kAbsMax, true},
      // The head is what the logits come from directly: 6 bits, as is usual. Rounding loses less than HQQ on
      // every real model at hand (tests/bench/quantization_tables.py).
      {"int4", "i4_s8_g32", "q6_k", FitMethod::kMse},
      {"w4a8", "w4a8_g128", "i8_channel", FitMethod::kMse},
      // The head stays as it is: every FP8 recipe leaves it.
      {"fp8", "e4m3_channel", "", FitMethod::kMse},
  };
  return kSchemes;
}

}  // namespace

std::vector<std::string> weight_scheme_names() {
  std::vector<std::string> out;
  for (const WeightScheme& s : schemes()) out.push_back(s.name);
  return out;
}

Result<WeightScheme> weight_scheme(const std::string& name) {
  std::string known;
  for (const WeightScheme& s : schemes()) {
    if (s.name == name) return s;
    known += (known.empty() ? "" : ", ") + s.name;
  }
  // Any storage format by its own name: for measuring.
  if (const auto format = Format::find(name); format && !format->plain()) {
    if (format->info().encode != nullptr || calibrate::find_grid_format(*format) != nullptr) {
      return WeightScheme{name, name, name, FitMethod::kMse};
    }
  }
  return invalid_argument(
      cat("weights '", name, "' is not one of ", known, ", nor a storage format that can be written"),
      "weights");
}

namespace {

// The model as its file writes it.
struct WrittenModel {
  Graph graph;
  std::string embedding;  // the table that a tied head shares
};
Result<WrittenModel> written_model(const Checkpoint& checkpoint) {
  WrittenModel out;
  if (is_encoder_config(checkpoint.config)) {
    OAR_ASSIGN(const EncoderConfig config, read_encoder_config(checkpoint.config));
    OAR_ASSIGN(BuiltEncoder encoder, build_encoder(checkpoint, config, config.max_tokens(), 1));
    out.graph = std::move(encoder.graph);
    return out;
  }
  OAR_ASSIGN(const ModelConfig config, read_model_config(checkpoint.config));
  OAR_ASSIGN(BuiltModel model, build_model(checkpoint, config, {}));
  out.graph = std::move(model.graph);
  out.embedding = find_architecture(config.model_type)->embedding;
  return out;
}

}  // namespace

Result<Checkpoint> unstack_experts(Checkpoint checkpoint) {
  std::map<const std::byte*, std::string> stacks;  // by where they begin
  for (const auto& [name, tensor] : checkpoint.tensors) {
    if (tensor.shape().rank() == 3) stacks[static_cast<const std::byte*>(tensor.data())] = name;
  }
  if (stacks.empty()) return checkpoint;
  OAR_ASSIGN(const WrittenModel model, written_model(checkpoint));
  std::set<std::string> taken;
  TensorMap slices;
  for (size_t v = 0; v < model.graph.num_values(); ++v) {
    const Value& value = model.graph.value(static_cast<ValueId>(v));
    if (value.kind != ValueKind::kConstant || value.constant.shape().rank() != 2) continue;
    if (checkpoint.tensors.contains(value.name)) continue;
    const auto* at = static_cast<const std::byte*>(value.constant.data());
    auto stack = stacks.upper_bound(at);
    if (stack == stacks.begin()) continue;
    --stack;
    if (at >= stack->first + checkpoint.tensors.at(stack->second).bytes()) continue;
    slices.insert_or_assign(value.name, value.constant);
    taken.insert(stack->second);
  }
  for (const std::string& name : taken) checkpoint.tensors.erase(name);
  checkpoint.tensors.merge(slices);
  return checkpoint;
}

// The linear layer of one of the model's results: behind it stand a scale and a cap at most.
size_t head_of(const Graph& g, const std::vector<int>& producers, ValueId result) {
  int i = producers[result];
  while (i >= 0) {
    const Node& n = g.nodes()[static_cast<size_t>(i)];
    if (!n.is("mul") && !n.is("tanh")) break;
    i = producers[n.inputs[0]];
  }
  return static_cast<size_t>(i);
}

Result<std::vector<WeightTarget>> weight_targets(const Checkpoint& checkpoint) {
  OAR_ASSIGN(const WrittenModel model, written_model(checkpoint));
  return weight_targets(model.graph, checkpoint.tensors, model.embedding);
}

std::vector<WeightTarget> weight_targets(const Graph& g, const TensorMap& tensors,
                                         const std::string& embedding) {
  const std::vector<int> producers = g.producers();
  std::set<ValueId> routed;  // results that choose experts
  for (const Node& n : g.nodes()) {
    if (n.is("moe_route")) routed.insert(n.inputs.begin(), n.inputs.end());
  }
  std::set<size_t> heads;
  for (const auto& o : g.outputs()) heads.insert(head_of(g, producers, o.value));
  std::vector<WeightTarget> out;
  std::set<std::string> seen;
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    const Node& n = g.nodes()[i];
    if (!n.is("linear") && !n.is("grouped_linear")) continue;
    for (const ValueId id : n.inputs) {
      if (id == kNoValue || g.value(id).kind != ValueKind::kConstant) continue;
      const Value& w = g.value(id);
      // A tied head has a name of its own in the graph and the embedding's bytes in the file.
      const bool tied = heads.contains(i) && !tensors.contains(w.name);
      WeightTarget target{tied ? embedding : w.name, w.name, WeightRole::kBody};
      if (w.constant.shape().rank() != 2 || !tensors.contains(target.source)) continue;
      if (heads.contains(i)) {
        target.role = WeightRole::kHead;
      } else if (routed.contains(n.outputs[0])) {
        target.role = WeightRole::kRouter;
      }
      if (seen.insert(target.name).second) out.push_back(std::move(target));
    }
  }
  return out;
}

std::optional<Format> target_format(const WeightScheme& scheme, const WeightTarget& target, const Tensor& w) {
  if (target.role == WeightRole::kRouter || !w.format().plain() || w.shape().rank() != 2) return std::nullopt;
  const DType stored = w.format().dtype();
  if (stored != DType::kF32 && stored != DType::kF16 && stored != DType::kBF16) return std::nullopt;
  const std::string& name = target.role == WeightRole::kHead ? scheme.head : scheme.body;
  if (name.empty()) return std::nullopt;
  const auto format = Format::find(name);
  OAR_CHECK(format.has_value(), "schemes name formats that exist");
  if (!format->row_bytes(w.shape().cols())) {
    // Blocks of 256 may not divide a row that blocks of 32 do.
    const auto narrow = Format::find("q8_0");
    if (narrow && narrow->row_bytes(w.shape().cols())) return narrow;
    return std::nullopt;
  }
  return format;
}

bool stays_plain(const WeightScheme& scheme, int64_t cols) {
  const auto body = Format::find(scheme.body);
  return body && !body->plain() && !body->row_bytes(cols) && cols % 32 != 0;
}

std::string nothing_to_quantize(const std::string& weights) {
  return cat("--weights ", weights,
             ": the model has no matrix in 16 or 32 bits that this could quantize; it stays as it is");
}

std::string uneven_text(const std::vector<UnevenMatrix>& matrices) {
  std::string out;
  for (const UnevenMatrix& m : matrices)
    out += cat(out.empty() ? "" : ", ", m.name, " (", m.rows, " x ", m.cols, ", ", m.format, ")");
  return out.empty() ? out : cat("not quantized, as their width is no multiple of 32: ", out);
}

Result<QuantizedWeight> quantize_weight(const Tensor& w, Format format, const calibrate::FitOptions& fit,
                                        std::span<const float> importance, ThreadPool& pool) {
  const int64_t rows = w.shape()[0], cols = w.shape()[1];
  QuantizedWeight out;
  OAR_ASSIGN(out.tensor, Tensor::allocate(w.shape(), format));
  const int64_t from_bytes = *w.format().row_bytes(cols), to_bytes = *format.row_bytes(cols);
  const auto* from = static_cast<const std::byte*>(w.data());
  auto* to = static_cast<std::byte*>(out.tensor.mutable_data());
  const calibrate::GridFormat* grid = calibrate::find_grid_format(format);
  if (grid == nullptr && format.info().encode == nullptr) {
    return unimplemented(cat("nothing here writes ", format.name()));
  }
  // By row, summed in order: the same sum for any number of threads.
  std::vector<double> error(static_cast<size_t>(rows)), energy(static_cast<size_t>(rows));
  std::atomic<bool> finite{true};
  auto work = [&](int64_t begin, int64_t end) {
    const auto n = static_cast<size_t>(cols);
    const auto groups = grid != nullptr ? static_cast<size_t>(grid->spec.groups(cols)) : 0;
    std::vector<float> row(n), read(n), scale(groups), zero(groups);
    std::vector<int8_t> levels(n);
    for (int64_t r = begin; r < end; ++r) {
      w.format().decode_row(from + r * from_bytes, cols, row.data());
      std::byte* bytes = to + r * to_bytes;
      if (grid != nullptr) {
        calibrate::fit_row(row, importance, grid->spec, fit, scale, zero);
        calibrate::round_row(row, grid->spec, scale, zero, levels);
        grid->pack(levels, scale, zero, bytes);
      } else {
        format.encode_row(row.data(), cols, bytes);
      }
      format.decode_row(bytes, cols, read.data());
      double lost = 0, all = 0;
      for (size_t i = 0; i < n; ++i) {
        const double d = static_cast<double>(row[i]) - static_cast<double>(read[i]);
        lost += d * d;
        all += static_cast<double>(row[i]) * static_cast<double>(row[i]);
      }
      if (!(all < 1e300)) finite = false;
      error[static_cast<size_t>(r)] = lost;
      energy[static_cast<size_t>(r)] = all;
    }
  };
  pool.parallel_for(rows, 4, std::move(work));
  if (!finite) return data_loss("the tensor has NaN or infinite weights, which cannot be quantized");
  for (size_t r = 0; r < error.size(); ++r) {
    out.error += error[r];
    out.energy += energy[r];
  }
  return out;
}

Status quantize_as_kernels(Checkpoint& checkpoint, ModelConfig& config, const std::string& weights,
                           ThreadPool& pool, const Logger& log) {
  OAR_ASSIGN(const WeightScheme scheme, weight_scheme(weights));
  if (!scheme.by_kernel || scheme.body.empty()) return ok_status();
  if (Format::find(scheme.body)->plain())
    return unimplemented(
        cat("--weights ", weights, ": the base is trained as it is stored (auto) or quantized (int8, int4)"));
  OAR_ASSIGN(const auto targets, weight_targets(checkpoint));
  const TensorMap stored = checkpoint.tensors;
  bool any = false;
  for (const WeightTarget& t : targets) {
    const Tensor& w = stored.at(t.source);
    const auto format = target_format(scheme, t, w);
    if (!format) continue;
    any = true;
    calibrate::FitOptions fit;
    fit.method = scheme.method;
    OAR_ASSIGN(QuantizedWeight made, quantize_weight(w, *format, fit, {}, pool));
    w.buffer().release_pages();
    checkpoint.tensors[t.name] = std::move(made.tensor);
    if (t.name != t.source) config.tied = false;
  }
  if (!any) log(LogLevel::kWarning, nothing_to_quantize(weights));
  return ok_status();
}

}  // namespace oar
