// The BERT family. https://arxiv.org/abs/1810.04805
//
//   x = layer_norm(word[ids] + type[types] + position[0..S))
//   x = layer_norm(x + W_o attention(x)),  x = layer_norm(x + W_2 gelu(W_1 x))        per layer
//
// RoBERTa and XLM-RoBERTa count positions from behind the padding id, ERNIE and ELECTRA have the same layers
// under other prefixes, ELECTRA tables that may be narrower, DistilBERT other names and no token types.
#include "engine/models/encoder.h"

#include <cmath>

#include "engine/base/format.h"
#include "engine/models/encoder_writer.h"

namespace oar {

Val EncoderWriter::layer(Val x, const std::string& name, int64_t out, int64_t in, bool biased) {
  return op("linear",
            {x, Val{}, weight(name + ".weight", {out, in}), biased ? weight(name + ".bias", {out}) : Val{}},
            {{"many_rows", int64_t{1}}});
}

Val EncoderWriter::norm(Val x, const std::string& name, bool biased) {
  const int64_t width = dim(x, -1).const_value();
  return op("layer_norm",
            {x, weight(name + ".weight", {width}), biased ? weight(name + ".bias", {width}) : Val{}},
            {{"epsilon", c.norm_eps}});
}

Val EncoderWriter::table(const std::string& name, Val ids, int64_t rows, int64_t width) {
  const Val t = weight(name, {rows, width});
  return op("embedding", {t, ids});
}

Val EncoderWriter::activate(Val x, const std::string& function) {
  if (function == "gelu" || function == "relu" || function == "silu" || function == "tanh")
    return op(function, {x});
  if (function == "gelu_new" || function == "gelu_pytorch_tanh" || function == "gelu_fast")
    return op("gelu", {x}, {{"approximate", std::string("tanh")}});
  fail(unimplemented(cat("config.json: the activation function '", function,
                         "' is not one of gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, relu, silu, tanh")));
  return {};
}

Val EncoderWriter::attend(Val q, Val k, Val v, int64_t window) {
  Attrs attrs{{"scale", 1 / std::sqrt(static_cast<double>(c.head_dim))}, {"causal", int64_t{0}}};
  if (window > 0) attrs.set("window", window);
  return merge_heads(
      op("attention", {q, k, v, window > 0 ? in.positions : Val{}, in.segments}, std::move(attrs)));
}

Val head_rows(EncoderWriter& b, Val x) {
  return b.first_rows ? b.op("gather", {x, b.first_rows}) : x;  // (B, E)
}

namespace {

Val attention(EncoderWriter& b, Val x, const std::string& q, const std::string& k, const std::string& v) {
  const auto heads = [&](const std::string& name) {
    return b.split_heads(b.layer(x, name, b.c.width, b.c.width), b.c.heads);
  };
  const Val qkv[] = {heads(q), heads(k), heads(v)};  // in this order, which arguments of a call have not
  return b.attend(qkv[0], qkv[1], qkv[2]);
}

Val embeddings(EncoderWriter& b) {
  const std::string e = b.prefix + "embeddings.";
  const int64_t width = b.e.table_width;
  Val x = b.table(e + "word_embeddings.weight", b.in.tokens, b.c.vocab, width);
  if (b.types) x = b.add(x, b.table(e + "token_type_embeddings.weight", b.types, b.e.types, width));
  x = b.add(x, b.table(e + "position_embeddings.weight", b.in.positions, b.c.max_context, width));
  x = b.norm(x, e + "LayerNorm");
  return width == b.c.width ? x : b.layer(x, b.prefix + "embeddings_project", b.c.width, width);
}

Val bert_hidden(EncoderWriter& b) {
  const int64_t E = b.c.width, F = b.c.ffn;
  Val x = embeddings(b);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat(b.prefix, "encoder.layer.", n, "."), self = layer + "attention.self.";
    const Val a = attention(b, x, self + "query", self + "key", self + "value");
    x = b.norm(b.add(x, b.layer(a, layer + "attention.output.dense", E, E)),
               layer + "attention.output.LayerNorm");
    const Val h = b.activate(b.layer(x, layer + "intermediate.dense", F, E), b.c.activation);
    x = b.norm(b.add(x, b.layer(h, layer + "output.dense", E, F)), layer + "output.LayerNorm");
  }
  return x;
}

Val distil_hidden(EncoderWriter& b) {
  const int64_t E = b.c.width, F = b.c.ffn;
  Val x = embeddings(b);
  for (int64_t n = 0; n < b.c.layers; ++n) {
    const std::string layer = cat(b.prefix, "transformer.layer.", n, "."), self = layer + "attention.";
    const Val a = attention(b, x, self + "q_lin", self + "k_lin", self + "v_lin");
    x = b.norm(b.add(x, b.layer(a, self + "out_lin", E, E)), layer + "sa_layer_norm");
    const Val h = b.activate(b.layer(x, layer + "ffn.lin1", F, E), b.c.activation);
    x = b.norm(b.add(x, b.layer(h, layer + "ffn.lin2", E, F)), layer + "output_layer_norm");
  }
  return x;
}

// The rows through a layer and `kFunction`.
constexpr char kTanh[] = "tanh", kRelu[] = "relu", kGelu[] = "gelu";
template <const char* kFunction>
Val first_token(EncoderWriter& b, Val x, const std::string& dense) {
  return b.op(kFunction, {b.layer(head_rows(b, x), dense, b.c.width, b.c.width)});
}

// transformers' BertConfig, RobertaConfig, ErnieConfig, ElectraConfig and DistilBertConfig.
Status read_sizes(ConfigReader& r, EncoderConfig& c, bool distil) {
  const auto size = [&](const char* bert, const char* distil_bert, int64_t most) {
    return distil ? r.integer({distil_bert, bert}, 1, most, std::nullopt)
                  : r.integer({bert}, 1, most, std::nullopt);
  };
  OAR_ASSIGN(c.width, size("hidden_size", "dim", 1 << 16));
  OAR_ASSIGN(c.layers, size("num_hidden_layers", "n_layers", 1024));
  OAR_ASSIGN(c.heads, size("num_attention_heads", "n_heads", 1024));
  OAR_ASSIGN(c.ffn, r.integer({distil ? "hidden_dim" : "intermediate_size"}, 1, 1 << 20, std::nullopt));
  OAR_ASSIGN(c.max_context, r.integer({"max_position_embeddings"}, 1, 1 << 24, 512));
  OAR_ASSIGN(c.activation, r.text({distil ? "activation" : "hidden_act"}, "gelu"));
  c.table_width = c.width;
  OAR_ASSIGN(const std::string kind, r.text({"position_embedding_type"}, "absolute"));
  if (kind != "absolute") {
    return unimplemented(
        cat("config.json: 'position_embedding_type' is '", kind, "'; only absolute positions are offered"));
  }
  return ok_status();
}

Status read_bert(ConfigReader& r, EncoderConfig& c) {
  OAR_RETURN_IF_ERROR(read_sizes(r, c, false));
  OAR_ASSIGN(c.types, r.integer({"type_vocab_size"}, 0, 1024, 2));
  OAR_ASSIGN(c.norm_eps, r.number({"layer_norm_eps"}, 1e-12));
  r.without_effect("task_type_vocab_size");
  return ok_status();
}

Status read_roberta(ConfigReader& r, EncoderConfig& c) {
  OAR_RETURN_IF_ERROR(read_bert(r, c));
  OAR_ASSIGN(const int64_t pad, r.integer({"pad_token_id"}, 0, INT32_MAX, 1));
  c.first_position = pad + 1;
  if (c.first_position >= c.max_context)
    return invalid_argument(
        cat("config.json: 'pad_token_id' ", pad, " leaves no position of ", c.max_context));
  return ok_status();
}

Status read_electra(ConfigReader& r, EncoderConfig& c) {
  OAR_RETURN_IF_ERROR(read_bert(r, c));
  OAR_ASSIGN(c.table_width, r.integer({"embedding_size"}, 1, 1 << 16, 128));
  r.without_effect(
      "summary_activation summary_last_dropout summary_type summary_use_proj");  // heads' that are not read
  return ok_status();
}

Status read_distilbert(ConfigReader& r, EncoderConfig& c) {
  OAR_RETURN_IF_ERROR(read_sizes(r, c, true));
  c.norm_eps = 1e-12;
  r.without_effect("sinusoidal_pos_embds");  // the table lies in the checkpoint either way
  return ok_status();
}

constexpr const char* kWords = "embeddings.word_embeddings.weight";
constexpr EncoderFamily kFamilies[] = {
    {"bert", "bert.", kWords, read_bert, bert_hidden, ".pooler.dense", first_token<kTanh>, "classifier",
     false, nullptr, "Bert"},
    {"ernie", "ernie.", kWords, read_bert, bert_hidden, ".pooler.dense", first_token<kTanh>, "classifier",
     false, nullptr, "Ernie"},
    {"roberta", "roberta.", kWords, read_roberta, bert_hidden, "classifier.dense", first_token<kTanh>,
     "classifier.out_proj", false, nullptr, "Roberta"},
    {"xlm-roberta", "roberta.", kWords, read_roberta, bert_hidden, "classifier.dense", first_token<kTanh>,
     "classifier.out_proj", false, nullptr, "XLMRoberta"},
    {"camembert", "roberta.", kWords, read_roberta, bert_hidden, "classifier.dense", first_token<kTanh>,
     "classifier.out_proj", false, nullptr, "Camembert"},
    {"electra", "electra.", kWords, read_electra, bert_hidden, "classifier.dense", first_token<kGelu>,
     "classifier.out_proj", false, nullptr, "Electra"},
    {"distilbert", "distilbert.", kWords, read_distilbert, distil_hidden, "pre_classifier",
     first_token<kRelu>, "classifier", false, nullptr, "DistilBert"},
    {"modernbert", "model.", "embeddings.tok_embeddings.weight", read_modernbert, modernbert_hidden,
     "head.dense", modernbert_pooled, "classifier", true, "head.norm", "ModernBert"},
    {"nomic_bert", "nomic_bert.", kWords, read_nomic_bert, rotary_bert_hidden, ".pooler.dense",
     first_token<kTanh>, "classifier", false, nullptr, "NomicBert"},
    {"gte", "gte.", kWords, read_gte, rotary_bert_hidden, ".pooler.dense", first_token<kTanh>, "classifier",
     false, nullptr, "Gte"},
    {"new", "new.", kWords, read_gte, rotary_bert_hidden, ".pooler.dense", first_token<kTanh>, "classifier",
     false, nullptr, "New"},
};

const EncoderFamily* find_family(std::string_view model_type) {
  for (const EncoderFamily& f : kFamilies)
    if (model_type == f.model_type) return &f;
  return nullptr;
}

constexpr const char* kTokenLast = "classifier";

std::string prefix_here(const Checkpoint& checkpoint, const EncoderFamily& f) {
  return checkpoint.tensors.contains(cat(f.prefix, f.words)) ? f.prefix : "";
}
std::string dense_name(const EncoderFamily& f, const std::string& prefix) {
  return f.dense[0] == '.' ? prefix + (f.dense + 1) : f.dense;
}

std::string_view model_type_of(const json::object& config) {
  const json::value* v = config.if_contains("model_type");
  if (!v || !v->is_string()) return {};
  return {v->get_string().data(), v->get_string().size()};
}

}  // namespace

