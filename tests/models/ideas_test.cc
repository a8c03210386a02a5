// What the goldens can tell apart: each idea of an architecture, switched off alone, must move its golden by
// more than a hundred times the bound that golden_test.cc holds it to. An idea that moves it by less is not
// tested.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

#include "engine/base/format.h"
#include "engine/graph/op.h"
#include "tests/models/runner_fixture.h"
#include "tests/support/catch.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
using oar::HeadNorms;
using oar::ModelConfig;

struct Idea {
  const char *golden, *name;
  void (*off)(ModelConfig& c) = nullptr;
  void (*change)(oar::Checkpoint& c) = nullptr;  // of the tensors
  oar::Status (*rewrite)(oar::Graph& g) = nullptr;
};

// All tensors of such names have this number everywhere.
void fill(oar::Checkpoint& c, std::string_view suffix, float value) {
  for (auto& [name, tensor] : c.tensors) {
    if (!name.ends_with(suffix)) continue;
    auto t = oar::Tensor::allocate(tensor.shape(), oar::Format::f32());
    REQUIRE_OK(t);
    std::ranges::fill(t->mutable_values<float>(), value);
    tensor = std::move(*t);
  }
}
void ones(oar::Checkpoint& c, std::string_view suffix) { fill(c, suffix, 1); }
void no_attention_biases(oar::Checkpoint& c) {
  for (const char* b : {"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"}) fill(c, b, 0);
}
void scale(oar::Checkpoint& c, std::string_view suffix, float by) {
  for (auto& [name, tensor] : c.tensors) {
    if (!name.ends_with(suffix)) continue;
    auto t = oar::Tensor::allocate(tensor.shape(), oar::Format::f32());
    REQUIRE_OK(t);
    std::ranges::transform(tensor.values<float>(), t->mutable_values<float>().begin(),
                           [&](float v) { return v * by; });
    tensor = std::move(*t);
  }
}
// `from` becomes `to` in all names that have it.
void rename(oar::Checkpoint& c, std::string_view from, std::string_view to) {
  auto old = std::exchange(c.tensors, {});
  while (!old.empty()) {
    auto node = old.extract(old.begin());
    if (const size_t at = node.key().find(from); at != std::string::npos)
      node.key().replace(at, from.size(), to);
    c.tensors.insert(std::move(node));
  }
}

// Where norms stand is the equations of a type: the same tensors by those of Llama, which has norms in front
// of its blocks alone.
void as_llama(ModelConfig& c) { c.model_type = "llama"; }
// The norms behind blocks, in front of them.
void norms_in_front(oar::Checkpoint& c) {
  rename(c, "post_attention_layernorm", "input_layernorm");
  rename(c, "post_feedforward_layernorm", "post_attention_layernorm");
}
// Of four norms those in front.
void gemma_fronts(oar::Checkpoint& c) {
  rename(c, "post_attention_layernorm", "unread");
  rename(c, "pre_feedforward_layernorm", "post_attention_layernorm");
}
// GLM-4's have Llama's names; its fused matrix has not.
void glm_fronts(oar::Checkpoint& c) {
  for (int layer = 0; layer < 4; ++layer) {
    const std::string p = oar::cat("model.layers.", layer, ".mlp.");
    const oar::Tensor both = c.tensors.at(p + "gate_up_proj.weight");
    const int64_t F = both.shape()[0] / 2;
    c.tensors[p + "gate_proj.weight"] = both.slice(0, F);
    c.tensors[p + "up_proj.weight"] = both.slice(F, 2 * F);
  }
}
// Heads normalized in front of their rope.
void heads_first(ModelConfig& c) {
  as_llama(c);
  c.head_norms = HeadNorms::kEach;
}
void query_key_names(oar::Checkpoint& c) {
  rename(c, "query_layernorm", "q_norm");
  rename(c, "key_layernorm", "k_norm");
}

// Each parallel block as two layers: one whose MLP gives nothing, and behind it one whose attention does.
void in_turn(ModelConfig& c) {
  c.layers *= 2;
  const auto windows = c.windows;
  const auto rotated = c.rotated;
  for (size_t n = 0; n < windows.size(); ++n) {
    c.windows.insert(c.windows.begin() + static_cast<int64_t>(2 * n), windows[n]);
    c.rotated.insert(c.rotated.begin() + static_cast<int64_t>(2 * n), rotated[n]);
  }
}
void layers_in_turn(oar::Checkpoint& c) {
  for (int layer = 3; layer >= 0; --layer) {
    const std::string own = oar::cat("model.layers.", layer, ".");
    std::vector<std::pair<std::string, oar::Tensor>> parts;
    for (const auto& [name, tensor] : c.tensors)
      if (name.starts_with(own)) parts.emplace_back(name.substr(own.size()), tensor);
    for (const auto& [part, tensor] : parts)
      for (const int half : {0, 1})
        c.tensors[oar::cat("model.layers.", 2 * layer + half, ".", part)] = tensor;
    fill(c, oar::cat("layers.", 2 * layer, ".mlp.down_proj.weight"), 0);
    fill(c, oar::cat("layers.", 2 * layer + 1, ".self_attn.o_proj.weight"), 0);
  }
}

