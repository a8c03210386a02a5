// The BERT family. https://arxiv.org/abs/1810.04805
//
//   x = layer_norm(word[ids] + position[0..S) + type[types])
//   x = layer_norm(x + W_o attention(x)),  x = layer_norm(x + W_2 gelu(W_1 x))        per layer
//
// RoBERTa and XLM-RoBERTa count positions from behind the padding id, ERNIE has the same layers under another
// prefix, DistilBERT other names and no token types. The graph is spelled in the ops that exporters write, so
// that passes made for exported models find the same patterns here.
#include "engine/models/encoder.h"

#include <cmath>

#include "engine/base/format.h"
#include "engine/graph/op.h"
#include "engine/models/config_reader.h"
#include "engine/tensor/element.h"

namespace oar {
namespace {

struct Family {
  const char* model_type;
  const char* prefix;            // of a checkpoint with a head; the bare model has none
  bool positions_after_padding;  // RoBERTa: the first token is at pad_token_id + 1
  bool distil;                   // DistilBERT's names
  bool roberta_head;             // classifier.dense, classifier.out_proj
};

constexpr Family kFamilies[] = {
    {"bert", "bert.", false, false, false},       {"ernie", "ernie.", false, false, false},
    {"roberta", "roberta.", true, false, true},   {"xlm-roberta", "roberta.", true, false, true},
    {"camembert", "roberta.", true, false, true}, {"distilbert", "distilbert.", false, true, false},
};

const Family* find_family(std::string_view model_type) {
  for (const Family& f : kFamilies)
    if (model_type == f.model_type) return &f;
  return nullptr;
}

std::string_view model_type_of(const json::object& config) {
  const json::value* v = config.if_contains("model_type");
  if (!v || !v->is_string()) return {};
  return {v->get_string().data(), v->get_string().size()};
}

// A Graph under construction over a checkpoint; keeps the first error, so that the model reads as equations.
class Writer {
 public:
  Writer(Graph& graph, const Checkpoint& checkpoint, const EncoderConfig& config, const Family& family)
      : graph_(graph), checkpoint_(checkpoint), c_(config) {
    const std::string probe = "embeddings.word_embeddings.weight";
    prefix_ = checkpoint.tensors.count(family.prefix + probe) > 0 ? family.prefix : "";
  }
  const Status& status() const { return status_; }
  const std::string& prefix() const { return prefix_; }
  bool has(const std::string& name) const { return checkpoint_.tensors.count(name) > 0; }

  ValueId op(const char* name, std::vector<ValueId> inputs, Attrs attrs = {}) {
    if (!status_.ok()) return kNoValue;
    return graph_.append(find_op(name), std::move(inputs), 1, std::move(attrs), {}, scope_)[0];
  }
  ValueId ints(const std::vector<int64_t>& values) {
    Tensor t = must(allocate_elements({static_cast<int64_t>(values.size())}, DType::kI64));
    std::copy(values.begin(), values.end(), mutable_elements<int64_t>(t));
    return graph_.add_constant({}, std::move(t));
  }
  ValueId scalar(float value) {
    Tensor t = must(allocate_elements({}, DType::kF32));
    *mutable_elements<float>(t) = value;
    return graph_.add_constant({}, std::move(t));
  }
  // A tensor of the checkpoint with these extents (-1: any), as f32.
  ValueId weight(const std::string& name, std::vector<int64_t> dims) {
    if (!status_.ok()) return kNoValue;
    const auto it = checkpoint_.tensors.find(name);
    if (it == checkpoint_.tensors.end()) {
      status_ = not_found(cat("the checkpoint has no tensor '", name, "', which ", c_.model_type, " needs"));
      return kNoValue;
    }
    const Tensor& t = it->second;
    bool fits = t.shape().rank() == static_cast<int>(dims.size()) && t.format().plain() &&
                dtype_is_float(t.format().dtype());
    for (size_t k = 0; fits && k < dims.size(); ++k)
      fits = dims[k] < 0 || t.shape()[static_cast<int>(k)] == dims[k];
    if (!fits) {
      status_ =
          invalid_argument(cat("tensor '", name, "' is ", t.format().name(), t.shape().to_string(),
                               ", config.json needs ", Shape(positive(dims)).to_string(), " of floats"));
      return kNoValue;
    }
    const ValueId stored = graph_.add_constant(name, t);
    if (t.format().dtype() == DType::kF32) return stored;
    return op("cast", {stored}, {{"to", std::string("f32")}});
  }
  int64_t rows_of(const std::string& name) const {
    const auto it = checkpoint_.tensors.find(name);
    return it == checkpoint_.tensors.end() || it->second.shape().rank() == 0 ? 0 : it->second.shape()[0];
  }