std::optional<EncoderHead> named_head(const json::object& config) {
  const json::value* names = config.if_contains("architectures");
  for (const json::value& n : names && names->is_array() ? names->get_array() : json::array()) {
    const std::string_view name = n.is_string() ? std::string_view(n.get_string()) : std::string_view();
    if (name.find("TokenClassification") != std::string_view::npos) return EncoderHead::kTokens;
    if (name.find("SequenceClassification") != std::string_view::npos) return EncoderHead::kSequence;
  }
  return std::nullopt;
}

EncoderPrefix encoder_prefix(const Checkpoint& checkpoint, const EncoderConfig& config) {
  const EncoderFamily& family = *find_family(config.model_type);
  return {family.prefix, !prefix_here(checkpoint, family).empty()};
}

EncoderHeadTensors head_tensors(const Checkpoint& checkpoint, const EncoderConfig& c, EncoderHead head) {
  const EncoderFamily& family = *find_family(c.model_type);
  const bool tokens = head == EncoderHead::kTokens;
  EncoderHeadTensors out;
  out.last = tokens ? kTokenLast : family.last;
  out.model_class = cat(family.model_class, tokens ? "ForTokenClassification" : "ForSequenceClassification");
  if (tokens && !family.dense_of_tokens) return out;
  const std::string dense = dense_name(family, prefix_here(checkpoint, family));
  out.before.emplace_back(dense + ".weight", Shape{c.width, c.width});
  if (c.pooled_bias) out.before.emplace_back(dense + ".bias", Shape{c.width});
  if (family.norm == nullptr) return out;
  out.before.emplace_back(cat(family.norm, ".weight"), Shape{c.width});
  if (c.norm_bias) out.before.emplace_back(cat(family.norm, ".bias"), Shape{c.width});
  return out;
}