// Layer norms that subtract no mean.
oar::Status keep_means(oar::Graph& g) {
  for (size_t n = 0, count = g.nodes().size(); n < count; ++n) {
    if (!g.nodes()[n].is("layer_norm")) continue;
    const std::vector<oar::ValueId> inputs = g.nodes()[n].inputs;
    g.nodes()[n].op = oar::find_op("rms_norm");
    g.nodes()[n].inputs.resize(2);
    if (inputs.size() < 3 || inputs[2] == oar::kNoValue) continue;
    const oar::ValueId normed = g.nodes()[n].outputs[0];
    OAR_ASSIGN(const auto biased, g.add_node(oar::find_op("add"), {normed, inputs[2]}));
    g.replace_uses(normed, biased[0]);
    g.nodes().back().inputs[0] = normed;
  }
  g.sort();
  return oar::ok_status();
}

// Layer `to` gets the mixture of layer `from`.
void copy_mixture(oar::Checkpoint& c, int from, int to) {
  const auto prefix = [](int layer, const char* part) { return oar::cat("model.layers.", layer, part); };
  for (const char* part : {".mlp.", ".feed_forward."}) {
    std::vector<std::pair<std::string, oar::Tensor>> own;
    for (const auto& [name, tensor] : c.tensors)
      if (name.starts_with(prefix(from, part)))
        own.emplace_back(prefix(to, part) + name.substr(prefix(from, part).size()), tensor);
    for (auto& [name, tensor] : own) c.tensors[name] = std::move(tensor);
  }
}
void mixture_first(oar::Checkpoint& c) { copy_mixture(c, 1, 0); }
void first_is_mixture(ModelConfig& c) { c.dense_layer[0] = false; }

// Convolutions see the last of their rows alone.
void last_taps(oar::Checkpoint& c, std::string_view suffix) {
  for (auto& [name, tensor] : c.tensors) {
    if (!name.ends_with(suffix)) continue;
    auto t = oar::Tensor::allocate(tensor.shape(), oar::Format::f32());
    REQUIRE_OK(t);
    const auto from = tensor.values<float>();
    const auto L = static_cast<size_t>(tensor.shape()[tensor.shape().rank() - 1]);
    for (size_t i = 0; i < from.size(); ++i) t->mutable_values<float>()[i] = i % L == L - 1 ? from[i] : 0;
    tensor = std::move(*t);
  }
}

// Layers 3 to 5 get keys and values of their own, by the matrices of those whose they read.
void own_keys(oar::Checkpoint& c) {
  for (const auto& [to, from] : {std::pair{3, 1}, {4, 1}, {5, 2}}) {
    for (const char* part : {"k_proj.weight", "v_proj.weight", "k_norm.weight"}) {
      const auto name = [&](int layer) { return oar::cat("model.layers.", layer, ".self_attn.", part); };
      c.tensors[name(to)] = c.tensors.at(name(from));
    }
  }
}
// Full layers get a matrix of values, of the first rows of the one of queries.
void own_values(oar::Checkpoint& c) {
  const oar::Tensor& k = c.tensors.at("model.layers.3.self_attn.k_proj.weight");
  c.tensors["model.layers.3.self_attn.v_proj.weight"] =
      c.tensors.at("model.layers.3.self_attn.q_proj.weight").slice(0, k.shape()[0]);
}
// The first half of MLPs that are twice as wide.
void half_as_wide(oar::Checkpoint& c) {
  for (int layer = 3; layer < 6; ++layer) {
    const std::string p = oar::cat("model.layers.", layer, ".mlp.");
    for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
      oar::Tensor& w = c.tensors.at(p + part);
      w = w.slice(0, w.shape()[0] / 2);
    }
    oar::Tensor& down = c.tensors.at(p + "down_proj.weight");
    const int64_t E = down.shape()[0], F = down.shape()[1];
    auto t = oar::Tensor::allocate({E, F / 2}, oar::Format::f32());
    REQUIRE_OK(t);
    for (int64_t r = 0; r < E; ++r)
      std::copy_n(down.values<float>().begin() + r * F, F / 2,
                  t->mutable_values<float>().begin() + r * F / 2);
    down = std::move(*t);
  }
}

