// What a run refuses, and what it says: other data or options behind a checkpoint, damaged checkpoints, too
// little memory, numbers that are none, adapters of another base. Files of data: data_test.cc,
// classifier_test.cc.
#include <cmath>
#include <functional>

#include "engine/base/format.h"
#include "tests/train/training_fixture.h"
#include "train/trainer.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;
namespace fs = std::filesystem;

TEST_CASE("a run goes on with its own data, model and options alone; what differs is named") {
  TinyRun run("llama3");
  run.options.held_out = {run.data};
  run.options.schedule.steps = 4;
  const std::string path = run.folder + "/run.safetensors";
  auto t = run.trainer();
  step(*t);
  REQUIRE(t->save(path, {}).ok());
  REQUIRE(run.trainer()->restore(path).ok());
  const std::string other = run.folder + "/other.jsonl";
  std::ofstream(other) << "{\"text\":\"4 5 6\"}\n";
  using Change = std::function<void(TrainerOptions&)>;
  const std::vector<std::pair<const char*, Change>> changes{
      {"data", [&](auto& o) { o.data = {other}; }},
      {"data", [&](auto& o) { o.data[0] += ":2"; }},
      {"data", [](auto& o) { o.samples.length = 8; }},
      {"eval", [&](auto& o) { o.held_out = {other}; }},
      {"eval", [](auto& o) { o.held_out.clear(); }},
      {"tokens", [](auto& o) { o.graph.tokens = 40; }},
      {"lora rank", [](auto& o) { o.graph.lora.rank = 2; }},
      {"lora alpha", [](auto& o) { o.graph.lora.alpha = 9; }},
      {"lora dropout", [](auto& o) { o.graph.lora.dropout = 0.5; }},
      {"lora targets", [](auto& o) { o.graph.lora.targets = {"q_proj"}; }},
      {"full", [](auto& o) { o.graph.full = true; }},
      {"precision", [](auto& o) { o.graph.precision.level = Amp::kO1; }},
      {"weights", [](auto& o) { o.weights = "int8"; }},
      {"accumulate", [](auto& o) { o.accumulate = 2; }},
      {"optimizer", [](auto& o) { o.optimizer.kind = train::Optimizer::kSgd; }},
      {"optimizer numbers", [](auto& o) { o.optimizer.beta1 = 0.8; }},
      {"optimizer numbers", [](auto& o) { o.optimizer.decay = 0.1; }},
      {"rate", [](auto& o) { o.rate = 0.5; }},
      {"rate of",
       [](auto& o) {
         o.optimizer.rates = {{"*", 2.0}};
       }},
      {"schedule", [](auto& o) { o.schedule.decay = Decay::kLinear; }},
      {"warmup", [](auto& o) { o.schedule.warmup = 1; }},
      {"steps", [](auto& o) { o.schedule.steps = 5; }},
      {"least rate", [](auto& o) { o.schedule.least = 0.5; }},
      {"clip", [](auto& o) { o.clip = 2; }},
      {"average", [](auto& o) { o.average = 0.5; }},
      {"cuts are drawn", [](auto& o) { o.samples.draw_cuts = true; }},
      {"seed", [](auto& o) { o.seed = 1; }},
  };
  for (const auto& [named, change] : changes) {
    TinyRun changed = run;
    change(changed.options);
    const Status s = changed.trainer()->restore(path).status();
    INFO(named << ": " << s.message());
    CHECK(s.code() == StatusCode::kFailedPrecondition);
    CHECK(s.message().find(cat("was made with another '", named, "': ")) != std::string::npos);
    CHECK(s.message().find("--restart") != std::string::npos);
  }
  // What gives the same bits may differ.
  TinyRun same = run;
  same.options.threads = 2;
  same.options.graph.recompute = Recompute::kFull;
  CHECK(same.trainer()->restore(path).ok());
  // Other weights in the same place.
  const Checkpoint c = load_checkpoint(run.folder).value();
  const Tensor& norm = c.tensors.at("model.norm.weight");
  const std::vector<float> twos(static_cast<size_t>(norm.numel()), 2);
  const std::string louder = run.folder + "/louder";
  fs::remove_all(louder);
  REQUIRE(write_model(louder, c, {{"model.norm.weight", norm.shape()}}, {f32(norm.shape(), twos)}).ok());
  fs::rename(louder + "/model.safetensors", run.folder + "/model.safetensors");
  CHECK(run.trainer()->restore(path).status().message().find("another 'model's tensors'") !=
        std::string::npos);
}