  // x . W^T + b, W (out, in).
  ValueId linear(ValueId x, const std::string& name, int64_t out, int64_t in) {
    scope_ = name;
    const ValueId w =
        op("transpose", {weight(name + ".weight", {out, in})}, {{"perm", std::vector<int64_t>{1, 0}}});
    return op("add", {op("matmul", {x, w}), weight(name + ".bias", {out})});
  }
  ValueId layer_norm(ValueId x, const std::string& name) {
    scope_ = name;
    return op("layer_norm", {x, weight(name + ".weight", {c_.width}), weight(name + ".bias", {c_.width})},
              {{"axis", int64_t{-1}}, {"epsilon", c_.norm_eps}});
  }
  ValueId activate(ValueId x) {
    const std::string& a = c_.activation;
    if (a == "relu" || a == "silu" || a == "tanh") return op(a.c_str(), {x});
    if (a == "gelu") return op("gelu", {x}, {{"approximate", std::string("none")}});
    if (a == "gelu_new" || a == "gelu_pytorch_tanh" || a == "gelu_fast")
      return op("gelu", {x}, {{"approximate", std::string("tanh")}});
    if (status_.ok()) status_ = unimplemented(cat("config.json: hidden_act '", a, "'"));
    return kNoValue;
  }

  // softmax(q k^T / sqrt D + mask) v, mask (B, 1, 1, S): what fuse_attention makes of an ONNX encoder.
  ValueId attention(ValueId x, ValueId mask, const std::string& q, const std::string& k,
                    const std::string& v) {
    const int64_t E = c_.width, D = E / c_.heads;
    const auto heads = [&](const std::string& name) {
      return op("reshape", {linear(x, name, E, E), ints({0, 0, c_.heads, D})});
    };
    const ValueId mixed = op("head_attention", {heads(q), heads(k), heads(v), mask},
                             {{"layout", std::string("bshd")},
                              {"scale", 1 / std::sqrt(static_cast<double>(D))},
                              {"spelled", int64_t{1}}});
    return op("reshape", {mixed, ints({0, 0, E})});
  }
  // Hidden states of the first token, (B, E).
  ValueId first_token(ValueId x) {
    return op("gather", {x, graph_.add_constant({}, zero())}, {{"axis", int64_t{1}}});
  }

 private:
  static std::vector<int64_t> positive(std::vector<int64_t> dims) {
    for (int64_t& d : dims) d = std::max<int64_t>(d, 0);
    return dims;
  }
  static Tensor zero() { return must(allocate_elements({}, DType::kI64)); }