// The node that makes the operand `k` of `node`; none.
const oar::Node* maker_of(const oar::Graph& g, const oar::Node& node, size_t k) {
  const int producer = g.producers()[node.inputs[k]];
  return producer < 0 ? nullptr : &g.nodes()[static_cast<size_t>(producer)];
}
// The value that node n makes, where it is such an op, becomes `rewritten`'s.
oar::Status rewrite_each(oar::Graph& g, const char* op,
                         oar::Result<oar::ValueId> (*rewritten)(oar::Graph&, const oar::Node&)) {
  for (size_t n = 0, count = g.nodes().size(); n < count; ++n) {
    if (!g.nodes()[n].is(op)) continue;
    const oar::Node node = g.nodes()[n];
    OAR_ASSIGN(const oar::ValueId value, rewritten(g, node));
    if (value != node.outputs[0]) g.replace_uses(node.outputs[0], value);
  }
  g.sort();
  return oar::ok_status();
}
// Norms of which the weights alone are left: behind a scan, and of its queries and keys.
oar::Result<oar::ValueId> weights_alone(oar::Graph& g, const oar::Node& norm) {
  OAR_ASSIGN(const auto out, g.add_node(oar::find_op("mul"), {norm.inputs[0], norm.inputs[1]}));
  return out[0];
}
oar::Status scans_not_normed(oar::Graph& g) {
  return rewrite_each(g, "rms_norm", [](oar::Graph& graph, const oar::Node& n) -> oar::Result<oar::ValueId> {
    const oar::Node* made = maker_of(graph, n, 0);
    if (made == nullptr || !made->is("state_scan")) return n.outputs[0];
    return weights_alone(graph, n);
  });
}
oar::Status lengths_kept(oar::Graph& g) {
  std::set<oar::ValueId> read;
  for (const oar::Node& n : g.nodes())
    if (n.is("state_scan")) read.insert({n.inputs[0], n.inputs[1]});
  for (size_t n = 0, count = g.nodes().size(); n < count; ++n) {
    const oar::Node norm = g.nodes()[n];
    if (!norm.is("rms_norm") || !read.contains(norm.outputs[0])) continue;
    OAR_ASSIGN(const oar::ValueId value, weights_alone(g, norm));
    g.replace_uses(norm.outputs[0], value);
  }
  g.sort();
  return oar::ok_status();
}
// Of gated convolutions: what they read, and what they make, without its gate.
oar::Status no_gate_before(oar::Graph& g) {
  for (oar::Node& n : g.nodes()) {
    if (!n.is("causal_conv")) continue;
    const oar::Node* product = maker_of(g, n, 0);
    if (product == nullptr || !product->is("mul")) return oar::invalid_argument("no gate before");
    n.inputs[0] = product->inputs[1];
  }
  return oar::ok_status();
}
oar::Status no_gate_behind(oar::Graph& g) {
  return rewrite_each(g, "mul", [](oar::Graph& graph, const oar::Node& n) -> oar::Result<oar::ValueId> {
    const oar::Node* conv = maker_of(graph, n, 1);
    return conv != nullptr && conv->is("causal_conv") ? n.inputs[1] : n.outputs[0];
  });
}
// Norms of queries and keys, which a pass has put into their rope: their weights alone are left.
oar::Status heads_not_normed(oar::Graph& g) {
  for (size_t n = 0, count = g.nodes().size(); n < count; ++n) {
    const oar::Node rope = g.nodes()[n];
    if (!rope.is("rope")) continue;
    if (rope.inputs[3] == oar::kNoValue) return oar::invalid_argument("no norm in a rope");
    OAR_ASSIGN(const auto weighted, g.add_node(oar::find_op("mul"), {rope.inputs[0], rope.inputs[3]}));
    g.nodes()[n].inputs[0] = weighted[0];
    g.nodes()[n].inputs[3] = oar::kNoValue;
    g.nodes()[n].attrs = oar::Attrs{{"mscale", rope.attrs.get_float("mscale")},
                                    {"interleaved", int64_t{rope.attrs.get_bool("interleaved")}}};
  }
  g.sort();
  return oar::ok_status();
}
// Rows of numbers, of `period` of which those from `from` on are zero.
void zero_rows(oar::Checkpoint& c, std::string_view suffix, int64_t period, int64_t from, int64_t to) {
  for (auto& [name, tensor] : c.tensors) {
    if (!name.ends_with(suffix)) continue;
    auto t = oar::Tensor::allocate(tensor.shape(), oar::Format::f32());
    REQUIRE_OK(t);
    const int64_t rows = tensor.shape()[0], K = tensor.shape()[1];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t k = 0; k < K; ++k) {
        const bool gone = r % period >= from && r % period < to;
        const auto at = static_cast<size_t>(r * K + k);
        t->mutable_values<float>()[at] = gone ? 0 : tensor.values<float>()[at];
      }
    tensor = std::move(*t);
  }
}
// A gate of zeros is a half everywhere, which the matrix behind makes good.
void no_output_gate(oar::Checkpoint& c) {
  const int64_t rows = c.tensors.at("model.layers.3.self_attn.q_proj.weight").shape()[0];
  const int64_t heads = oar::read_model_config(c.config)->heads, each = rows / heads;
  zero_rows(c, "self_attn.q_proj.weight", each, each / 2, each);
  scale(c, "self_attn.o_proj.weight", 2);
}