TEST_CASE("a damaged checkpoint is an error that names it") {
  TinyRun run("llama3");
  run.options.graph.lora.targets = {"q_proj"};
  const std::string path = run.folder + "/run.safetensors";
  auto t = run.trainer();
  step(*t);
  REQUIRE(t->save(path, {}).ok());
  std::ifstream in(path, std::ios::binary);
  const std::string good(std::istreambuf_iterator<char>(in), {});
  const auto restored = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return t->restore(path).status();
  };
  REQUIRE(restored(good).ok());
  const size_t head = 8 + static_cast<size_t>(static_cast<uint8_t>(good[0])) +
                      256 * static_cast<size_t>(static_cast<uint8_t>(good[1]));
  REQUIRE(head < good.size());
  for (size_t at = 0; at < head; at += 13) {
    for (const char by : {'-', '9', '\0', '}'}) {
      std::string bytes = good;
      bytes[at] = by;
      const Status s = restored(bytes);
      if (!s.ok()) CHECK(s.message().find(path) != std::string::npos);
    }
    CHECK_FALSE(restored(good.substr(0, at)).ok());
  }
  // A place in the data that there is none.
  for (const char* key : {"step", "epoch", "batch"}) {
    std::string bytes = good;
    const size_t at = bytes.find(cat("\\\"", key, "\\\":")) + std::string_view(key).size() + 5;
    REQUIRE(at < head);
    bytes.replace(at, 1, "-1");
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    ++size;
    std::memcpy(bytes.data(), &size, sizeof size);
    const Status s = restored(bytes);
    INFO(s.message());
    CHECK(s.code() == StatusCode::kDataLoss);
  }
}

TEST_CASE("a run that does not fit says before it begins what would") {
  TinyRun run("llama3");
  run.options.graph.full = true;
  run.options.graph.tokens = 256;
  const auto needed = [&](const TrainerOptions& o) {
    return Trainer::create(o, {}).value()->memory().to_get();
  };
  TrainerOptions o = run.options;
  const uint64_t all = needed(o);
  o.graph.recompute = Recompute::kLayers;
  const uint64_t layers = needed(o);
  REQUIRE(layers < all);
  const auto refusal = [&](uint64_t bytes) {
    TrainerOptions less = run.options;
    less.may_take = bytes;
    const auto t = Trainer::create(less, {});
    if (t.ok()) return std::string();
    CHECK(t.status().code() == StatusCode::kResourceExhausted);
    return t.status().message();
  };
  CHECK(refusal(all) == "");
  const std::string by_layers = refusal(all - 1);
  INFO(by_layers);
  CHECK(by_layers.find("training takes ") == 0);
  CHECK(by_layers.find(" may be taken; --recompute layers would fit") != std::string::npos);
  // What it says does fit.
  const uint64_t states = Trainer::create(o, {}).value()->memory().states();
  const uint64_t little = states + (layers - states) / 2;
  const std::string by_tokens = refusal(little);
  INFO(by_tokens);
  const size_t at = by_tokens.find("--recompute full --tokens ");
  REQUIRE(at != std::string::npos);
  o.graph.recompute = Recompute::kFull;
  o.graph.tokens = o.samples.length = std::stoll(by_tokens.substr(at + 26));
  CHECK(o.graph.tokens < 256);
  CHECK(by_tokens.find(cat(" --length ", o.graph.tokens, " would fit")) != std::string::npos);
  CHECK(needed(o) <= little);
  CHECK(refusal(1000).find("an adapter (--lora) takes less") != std::string::npos);
  run.options.graph.full = false;
  CHECK(refusal(1000).find("a smaller rank of --lora") != std::string::npos);
  // Of several ranks each gets its share.
  run.options.data.clear();
  run.options.assumed_ranks = 3;
  const auto three = Trainer::create(run.options, {});
  REQUIRE(three.ok());
  CHECK((*three)->memory().bucket == (*three)->memory().gradients);
}

