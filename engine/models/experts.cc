// Mixtures of experts, for every way that files keep their matrices. Nothing is copied here: a slice of a
// stack is a view, and what must be turned is an expression that is evaluated matrix by matrix at load.
#include "engine/base/format.h"
#include "engine/models/model.h"

namespace oar {
namespace {

Attrs shape_attr(std::vector<int64_t> shape) { return {{"shape", std::move(shape)}}; }

}  // namespace

Val ModelBuilder::expert_slice(const std::string& name, int64_t e, const std::string& as, int64_t count) {
  const auto it = checkpoint_.tensors.find(name);
  if (it == checkpoint_.tensors.end()) return weight(name);  // says that it is missing
  const Tensor& all = it->second;
  if (all.shape().rank() < 3 || all.shape()[0] != count) {
    fail(invalid_argument(cat("tensor '", name, "' is ", all.format().name(), all.shape().to_string(),
                              ", expected ", count, " matrices")));
    return {};
  }
  std::vector<int64_t> dims;
  for (int k = 1; k < all.shape().rank(); ++k) dims.push_back(all.shape()[k]);
  auto one = all.slice(e, e + 1).reshape(Shape(std::span<const int64_t>(dims)));
  if (!one.ok()) {
    fail(one.status());
    return {};
  }
  return constant(as, std::move(*one));
}

Val ModelBuilder::expert_weight(const std::string& experts, const char* name, Part part, int64_t e,
                                int64_t width) {
  const std::string own = cat(experts, ".", e, ".", name, ".weight");
  if (has(own)) return weight(own);
  const bool down = part == Part::kDown, halves = !down && !c.experts_interleaved;
  const int64_t rows = down ? width : c.expert_ffn, columns = down ? c.expert_ffn : width;
  const auto refuse = [&](const std::string& tensor, int64_t has_rows, int64_t wide, int64_t wanted) {
    fail(invalid_argument(cat("tensor '", tensor, "' has experts of ", has_rows, " rows of ", wide,
                              ", config.json needs ", wanted, " of ", columns)));
    return Val{};
  };
  for (const char* suffix : {".weight", ""})
    if (const std::string stacked = cat(experts, ".", name, suffix);
        has(stacked) && (*suffix != '\0' || !c.experts_transposed)) {
      const Val one = expert_slice(stacked, e, own, c.experts);
      if (!one) return {};
      const int64_t in_file = dim(one, 0).const_value(), wide = dim(one, 1).const_value();
      return in_file == rows && wide == columns ? one : refuse(stacked, in_file, wide, rows);
    }
  std::string fused = experts + (down ? ".down_proj" : ".gate_up_proj");
  // Or as linear layers of a mixture are called.
  if (const std::string linear = experts + (down ? ".output_linear" : ".input_linear");
      has(linear + ".weight"))
    fused = linear;
  const std::string blocks = fused + "_blocks", scales = fused + "_scales";
  const bool codes = has(blocks), gguf = has(fused + ".weight");
  if (gguf) fused += ".weight";
  if (!codes && !has(fused)) return weight(own);
  const int64_t before = part == Part::kUp ? halves ? rows : 1 : 0;
  const std::string& source = codes ? blocks : fused;
  const Val stored = expert_slice(source, e, source, c.experts);
  if (!stored) return {};
  const bool transposed = !codes && !gguf && c.experts_transposed;
  const DimVector& file = shape(stored);
  const int64_t in_file = file[transposed ? 1 : 0].const_value(),
                wide = file[transposed ? 0 : 1].const_value() * (codes ? 32 : 1);
  if (const int64_t wanted = down ? rows : 2 * rows; in_file != wanted || wide != columns)
    return refuse(source, in_file, wide, wanted);
  if (!codes && !transposed && (halves || down))
    return constant(own, graph().value(stored.id).constant.slice(before, before + rows));
  Attrs attrs{{"first", before}, {"rows", rows}};
  if (!down && c.experts_interleaved) attrs.set("step", int64_t{2});
  if (transposed) attrs.set("transposed", int64_t{1});
  const Val w = op("stored_matrix", {stored, codes ? expert_slice(scales, e, scales, c.experts) : Val{}},
                   std::move(attrs));
  if (w) graph().value(w.id).name = own;
  return w;
}

Val ModelBuilder::gate_up_bias(const std::string& experts, const char* gate, const char* up) {
  if (!c.expert_bias) return {};
  const int64_t F = c.expert_ffn;
  const std::string own = experts + ".gate_up_proj.bias", apart = cat(experts, ".", gate, ".bias");
  if (has(own)) return weight(own, {c.experts, 2 * F});
  Val bias;
  if (has(apart)) {
    const Val first = weight(apart, {c.experts, F}),
              second = weight(cat(experts, ".", up, ".bias"), {c.experts, F});
    bias = op("concat", {first, second}, {{"axis", int64_t{1}}});
  } else {
    bias = weight(experts + ".gate_up_proj_bias", {c.experts, 2 * F});
    if (!c.experts_interleaved) return bias;
    const Val pairs = op("reshape", {bias}, shape_attr({c.experts, F, 2}));
    const Val turned = op("transpose", {pairs}, {{"perm", std::vector<int64_t>{0, 2, 1}}});
    bias = op("reshape", {turned}, shape_attr({c.experts, 2 * F}));
  }
  if (bias) graph().value(bias.id).name = own;
  return bias;
}

Val ModelBuilder::down_bias(const std::string& experts, const char* down) {
  if (!c.expert_bias) return {};
  const std::string apart = cat(experts, ".", down, ".bias");
  return weight(has(apart) ? apart : experts + ".down_proj_bias", {c.experts, c.width});
}

Val ModelBuilder::experts(Val x, const std::string& router, const std::string& experts, const char* gate,
                          const char* up, const char* down, const std::string& correction) {
  Val bias;
  if (!correction.empty()) bias = op("reshape", {weight(correction)}, shape_attr({-1}));
  return routed_experts(x, {linear(x, router, c.router_bias), bias, {}}, experts, gate, up, down);
}

Val ModelBuilder::experts_and_shared(Val x, const std::string& p) {
  const Val routed = experts(x, p + "gate", p + "experts", "gate_proj", "up_proj", "down_proj");
  const Val shared = gated_mlp(x, p + "shared_expert.");
  const Val gate = op("sigmoid", {linear(x, p + "shared_expert_gate", false)});  // (T, 1)
  return add(routed, op("mul", {shared, gate}));
}

Val ModelBuilder::routed_experts(Val x, const Router& router, const std::string& experts, const char* gate,
                                 const char* up, const char* down) {
  const auto route = ops("moe_route", std::vector<Val>{router.logits, router.correction, router.scale},
                         {{"top_k", c.experts_per_token},
                          {"normalize", int64_t{c.route.normalize}},
                          {"score", c.route.score},
                          {"scale", c.route.scale},
                          {"groups", c.route.groups},
                          {"top_groups", c.route.top_groups},
                          {"group_best", c.route.group_best}});
  if (route.size() != 4) return {};
  const Val pair_token = route[0], pair_slot = route[1], start = route[3];
  Val pair_weight = route[2];
  // Of one expert a token: its input is weighted, and its result is taken whole.
  if (c.route.before) {
    x = op("mul", {x, pair_weight});
    pair_weight = op("add", {scalar(1), op("mul", {pair_weight, scalar(0)})});
  }
  const bool gates = gate != nullptr;
  std::vector<Val> first{x, pair_token, start, gates ? gate_up_bias(experts, gate, up) : Val{}}, second;
  // Or that of a latent which experts share.
  const int64_t width = status().ok() ? dim(x, -1).const_value() : 0;
  // Behind a tensor that is missing no other is looked for: a config may claim thousands in each layer.
  for (int64_t e = 0; e < c.experts && status().ok(); ++e) {
    if (gates) first.push_back(expert_weight(experts, gate, Part::kGate, e, width));
    first.push_back(expert_weight(experts, up, Part::kUp, e, width));
    second.push_back(expert_weight(experts, down, Part::kDown, e, width));
  }
  const Attrs attrs{{"experts", c.experts}};
  const Val made = op("grouped_linear", first, attrs);
  const Val h = gates ? gated(slice(made, 0, c.expert_ffn), slice(made, c.expert_ffn, 2 * c.expert_ffn))
                      : activation(made);
  second.insert(second.begin(), {h, Val{}, start, down_bias(experts, down)});
  return op("moe_combine", {op("grouped_linear", second, attrs), pair_slot, pair_weight});
}

}  // namespace oar
