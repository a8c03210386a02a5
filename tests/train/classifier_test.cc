// Encoders finetuned as classifiers: gradients and loss curves against PyTorch's
// (tests/golden/generate_classifiers.py), new heads, what comes out as it is served, and labels that are
// wrong.
#include "engine/runtime/text_encoder.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/format.h"
#include "engine/base/json.h"
#include "engine/tensor/mapped_file.h"
#include "tests/support/sample.h"
#include "tests/support/tiny_encoder.h"
#include "tests/train/training_fixture.h"
#include "train/classifier.h"
#include "train/labels.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

namespace fs = std::filesystem;
const std::string kClassifierGoldens = std::string(OAR_SOURCE_DIR) + "/tests/golden/classifiers";

std::string spaced_ids(const json::value& ids) {
  std::string out;
  for (const json::value& id : ids.as_array()) out += cat(out.empty() ? "" : " ", id.as_int64());
  return out;
}

// A line of data of a golden's sample.
json::object data_line(const json::object& sample) {
  static constexpr const char* kNames[] = {"A", "B", "C"};
  if (!sample.contains("labels")) {
    json::object out{{"text", spaced_ids(sample.at("text"))},
                     {"label", kNames[sample.at("label").as_int64()]}};
    if (sample.contains("pair")) out["text_pair"] = spaced_ids(sample.at("pair"));
    return out;
  }
  json::array tokens, labels;
  for (const json::value& id : sample.at("text").as_array())
    tokens.emplace_back(std::string(cat(id.as_int64())));
  for (const json::value& l : sample.at("labels").as_array())
    labels.push_back(l.as_int64() < 0 ? json::value() : json::value(kNames[l.as_int64()]));
  return {{"tokens", tokens}, {"labels", labels}};
}

// A tiny encoder whose tokens are numbers, and a file of what it learns.
struct TinyClassifier {
  json::object golden;
  TrainerOptions options;

  explicit TinyClassifier(const std::string& name) {
    const std::string path = cat(kClassifierGoldens, "/", name, ".json");
    golden = parse_json(read_small_file(path, 1 << 20).value(), path).value().as_object();
    const std::string folder = write_tiny_encoder(golden, "classifier-" + name, TinyDtype::f32);
    write_number_tokenizer(folder, 96);
    std::ofstream out(folder + "/data.jsonl");
    for (const json::value& s : golden.at("samples").as_array())
      out << json::serialize(data_line(s.as_object())) << "\n";
    options.model = folder;
    options.data = {folder + "/data.jsonl"};
    options.samples.length = 32;
    options.graph.tokens = 64;
    options.graph.full = true;
    options.schedule = {Decay::kConstant, 0, 200, 0};
    options.threads = 1;
  }
  double number(const char* key) const { return golden.at(key).to_number<double>(); }
  std::unique_ptr<Trainer> trainer() const {
    auto t = Trainer::create(options, {});
    INFO((t.ok() ? std::string() : t.status().message()));
    REQUIRE(t.ok());
    return std::move(*t);
  }
  void write(const std::string& contents, const char* file = "data.jsonl") {
    options.data = {cat(options.model, "/", file)};
    std::ofstream(options.data[0], std::ios::binary) << contents;
  }
  std::string error() const {
    const auto t = Trainer::create(options, {});
    REQUIRE_FALSE(t.ok());
    return t.status().message();
  }
};

std::vector<std::string> classifier_goldens() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kClassifierGoldens))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  REQUIRE(names.size() >= 6);
  return names;
}

// Logits that a server would give of one text, or of each token.
std::vector<float> served_logits(const std::string& folder, const train::Sample& sample) {
  PredictorOptions options;
  options.threads = 1;
  const auto loaded = load_text_encoder(folder, options);
  REQUIRE_OK(loaded);
  auto in = loaded->encoder->inputs({sample.tokens, sample.types});
  REQUIRE_OK(in);
  const auto out = loaded->runner->run(std::move(*in));
  REQUIRE_OK(out);
  const auto values = out->back().tensor.values<float>();
  return {values.begin(), values.end()};
}

// -log softmax(z)[target]
double loss_of(std::span<const float> z, int32_t target) {
  double sum = 0;
  for (const float v : z) sum += std::exp(static_cast<double>(v));
  return std::log(sum) - static_cast<double>(z[static_cast<size_t>(target)]);
}

// The mean loss over a trainer's data when a folder is served.
double served_loss(const std::string& folder, const Trainer& t) {
  double loss = 0;
  int64_t count = 0;
  const size_t labels = t.classes().size();
  for (const FileSamples& f : t.data()) {
    for (const train::Sample& s : f.samples) {
      const std::vector<float> z = served_logits(folder, s);
      for (size_t k = 0; k < s.labels.size(); ++k) {
        if (s.labels[k] < 0) continue;
        const size_t at = z.size() == labels ? 0 : k;
        loss += loss_of(std::span(z).subspan(at * labels, labels), s.labels[k]);
        ++count;
      }
    }
  }
  return loss / static_cast<double>(count);
}

}  // namespace

