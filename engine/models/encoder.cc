// The BERT family. https://arxiv.org/abs/1810.04805
//
//   x = layer_norm(word[ids] + type[types] + position[0..S))
//   x = layer_norm(x + W_o attention(x)),  x = layer_norm(x + W_2 gelu(W_1 x))        per layer
//
// RoBERTa and XLM-RoBERTa count positions from behind the padding id, ERNIE has the same layers under another
// prefix, DistilBERT other names and no token types.
#include "engine/models/encoder.h"

#include <cmath>

#include "engine/base/format.h"
#include "engine/models/config_reader.h"

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

struct EncoderInputs {
  ModelInputs packed;
  Val types;
};

// A ModelBuilder with what this family has beside language models.
class BertWriter : public ModelBuilder {
 public:
  BertWriter(Graph& graph, const Checkpoint& checkpoint, const EncoderConfig& config, const Family& family,
             const EncoderInputs& inputs)
      : ModelBuilder(graph, checkpoint, config, inputs.packed, config.max_context),
        e(config),
        types(inputs.types) {
    const char* const probe = "embeddings.word_embeddings.weight";
    prefix = has(cat(family.prefix, probe)) ? family.prefix : "";
  }
  const EncoderConfig& e;
  const Val types;
  std::string prefix;

  // x . W^T + b, W (out, in).
  Val linear(Val x, const std::string& name, int64_t out, int64_t in) {
    return op("linear", {x, Val{}, weight(name + ".weight", {out, in}), weight(name + ".bias", {out})},
              {{"many_rows", int64_t{1}}});
  }
  Val layer_norm(Val x, const std::string& name) {
    return op("layer_norm", {x, weight(name + ".weight", {c.width}), weight(name + ".bias", {c.width})},
              {{"epsilon", c.norm_eps}});
  }
  Val table(const std::string& name, Val ids, int64_t rows) {
    const Val t = weight(name, {rows, c.width});
    return op("embedding", {t, ids});
  }
  Val activate(Val x) {
    const std::string& a = c.activation;
    if (a == "gelu" || a == "relu" || a == "silu" || a == "tanh") return op(a, {x});
    if (a == "gelu_new" || a == "gelu_pytorch_tanh" || a == "gelu_fast")
      return op("gelu", {x}, {{"approximate", std::string("tanh")}});
    fail(unimplemented(cat("config.json: hidden_act '", a, "'")));
    return {};
  }
  // softmax(q k^T / sqrt D) v, every token of a segment seeing all of it.
  Val attention(Val x, const std::string& q, const std::string& k, const std::string& v) {
    const auto heads = [&](const std::string& name) {
      return split_heads(linear(x, name, c.width, c.width), c.heads);
    };
    return merge_heads(
        op("attention", {heads(q), heads(k), heads(v), Val{}, in.segments},
           {{"scale", 1 / std::sqrt(static_cast<double>(c.head_dim))}, {"causal", int64_t{0}}}));
  }
};

Val embeddings(BertWriter& b) {
  const std::string e = b.prefix + "embeddings.";
  Val x = b.table(e + "word_embeddings.weight", b.in.tokens, b.c.vocab);
  if (b.types) x = b.add(x, b.table(e + "token_type_embeddings.weight", b.types, b.e.types));
  x = b.add(x, b.table(e + "position_embeddings.weight", b.in.positions, b.c.max_context));
  return b.layer_norm(x, e + "LayerNorm");
}

Val bert_layers(BertWriter& b, Val x) {
  const int64_t E = b.c.width, F = b.c.ffn;
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat(b.prefix, "encoder.layer.", n, "."), self = layer + "attention.self.";
    const Val a = b.attention(x, self + "query", self + "key", self + "value");
    x = b.layer_norm(b.add(x, b.linear(a, layer + "attention.output.dense", E, E)),
                     layer + "attention.output.LayerNorm");
    const Val h = b.activate(b.linear(x, layer + "intermediate.dense", F, E));
    x = b.layer_norm(b.add(x, b.linear(h, layer + "output.dense", E, F)), layer + "output.LayerNorm");
  }
  return x;
}

