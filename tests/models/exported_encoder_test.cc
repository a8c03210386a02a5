// A BERT from ONNX and the same BERT from safetensors end in one graph over packed rows. The files are
// written here, as PyTorch exports transformers' models in eager mode, from the checkpoints of
// tests/golden/encoders.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "engine/base/format.h"
#include "engine/loader/safetensors.h"
#include "engine/runtime/encoder_model.h"
#include "engine/runtime/text_encoder.h"
#include "tests/import/onnx_writer.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_encoder.h"

namespace {

using namespace oar;       // NOLINT
using namespace oar_test;  // NOLINT
namespace fs = std::filesystem;

// What an exporter may do otherwise, and what no packed rows have.
struct Export {
  bool whole_norm = false;    // LayerNormalization, not its parts
  bool scaled_heads = false;  // queries and keys are scaled, not their scores
  bool counts_ids = false;    // RoBERTa: positions are a running sum of what is no padding
  bool has_types = true;
  bool tanh_gelu = false;
  int64_t window = 0;  // hides columns so far away
  bool mean = false;   // of a text's states is another output
  bool fixed = false;  // a batch of one
};

// The layers of a checkpoint as nodes of an ONNX file.
class BertExport {
 public:
  BertExport(const std::string& folder, Export how) : how_(how) {
    auto file = open_safetensors(folder + "/model.safetensors");
    REQUIRE_OK(file);
    tensors_ = std::move(file->tensors);
    config_ = json::parse(read_file(folder + "/config.json")).as_object();
    for (const char* prefix : {"bert.", "roberta."})
      if (tensors_.contains(std::string(prefix) + "embeddings.word_embeddings.weight")) prefix_ = prefix;
  }

  std::string file() {
    const int64_t heads = number("num_attention_heads"), E = number("hidden_size");
    std::string x = embeddings();
    const std::string mask = added_mask();
    for (int64_t n = 0; n < number("num_hidden_layers"); ++n) {
      const std::string layer = cat(prefix_, "encoder.layer.", n, ".");
      const std::string a = attention(x, mask, layer + "attention.self.", heads, E / heads);
      x = norm(op("Add", {linear(a, layer + "attention.output.dense"), x}),
               layer + "attention.output.LayerNorm");
      const std::string h = gelu(linear(x, layer + "intermediate.dense"));
      x = norm(op("Add", {linear(h, layer + "output.dense"), x}), layer + "output.LayerNorm");
    }
    const int64_t batch = how_.fixed ? 1 : -1;
    std::vector<Proto> inputs{tokens("input_ids", batch), tokens("attention_mask", batch)};
    if (how_.has_types) inputs.push_back(tokens("token_type_ids", batch));
    std::vector<Proto> outputs;
    if (tensors_.contains("classifier.out_proj.weight")) {
      nodes_.push_back(node_proto("Gather", {x, index(0)}, {"first"}, {int_attr("axis", 1)}));
      const std::string dense = op("Tanh", {gemm("first", "classifier.dense")});
      op("Identity", {gemm(dense, "classifier.out_proj")}, "logits");
      outputs.push_back(value_proto("logits", {-1, tensors_.at("classifier.out_proj.weight").shape()[0]}));
    } else {
      op("Identity", {x}, "last_hidden_state");
      outputs.push_back(value_proto("last_hidden_state", {-1, -1, E}));
    }
    if (how_.mean) {
      nodes_.push_back(
          node_proto("ReduceMean", {x}, {"mean"}, {ints_attr("axes", {1}), int_attr("keepdims", 0)}));
      outputs.push_back(value_proto("mean", {-1, E}));
    }
    return model_bytes(graph_proto(nodes_, constants_, inputs, outputs));
  }