constexpr Idea kIdeas[] = {
    {"llama-bias", "biases of attention", nullptr, no_attention_biases},
    {"llama-bias", "biases of MLPs", nullptr,
     [](oar::Checkpoint& c) {
       for (const char* b : {"gate_proj.bias", "up_proj.bias", "down_proj.bias"}) fill(c, b, 0);
     }},
    {"ministral3", "queries scaled by log of position", [](ModelConfig& c) { c.position_beta = 0; }},
    {"ministral3", "YaRN", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"phi3", "long factors", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"phi3", "windows", [](ModelConfig& c) { c.windows.assign(c.windows.size(), 0); }},
    {"phi4", "short factors", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"phi4", "part of a head rotated",
     [](ModelConfig& c) {
       c.rope = {c.rope.theta, 1, {}};
     }},
    {"smollm3", "layers without rope", [](ModelConfig& c) { c.rotated.clear(); }},
    {"granite", "multiplier of embeddings", [](ModelConfig& c) { c.embedding_scale = 1; }},
    {"granite", "multiplier of residual branches", [](ModelConfig& c) { c.residual_scale = 1; }},
    {"granite", "multiplier of scores", [](ModelConfig& c) { c.attention_scale = 0; }},
    {"granite", "multiplier of logits", [](ModelConfig& c) { c.logit_scale = 1; }},
    {"ernie4_5", "rope over neighbours", [](ModelConfig& c) { c.rope_interleaved = false; }},
    {"hunyuan_v1_dense", "dynamic rope by alpha", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"hunyuan_v1_dense", "norms of heads behind their rope", heads_first, query_key_names},
    {"hunyuan_v1_dense", "norm of each head", as_llama},
    {"seed_oss", "biases of q, k and v", nullptr, no_attention_biases},
    {"olmo2", "norms behind blocks", as_llama, norms_in_front},
    {"olmo2", "norm over all heads", [](ModelConfig& c) { c.head_norms = HeadNorms::kNone; }},
    {"olmo3", "windows", [](ModelConfig& c) { c.windows.assign(c.windows.size(), 0); }},
    {"olmo3", "a rope of their own for windows", [](ModelConfig& c) { c.window_rope.reset(); }},
    {"olmo3", "YaRN", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"olmo3", "norms behind blocks", as_llama, norms_in_front},
    {"olmo3", "norm over all heads", [](ModelConfig& c) { c.head_norms = HeadNorms::kNone; }},
    {"gemma2", "norms behind blocks too", as_llama, gemma_fronts},
    {"gemma2", "weights of norms plus 1", [](ModelConfig& c) { c.norm_offset = 0; }},
    {"gemma2", "gates of gelu", [](ModelConfig& c) { c.activation = "silu"; }},
    {"gemma2", "embeddings times sqrt E", [](ModelConfig& c) { c.embedding_scale = 1; }},
    {"gemma2", "scale of scores", [](ModelConfig& c) { c.attention_scale = 0; }},
    {"gemma2", "windows", [](ModelConfig& c) { c.windows.assign(c.windows.size(), 0); }},
    {"gemma2", "cap of scores", [](ModelConfig& c) { c.attention_softcap = 0; }},
    {"gemma2", "cap of logits", [](ModelConfig& c) { c.logit_softcap = 0; }},
    {"gemma3", "norm of each head", [](ModelConfig& c) { c.head_norms = HeadNorms::kNone; }},
    {"gemma3", "norms behind blocks too", as_llama, gemma_fronts},
    {"gemma3", "weights of norms plus 1", [](ModelConfig& c) { c.norm_offset = 0; }},
    {"gemma3", "gates of gelu", [](ModelConfig& c) { c.activation = "silu"; }},
    {"gemma3", "embeddings times sqrt E", [](ModelConfig& c) { c.embedding_scale = 1; }},
    {"gemma3", "scale of scores", [](ModelConfig& c) { c.attention_scale = 0; }},
    {"gemma3", "frequencies divided", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"gemma3", "a rope of their own for windows", [](ModelConfig& c) { c.window_rope.reset(); }},
    {"gemma3", "windows in two of three layers",
     [](ModelConfig& c) { c.windows.assign(c.windows.size(), c.windows[0]); }},
    {"glm4", "half of a head rotated", [](ModelConfig& c) { c.rope.partial = 1; }},
    {"glm4", "rope over neighbours", [](ModelConfig& c) { c.rope_interleaved = false; }},
    {"glm4", "norms behind blocks too", as_llama, glm_fronts},
    {"glm4", "biases of q, k and v", nullptr, no_attention_biases},
    {"cohere2", "layers without rope", [](ModelConfig& c) { c.rotated.clear(); }},
    {"cohere2", "rope over neighbours", [](ModelConfig& c) { c.rope_interleaved = false; }},
    {"cohere2", "windows", [](ModelConfig& c) { c.windows.assign(c.windows.size(), 0); }},
    {"cohere2", "scale of logits", [](ModelConfig& c) { c.logit_scale = 1; }},
    {"cohere2", "attention and MLP of the same rows", in_turn, layers_in_turn},
    {"cohere2", "norms that subtract the mean", nullptr, nullptr, keep_means},
    {"exaone4", "layers without rope", [](ModelConfig& c) { c.rotated.clear(); }},
    {"exaone4", "windows", [](ModelConfig& c) { c.windows.assign(c.windows.size(), 0); }},
    {"exaone4", "norm of each head", [](ModelConfig& c) { c.head_norms = HeadNorms::kNone; }},
    {"exaone4", "norms behind blocks", as_llama, norms_in_front},
    {"exaone4", "low frequencies divided", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"starcoder2", "windows", [](ModelConfig& c) { c.windows.assign(c.windows.size(), 0); }},
    {"starcoder2", "gelu", [](ModelConfig& c) { c.activation = "silu"; }},
    {"starcoder2", "norms that subtract the mean", nullptr, nullptr, keep_means},
    {"starcoder2", "biases of norms", nullptr,
     [](oar::Checkpoint& c) {
       for (const char* b : {"layernorm.bias", "model.norm.bias"}) fill(c, b, 0);
     }},
    {"starcoder2", "biases of attention", nullptr, no_attention_biases},
    {"starcoder2", "biases of MLPs", nullptr,
     [](oar::Checkpoint& c) {
       for (const char* b : {"c_fc.bias", "mlp.c_proj.bias"}) fill(c, b, 0);
     }},
    {"qwen2-moe", "weights not normalized", [](ModelConfig& c) { c.route.normalize = true; }},
    {"qwen2-moe", "an expert that all share", nullptr,
     [](oar::Checkpoint& c) { fill(c, "shared_expert.down_proj.weight", 0); }},
    {"qwen2-moe", "a gate of that expert", nullptr,
     [](oar::Checkpoint& c) {  // sigmoid(0) is a half
       fill(c, "shared_expert_gate.weight", 0), scale(c, "shared_expert.down_proj.weight", 2);
     }},
    {"qwen2-moe", "biases of q, k and v", nullptr, no_attention_biases},
    {"glm4-moe", "router of sigmoid", [](ModelConfig& c) { c.route.score = "softmax"; }},
    {"glm4-moe", "groups of experts", [](ModelConfig& c) { c.route.groups = 1; }},
    {"glm4-moe", "scale of routed experts", [](ModelConfig& c) { c.route.scale = 1; }},
    {"glm4-moe", "an expert that all share", nullptr,
     [](oar::Checkpoint& c) { fill(c, "shared_experts.down_proj.weight", 0); }},
    {"glm4-moe", "correction of the choice", nullptr,
     [](oar::Checkpoint& c) { fill(c, "e_score_correction_bias", 0); }},
    {"glm4-moe", "weights of chosen experts alone", [](ModelConfig& c) { c.route.normalize = false; }},
    {"glm4-moe", "a dense first layer", first_is_mixture, mixture_first},
    {"glm4-moe", "half of a head rotated", [](ModelConfig& c) { c.rope.partial = 1; }},
    {"glm4-moe", "norm of each head", [](ModelConfig& c) { c.head_norms = HeadNorms::kNone; }},
    {"glm4-moe", "biases of q, k and v", nullptr, no_attention_biases},
    {"ernie4_5-moe", "experts that all share", [](ModelConfig& c) { c.shared_experts = 0; }},
    {"ernie4_5-moe", "correction of the choice", nullptr,
     [](oar::Checkpoint& c) { fill(c, "e_score_correction_bias", 0); }},
    {"ernie4_5-moe", "weights of chosen experts alone", [](ModelConfig& c) { c.route.normalize = false; }},
    {"ernie4_5-moe", "a dense first layer", first_is_mixture, mixture_first},
    {"ernie4_5-moe", "rope over neighbours", [](ModelConfig& c) { c.rope_interleaved = false; }},
    {"minimax-m2", "router of sigmoid", [](ModelConfig& c) { c.route.score = "softmax"; }},
    {"minimax-m2", "norm over all heads", [](ModelConfig& c) { c.head_norms = HeadNorms::kNone; }},
    {"minimax-m2", "correction of the choice", nullptr,
     [](oar::Checkpoint& c) { fill(c, "e_score_correction_bias", 0); }},
    {"minimax-m2", "weights of chosen experts alone", [](ModelConfig& c) { c.route.normalize = false; }},
    {"minimax-m2", "half of a head rotated", [](ModelConfig& c) { c.rope.partial = 1; }},
    {"llama4", "chunks that do not slide", [](ModelConfig& c) { c.chunked = false; }},
    {"llama4", "chunks", [](ModelConfig& c) { c.windows.assign(c.windows.size(), 0); }},
    {"llama4", "queries scaled by log of position", [](ModelConfig& c) { c.position_beta = 0; }},
    {"llama4", "norm of each head", [](ModelConfig& c) { c.head_norms = HeadNorms::kNone; }},
    {"llama4", "layers without rope", [](ModelConfig& c) { c.rotated.clear(); }},
    {"llama4", "rope over neighbours", [](ModelConfig& c) { c.rope_interleaved = false; }},
    {"llama4", "low frequencies divided", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"llama4", "weights in front of experts", [](ModelConfig& c) { c.route.before = false; }},
    {"llama4", "router of sigmoid", [](ModelConfig& c) { c.route.score = "softmax"; }},
    {"llama4", "an expert that all share", nullptr,
     [](oar::Checkpoint& c) { fill(c, "shared_expert.down_proj.weight", 0); }},
    {"llama4", "mixtures in every other layer",
     [](ModelConfig& c) { c.dense_layer.assign(c.dense_layer.size(), false); },
     [](oar::Checkpoint& c) { copy_mixture(c, 1, 0), copy_mixture(c, 3, 2); }},
    {"gpt-oss", "sinks", [](ModelConfig& c) { c.sinks = false; }},
    {"gpt-oss", "windows", [](ModelConfig& c) { c.windows.assign(c.windows.size(), 0); }},
    {"gpt-oss", "windows in every other layer",
     [](ModelConfig& c) { c.windows.assign(c.windows.size(), 12); }},
    {"gpt-oss", "clamped gates", [](ModelConfig& c) { c.gate_limit = 0; }},
    {"gpt-oss", "sharper gates", [](ModelConfig& c) { c.gate_alpha = 1; }},
    {"gpt-oss", "1 added behind gates", [](ModelConfig& c) { c.gate_offset = 0; }},
    {"gpt-oss", "biases of experts", [](ModelConfig& c) { c.expert_bias = false; }},
    {"gpt-oss", "bias of the router", nullptr, [](oar::Checkpoint& c) { fill(c, "router.bias", 0); }},
    {"gpt-oss", "biases of attention", nullptr, no_attention_biases},
    {"gpt-oss", "rows of gate and up in turns", [](ModelConfig& c) { c.experts_interleaved = false; }},
    {"gpt-oss", "weights of chosen experts alone", [](ModelConfig& c) { c.route.normalize = false; }},
    {"gpt-oss", "YaRN", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"gpt-oss", "YaRN without rounding", [](ModelConfig& c) { c.rope.scaling["truncate"] = true; }},
    {"gemma4-e2b", "per-layer embeddings", [](ModelConfig& c) { c.layer_input = 0; }},
    {"gemma4-e2b", "layer scalars", nullptr, [](oar::Checkpoint& c) { ones(c, "layer_scalar"); }},
    {"gemma4-e2b", "keys and values of an earlier layer", [](ModelConfig& c) { c.shared_kv_layers = 0; },
     own_keys},
    {"gemma4-e2b", "proportional rope", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"gemma4-e2b", "a quarter of the frequencies", [](ModelConfig& c) { c.rope.partial = 1; }},
    {"gemma4-e2b", "a rope of their own for windows",
     [](ModelConfig& c) { c.window_rope->theta = c.rope.theta; }},
    {"gemma4-e2b", "windows",
     [](ModelConfig& c) {
       for (int64_t& w : c.windows) w = w > 0 ? 4096 : 0;
     }},
    {"gemma4-e2b", "norm of values", [](ModelConfig& c) { c.value_norms = false; }},
    {"gemma4-e2b", "norms of queries and keys", nullptr, nullptr, heads_not_normed},
    {"gemma4-e2b", "scores that are not scaled", [](ModelConfig& c) { c.attention_scale = 0; }},
    {"gemma4-e2b", "gates of gelu", [](ModelConfig& c) { c.activation = "silu"; }},
    {"gemma4-e2b", "wider MLPs in the last layers", [](ModelConfig& c) { c.double_mlp_layers = 0; },
     half_as_wide},
    {"gemma4-12b", "cap of logits", [](ModelConfig& c) { c.logit_softcap = 0; }},
    {"gemma4-12b", "values that are keys", [](ModelConfig& c) { c.keys_are_values = false; }, own_values},
    {"gemma4-12b", "proportional rope", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"gemma4-12b", "norm of values", [](ModelConfig& c) { c.value_norms = false; }},
    {"gemma4-12b", "norms of queries and keys", nullptr, nullptr, heads_not_normed},
    {"gemma4-26b-a4b", "a mixture beside the MLP", [](ModelConfig& c) { c.experts = 0; }},
    {"gemma4-26b-a4b", "values that are keys", [](ModelConfig& c) { c.keys_are_values = false; }, own_values},
    {"gemma4-26b-a4b", "scale of each expert", nullptr,
     [](oar::Checkpoint& c) { ones(c, "per_expert_scale"); }},
    {"gemma4-26b-a4b", "norms of queries and keys", nullptr, nullptr, heads_not_normed},
    {"gemma4-26b-a4b", "scale of the router's input", nullptr,
     [](oar::Checkpoint& c) { ones(c, "router.scale"); }},
    {"deepseek-v2", "YaRN's growth of scores",
     [](ModelConfig& c) {
       c.attention_scale = 1 / std::sqrt(static_cast<double>(c.latent.nope + c.latent.rope));
     }},
    {"deepseek-v2", "YaRN", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"deepseek-v2", "pairs that rotate", [](ModelConfig& c) { c.rope_interleaved = false; }},
    {"deepseek-v2", "norms of latents", nullptr,
     [](oar::Checkpoint& c) { ones(c, "kv_a_layernorm.weight"); }},
    {"deepseek-v2", "experts that all share", nullptr,
     [](oar::Checkpoint& c) { fill(c, "shared_experts.down_proj.weight", 0); }},
    {"deepseek-v3", "norms of latents of queries", nullptr,
     [](oar::Checkpoint& c) { ones(c, "q_a_layernorm.weight"); }},
    {"deepseek-v3", "groups of experts", [](ModelConfig& c) { c.route.groups = c.route.top_groups = 1; }},
    {"deepseek-v3", "scale of the mixture", [](ModelConfig& c) { c.route.scale = 1; }},
    {"deepseek-v3", "an expert that all share", nullptr,
     [](oar::Checkpoint& c) { fill(c, "shared_experts.down_proj.weight", 0); }},
    {"deepseek-v3", "correction of the choice", nullptr,
     [](oar::Checkpoint& c) { fill(c, "e_score_correction_bias", 0); }},
    {"glm4-moe-lite", "scores of sigmoid", [](ModelConfig& c) { c.route.score = "softmax"; }},
    {"mistral4", "queries scaled by log of position", [](ModelConfig& c) { c.position_beta = 0; }},
    {"mistral4", "weights of chosen experts alone", [](ModelConfig& c) { c.route.normalize = false; }},
    {"mistral4", "YaRN", [](ModelConfig& c) { c.rope.scaling.clear(); }},
    {"minicpm3", "multiplier of embeddings", [](ModelConfig& c) { c.embedding_scale = 1; }},
    {"minicpm3", "multiplier of residual branches", [](ModelConfig& c) { c.residual_scale = 1; }},
    {"minicpm3", "multiplier of logits", [](ModelConfig& c) { c.logit_scale = 1; }},
    {"minicpm3", "halves that rotate", [](ModelConfig& c) { c.rope_interleaved = true; }},
    {"lfm2", "rows before the last in convolutions", nullptr,
     [](oar::Checkpoint& c) { last_taps(c, "conv.conv.weight"); }},
    {"lfm2", "gates in front of convolutions", nullptr, nullptr, no_gate_before},
    {"lfm2", "gates behind convolutions", nullptr, nullptr, no_gate_behind},
    {"lfm2-long", "biases of convolutions", [](ModelConfig& c) { c.conv_bias = false; },
     [](oar::Checkpoint& c) {
       for (const char* b : {"conv.conv.bias", "conv.in_proj.bias", "conv.out_proj.bias"}) fill(c, b, 0);
     }},
    {"lfm2-moe", "router of sigmoid", [](ModelConfig& c) { c.route.score = "softmax"; }},
    {"lfm2-moe", "correction of the choice", [](ModelConfig& c) { c.route.corrected = false; }},
    {"lfm2-moe", "weights of chosen experts alone", [](ModelConfig& c) { c.route.normalize = false; }},
    {"qwen3-next", "weights of norms plus 1", [](ModelConfig& c) { c.norm_offset = 0; }},
    {"qwen3-next", "a quarter of a head rotated", [](ModelConfig& c) { c.rope.partial = 1; }},
    {"qwen3-next", "rows before the last in convolutions", nullptr,
     [](oar::Checkpoint& c) { last_taps(c, "conv1d.weight"); }},
    {"qwen3-next", "states that decay", nullptr, [](oar::Checkpoint& c) { fill(c, "A_log", -30); }},
    {"qwen3-next", "gates behind attention", nullptr, no_output_gate},
    {"qwen3-next", "norms behind states", nullptr, nullptr, scans_not_normed},
    {"qwen3-next", "queries and keys of length 1", nullptr, nullptr, lengths_kept},
    {"qwen3-next", "value heads by key head", [](ModelConfig& c) { c.scan.tiled = true; }},
    {"qwen3-next", "weights of chosen experts alone", [](ModelConfig& c) { c.route.normalize = false; }},
    {"qwen3_5", "a quarter of a head rotated", [](ModelConfig& c) { c.rope.partial = 1; }},
    {"qwen3_5-long", "states that decay", nullptr, [](oar::Checkpoint& c) { fill(c, "A_log", -30); }},
    {"qwen3_5", "gates behind attention", nullptr, no_output_gate},
    {"qwen3_5", "norms behind states", nullptr, nullptr, scans_not_normed},
    {"qwen3_5", "queries and keys of length 1", nullptr, nullptr, lengths_kept},
    // Its sigmoid is a half for every row then.
    {"qwen3_5", "rows that say how much of them is taken", nullptr,
     [](oar::Checkpoint& c) { fill(c, "in_proj_b.weight", 0); }},
    {"mamba2", "rows before the last in convolutions", nullptr,
     [](oar::Checkpoint& c) { last_taps(c, "conv1d.weight"); }},
    {"mamba2", "states that decay", nullptr, [](oar::Checkpoint& c) { fill(c, "A_log", -30); }},
    {"mamba2", "what goes past the state", nullptr, [](oar::Checkpoint& c) { fill(c, ".D", 0); }},
    {"mamba2", "norms behind gates", [](ModelConfig& c) { c.mamba.norm_first = true; }},
    {"mamba2-long", "limits of steps",
     [](ModelConfig& c) { c.mamba.least_step = 0, c.mamba.most_step = INFINITY; }},
    {"granitemoehybrid", "multiplier of embeddings", [](ModelConfig& c) { c.embedding_scale = 1; }},
    {"granitemoehybrid", "multiplier of residual branches", [](ModelConfig& c) { c.residual_scale = 1; }},
    {"granitemoehybrid", "multiplier of scores", [](ModelConfig& c) { c.attention_scale = 0; }},
    {"granitemoehybrid", "multiplier of logits", [](ModelConfig& c) { c.logit_scale = 1; }},
    {"granitemoehybrid", "a mixture beside the MLP", [](ModelConfig& c) { c.experts = 0; }},
    {"falcon_h1", "multiplier of keys", [](ModelConfig& c) { c.key_scale = 1; }},
    {"falcon_h1", "multiplier of what attention makes", [](ModelConfig& c) { c.attention_output_scale = 1; }},
    {"falcon_h1", "multiplier of embeddings", [](ModelConfig& c) { c.embedding_scale = 1; }},
    {"falcon_h1", "multiplier of logits", [](ModelConfig& c) { c.logit_scale = 1; }},
    {"falcon_h1", "multiplier of gates", [](ModelConfig& c) { c.gate_scale = 1; }},
    {"falcon_h1", "multiplier of MLPs", [](ModelConfig& c) { c.mlp_scale = 1; }},
    {"falcon_h1", "multiplier of what scans read", [](ModelConfig& c) { c.mamba.input_scale = 1; }},
    {"falcon_h1", "multiplier of what scans make", [](ModelConfig& c) { c.mamba.output_scale = 1; }},
    {"falcon_h1", "multipliers of z, x, B, C and steps", [](ModelConfig& c) { c.mamba.scales.fill(1); }},
    {"falcon_h1-long", "multiplier of what attention reads",
     [](ModelConfig& c) { c.attention_input_scale = 1; }},
    {"falcon_h1-long", "norms in front of gates", [](ModelConfig& c) { c.mamba.norm_first = false; }},
    {"nemotron_h", "squares behind relu", [](ModelConfig& c) { c.activation = "relu"; }},
    {"nemotron_h", "attention that rotates nothing", [](ModelConfig& c) { c.rotated.clear(); }},
    {"nemotron_h", "states that decay", nullptr, [](oar::Checkpoint& c) { fill(c, "A_log", -30); }},
    {"nemotron_h-moe", "router of sigmoid", [](ModelConfig& c) { c.route.score = "softmax"; }},
    {"nemotron_h-moe", "scale of the mixture", [](ModelConfig& c) { c.route.scale = 1; }},
};

}  // namespace

TEST_CASE("each idea switched off moves its golden by more than a hundred times the bound") {
  oar::LanguageModelOptions options;
  options.threads = 2;
  options.max_batch_tokens = options.max_sequences = 192;  // rows of logits too
  options.page_tokens = 16;
  oar_test::Sample sample;
  for (const Idea& idea : kIdeas) {
    if (!sample.take()) continue;
    const TinyGolden golden = load_tiny_golden(idea.golden);
    auto checkpoint = oar::load_checkpoint(write_tiny_model(golden, TinyDtype::f32));
    REQUIRE_OK(checkpoint);
    if (idea.change) idea.change(*checkpoint);
    RunnerFixture model(std::move(*checkpoint), options, 64, idea.off, idea.rewrite);
    const double moved = relative_error(model.run_prompt(golden.tokens), golden.logits_f32);
    INFO(idea.golden << ", " << idea.name << ": " << moved);
    if (std::getenv("OAR_TEST_TABLE") != nullptr)  // of tests/golden/README.md
      std::printf("| %s | %s | %.2g |\n", idea.golden, idea.name, moved);
    CHECK(moved > 100 * 1e-4);
  }
}