Val distil_layers(BertWriter& b, Val x) {
  const int64_t E = b.c.width, F = b.c.ffn;
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat(b.prefix, "transformer.layer.", n, "."), self = layer + "attention.";
    const Val a = b.attention(x, self + "q_lin", self + "k_lin", self + "v_lin");
    x = b.layer_norm(b.add(x, b.linear(a, self + "out_lin", E, E)), layer + "sa_layer_norm");
    const Val h = b.activate(b.linear(x, layer + "ffn.lin1", F, E));
    x = b.layer_norm(b.add(x, b.linear(h, layer + "ffn.lin2", E, F)), layer + "output_layer_norm");
  }
  return x;
}

// The head that classifies sequences, where the checkpoint has one.
struct Classifier {
  std::string dense, last;
  int64_t labels = 0;
};
Classifier find_classifier(const Checkpoint& checkpoint, const BertWriter& b, const Family& family) {
  Classifier out;
  out.last = family.roberta_head ? "classifier.out_proj" : "classifier";
  out.dense = family.roberta_head ? "classifier.dense"
              : family.distil     ? "pre_classifier"
                                  : b.prefix + "pooler.dense";
  const auto it = checkpoint.tensors.find(out.last + ".weight");
  // Without the layer before it, it is a head over tokens.
  if (it != checkpoint.tensors.end() && it->second.shape().rank() == 2 && b.has(out.dense + ".weight"))
    out.labels = it->second.shape()[0];
  return out;
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
  c.norm_eps = 1e-12;
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
  OAR_ASSIGN(c.max_context, r.integer({"max_position_embeddings"}, 1, 1 << 24, 512));
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
  c.kv_heads = c.heads, c.head_dim = c.width / c.heads;
  if (family->positions_after_padding) {
    OAR_ASSIGN(const int64_t pad, r.integer({"pad_token_id"}, 0, INT32_MAX, 1));
    c.first_position = pad + 1;
    if (c.first_position >= c.max_context)
      return invalid_argument(
          cat("config.json: 'pad_token_id' ", pad, " leaves no position of ", c.max_context));
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

Result<BuiltEncoder> build_encoder(const Checkpoint& checkpoint, const EncoderConfig& c, int64_t max_tokens,
                                   int64_t max_rows) {
  const Family* family = find_family(c.model_type);
  OAR_CHECK(family != nullptr, "the config was read for a known family");
  BuiltEncoder out;
  Graph& g = out.graph;
  out.T = g.add_symbol("T", max_tokens);
  out.B = g.add_symbol("B", max_rows);
  const auto input = [&](const char* name, SymbolId rows) {
    return Val{g.add_input(name, {Format::i32(), {g.dim(rows)}})};
  };
  EncoderInputs in;
  in.packed = {input("tokens", out.T), input("positions", out.T), input("segments", out.T)};
  if (c.types > 0) in.types = input("types", out.T);

  BertWriter b(g, checkpoint, c, *family, in);
  const Classifier head = find_classifier(checkpoint, b, *family);
  const Val x = family->distil ? distil_layers(b, embeddings(b)) : bert_layers(b, embeddings(b));
  Val logits;
  if (head.labels > 0) {
    const Val first = b.op("gather", {x, input("first_rows", out.B)});  // (B, E)
    const Val pooled =
        b.op(family->distil ? "relu" : "tanh", {b.linear(first, head.dense, c.width, c.width)});
    logits = b.linear(pooled, head.last, head.labels, c.width);
  }
  OAR_RETURN_IF_ERROR(b.status());
  const auto output = [&](const char* name, Val v, bool per_token, int64_t width) {
    g.add_output(name, v.id);
    out.outputs.push_back({name, per_token, width});
  };
  output("last_hidden_state", x, true, c.width);
  if (logits) output("logits", logits, false, head.labels);
  return out;
}

}  // namespace oar