Result<Val> head_features(Graph& graph, const Checkpoint& checkpoint, const EncoderConfig& config,
                          EncoderHead head, ModelInputs inputs, Val types) {
  const EncoderFamily& family = *find_family(config.model_type);
  EncoderWriter b(graph, checkpoint, config, inputs, types);
  b.prefix = prefix_here(checkpoint, family);
  b.of_tokens = head == EncoderHead::kTokens;
  Val x = family.hidden(b);
  if (!b.of_tokens || family.dense_of_tokens) x = family.pooled(b, x, dense_name(family, b.prefix));
  OAR_RETURN_IF_ERROR(b.status());
  return x;
}

bool is_encoder_config(const json::object& config) { return find_family(model_type_of(config)) != nullptr; }

std::vector<std::string> encoder_names() {
  std::vector<std::string> out;
  for (const EncoderFamily& f : kFamilies) out.emplace_back(f.model_type);
  return out;
}

Result<EncoderConfig> read_encoder_config(const json::object& o) {
  EncoderConfig c;
  c.model_type = std::string(model_type_of(o));
  const EncoderFamily* family = find_family(c.model_type);
  if (!family) {
    std::string names;
    for (const std::string& n : encoder_names()) names += (names.empty() ? "" : ", ") + n;
    return unimplemented(cat("model_type '", c.model_type, "' is no encoder that can be run: ", names));
  }
  ConfigReader r(o);
  OAR_ASSIGN(c.vocab, r.integer({"vocab_size"}, 1, INT32_MAX, std::nullopt));
  r.without_effect("tie_word_embeddings");
  OAR_RETURN_IF_ERROR(family->read(r, c));
  if (c.width % c.heads != 0)
    return invalid_argument(
        cat("config.json: 'hidden_size' ", c.width, " is no multiple of 'num_attention_heads' ", c.heads));
  c.kv_heads = c.heads, c.head_dim = c.width / c.heads;
  if (!(c.norm_eps >= 0 && c.norm_eps < 1))
    return invalid_argument("config.json: the epsilon of layer norms is not in [0, 1)");
  OAR_ASSIGN(c.unknown_keys, r.finish(c.model_type));
  return c;
}

