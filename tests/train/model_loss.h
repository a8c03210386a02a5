// A tiny language model's loss as a graph to differentiate.
#pragma once

#include <functional>
#include <numeric>

#include "engine/graph/cut.h"
#include "engine/loader/checkpoint.h"
#include "engine/models/model.h"
#include "tests/support/tiny_weights.h"
#include "tests/train/gradient_check.h"

namespace oar_test {

// Packed samples; -1 is the target of what predicts nothing.
struct LossRows {
  std::vector<int64_t> tokens, positions, segments, targets;
};

// The model's mean loss over targets as output "L", weights under their names as inputs.
struct ModelLoss {
  oar::Graph graph;
  Inputs inputs;
  std::vector<std::string> weights;

  enum Samples { kOneSample, kTwoSamples };  // the second of two tokens
  // The golden's own tokens, each with the next one as its target.
  ModelLoss(const TinyGolden& golden, size_t tokens, Samples samples)
      : ModelLoss(golden, golden_rows(golden, tokens, samples)) {}
  ModelLoss(const TinyGolden& golden, const LossRows& rows) {
    using namespace oar;
    const auto checkpoint = load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
    REQUIRE_OK(checkpoint);
    const auto config = read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    auto model = build_model(*checkpoint, *config, {.max_batch_tokens = 64, .max_logit_rows = 64});
    REQUIRE_OK(model);
    graph = std::move(model->graph);
    std::vector<int64_t> each(rows.tokens.size());
    std::iota(each.begin(), each.end(), 0);
    for (const auto& [name, values] :
         {std::pair("tokens", rows.tokens), std::pair("positions", rows.positions),
          std::pair("segments", rows.segments), std::pair("targets", rows.targets),
          std::pair("logit_rows", each)}) {
      HostValue v;
      v.shape = Shape({static_cast<int64_t>(values.size())}), v.dtype = DType::kI32, v.i = values;
      inputs[name] = v;
    }
    Builder b(graph);
    const Val targets{graph.add_input("targets", {Format::i32(), {graph.dim(model->R)}})};
    const Val logits{*passes::find_value(graph, "logits")};
    const Val L = b.op("softmax_cross_entropy_loss", {logits, targets}, {{"ignore_index", int64_t{-1}}});
    REQUIRE_OK(b.status());
    graph.keep_outputs(0);
    graph.add_output("L", L.id);
    as_ordinary_ops(b);
    // Constants by place, and inputs take their names: those of a stack have its own, used or not.
    std::vector<std::pair<ValueId, Tensor>> constants;
    const std::vector<int> uses = graph.use_counts();
    for (size_t v = 0; v < uses.size(); ++v) {
      Value& value = graph.value(static_cast<ValueId>(v));
      if (value.kind != ValueKind::kConstant) continue;
      value.name.clear();
      if (uses[v] > 0) constants.emplace_back(static_cast<ValueId>(v), value.constant);
    }
    for (const auto& [v, constant] : constants) {
      for (const auto& [name, tensor] : checkpoint->tensors) {
        const Val part = part_of(b, name, tensor, constant);
        REQUIRE_OK(b.status());
        if (part) graph.replace_uses(v, part.id);
      }
    }
    REQUIRE(!weights.empty());
    graph.sort();
  }

 private:
  // Matrices that are made of others at load, by ops through which gradients go.
  void as_ordinary_ops(oar::Builder& b) {
    using Ints = std::vector<int64_t>;
    const size_t count = graph.nodes().size();
    std::vector<bool> dead(count, false);
    for (size_t i = 0; i < count; ++i) {
      const oar::Node n = graph.nodes()[i];  // a copy: nodes are appended
      if (!n.is("stored_matrix")) continue;
      REQUIRE((n.inputs.size() < 2 || n.inputs[1] == oar::kNoValue));  // no codes
      oar::Val w{n.inputs[0]};
      if (n.attrs.get_bool("transposed")) w = b.op("transpose", {w}, {{"perm", Ints{1, 0}}});
      const int64_t first = n.attrs.get_int("first"), step = n.attrs.get_int("step", 1);
      const int64_t end = first + (n.attrs.get_int("rows") - 1) * step + 1;
      w = b.op("slice", {w},
               {{"axes", Ints{0}}, {"starts", Ints{first}}, {"ends", Ints{end}}, {"steps", Ints{step}}});
      REQUIRE_OK(b.status());
      graph.replace_uses(n.outputs[0], w.id);
      dead[i] = true;
    }
    dead.resize(graph.nodes().size(), false);
    graph.remove_nodes(dead);
    graph.sort();
  }

  // A constant that lies in a tensor of the checkpoint, as an input: a tied head is another constant of the
  // same bytes, and an expert's matrix is rows of a stack. Empty where it lies elsewhere.
  oar::Val part_of(oar::Builder& b, const std::string& name, const oar::Tensor& tensor,
                   const oar::Tensor& constant) {
    using namespace oar;
    const auto* const from = static_cast<const std::byte*>(tensor.data());
    const auto* const at = static_cast<const std::byte*>(constant.data());
    const std::less<> before;
    if (before(at, from) || !before(at, from + tensor.bytes())) return {};
    const bool whole = constant.bytes() == tensor.bytes();
    if (!inputs.contains(name)) {
      const auto host = host_value(whole ? constant : tensor);
      REQUIRE_OK(host);
      graph.add_input(name, type_of(*host));
      inputs[name] = *host;
      weights.push_back(name);
    }
    const Val input{*passes::find_value(graph, name)};
    if (whole) return input;
    REQUIRE(constant.format() == Format::f32());
    const auto begin = static_cast<int64_t>((at - from) / static_cast<int64_t>(sizeof(float)));
    const Val flat = b.op("reshape", {input}, {{"shape", std::vector<int64_t>{-1}}});
    const Val own = b.op("slice", {flat}, cut_attrs(0, begin, begin + constant.numel()));
    const Shape& shape = constant.shape();
    return b.op("reshape", {own}, {{"shape", std::vector<int64_t>(shape.begin(), shape.end())}});
  }

  static LossRows golden_rows(const TinyGolden& golden, size_t tokens, Samples samples) {
    LossRows rows;
    const size_t first = samples == kOneSample ? tokens : tokens - 2;
    for (size_t k = 0; k < tokens; ++k) {
      rows.tokens.push_back(golden.tokens[k]), rows.targets.push_back(golden.tokens[k + 1]);
      rows.positions.push_back(static_cast<int64_t>(k < first ? k : k - first));
      rows.segments.push_back(k < first ? 0 : 1);
    }
    return rows;
  }
};

}  // namespace oar_test