TEST_CASE("classifiers: gradients at the start are PyTorch's") {
  for (const std::string& name : classifier_goldens()) {
    INFO(name);
    TinyClassifier c(name);
    // A step of plain descent at rate 1 takes the gradient away.
    c.options.optimizer = {};
    c.options.optimizer.kind = Optimizer::kSgd;
    c.options.optimizer.momentum = 0;
    c.options.rate = 1, c.options.clip = 0;
    const auto t = c.trainer();
    std::vector<std::vector<float>> before;
    for (size_t k = 0; k < t->parameters().size(); ++k) {
      const auto v = t->value(k).values<float>();
      before.emplace_back(v.begin(), v.end());
    }
    REQUIRE_OK(t->step());
    const json::object& norms = c.golden.at("norms").as_object();
    double most = 0;
    for (const auto& [key, v] : norms) most = std::max(most, v.to_number<double>());
    size_t compared = 0;
    for (size_t k = 0; k < before.size(); ++k) {
      const json::value* const want = norms.if_contains(t->parameters()[k].name);
      INFO(t->parameters()[k].name);
      double square = 0, largest = 0;
      for (size_t i = 0; i < before[k].size(); ++i) {
        const double d = static_cast<double>(t->value(k).values<float>()[i]) - before[k][i];
        square += d * d;
        largest = std::max(largest, std::abs(static_cast<double>(before[k][i])));
      }
      // The difference of two f32 numbers is off by half a unit of each; the gradient by f32 sums over a few
      // hundred products.
      const double bound =
          0x1p-23 * (1 + largest) * std::sqrt(static_cast<double>(before[k].size())) + 256 * 0x1p-24 * most;
      CHECK(std::abs(std::sqrt(square) - (want != nullptr ? want->to_number<double>() : 0)) < bound);
      compared += want != nullptr;
    }
    CHECK(compared == norms.size());
  }
}

TEST_CASE("classifiers: loss curves are PyTorch's, full and beside adapters") {
  oar_test::Sample sample(3);
  for (const std::string& name : classifier_goldens()) {
    for (const char* mode_name : {"full", "lora"}) {
      if (!sample.take()) continue;
      INFO(name << " " << mode_name);
      TinyClassifier c(name);
      c.options.graph.full = std::string_view(mode_name) == "full";
      c.options.graph.lora = {c.golden.at("rank").as_int64(), c.number("alpha"), {"all"}};
      c.options.rate = c.number("rate");
      c.options.optimizer.decay = c.number("decay");
      c.options.clip = c.number("clip");
      const auto t = c.trainer();
      CHECK(t->classes() == std::vector<std::string>{"A", "B", "C"});
      CHECK_FALSE(t->new_head());
      for (size_t k = 0; k < t->parameters().size(); ++k) {
        const Parameter& p = t->parameters()[k];
        if (!p.name.ends_with(".lora_A.weight")) continue;
        const auto values = tiny_weights(p.name, std::vector<int64_t>(p.shape.begin(), p.shape.end()),
                                         static_cast<uint64_t>(c.golden.at("seed").as_int64()));
        std::memcpy(t->value(k).mutable_data(), values.data(), values.size() * sizeof(float));
      }
      const json::value& mode = c.golden.at(mode_name);
      const double bound = std::max(1e-5, 4 * mode.at("spread").to_number<double>());
      for (const json::value& want : mode.at("loss").as_array()) {
        const auto r = t->step();
        REQUIRE_OK(r);
        CHECK(std::abs(r->loss - want.to_number<double>()) < bound);
      }
    }
  }
}

TEST_CASE("classifiers: one batch is learned by heart, with an adapter and whole") {
  oar_test::Sample sample(5);
  for (const std::string& name : classifier_goldens()) {
    for (const bool full : {true, false}) {
      if (!sample.take()) continue;
      TinyClassifier c(name);
      c.options.graph.full = full;
      c.options.graph.lora = {4, 8, {"all"}};
      c.options.rate = full ? 3e-3 : 2e-2;
      const auto t = c.trainer();
      double loss = 1;
      int64_t steps = 0;
      while (loss >= 0.01 && steps < 400) loss = step(*t).loss, ++steps;
      INFO(name << (full ? " full" : " lora") << " after " << steps);
      CHECK(loss < 0.01);
    }
  }
}