TEST_CASE("dropout of the model's config is told, not passed over") {
  TinyRun run("llama3");
  run.configure({{"attention_dropout", 0.0}, {"hidden_dropout", 0.25}});
  const std::vector<std::string> notes = run.trainer()->notes();
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].find("dropout that is not applied: hidden_dropout 2.5E-1") != std::string::npos);
}

TEST_CASE("numbers that are none: in a gradient, in held-out data, in what the last step made") {
  const auto poison = [](Trainer& t, std::string_view end, float value) {
    for (size_t k = 0; k < t.parameters().size(); ++k) {
      const auto v = t.value(k).values<float>();
      if (t.parameters()[k].name.ends_with(end)) std::fill_n(const_cast<float*>(v.data()), v.size(), value);
    }
  };
  const auto says = [](const Status& s, std::initializer_list<std::string_view> texts) {
    INFO(s.message());
    CHECK(s.code() == StatusCode::kFailedPrecondition);
    for (const std::string_view text : texts) CHECK(s.message().find(text) != std::string::npos);
  };
  TinyRun run("llama3");
  run.options.held_out = {run.data};
  run.options.graph.lora.alpha = 1e6;
  {  // A of zeros hides what B would make of the loss; its own gradient goes through B.
    auto t = run.trainer();
    poison(*t, "lora_A.weight", 0);
    poison(*t, "lora_B.weight", 3e37f);
    says(t->step().status(), {"step 1: the loss or a gradient is no number",
                              "the first op whose result has such is ", "data.jsonl "});
    CHECK(t->done() == 0);
  }
  auto t = run.trainer();
  step(*t);
  poison(*t, "q_proj.lora_B.weight", NAN);
  says(t->evaluate().status(),
       {"step 1: the held-out loss is no number", "q_proj.lora_B.weight'", "data.jsonl 1, 2, 3"});
  const std::string path = run.folder + "/poisoned.safetensors";
  fs::remove(path);
  says(t->save(path, {}), {"step 1: '", "q_proj.lora_B.weight' holds what is no number", "--rate"});
  CHECK_FALSE(fs::exists(path));
  // A whole run whose only step goes too far.
  run.options.held_out.clear();
  run.options.graph.lora.alpha = 8;
  run.options.rate = 1e300;
  run.options.schedule.steps = 1;
  FinetuneOptions o;
  o.trainer = run.options;
  o.out = fresh(run.folder + "/too-far");
  says(finetune(o, {}, {}).status(), {"holds what is no number"});
  CHECK_FALSE(fs::exists(o.out));
}

TEST_CASE("an adapter of another base is refused by name, shape or rank") {
  TinyRun run("llama3");
  run.options.graph.lora.targets = {"q_proj"};
  const std::string adapter = fresh(run.folder + "/adapter"), out = fresh(run.folder + "/merged");
  REQUIRE(run.trainer()->write_result(adapter).ok());
  const auto says = [&](const std::string& base, std::initializer_list<std::string_view> texts) {
    const Status s = write_merged(out, load_checkpoint(base).value(), adapter);
    INFO(s.message());
    CHECK(s.code() == StatusCode::kInvalidArgument);
    for (const std::string_view text : texts) CHECK(s.message().find(text) != std::string::npos);
    CHECK_FALSE(fs::exists(out));
  };
  Checkpoint other = load_checkpoint(run.folder).value();
  const std::string name = "model.layers.0.self_attn.q_proj";
  const Tensor q = other.tensors.at(name + ".weight");
  const int64_t N = q.shape()[0], K = q.shape()[1];
  other.tensors.at(name + ".weight") = Tensor::zeros({N, K + 8}, Format::f32()).value();
  const Status shape = write_merged(out, other, adapter);
  INFO(shape.message());
  CHECK(shape.message().find(cat("'", name, "' is ", Shape{N, K}.to_string(), " there, ",
                                 Shape{N, K + 8}.to_string(), " here")) != std::string::npos);
  other.tensors.erase(name + ".weight");
  CHECK(write_merged(out, other, adapter).message() ==
        cat("the adapter is of another base model: it has '", name, "', the model does not"));
  json::value config =
      parse_json(read_small_file(adapter + "/adapter_config.json", 1 << 20).value(), "config").value();
  config.as_object()["r"] = 3;
  std::ofstream(adapter + "/adapter_config.json") << json::serialize(config);
  says(run.folder, {"A has 4 rows and B 4 columns, but adapter_config.json says rank 3"});
}
