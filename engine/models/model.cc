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

int64_t ModelConfig::kv_layer(int64_t layer) const {
  if (layer < kv_layers()) return layer;
  int64_t own = kv_layers() - 1;
  while (own > 0 && has_window(own) != has_window(layer)) --own;
  return own;
}

ModelBuilder::ModelBuilder(Graph& graph, const Checkpoint& checkpoint, const ModelConfig& config,
                           ModelInputs inputs, int64_t served_context)
    : Builder(graph), c(config), in(inputs), checkpoint_(checkpoint), served_context_(served_context) {}

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

Val ModelBuilder::weight(const std::string& name, const std::vector<int64_t>& dims) {
  const Val w = weight(name);
  if (!w) return {};
  const Tensor& t = graph().value(w.id).constant;
  if (t.shape() == Shape(dims)) return w;
  fail(invalid_argument(cat("tensor '", name, "' is ", t.format().name(), t.shape().to_string(),
                            ", config.json needs ", Shape(dims).to_string())));
  return {};
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
  Val w = weight(name + ".weight");
  // The number first: the sum is no tensor of the checkpoint, and must not be written under the name of one.
  if (c.norm_offset != 0) w = op("add", {scalar(c.norm_offset), w});
  return rms_norm(x, w);
}

Val ModelBuilder::rms_norm(Val x, Val w) { return op("rms_norm", {x, w}, {{"epsilon", c.norm_eps}}); }

Val ModelBuilder::rms_norm(Val x) {
  if (!x) return {};
  return rms_norm(x, filled(dim(x, -1).const_value(), 1));
}

Val ModelBuilder::filled(int64_t n, double value) {
  const std::string name = value == 1 ? cat("ones.", n) : cat("all.", value, ".", n);
  if (const auto it = constants_.find(name); it != constants_.end()) return it->second;
  auto t = Tensor::allocate({n}, Format::f32());
  if (!t.ok()) {
    fail(t.status());
    return {};
  }
  std::ranges::fill(t->mutable_values<float>(), static_cast<float>(value));
  return constants_[name] = constant(name, std::move(*t));
}

Val ModelBuilder::layer_norm(Val x, const std::string& name, bool biased) {
  return op("layer_norm", {x, weight(name + ".weight"), biased ? weight(name + ".bias") : Val{}},
            {{"epsilon", c.norm_eps}});
}

Val ModelBuilder::softcap(Val x, double cap) { return scale(op("tanh", {scale(x, 1 / cap)}), cap); }

Val ModelBuilder::embedding(const std::string& table, Val ids, int64_t rows) {
  const Val t = weight(table);
  // The kernel reads the row of any id a request may name, so the table must have them all.
  if (t && (shape(t).size() != 2 || shape(t)[0].const_value() < rows)) {
    fail(invalid_argument(cat("tensor '", table, "' is ", graph().type_string(type(t)),
                              ", config.json needs ", rows, " rows")));
    return {};
  }
  return op("embedding", {t, ids}, {{"scale", c.embedding_scale}});
}

Val ModelBuilder::slice(Val x, int64_t begin, int64_t end) {
  return op("slice", {x}, cut_attrs(-1, begin, end));
}

Val ModelBuilder::split_heads(Val x, int64_t heads, int64_t head_dim) {
  const int64_t size = head_dim > 0 ? head_dim : c.head_dim;
  if (const Dim last = x ? dim(x, -1) : Dim(heads * size);
      last.is_const() && last.const_value() != heads * size)
    fail(invalid_argument(cat("config.json: 'num_attention_heads', 'num_key_value_heads' or 'head_dim' says ",
                              heads, " heads of ", size, " where the checkpoint's matrix makes ",
                              last.const_value(), " numbers")));
  return op("reshape", {x}, {{"shape", std::vector<int64_t>{0, heads, size}}});
}

Val ModelBuilder::merge_heads(Val x) { return op("reshape", {x}, {{"shape", std::vector<int64_t>{0, -1}}}); }