TEST_CASE("classifiers: a text never sees another: whatever lies beside it, gradients have the same bits") {
  const std::vector<int32_t> a{3, 14, 15, 92, 65, 35}, b{89, 79, 32, 38, 46}, c{11, 12, 13, 14, 15};
  for (const char* name : {"bert-tokens", "modernbert", "electra"}) {
    INFO(name);
    const TinyClassifier tiny(name);
    const Checkpoint checkpoint = load_checkpoint(tiny.options.model).value();
    const EncoderConfig config = read_encoder_config(checkpoint.config).value();
    const bool tokens = std::string_view(name) == "bert-tokens";
    GraphOptions o;
    o.tokens = 16;
    o.full = true;
    const auto graphs =
        build_encoder_graphs(checkpoint, config, tokens ? EncoderHead::kTokens : EncoderHead::kSequence, o);
    REQUIRE_OK(graphs);
    const std::vector<Tensor> values = first_values(*graphs, checkpoint);
    std::vector<Datum> more;
    if (config.types > 0) more.emplace_back(i32(std::vector<int32_t>(16, 0)));
    const std::vector<int32_t> wanted =
        tokens ? std::vector<int32_t>{0, 1, 2, 1, 0, -1} : std::vector<int32_t>{2, -1, -1, -1, -1, -1};
    std::vector<std::vector<Tensor>> runs;
    for (const auto& other : {b, c}) {
      for (const bool in_front : {false, true}) {
        oar_test::SampleRows rows;
        rows.first_position = static_cast<int32_t>(config.first_position);
        if (in_front) rows.add(other, std::vector<int32_t>(other.size(), -1));
        rows.add(a, wanted);
        if (!in_front) rows.add(other, std::vector<int32_t>(other.size(), -1));
        rows.pad(16);
        runs.push_back(micro_batch(*graphs, values, rows, more));
      }
    }
    for (size_t k = 0; k < runs[0].size(); ++k) {
      CHECK(same_bits(runs[0][k], runs[2][k]));
      CHECK(same_bits(runs[1][k], runs[3][k]));
    }
    CHECK(std::abs(runs[0].back().values<float>()[0] - runs[1].back().values<float>()[0]) < 1e-5);
  }
}

TEST_CASE("classifiers: a bare encoder gets a head, and what comes out is served as it was trained") {
  oar_test::Sample sample(3);
  for (const char* name : {"bert", "distilbert", "roberta", "bert-tokens"}) {
    for (const bool full : {true, false}) {
      if (!sample.take()) continue;
      INFO(name << (full ? " full" : " lora"));
      TinyClassifier c(name);
      // Without its head, as the encoder alone is saved.
      Checkpoint checkpoint = load_checkpoint(c.options.model).value();
      const EncoderConfig config = read_encoder_config(checkpoint.config).value();
      const EncoderPrefix prefix = encoder_prefix(checkpoint, config);
      TensorMap bare;
      for (const auto& [key, t] : checkpoint.tensors)
        if (key.starts_with(prefix.name)) bare[key.substr(prefix.name.size())] = t;
      checkpoint.tensors = bare;
      for (const char* key : {"architectures", "id2label", "label2id"}) checkpoint.config.erase(key);
      const std::string folder = c.options.model + "/bare", out = c.options.model + "/out";
      fs::remove_all(folder), fs::remove_all(out);
      REQUIRE(write_model(folder, checkpoint, {}, {}).ok());
      write_number_tokenizer(folder, 96);
      c.options.model = folder;
      c.options.held_out = c.options.data;
      c.options.rate = 5e-3;
      c.options.graph.full = full;
      c.options.graph.lora = {4, 8, {"all"}};
      const auto t = c.trainer();
      CHECK(t->new_head());
      CHECK(t->classes() == std::vector<std::string>{"A", "B", "C"});
      const auto begin = t->evaluate();
      REQUIRE_OK(begin);
      for (int k = 0; k < 60; ++k) REQUIRE_OK(t->step());
      const auto end = t->evaluate();
      REQUIRE_OK(end);
      CHECK(end->loss < 0.1 * begin->loss);
      CHECK(end->accuracy == 1);
      REQUIRE_OK(t->write_result(out));
      // The same equations by other kernels; adapters are added to f32 weights, which rounds them anew.
      CHECK(std::abs(served_loss(out, *t) - end->loss) < 1e-4 * (1 + end->loss));
      const Checkpoint made = load_checkpoint(out).value();
      const std::string kind =
          name == std::string("bert-tokens") ? "ForTokenClassification" : "ForSequenceClassification";
      CHECK(std::string_view(made.config.at("architectures").at(0).as_string()).ends_with(kind));
      CHECK(made.config.at("id2label").at("2") == "C");
      CHECK(made.config.at("num_labels") == 3);
      // Names are those that the golden's model has in transformers.
      std::set<std::string> want, got;
      for (const json::value& tensor : c.golden.at("tensors").as_array())
        want.insert(std::string(tensor.at("name").as_string()));
      for (const auto& [key, tensor] : made.tensors) got.insert(key);
      CHECK(got == want);
    }
  }
}