 private:
  int64_t number(const char* key) const { return config_.at(key).as_int64(); }
  static Proto tokens(const std::string& name, int64_t batch) {
    Proto shape;
    shape.message(1, batch < 0 ? Proto().text(2, "batch") : Proto().number(1, batch));
    shape.message(1, Proto().text(2, "sequence"));
    return Proto().text(1, name).message(2, Proto().message(1, Proto().number(1, 7).message(2, shape)));
  }
  std::string op(const std::string& type, const std::vector<std::string>& in, const std::string& out = "",
                 const std::vector<Proto>& attrs = {}) {
    const std::string result = out.empty() ? cat("v", nodes_.size()) : out;
    nodes_.push_back(node_proto(type, in, {result}, attrs));
    return result;
  }
  std::string scalar(float v) {
    constants_.push_back(tensor_proto(cat("c", constants_.size()), {}, {v}));
    return cat("c", constants_.size() - 1);
  }
  std::string ints(const std::vector<int64_t>& v) {
    constants_.push_back(ints_proto(cat("c", constants_.size()), v));
    return cat("c", constants_.size() - 1);
  }
  std::string index(int64_t v) {
    constants_.push_back(raw_proto<int64_t>(cat("c", constants_.size()), 7, {}, {v}));
    return cat("c", constants_.size() - 1);
  }
  // A tensor of the checkpoint, `turned` as exporters write the matrices of layers.
  std::string weight(const std::string& name, bool turned = false) {
    const Tensor& t = tensors_.at(name);
    std::vector<int64_t> dims(t.shape().begin(), t.shape().end());
    std::vector<float> values(t.values<float>().begin(), t.values<float>().end());
    if (turned) {
      const int64_t N = dims[0], K = dims[1];
      for (int64_t n = 0; n < N; ++n)
        for (int64_t k = 0; k < K; ++k)
          values[static_cast<size_t>(k * N + n)] = t.values<float>()[static_cast<size_t>(n * K + k)];
      dims = {K, N};
    }
    constants_.push_back(tensor_proto(name, dims, values));
    return name;
  }
  std::string linear(const std::string& x, const std::string& name) {
    return op("Add", {weight(name + ".bias"), op("MatMul", {x, weight(name + ".weight", true)})});
  }
  std::string gemm(const std::string& x, const std::string& name) {
    return op("Gemm", {x, weight(name + ".weight"), weight(name + ".bias")}, "", {int_attr("transB", 1)});
  }
  std::string norm(const std::string& x, const std::string& name) {
    const auto eps = static_cast<float>(config_.at("layer_norm_eps").as_double());
    if (how_.whole_norm) {
      return op("LayerNormalization", {x, weight(name + ".weight"), weight(name + ".bias")}, "",
                {int_attr("axis", -1), float_attr("epsilon", eps)});
    }
    const auto mean = [&](const std::string& v) {
      return op("ReduceMean", {v}, "", {ints_attr("axes", {-1})});
    };
    const std::string d = op("Sub", {x, mean(x)});
    const std::string deviation = op("Sqrt", {op("Add", {mean(op("Pow", {d, scalar(2)})), scalar(eps)})});
    return op("Add",
              {op("Mul", {op("Div", {d, deviation}), weight(name + ".weight")}), weight(name + ".bias")});
  }
  static Proto float_attr(const std::string& name, float v) {
    Proto p;
    p.text(1, name);
    p.varint(2 << 3 | 5);
    p.bytes.append(reinterpret_cast<const char*>(&v), sizeof v);
    return p.number(20, 1);
  }
  std::string gelu(const std::string& x) {
    if (how_.tanh_gelu) {
      const std::string cubic = op("Mul", {scalar(0.044715f), op("Pow", {x, scalar(3)})});
      const std::string inner = op("Mul", {op("Add", {x, cubic}), scalar(0.7978845608f)});
      return op("Mul", {op("Mul", {scalar(0.5f), x}), op("Add", {op("Tanh", {inner}), scalar(1)})});
    }
    const std::string e = op("Erf", {op("Div", {x, scalar(1.41421356f)})});
    return op("Mul", {op("Mul", {x, op("Add", {e, scalar(1)})}), scalar(0.5f)});
  }
  // An extent of a value, as (1).
  std::string extent(const std::string& x, int64_t axis) {
    return op("Unsqueeze", {op("Gather", {op("Shape", {x}), index(axis)}), ints({0})});
  }
  std::string embeddings() {
    const std::string e = prefix_ + "embeddings.";
    const int64_t most = number("max_position_embeddings");
    std::vector<int64_t> columns(static_cast<size_t>(most));
    for (size_t k = 0; k < columns.size(); ++k) columns[k] = static_cast<int64_t>(k);
    const auto cut = [&](std::vector<int64_t> values) {
      constants_.push_back(raw_proto<int64_t>(cat("c", constants_.size()), 7, {1, most}, values));
      return op("Slice",
                {cat("c", constants_.size() - 1), ints({0}), extent("input_ids", 1), ints({1}), ints({1})});
    };
    const std::string x = op("Gather", {weight(e + "word_embeddings.weight"), "input_ids"});
    const std::string types =
        how_.has_types
            ? "token_type_ids"
            : op("Expand", {cut(std::vector<int64_t>(columns.size(), 0)), op("Shape", {"input_ids"})});
    std::string positions;
    if (how_.counts_ids) {
      const std::string real =
          op("Cast", {op("Not", {op("Equal", {"input_ids", index(1)})})}, "", {int_attr("to", 6)});
      const std::string counted = op("Mul", {op("CumSum", {real, index(1)}), real});
      positions = op("Add", {op("Cast", {counted}, "", {int_attr("to", 7)}), index(1)});
    } else {
      positions = cut(columns);
    }
    const std::string typed =
        op("Add", {x, op("Gather", {weight(e + "token_type_embeddings.weight"), types})});
    return norm(op("Add", {typed, op("Gather", {weight(e + "position_embeddings.weight"), positions})}),
                e + "LayerNorm");
  }
  std::string added_mask() {
    const std::string m = op("Unsqueeze", {op("Unsqueeze", {"attention_mask", ints({1})}), ints({2})});
    const std::string hidden = op("Sub", {scalar(1), op("Cast", {m}, "", {int_attr("to", 1)})});
    std::string mask = op("Mul", {hidden, scalar(-3.4028234663852886e38f)});
    if (how_.window == 0) return mask;
    // (S, S): 0 near the diagonal, -1e9 elsewhere.
    const std::string S = op("Gather", {op("Shape", {"input_ids"}), index(1)});
    const std::string row = op("Cast", {op("Range", {index(0), S, index(1)})}, "", {int_attr("to", 1)});
    const std::string far = op("Greater", {op("Abs", {op("Sub", {row, op("Unsqueeze", {row, ints({1})})})}),
                                           scalar(static_cast<float>(how_.window))});
    return op("Add", {mask, op("Mul", {op("Cast", {far}, "", {int_attr("to", 1)}), scalar(-1e9f)})});
  }
  std::string attention(const std::string& x, const std::string& mask, const std::string& self, int64_t heads,
                        int64_t D) {
    const auto split = [&](const char* which) {
      const std::string y = linear(x, self + which);
      const std::string shape =
          op("Concat", {extent(y, 0), extent(y, 1), ints({heads}), ints({D})}, "", {int_attr("axis", 0)});
      return op("Reshape", {y, shape});
    };
    const auto turned = [&](const std::string& v, const std::vector<int64_t>& perm) {
      return op("Transpose", {v}, "", {ints_attr("perm", perm)});
    };
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(D)));
    std::string q = turned(split("query"), {0, 2, 1, 3}), k = turned(split("key"), {0, 2, 3, 1});
    const std::string v = turned(split("value"), {0, 2, 1, 3});
    if (how_.scaled_heads) {
      q = op("Mul", {q, scalar(1 / std::sqrt(root))});
      k = op("Mul", {k, scalar(1 / std::sqrt(root))});
    }
    std::string scores = op("MatMul", {q, k});
    if (!how_.scaled_heads) scores = op("Div", {scores, scalar(root)});
    const std::string p = op("Softmax", {op("Add", {scores, mask})}, "", {int_attr("axis", -1)});
    const std::string y = turned(op("MatMul", {p, v}), {0, 2, 1, 3});
    return op("Reshape",
              {y, op("Concat", {extent(y, 0), extent(y, 1), ints({heads * D})}, "", {int_attr("axis", 0)})});
  }

  const Export how_;
  TensorMap tensors_;
  json::object config_;
  std::string prefix_;
  std::vector<Proto> nodes_, constants_;
};

