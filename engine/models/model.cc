#include "engine/models/model.h"

#include <algorithm>
#include <cmath>

#include "engine/base/format.h"
#include "engine/graph/cut.h"

namespace oar {

#define OAR_REGISTER(name) extern const Architecture architecture_##name;
#include "oar_models.inc"
#undef OAR_REGISTER

namespace {
const Architecture* const kArchitectures[] = {
#define OAR_REGISTER(name) &architecture_##name,
#include "oar_models.inc"
#undef OAR_REGISTER
};
}  // namespace

const Architecture* find_architecture(std::string_view model_type) {
  for (const Architecture* a : kArchitectures) {
    if (model_type == a->model_type) return a;
  }
  return nullptr;
}

std::vector<std::string> architecture_names() {
  std::vector<std::string> names;
  for (const Architecture* a : kArchitectures) names.emplace_back(a->model_type);
  return names;
}

ModelBuilder::ModelBuilder(Graph& graph, const Checkpoint& checkpoint, const ModelConfig& config,
                           ModelInputs inputs)
    : Builder(graph), c(config), in(inputs), checkpoint_(checkpoint) {
  auto rope = rope_table(config);
  if (!rope.ok()) {
    // Learned positions need no table; whoever asks for rope() gets the error.
    return;
  }
  rope_ = std::move(*rope);
}

bool ModelBuilder::has(const std::string& name) const { return checkpoint_.tensors.count(name) > 0; }

Val ModelBuilder::weight(const std::string& name) {
  if (auto it = constants_.find(name); it != constants_.end()) return it->second;
  auto it = checkpoint_.tensors.find(name);
  if (it == checkpoint_.tensors.end()) {
    fail(not_found(cat("the checkpoint has no tensor '", name, "', which ", c.model_type, " needs")));
    return {};
  }
  return constants_[name] = constant(name, it->second);
}

Val ModelBuilder::linear(Val x, const std::string& name, bool biased) {
  Val bias;
  if (const auto it = checkpoint_.tensors.find(name + ".bias"); it != checkpoint_.tensors.end()) {
    const Tensor& t = it->second;
    if (biased) bias = weight(it->first);
    const auto* bytes = static_cast<const char*>(t.data());
    if (!biased && !std::all_of(bytes, bytes + t.bytes(), [](char b) { return b == 0; }))
      fail(invalid_argument(cat("the checkpoint has '", it->first,
                                "', but config.json's 'attention_bias' or "
                                "'mlp_bias' does not say that ",
                                c.model_type, " adds it")));
  }
  return op("linear", {x, Val{}, weight(name + ".weight"), bias});
}

Val ModelBuilder::rms_norm(Val x, const std::string& name) {
  return op("rms_norm", {x, weight(name + ".weight")}, {{"epsilon", c.norm_eps}});
}

Val ModelBuilder::layer_norm(Val x, const std::string& name) {
  return op("layer_norm", {x, weight(name + ".weight"), weight(name + ".bias")}, {{"epsilon", c.norm_eps}});
}

Val ModelBuilder::embedding(const std::string& table, Val ids, int64_t rows) {
  const Val t = weight(table);
  // The kernel reads the row of any id a request may name, so the table must have them all.
  if (t && (shape(t).size() != 2 || shape(t)[0].const_value() < rows)) {
    fail(invalid_argument(cat("tensor '", table, "' is ", graph().type_string(type(t)),
                              ", config.json needs ", rows, " rows")));
    return {};
  }
  return op("embedding", {t, ids});
}

Val ModelBuilder::slice(Val x, int64_t begin, int64_t end) {
  return op("slice", {x}, cut_attrs(-1, begin, end));
}

Val ModelBuilder::split_heads(Val x, int64_t heads) {
  return op("reshape", {x}, {{"shape", std::vector<int64_t>{0, heads, c.head_dim}}});
}

Val ModelBuilder::merge_heads(Val x) { return op("reshape", {x}, {{"shape", std::vector<int64_t>{0, -1}}}); }

Val ModelBuilder::rope(Val x) {
  if (!inv_freq_) {
    if (rope_.inv_freq.empty()) {
      fail(rope_table(c).status());
      return {};
    }
    auto t = Tensor::allocate({static_cast<int64_t>(rope_.inv_freq.size())}, Format::f32());
    if (!t.ok()) {
      fail(t.status());
      return {};
    }
    std::copy(rope_.inv_freq.begin(), rope_.inv_freq.end(), t->mutable_values<float>().begin());
    inv_freq_ = constant("rope.inv_freq", std::move(*t));
  }
  return op("rope", {x, in.positions, inv_freq_, Val{}},
            {{"mscale", rope_.mscale}, {"interleaved", int64_t{c.rope_interleaved}}});
}

Val ModelBuilder::attention(Val q, Val k, Val v, int64_t layer) {
  const double scale = (c.scale_attention ? 1 / std::sqrt(static_cast<double>(c.head_dim)) : 1) /
                       (c.scale_by_layer ? static_cast<double>(layer + 1) : 1);
  return op("attention", {q, k, v, in.positions, in.segments},
            {{"scale", scale}, {"window", c.windows[static_cast<size_t>(layer)]}});
}

Val ModelBuilder::gated_mlp(Val x, const std::string& prefix) {
  const bool biased = c.mlp_bias;
  const Val gate = linear(x, prefix + "gate_proj", biased), up = linear(x, prefix + "up_proj", biased);
  return linear(op("swiglu", {gate, up}), prefix + "down_proj", biased);
}

// Expert e's matrix: a tensor of its own, or a slice of the stacked one (GGUF).
Val ModelBuilder::expert_weight(const std::string& experts, const char* part, int64_t e) {
  const std::string own = cat(experts, ".", e, ".", part, ".weight"),
                    stacked = cat(experts, ".", part, ".weight");
  if (has(own)) return weight(own);
  const auto it = checkpoint_.tensors.find(stacked);
  if (it == checkpoint_.tensors.end()) return weight(own);
  const Tensor& all = it->second;
  if (all.shape().rank() != 3 || e >= all.shape()[0]) {
    fail(invalid_argument(cat("tensor '", stacked, "' is ", all.shape().to_string(), ", expected ", c.experts,
                              " expert matrices")));
    return {};
  }
  auto one = all.slice(e, e + 1).reshape({all.shape()[1], all.shape()[2]});
  if (!one.ok()) {
    fail(one.status());
    return {};
  }
  return constant(own, std::move(*one));
}

Val ModelBuilder::experts(Val x, const std::string& router, const std::string& experts, const char* gate,
                          const char* up, const char* down) {
  const auto route = ops("moe_route", std::vector<Val>{linear(x, router, false)},
                         {{"top_k", c.experts_per_token}, {"normalize", int64_t{c.normalize_experts}}});
  if (route.size() != 4) return {};
  const Val pair_token = route[0], pair_slot = route[1], pair_weight = route[2], start = route[3];
  std::vector<Val> first{x, pair_token, start}, second;
  for (int64_t e = 0; e < c.experts; ++e) {
    first.push_back(expert_weight(experts, gate, e));
    first.push_back(expert_weight(experts, up, e));
    second.push_back(expert_weight(experts, down, e));
  }
  const Attrs attrs{{"experts", c.experts}};
  const Val gate_up = op("grouped_linear", first, attrs);
  const Val h =
      op("swiglu", {slice(gate_up, 0, c.expert_ffn), slice(gate_up, c.expert_ffn, 2 * c.expert_ffn)});
  second.insert(second.begin(), {h, Val{}, start});
  return op("moe_combine", {op("grouped_linear", second, attrs), pair_slot, pair_weight});
}

Result<BuiltModel> build_model(const Checkpoint& checkpoint, const ModelConfig& config,
                               const BuildOptions& options) {
  const Architecture* architecture = find_architecture(config.model_type);
  OAR_CHECK(architecture != nullptr, "config was read for a known architecture");
  BuiltModel model;
  Graph& g = model.graph;
  model.T = g.add_symbol("T", options.max_batch_tokens);
  model.R = g.add_symbol("R", options.max_logit_rows);
  const Format i32 = Format::i32();
  ModelInputs in;
  in.tokens = {g.add_input("tokens", {i32, {g.dim(model.T)}})};
  in.positions = {g.add_input("positions", {i32, {g.dim(model.T)}})};
  in.segments = {g.add_input("segments", {i32, {g.dim(model.T)}})};
  const Val rows{g.add_input("logit_rows", {i32, {g.dim(model.R)}})};

  ModelBuilder b(g, checkpoint, config, in);
  const Val hidden = architecture->hidden(b);
  const Val wanted = b.op("gather", {hidden, rows});
  Val head = b.weight(config.tied ? architecture->embedding : architecture->head);
  // A tied head is a weight of its own over the same bytes: a pass may change it and leave the table.
  if (config.tied && head) head = b.constant(architecture->head, Tensor(g.value(head.id).constant));
  const Val logits = b.op("linear", {wanted, Val{}, head, Val{}});
  OAR_RETURN_IF_ERROR(b.status());
  const int64_t vocab = b.dim(logits, -1).const_value();
  if (vocab != config.vocab) {
    return invalid_argument(
        cat("config.json: 'vocab_size' is ", config.vocab, " but the head has ", vocab, " rows"));
  }
  g.add_output("logits", logits.id);
  return model;
}

}  // namespace oar
