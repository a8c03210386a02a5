// A tiny language model's loss as a graph to differentiate.
#pragma once

#include "engine/loader/checkpoint.h"
#include "engine/models/model.h"
#include "tests/support/tiny_weights.h"
#include "tests/train/gradient_check.h"

namespace oar_test {

// The model's mean loss over next tokens as output "L", weights under their names as inputs.
struct ModelLoss {
  oar::Graph graph;
  Inputs inputs;
  std::vector<std::string> weights;

  enum Samples { kOneSample, kTwoSamples };  // the second of two tokens
  ModelLoss(const TinyGolden& golden, size_t tokens, Samples samples) {
    using namespace oar;
    const auto checkpoint = load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
    REQUIRE_OK(checkpoint);
    const auto config = read_model_config(checkpoint->config);
    REQUIRE_OK(config);
    auto model = build_model(*checkpoint, *config, {.max_batch_tokens = 64, .max_logit_rows = 64});
    REQUIRE_OK(model);
    graph = std::move(model->graph);
    const auto n = static_cast<int64_t>(tokens), first = samples == kOneSample ? n : n - 2;
    const auto integers = [&](const char* name, auto value) {
      HostValue v;
      v.shape = Shape({n}), v.dtype = DType::kI32;
      for (int64_t k = 0; k < n; ++k) v.i.push_back(value(k));
      inputs[name] = v;
    };
    integers("tokens", [&](int64_t k) { return golden.tokens[static_cast<size_t>(k)]; });
    integers("positions", [&](int64_t k) { return k < first ? k : k - first; });
    integers("segments", [&](int64_t k) { return k < first ? 0 : 1; });
    integers("logit_rows", [](int64_t k) { return k; });
    integers("targets", [&](int64_t k) { return golden.tokens[static_cast<size_t>(k) + 1]; });
    Builder b(graph);
    const Val targets{graph.add_input("targets", {Format::i32(), {graph.dim(model->R)}})};
    const Val logits{*passes::find_value(graph, "logits")};
    const Val L = b.op("softmax_cross_entropy_loss", {logits, targets});
    REQUIRE_OK(b.status());
    graph.keep_outputs(0);
    graph.add_output("L", L.id);
    const size_t values = graph.num_values();
    for (size_t v = 0; v < values; ++v) {
      const Value value = graph.value(static_cast<ValueId>(v));
      if (value.kind != ValueKind::kConstant) continue;
      graph.value(static_cast<ValueId>(v)).name.clear();
      // A tied head is another constant of the same bytes.
      for (const auto& [name, tensor] : checkpoint->tensors) {
        if (tensor.data() != value.constant.data()) continue;
        if (!inputs.contains(name)) {
          const auto host = host_value(value.constant);
          REQUIRE_OK(host);
          graph.add_input(name, type_of(*host));
          inputs[name] = *host;
          weights.push_back(name);
        }
        graph.replace_uses(static_cast<ValueId>(v), *passes::find_value(graph, name));
      }
    }
    REQUIRE(!weights.empty());
  }
};

}  // namespace oar_test