// A folder with the ONNX file of a tiny encoder, its vocabulary and its config.
std::string write_export(const std::string& name, const Export& how) {
  const std::string from = write_tiny_encoder(name), to = from + "-onnx";
  fs::create_directories(to);
  std::ofstream(to + "/model.onnx", std::ios::binary) << BertExport(from, how).file();
  write_tiny_vocabulary(to);
  fs::copy_file(from + "/config.json", to + "/config.json", fs::copy_options::overwrite_existing);
  return to;
}

PredictorOptions plain_options(const std::string& weights = "") {
  PredictorOptions o;
  o.threads = 2;
  o.weights = weights;
  o.cache_bytes = 0;
  return o;
}

std::unique_ptr<EncoderModel> from_onnx(const std::string& folder, const std::string& weights = "") {
  auto imported = import_model(folder + "/model.onnx");
  REQUIRE_OK(imported);
  auto model = EncoderModel::create(std::move(*imported), plain_options(weights));
  REQUIRE_OK(model);
  return std::move(*model);
}
std::unique_ptr<EncoderModel> from_safetensors(const std::string& folder) {
  auto model = EncoderModel::load(folder, plain_options());
  REQUIRE_OK(model);
  return std::move(*model);
}

// What output `index` is, down to inputs by name and weights by format and shape: op, attributes and operands
// in their order. Numbers in six digits: files have them as f32.
std::string meaning(const Graph& g, const std::string& output) {
  std::map<ValueId, std::string> known;
  std::map<std::string, size_t> numbered;  // a text so far, by number, so that it does not grow with depth
  const std::vector<int> producers = g.producers();
  std::string all;
  const std::function<std::string(ValueId)> of = [&](ValueId v) -> std::string {
    if (v == kNoValue) return "none";
    if (const auto it = known.find(v); it != known.end()) return it->second;
    const Value& value = g.value(v);
    std::string text;
    if (value.kind == ValueKind::kInput) {
      text = "@" + value.name;
    } else if (value.kind == ValueKind::kConstant) {
      text = g.type_string(value.type);
    } else {
      const Node& n = g.nodes()[static_cast<size_t>(producers[static_cast<size_t>(v)])];
      std::string line = n.op->name;
      for (const auto& [name, attr] : n.attrs.items()) {
        line += cat(" ", name, ":");
        if (const auto* d = std::get_if<double>(&attr)) {
          char digits[32];
          std::snprintf(digits, sizeof digits, "%.6g", *d);
          line += digits;
        } else if (const auto* i = std::get_if<int64_t>(&attr)) {
          line += cat(*i);
        } else if (const auto* s = std::get_if<std::string>(&attr)) {
          line += *s;
        } else if (const auto* list = std::get_if<std::vector<int64_t>>(&attr)) {
          for (const int64_t i : *list) line += cat(i, ",");
        }
      }
      for (const ValueId in : n.inputs) line += " " + of(in);
      const auto [it, is_new] = numbered.emplace(line, numbered.size());
      if (is_new) all += cat("%", it->second, " = ", line, "\n");
      text = cat("%", it->second);
    }
    return known[v] = text;
  };
  for (const auto& o : g.outputs())
    if (o.name == output) all += cat("output ", of(o.value), "\n");
  return all;
}