Val ModelBuilder::rope(Val x, int64_t layer) {
  const auto n = static_cast<size_t>(layer);
  if (!c.rotated.empty() && !c.rotated[n]) return x;
  const RopeConfig& config = c.window_rope && c.windows[n] > 0 ? *c.window_rope : c.rope;
  Val& inv_freq = inv_freq_[&config];
  if (!inv_freq) {
    const auto table = rope_table(c, config, served_context_);
    auto t = table.ok() ? Tensor::allocate({static_cast<int64_t>(table->inv_freq.size())}, Format::f32())
                        : Result<Tensor>(table.status());
    if (!t.ok()) {
      fail(t.status());
      return {};
    }
    std::copy(table->inv_freq.begin(), table->inv_freq.end(), t->mutable_values<float>().begin());
    inv_freq = constant(&config == &c.rope ? "rope.inv_freq" : "rope.window_inv_freq", std::move(*t));
    mscale_[&config] = table->mscale;
  }
  return op("rope", {x, in.positions, inv_freq, Val{}},
            {{"mscale", mscale_[&config]}, {"interleaved", int64_t{c.rope_interleaved}}});
}

Val ModelBuilder::position_scale() {
  if (position_scale_) return position_scale_;
  const int64_t rows = served_context_ > 0 ? served_context_ : c.served_context();
  constexpr int64_t kMostRows = int64_t{1} << 25;  // 128 MiB; the longest released has a third of it
  if (rows > kMostRows) {
    fail(unimplemented(cat("'max_context' is ", rows, ", but queries are scaled by a table of at most ",
                           kMostRows, " positions")));
    return {};
  }
  auto table = Tensor::allocate({rows, 1}, Format::f32());
  if (!table.ok()) {
    fail(table.status());
    return {};
  }
  const auto values = table->mutable_values<float>();
  for (size_t p = 0; p < values.size(); ++p) {
    const double periods =
        std::floor((static_cast<double>(p) + static_cast<double>(c.position_offset)) / c.position_period);
    values[p] = static_cast<float>(1 + c.position_beta * std::log(1 + periods));
  }
  const Val scale = op("embedding", {constant("position_scale", std::move(*table)), in.positions});
  return position_scale_ = op("reshape", {scale}, {{"shape", std::vector<int64_t>{0, 1, 1}}});
}

Val ModelBuilder::attention(Val q, Val k, Val v, int64_t layer, Val sinks) {
  const double base =
      c.attention_scale > 0 ? c.attention_scale : 1 / std::sqrt(static_cast<double>(c.head_dim));
  std::vector<Val> operands{q, k, v, in.positions, in.segments};
  if (sinks) operands.push_back(sinks);
  Attrs attrs{{"scale", c.scale_by_layer ? base / static_cast<double>(layer + 1) : base},
              {"window", c.windows[static_cast<size_t>(layer)]},
              {"softcap", c.attention_softcap}};
  if (c.chunked) attrs.set("chunked", int64_t{1});
  if (!v) attrs.set("latent", c.latent.rank);
  return op("attention", operands, std::move(attrs));
}

ModelBuilder::Heads ModelBuilder::heads(Val x, const std::string& prefix) {
  const auto project = [&](const char* name, const char* norm, int64_t count) {
    Val y = linear(x, cat(prefix, name, "_proj"), c.attention_bias);
    if (norm != nullptr && c.head_norms == HeadNorms::kTogether) y = rms_norm(y, prefix + norm);
    y = split_heads(y, count);
    return norm != nullptr && c.head_norms == HeadNorms::kEach ? rms_norm(y, prefix + norm) : y;
  };
  return {project("q", "q_norm", c.heads), project("k", "k_norm", c.kv_heads),
          project("v", nullptr, c.kv_heads)};
}

Val ModelBuilder::attend(const Heads& h, const std::string& prefix, int64_t layer) {
  const Val sinks = c.sinks ? weight(prefix + "sinks", {c.heads}) : Val{};
  return linear(merge_heads(attention(h.q, h.k, h.v, layer, sinks)), prefix + "o_proj", c.output_bias);
}

Val ModelBuilder::self_attention(Val x, const std::string& prefix, int64_t layer) {
  const Heads h = heads(x, prefix);
  return attend({rope(h.q, layer), rope(h.k, layer), h.v}, prefix, layer);
}

