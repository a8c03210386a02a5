#include "engine/tune/quantize/stage_runner.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>

#include "engine/base/format.h"
#include "engine/graph/passes/rotate.h"

namespace oar {
namespace {

constexpr int64_t kNoLayer = -1;

// "model.layers.12.mlp.up_proj.weight" -> 12; the first number between dots.
int64_t layer_of(const std::string& name) {
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    size_t end = dot + 1;
    int64_t number = 0;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0 && end - dot < 8) {
      number = number * 10 + (name[end++] - '0');
    }
    if (end > dot + 1 && end < name.size() && name[end] == '.') return number;
  }
  return kNoLayer;
}

// Tables that no checkpoint has (inverse frequencies) are shared by all layers and say nothing.
bool is_weight(const Graph& g, ValueId id) {
  return id != kNoValue && g.value(id).kind == ValueKind::kConstant && g.value(id).name != "rope.inv_freq";
}

// What weights in a rotated basis need online. Scales of heads are for a quantized cache; here there is none.
Status insert_rotations(Graph& graph, const Checkpoint& checkpoint) {
  OAR_ASSIGN(RotationOptions stored, stored_rotation(checkpoint.config));
  stored.equalize = false;
  return stored.any() ? rotate(graph, stored).status() : ok_status();
}

}  // namespace

Result<StageCuts> find_stages(const Graph& g) {
  StageCuts cuts;
  cuts.begin.push_back(0);
  cuts.enters.push_back(kNoValue);
  int64_t current = kNoLayer;
  for (size_t i = 0; i < g.nodes().size(); ++i) {
    for (const ValueId id : g.nodes()[i].inputs) {
      if (!is_weight(g, id)) continue;
      const int64_t layer = layer_of(g.value(id).name);
      if (layer == current) continue;
      // The way into the first layer leaves the embedding's stage.
      current = layer;
      cuts.begin.push_back(i);
      break;
    }
  }
  const std::vector<int> producers = g.producers();
  for (size_t k = 1; k < cuts.begin.size(); ++k) {
    ValueId crossing = kNoValue;
    const auto consider = [&](ValueId id) {
      if (id == kNoValue || producers[id] < 0 || producers[id] >= static_cast<int>(cuts.begin[k]))
        return true;
      if (crossing != kNoValue && crossing != id) return false;
      crossing = id;
      return true;
    };
    bool single = true;
    for (size_t i = cuts.begin[k]; i < g.nodes().size(); ++i) {
      for (const ValueId id : g.nodes()[i].inputs) single &= consider(id);
    }
    if (!single || crossing == kNoValue) {
      return unimplemented(
          cat("calibration walks a model layer by layer, but before '", g.nodes()[cuts.begin[k]].op->name,
              "' (node ", cuts.begin[k],
              ") more than one value crosses; use a method without calibration: rtn or hqq"));
    }
    cuts.enters.push_back(crossing);
  }
  cuts.begin.push_back(g.nodes().size());
  return cuts;
}

Result<size_t> count_stages(const Checkpoint& checkpoint, const ModelConfig& config) {
  OAR_ASSIGN(BuiltModel model, build_model(checkpoint, config, {}));
  OAR_RETURN_IF_ERROR(insert_rotations(model.graph, checkpoint));
  OAR_ASSIGN(const StageCuts cuts, find_stages(model.graph));
  return cuts.stages();
}