std::vector<Datum> batch(int64_t B, int64_t S, size_t inputs) {
  std::vector<Datum> out;
  for (size_t input = 0; input < inputs; ++input) {
    Tensor t = must(allocate_elements({B, S}, DType::kI64));
    for (int64_t b = 0; b < B; ++b) {
      for (int64_t s = 0; s < S; ++s) {
        const bool real = s < S - 3 * b;
        const int64_t id = 5 + (7 * s + 11 * b) % 90;
        mutable_elements<int64_t>(t)[b * S + s] = input == 0   ? (real ? id : 1)
                                                  : input == 1 ? int64_t{real}
                                                               : s % 2;
      }
    }
    out.emplace_back(std::move(t));
  }
  return out;
}

double farthest(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  double worst = 0;
  for (int64_t k = 0; k < a.numel(); ++k)
    worst = std::max(worst, std::abs(element_as_double(a, k) - element_as_double(b, k)));
  return worst;
}

TEST_CASE("Exported encoders: ONNX and safetensors end in the same fused graph") {
  struct Case {
    const char *name, *output;
    Export how;
    bool same_bits;  // the scale of scores is a number that f32 has
  };
  Export spelled, whole, tanh_gelu, roberta;
  whole.whole_norm = true, whole.scaled_heads = true;
  tanh_gelu.tanh_gelu = true;
  roberta.counts_ids = true, roberta.has_types = false;
  for (const Case& c :
       {Case{"bert", "last_hidden_state", spelled, false}, Case{"bert", "last_hidden_state", whole, false},
        Case{"bert-tanh-gelu", "last_hidden_state", tanh_gelu, true},
        Case{"xlm-roberta-classifier", "logits", roberta, false}}) {
    INFO(c.name << (c.how.whole_norm ? " whole" : ""));
    const auto onnx = from_onnx(write_export(c.name, c.how)),
               native = from_safetensors(write_tiny_encoder(c.name));
    CHECK(onnx->format() == "onnx");
    CHECK(meaning(onnx->graph(), c.output) == meaning(native->graph(), c.output));
    CHECK(meaning(onnx->graph(), c.output).find("attention causal:0") != std::string::npos);
    CHECK(onnx->config().vocab == native->config().vocab);
    CHECK(onnx->config().max_tokens() == native->config().max_tokens());
    // The same graph, and the same numbers of it.
    std::vector<Datum> in = batch(3, 17, native->inputs().size());
    if (native->config().types == 1) in[2] = Datum(must(allocate_elements({3, 17}, DType::kI64)));
    const auto want = native->run(in);
    REQUIRE_OK(want);
    in.resize(onnx->inputs().size());
    const auto got = onnx->run(in);
    REQUIRE_OK(got);
    REQUIRE(got->size() == 1);
    const double d = farthest((*got)[0].tensor, (*want)[want->size() - 1].tensor);
    // Files have the scale in f32, some as the square of another: off by some 2^-24, it moves scores of up to
    // ten by less than 1e-5 of a state in two layers (encoder_test.cc has the same bound for all rounding).
    CHECK(d <= (c.same_bits ? 0 : 1e-5));
  }
}