TEST_CASE("classifiers: what is wrong with labels is said by file and line") {
  TinyClassifier c("bert");
  const auto says = [&](const std::string& contents, const std::string& what, const char* file = "x.jsonl") {
    c.write(contents, file);
    INFO(contents);
    CHECK(c.error().find(what) != std::string::npos);
  };
  const std::string good = R"({"text":"5 6","label":"A"})"
                           "\n";
  says(good + R"({"text":"5 6","label":"D"})", "line 2: the label 'D' is none of the classes A, B, C");
  says(good + R"({"text":"5 6","label":3})", "line 2: the label '3' is none");
  says(good + R"({"text":"5 6"})", "line 2: has no 'label'");
  says(good + R"({"text":" ","label":"A"})", "line 2: 'text' is empty");
  says(good + R"({"text":"5","label":"A","weight":2})", "line 2: the key 'weight'");
  says(good + R"({"text":"5","label":1.5})", "line 2: a label must be");
  says(good + "{", "line 2");
  says(good + R"({"tokens":["5"],"labels":["A"]})", "line 2: labels tokens where others");
  says(good + "\xff\n", "line 2: is not UTF-8");
  says("\n", "holds no text with a label");
  says("text\tlabel\n5 6\tA\n5\n", "line 3: has 1 columns", "x.tsv");
  says("text\tlabel\tidx\n", "line 1: must name the columns", "x.tsv");
  says("text\tlabel\n5 6\tD\n", "line 2: the label 'D'", "x.tsv");
  says("5 6\tA\n", "line 1: must name the columns", "x.tsv");
  says("text\tlabel\n5 6\tA\n \tB\n", "line 3: the column 'text' is empty", "x.tsv");
  says("text\tlabel\n5 6\t\n", "line 2: the column 'label' is empty", "x.tsv");
  says("text\tlabel\n5 6\tA\n7\t\xff\n", "line 3: is not UTF-8", "x.tsv");
  says(R"({"tokens":["5",""],"labels":["A","B"]})", "line 1: a token must be a text");
  says(R"({"tokens":["5"],"labels":["A","B"]})", "line 1: 'tokens' and 'labels' must be lists of one length");
  says("5 6", "labels for an encoder come as .tsv or .jsonl", "x.txt");
  // A number is a class where no class has it as its name.
  c.write("sentence\tlabel\r\n5 6\tA\r\n7\t2\r\n", "x.tsv");
  const auto t = c.trainer();
  CHECK(t->data()[0].samples[0].labels == std::vector<int32_t>{0, -1});
  CHECK(t->data()[0].samples[1].labels == std::vector<int32_t>{2});
  // Longer than --length: cut and counted, or refused.
  c.options.samples.length = 2;
  c.write("text\tlabel\n5 6 7\tA\n5\tB\n", "x.tsv");
  CHECK(c.trainer()->data()[0].cut == 1);
  c.options.samples.too_long = TooLong::kRefuse;
  says("text\tlabel\n5 6 7\tA\n5\tB\n", "line 2: the text has 3 tokens", "x.tsv");
  c.options.samples.length = 64;
  says(good, "above the model's context of 40");
  c.options.samples.length = 32;
  c.options.labels = {"yes"};
  says(good, "one label");
  c.options.labels = {"yes", "yes"};
  says(good, "a name twice");
  c.options.labels = {"yes", "no"};
  says(good, "the label 'A' is none of the classes yes, no");
  c.options.labels.clear();
  c.options.weights = "int8";
  says(good, "--weights int8");
  // A language model has no classes.
  TinyRun run("llama3");
  run.options.labels = {"A", "B"};
  const auto refused = Trainer::create(run.options, {});
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().message().find("--labels") != std::string::npos);
}

TEST_CASE("classifiers: tokens of a text in lines, apart by empty lines") {
  TinyClassifier c("bert-tokens");
  c.write("token\tlabel\n5\tA\n6\tB\n\n\n7\tC\n", "x.tsv");
  const auto t = c.trainer();
  REQUIRE(t->data()[0].samples.size() == 2);
  CHECK(t->data()[0].samples[0].labels == std::vector<int32_t>{0, 1});
  CHECK(t->data()[0].samples[1].tokens == std::vector<int32_t>{7});
  // The line of the token, not of its text.
  c.write("token\tlabel\n5\tA\n\n6\tB\n7\tD\n", "x.tsv");
  CHECK(c.error().find("line 5: the label 'D' is none of the classes") != std::string::npos);
}