Result<std::unique_ptr<StageRunner>> StageRunner::make(
    const Checkpoint& checkpoint, const ModelConfig& config, size_t stage, std::shared_ptr<Backend> backend,
    int64_t max_tokens, const std::function<Result<Tensor>(const std::string&, Tensor)>& weight) {
  BuildOptions build;
  build.max_batch_tokens = max_tokens;
  build.max_logit_rows = max_tokens;
  OAR_ASSIGN(BuiltModel model, build_model(checkpoint, config, build));
  OAR_RETURN_IF_ERROR(insert_rotations(model.graph, checkpoint));
  const Graph& whole = model.graph;
  OAR_ASSIGN(const StageCuts cuts, find_stages(whole));
  OAR_CHECK(stage < cuts.stages(), "stages were counted");
  const bool last = stage + 1 == cuts.stages();

  auto out = std::unique_ptr<StageRunner>(new StageRunner());
  out->backend_ = std::move(backend);
  out->width_ = config.width;
  Graph g;
  for (const auto& symbol : whole.symbols()) g.add_symbol(symbol.name, symbol.max);  // the same ids
  std::map<ValueId, ValueId> map;
  if (stage > 0) { map[cuts.enters[stage]] = g.add_input("hidden", whole.value(cuts.enters[stage]).type); }
  const auto mapped = [&](ValueId id) -> Result<ValueId> {
    if (id == kNoValue) return kNoValue;
    if (const auto it = map.find(id); it != map.end()) return it->second;
    const Value& v = whole.value(id);
    if (v.kind != ValueKind::kConstant) return map[id] = g.add_input(v.name, v.type);
    Tensor t = v.constant;
    if (weight) { OAR_ASSIGN(t, weight(v.name, std::move(t))); }
    return map[id] = g.add_constant(v.name, std::move(t));
  };
  const std::vector<int> producers = whole.producers(), uses = whole.use_counts();
  std::vector<std::pair<ValueId, LinearInput>> inputs;  // by value of the whole graph
  for (size_t i = cuts.begin[stage]; i < cuts.begin[stage + 1]; ++i) {
    const Node& node = whole.nodes()[i];
    if (node.is("linear")) {
      const ValueId x = node.inputs[0];
      auto it = std::find_if(inputs.begin(), inputs.end(), [&](const auto& p) { return p.first == x; });
      if (it == inputs.end()) {
        LinearInput input;
        input.cols = whole.value(x).type.shape.back().const_value();
        it = inputs.insert(inputs.end(), {x, std::move(input)});
      }
      it->second.weights.push_back(whole.value(node.inputs[2]).name);
      const Node& maker = whole.nodes()[static_cast<size_t>(std::max(producers[x], 0))];
      if (maker.is("rms_norm") && is_weight(whole, maker.inputs[1]) &&
          uses[x] == static_cast<int>(it->second.weights.size())) {
        it->second.norm = whole.value(maker.inputs[1]).name;
      } else {
        it->second.norm.clear();
      }
      if (last && node.outputs[0] == whole.outputs()[0].value) continue;  // logits are not wanted
    }
    std::vector<ValueId> operands;
    for (const ValueId id : node.inputs) {
      OAR_ASSIGN(const ValueId operand, mapped(id));
      operands.push_back(operand);
    }
    OAR_ASSIGN(const std::vector<ValueId> results, g.add_node(node.op, std::move(operands), node.attrs));
    for (size_t k = 0; k < results.size(); ++k) map[node.outputs[k]] = results[k];
  }
  if (!last) {
    OAR_ASSIGN(const ValueId next, mapped(cuts.enters[stage + 1]));
    g.add_output("next", next);
    out->has_next_ = true;
  }
  for (auto& [value, input] : inputs) {
    OAR_ASSIGN(const ValueId read, mapped(value));
    g.add_output(cat("input", out->inputs_.size()), read);
    out->inputs_.push_back(std::move(input));
  }
  OAR_RETURN_IF_ERROR(run_passes(g, default_passes(), {}).status());
  ServeOptions serving;
  serving.kv = {{.type = DType::kF32, .name = "f32"}};
  serving.max_sequences = 1;
  serving.max_context = max_tokens;
  serving.page_tokens = static_cast<int32_t>(out->page_tokens_);
  OAR_ASSIGN(out->layout_, serve(g, serving));
  OAR_ASSIGN(auto program, Program::create(std::move(g), *out->backend_));
  OAR_ASSIGN(out->run_, Run::create(std::move(program)));
  const int64_t blocks = (max_tokens + out->page_tokens_ - 1) / out->page_tokens_;
  for (const ServeLayout::Group& group : out->layout_.groups) {
    for (size_t k = 0; k < group.states.size(); ++k) {
      OAR_ASSIGN(Buffer pool, out->run_->state_backend(group.states[k])
                                  .allocate(static_cast<uint64_t>(blocks) * group.state_block_bytes[k]));
      out->run_->bind_state(group.states[k], std::move(pool));
    }
  }
  out->numbers_.resize(static_cast<size_t>(max_tokens));
  std::iota(out->numbers_.begin(), out->numbers_.end(), 0);
  return out;
}

Status StageRunner::run(std::span<const int32_t> tokens, std::span<float> hidden,
                        const std::function<void(size_t input, std::span<const float> rows)>& take) {
  const auto count = static_cast<int64_t>(tokens.size());
  const Graph& g = run_->graph();
  const int64_t blocks = (count + page_tokens_ - 1) / page_tokens_;
  std::vector<int64_t> symbols(g.symbols().size(), 0);
  for (size_t s = 0; s < symbols.size(); ++s) {
    const std::string& name = g.symbols()[s].name;
    if (name == "T" || name == "R") symbols[s] = count;
    else if (name == "B") symbols[s] = 1;
    else if (name != "N") symbols[s] = blocks;  // columns of a block table
  }
  const std::vector<int32_t> seq_start{0, static_cast<int32_t>(count)}, zeros(tokens.size(), 0);
  const auto context_len = static_cast<int32_t>(count);
  std::vector<const void*> inputs;
  for (const ValueId id : g.inputs()) {
    const std::string& name = g.value(id).name;
    if (name == "tokens") inputs.push_back(tokens.data());
    else if (name == "hidden") inputs.push_back(hidden.data());
    else if (name == "segments") inputs.push_back(zeros.data());
    else if (name == "seq_start") inputs.push_back(seq_start.data());
    else if (name == "context_len") inputs.push_back(&context_len);
    else inputs.push_back(numbers_.data());  // positions, slots, rows, block tables: each its own index
  }
  OAR_RETURN_IF_ERROR(run_->run(symbols, inputs));
  std::vector<float> rows;
  const size_t first = has_next_ ? 1 : 0;
  for (size_t k = 0; k < inputs_.size() && take; ++k) {
    rows.resize(static_cast<size_t>(count * inputs_[k].cols));
    OAR_RETURN_IF_ERROR(run_->read_output(first + k, rows));
    take(k, rows);
  }
  if (!has_next_) return ok_status();
  return run_->read_output(0, hidden.first(static_cast<size_t>(count * width_)));
}

}  // namespace oar