TEST_CASE("Exported encoders: packed rows equal the file run as it is, where there is no padding") {
  Export roberta;
  roberta.counts_ids = true, roberta.has_types = false;
  for (const char* name : {"bert", "xlm-roberta-classifier"}) {
    INFO(name);
    const bool classifies = std::strcmp(name, "bert") != 0;
    const std::string folder = write_export(name, classifies ? roberta : Export{});
    const auto packed = from_onnx(folder);
    auto padded = Predictor::open(folder + "/model.onnx", plain_options());
    REQUIRE_OK(padded);
    const auto in = batch(3, 23, packed->inputs().size());
    const auto got = packed->run(in), want = (*padded)->run(in);
    REQUIRE_OK(got);
    REQUIRE_OK(want);
    const Tensor &g = (*got)[0].tensor, &w = (*want)[0].tensor;
    REQUIRE(g.shape() == w.shape());
    const int64_t S = classifies ? 1 : 23, width = g.numel() / (3 * S);
    for (int64_t b = 0; b < 3; ++b)
      for (int64_t s = 0; s < (classifies ? 1 : S - 3 * b); ++s)
        for (int64_t e = 0; e < width; ++e) {
          const int64_t at = (b * S + s) * width + e;
          CHECK(element_as_double(g, at) == Approx(element_as_double(w, at)).margin(1e-5));
        }
  }
}

TEST_CASE("Exported encoders: weights in fewer bits, and texts of any lengths in one run") {
  const std::string folder = write_export("bert", {});
  const auto exact = from_onnx(folder);
  const auto in = batch(2, 30, 3);
  const auto want = exact->run(in);
  REQUIRE_OK(want);
  const auto native = from_safetensors(write_tiny_encoder("bert"));
  for (const char* weights : {"int8", "int4", "fp8", "bf16"}) {
    INFO(weights);
    const auto model = from_onnx(folder, weights);
    CHECK(model->weights() != exact->weights());
    const auto got = model->run(in);
    REQUIRE_OK(got);
    const double d = farthest((*got)[0].tensor, (*want)[0].tensor);
    CHECK(d > 0);
    // Of the checkpoint in the same scheme it is the same model.
    auto same = EncoderModel::load(write_tiny_encoder("bert"), plain_options(weights));
    REQUIRE_OK(same);
    CHECK((*same)->weights() == model->weights());
    const auto expected = (*same)->run(in);
    REQUIRE_OK(expected);
    CHECK(farthest((*got)[0].tensor, (*expected)[0].tensor) <= d / 100);
  }
  auto loaded = load_text_encoder(folder, plain_options("int8"));
  REQUIRE_OK(loaded);
  CHECK(loaded->encoder->info().packs);
  CHECK(loaded->encoder->info().max_tokens == 40);
  CHECK(loaded->runner->batch_key(batch(1, 3, 3)) == loaded->runner->batch_key(batch(1, 9, 3)));
}

TEST_CASE("Exported encoders: what has no form over packed rows is refused by name and runs as it is") {
  const auto why = [](const std::string& folder) {
    auto imported = import_model(folder + "/model.onnx");
    REQUIRE_OK(imported);
    const Status s = EncoderModel::create(std::move(*imported), plain_options()).status();
    CHECK(s.code() == StatusCode::kUnimplemented);
    return s.message();
  };
  Export far, mean, fixed;
  far.window = 20;  // farther than the short sample is long
  mean.mean = true;
  fixed.fixed = true;
  CHECK_THAT(why(write_export("bert", mean)), Contains("reduce_mean"));
  CHECK_THAT(why(write_export("bert", fixed)), Contains("any batch"));
  const std::string windowed = write_export("bert", far);
  CHECK_THAT(why(windowed), Contains("other than padding"));
  auto loaded = load_text_encoder(windowed, plain_options());
  REQUIRE_OK(loaded);
  CHECK_FALSE(loaded->encoder->info().packs);
  CHECK_THAT(load_text_encoder(windowed, plain_options("int8")).status().message(),
             Contains("weights int8") && Contains("other than padding"));
}

}  // namespace