  Graph& graph_;
  const Checkpoint& checkpoint_;
  const EncoderConfig& c_;
  std::string prefix_, scope_;
  Status status_;
};

struct Inputs {
  ValueId ids, mask, types;
};

ValueId embeddings(Writer& w, const EncoderConfig& c, const Inputs& in) {
  const std::string e = w.prefix() + "embeddings.";
  const Attrs rows{{"axis", int64_t{0}}};
  ValueId x = w.op("gather", {w.weight(e + "word_embeddings.weight", {c.vocab, c.width}), in.ids}, rows);
  // Rows [first, first + S) of the position table.
  const ValueId length = w.op("shape_of", {in.ids}, {{"start", int64_t{1}}, {"end", int64_t{2}}});
  const ValueId first = w.ints({c.first_position});
  const ValueId positions = w.op("slice", {w.weight(e + "position_embeddings.weight", {c.positions, c.width}),
                                           first, w.op("add", {length, first}), w.ints({0})});
  x = w.op("add", {x, positions});
  if (c.types > 0) {
    const ValueId table = w.weight(e + "token_type_embeddings.weight", {c.types, c.width});
    x = w.op("add", {x, w.op("gather", {table, in.types}, rows)});
  }
  return w.layer_norm(x, e + "LayerNorm");
}

ValueId bert_layers(Writer& w, const EncoderConfig& c, ValueId x, ValueId mask) {
  for (int64_t n = 0; n < c.layers; ++n) {
    const std::string layer = cat(w.prefix(), "encoder.layer.", n, "."), self = layer + "attention.self.";
    const ValueId a = w.attention(x, mask, self + "query", self + "key", self + "value");
    x = w.layer_norm(w.op("add", {w.linear(a, layer + "attention.output.dense", c.width, c.width), x}),
                     layer + "attention.output.LayerNorm");
    const ValueId h = w.activate(w.linear(x, layer + "intermediate.dense", c.ffn, c.width));
    x = w.layer_norm(w.op("add", {w.linear(h, layer + "output.dense", c.width, c.ffn), x}),
                     layer + "output.LayerNorm");
  }
  return x;
}

ValueId distil_layers(Writer& w, const EncoderConfig& c, ValueId x, ValueId mask) {
  for (int64_t n = 0; n < c.layers; ++n) {
    const std::string layer = cat(w.prefix(), "transformer.layer.", n, "."), self = layer + "attention.";
    const ValueId a = w.attention(x, mask, self + "q_lin", self + "k_lin", self + "v_lin");
    x = w.layer_norm(w.op("add", {w.linear(a, self + "out_lin", c.width, c.width), x}),
                     layer + "sa_layer_norm");
    const ValueId h = w.activate(w.linear(x, layer + "ffn.lin1", c.ffn, c.width));
    x = w.layer_norm(w.op("add", {w.linear(h, layer + "ffn.lin2", c.width, c.ffn), x}),
                     layer + "output_layer_norm");
  }
  return x;
}

// The head that classifies sequences, where the checkpoint has one: logits and their number.
std::pair<ValueId, int64_t> classifier(Writer& w, const EncoderConfig& c, const Family& family, ValueId x) {
  const std::string last = family.roberta_head ? "classifier.out_proj" : "classifier";
  const int64_t labels = w.rows_of(last + ".weight");
  if (labels == 0) return {kNoValue, 0};
  const std::string dense = family.roberta_head ? "classifier.dense"
                            : family.distil     ? "pre_classifier"
                                                : w.prefix() + "pooler.dense";
  if (!w.has(dense + ".weight")) return {kNoValue, 0};  // a head over tokens
  const ValueId pooled = w.linear(w.first_token(x), dense, c.width, c.width);
  return {w.linear(w.op(family.distil ? "relu" : "tanh", {pooled}), last, labels, c.width), labels};
}

}  // namespace

bool is_encoder_config(const json::object& config) { return find_family(model_type_of(config)) != nullptr; }

std::vector<std::string> encoder_names() {
  std::vector<std::string> out;
  for (const Family& f : kFamilies) out.emplace_back(f.model_type);
  return out;
}

Result<EncoderConfig> read_encoder_config(const json::object& o) {
  EncoderConfig c;
  c.model_type = std::string(model_type_of(o));
  const Family* family = find_family(c.model_type);
  if (!family) {
    std::string names;
    for (const std::string& n : encoder_names()) names += (names.empty() ? "" : ", ") + n;
    return unimplemented(cat("model_type '", c.model_type, "' is no encoder that can be run: ", names));
  }
  // transformers' BertConfig, RobertaConfig, ErnieConfig and DistilBertConfig.
  ConfigReader r(o);
  const bool distil = family->distil;
  const auto size = [&](const char* bert, const char* distil_bert, int64_t most) {
    return distil ? r.integer({distil_bert, bert}, 1, most, std::nullopt)
                  : r.integer({bert}, 1, most, std::nullopt);
  };
  OAR_ASSIGN(c.width, size("hidden_size", "dim", 1 << 16));
  OAR_ASSIGN(c.layers, size("num_hidden_layers", "n_layers", 1024));
  OAR_ASSIGN(c.heads, size("num_attention_heads", "n_heads", 1024));
  OAR_ASSIGN(c.ffn, r.integer({distil ? "hidden_dim" : "intermediate_size"}, 1, 1 << 20, std::nullopt));
  OAR_ASSIGN(c.vocab, r.integer({"vocab_size"}, 1, INT32_MAX, std::nullopt));
  OAR_ASSIGN(c.positions, r.integer({"max_position_embeddings"}, 1, 1 << 24, 512));
  OAR_ASSIGN(c.activation, r.text({distil ? "activation" : "hidden_act"}, "gelu"));
  if (distil) {
    r.without_effect("sinusoidal_pos_embds");  // the table lies in the checkpoint either way
  } else {
    OAR_ASSIGN(c.types, r.integer({"type_vocab_size"}, 0, 1024, 2));
    OAR_ASSIGN(c.norm_eps, r.number({"layer_norm_eps"}, c.norm_eps));
  }
  r.without_effect("tie_word_embeddings task_type_vocab_size");
  if (c.width % c.heads != 0)
    return invalid_argument(
        cat("config.json: 'hidden_size' ", c.width, " is no multiple of 'num_attention_heads' ", c.heads));
  if (family->positions_after_padding) {
    OAR_ASSIGN(const int64_t pad, r.integer({"pad_token_id"}, 0, INT32_MAX, 1));
    c.first_position = pad + 1;
    if (c.first_position >= c.positions)
      return invalid_argument(
          cat("config.json: 'pad_token_id' ", pad, " leaves no position of ", c.positions));
  }
  if (!(c.norm_eps >= 0 && c.norm_eps < 1))
    return invalid_argument("config.json: 'layer_norm_eps' is not in [0, 1)");
  OAR_ASSIGN(const std::string kind, r.text({"position_embedding_type"}, "absolute"));
  if (kind != "absolute") {
    return unimplemented(
        cat("config.json: 'position_embedding_type' is '", kind, "'; only absolute positions are offered"));
  }
  OAR_ASSIGN(c.unknown_keys, r.finish(c.model_type));
  return c;
}

Result<BuiltEncoder> build_encoder(const Checkpoint& checkpoint, const EncoderConfig& c) {
  const Family* family = find_family(c.model_type);
  OAR_CHECK(family != nullptr, "the config was read for a known family");
  BuiltEncoder out;
  out.graph = std::make_shared<Graph>();
  Graph& g = *out.graph;
  const SymbolId batch = g.add_symbol("batch", INT32_MAX), sequence = g.add_symbol("sequence", INT32_MAX);
  const auto input = [&](const char* name) {
    out.inputs.emplace_back(name);
    return g.add_input(name, {element_format(DType::kI64), {g.dim(batch), g.dim(sequence)}});
  };
  Inputs in{};
  in.ids = input("input_ids");
  in.mask = input("attention_mask");
  in.types = c.types > 0 ? input("token_type_ids") : kNoValue;

  Writer w(g, checkpoint, c, *family);
  // 0 where a token may be seen, the lowest float where not: (B, 1, 1, S).
  const ValueId shown =
      w.op("cast", {w.op("unsqueeze", {in.mask, w.ints({1, 2})})}, {{"to", std::string("f32")}});
  const ValueId mask =
      w.op("mul", {w.op("sub", {w.scalar(1), shown}), w.scalar(std::numeric_limits<float>::lowest())});
  ValueId x = embeddings(w, c, in);
  x = family->distil ? distil_layers(w, c, x, mask) : bert_layers(w, c, x, mask);
  const auto [logits, labels] = classifier(w, c, *family, x);
  OAR_RETURN_IF_ERROR(w.status());
  out.outputs = {"last_hidden_state"};
  g.add_output("last_hidden_state", x);
  if (labels > 0) {
    out.labels = labels;
    out.outputs.emplace_back("logits");
    g.add_output("logits", logits);
  }
  return out;
}

}  // namespace oar