Result<BuiltEncoder> build_encoder(const Checkpoint& checkpoint, const EncoderConfig& c, int64_t max_tokens,
                                   int64_t max_rows) {
  const EncoderFamily* family = find_family(c.model_type);
  OAR_CHECK(family != nullptr, "the config was read for a known family");
  BuiltEncoder out;
  Graph& g = out.graph;
  out.T = g.add_symbol("T", max_tokens);
  out.B = g.add_symbol("B", max_rows);
  const auto input = [&](const char* name, SymbolId rows) {
    return Val{g.add_input(name, {Format::i32(), {g.dim(rows)}})};
  };
  const ModelInputs packed{input("tokens", out.T), input("positions", out.T), input("segments", out.T)};
  EncoderWriter b(g, checkpoint, c, packed, c.types > 0 ? input("types", out.T) : Val{});
  b.prefix = prefix_here(checkpoint, *family);
  const Val x = family->hidden(b);

  const std::string dense = dense_name(*family, b.prefix);
  b.of_tokens = named_head(checkpoint.config) == EncoderHead::kTokens;
  const std::string name = b.of_tokens ? kTokenLast : family->last;
  const auto last = checkpoint.tensors.find(name + ".weight");
  const bool through = !b.of_tokens || family->dense_of_tokens;
  int64_t labels = 0;
  Val logits;
  // Without the layer before it, it is a head over tokens.
  if (last != checkpoint.tensors.end() && last->second.shape().rank() == 2 &&
      (!through || b.has(dense + ".weight"))) {
    labels = last->second.shape()[0];
    if (!b.of_tokens) b.first_rows = input("first_rows", out.B);
    logits = b.layer(through ? family->pooled(b, x, dense) : x, name, labels, c.width);
  }
  OAR_RETURN_IF_ERROR(b.status());
  const auto output = [&](const char* name, Val v, bool per_token, int64_t width) {
    g.add_output(name, v.id);
    out.outputs.push_back({name, per_token, width});
  };
  output("last_hidden_state", x, true, c.width);
  if (logits) output(b.of_tokens ? "token_logits" : "logits", logits, b.of_tokens, labels);
  return out;
}

}  // namespace oar