Val ModelBuilder::causal_conv(Val x, const std::string& name, int64_t channels, int64_t kernel, bool biased) {
  const Val w = weight(name + ".weight");
  if (!w) return {};
  const Tensor& t = graph().value(w.id).constant;
  if (t.shape() != Shape{channels, 1, kernel} && t.shape() != Shape{channels, kernel}) {
    fail(invalid_argument(cat("tensor '", name, ".weight' is ", t.shape().to_string(), ", config.json needs ",
                              Shape{channels, 1, kernel}.to_string())));
    return {};
  }
  const Val bias = biased && has(name + ".bias") ? weight(name + ".bias", {channels}) : Val{};
  return op("causal_conv", {x, w, bias, in.segments});
}

Val ModelBuilder::activation(Val x) {
  const std::string& a = c.activation;
  if (a == "gelu_new" || a == "gelu_pytorch_tanh" || a == "gelu_fast")
    return op("gelu", {x}, {{"approximate", std::string("tanh")}});
  if (a == "gelu" || a == "relu") return op(a, {x});
  if (a == "silu" || a == "swish") return op("silu", {x});
  if (a == "relu2") return op("square", {op("relu", {x})});
  fail(unimplemented(cat("config.json: the activation function '", a,
                         "' is not one of gelu, gelu_new, "
                         "gelu_pytorch_tanh, gelu_fast, relu, relu2, silu, swish")));
  return {};
}

Val ModelBuilder::gated(Val gate, Val up) {
  const bool silu = c.activation == "silu" || c.activation == "swish";  // or a form of gelu by tanh
  if (!silu) return op("swiglu", {gate, up}, {{"act", std::string("gelu_tanh")}});
  Attrs attrs;
  if (c.gate_alpha != 1) attrs.set("alpha", c.gate_alpha);
  if (c.gate_limit > 0) attrs.set("limit", c.gate_limit);
  if (c.gate_offset != 0) attrs.set("up_offset", c.gate_offset);
  return op("swiglu", {gate, up}, std::move(attrs));
}

Val ModelBuilder::gated_mlp(Val x, const std::string& prefix) {
  const Val gate = linear(x, prefix + "gate_proj", c.mlp_bias),
            up = linear(x, prefix + "up_proj", c.mlp_bias);
  return linear(gated(gate, up), prefix + "down_proj", c.mlp_bias);
}

Val ModelBuilder::fused_gated_mlp(Val x, const std::string& prefix) {
  const Val both = linear(x, prefix + "gate_up_proj", c.mlp_bias);  // (T, 2 F)
  return linear(gated(slice(both, 0, c.ffn), slice(both, c.ffn, 2 * c.ffn)), prefix + "down_proj",
                c.mlp_bias);
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

  ModelBuilder b(g, checkpoint, config, in, options.max_context);
  const Val hidden = architecture->hidden(b);
  const Val wanted = b.op("gather", {hidden, rows});
  Val head = b.weight(config.tied ? architecture->embedding : architecture->head);
  // A tied head is a weight of its own over the same bytes: a pass may change it and leave the table.
  if (config.tied && head) head = b.constant(architecture->head, Tensor(g.value(head.id).constant));
  const Val bias = config.head_bias ? b.weight("lm_head.bias") : Val{};
  Val logits = b.scale(b.op("linear", {wanted, Val{}, head, bias}), config.logit_scale);
  if (config.logit_softcap > 0) logits = b.softcap(logits, config.logit_softcap);
  if (const Status& s = b.status(); !s.ok()) {
    const bool told = s.message().find('\'') != s.message().npos || s.message().starts_with("config.json");
    return told ? s
                : Status(s.code(), cat("config.json contradicts the checkpoint's tensors: ", s.message()));
  }
  const int64_t vocab = b.dim(logits, -1).const_value();
  if (vocab != config.vocab) {
    return invalid_argument(
        cat("config.json: 'vocab_size' is ", config.vocab, " but the head has ", vocab, " rows"));
  }
  g.add_output("logits", logits.id);
  return model;
}

}  // namespace oar
