// Training of tiny models end to end: it learns, it repeats itself, it goes on where it stopped, and what it
// writes serves as it was trained.
#include "train/trainer.h"

#include <cmath>

#include "engine/runtime/language_model.h"
#include "engine/tensor/mapped_file.h"
#include "engine/tune/measure/eval.h"
#include "tests/support/sample.h"
#include "tests/train/training_fixture.h"
#include "train/result.h"

using namespace oar;
using namespace oar::train;
using namespace oar_test;

namespace {

namespace fs = std::filesystem;

// Mean loss of the engine that serves, over the samples of a run's file.
double served_loss(const TinyRun& run, const std::string& model, const std::string& adapter) {
  LanguageModelOptions o;
  o.threads = 1;
  o.max_context = 64;
  o.weights = run.options.weights;
  o.kv = "f32";
  if (!adapter.empty()) o.loras = {{"it", adapter}};
  auto loaded = LanguageModel::load(model, o);
  INFO((loaded.ok() ? std::string() : loaded.status().message()));
  REQUIRE(loaded.ok());
  std::string text;
  const auto t = run.trainer();
  for (const FileSamples& f : t->data())
    for (const train::Sample& s : f.samples)
      text += (text.empty() ? "" : "<|endoftext|>") + text_of(s.tokens);
  PerplexityOptions p;
  p.context = 64;
  if (!adapter.empty()) p.adapter = (*loaded)->adapters()->lease("it").value();
  const auto r = evaluate_perplexity((*loaded)->engine(), *(*loaded)->tokenizer(), text, p);
  REQUIRE(r.ok());
  return r->nll / static_cast<double>(r->tokens);
}

}  // namespace

TEST_CASE("one batch is learned by heart, with an adapter and whole") {
  oar_test::Sample sample(7);
  for (const char* name :
       {"llama3", "llama-bias", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "granite", "olmo2",
        "smollm3", "phi3", "glm4", "seed_oss", "ministral3", "gpt2", "mixtral", "qwen3-moe", "qwen2-moe"}) {
    for (const bool full : {true, false}) {
      if ((!full && std::string(name) == "gpt2") || !sample.take()) continue;
      TinyRun run(name);
      run.options.graph.full = full;
      const bool granite = std::string(name) == "granite";  // divides its logits by 8, and branches by 5
      run.options.rate = (full ? 3e-3 : 2e-2) * (granite && full ? 3 : 1);
      if (!full || granite) run.speak_up(granite ? 32 : 4);
      auto t = run.trainer();
      double loss = 1;
      int64_t steps = 0;
      while (loss >= 0.01 && steps < 400) loss = step(*t).loss, ++steps;
      INFO(name << (full ? " full" : " lora") << " after " << steps);
      CHECK(loss < 0.01);
    }
  }
}

TEST_CASE("llama and qwen learn one batch") {
  for (const char* name : {"llama3", "qwen2"}) {
    for (const bool full : {true, false}) {
      TinyRun run(name);
      run.options.graph.full = full;
      run.options.rate = full ? 3e-3 : 2e-2;
      if (!full) run.speak_up(4);
      auto t = run.trainer();
      const double first = step(*t).loss;
      double loss = first;
      for (int k = 0; k < 400 && loss >= 0.01; ++k) loss = step(*t).loss;
      INFO(name << (full ? " full" : " lora"));
      CHECK(loss < 0.01);
      CHECK(first > 4);
    }
  }
}

TEST_CASE("models with convolutions and states learn one batch") {
  for (const char* name : {"lfm2", "qwen3_5"}) {
    TinyRun run(name);
    run.options.graph.full = true;
    run.options.rate = 3e-3;
    auto t = run.trainer();
    double loss = 1;
    int steps = 0;
    for (; steps < 400 && loss >= 0.01; ++steps) loss = step(*t).loss;
    INFO(name << " after " << steps);
    CHECK(loss < 0.01);
  }
}

TEST_CASE("the same seed gives the same bits for any number of threads; another seed does not") {
  std::vector<std::vector<Tensor>> states;
  for (const int threads : {1, 2, 3, 1}) {
    TinyRun run("qwen3");
    run.options.threads = threads;
    run.options.graph.full = states.size() < 3;
    run.options.accumulate = 2;
    run.options.graph.tokens = 32;
    if (states.size() == 3) run.options.graph.full = true, run.options.seed = 1;
    auto t = run.trainer();
    for (int k = 0; k < 5; ++k) step(*t);
    std::vector<Tensor> all;
    for (size_t k = 0; k < t->parameters().size(); ++k) all.push_back(t->value(k));
    states.push_back(std::move(all));
  }
  for (size_t k = 0; k < states[0].size(); ++k) {
    CHECK(same_bits(states[0][k], states[1][k]));
    CHECK(same_bits(states[0][k], states[2][k]));
  }
  bool differs = false;
  for (size_t k = 0; k < states[0].size(); ++k) differs = differs || !same_bits(states[0][k], states[3][k]);
  CHECK(differs);
}

TEST_CASE(
    "a sample never sees another: whatever lies beside it, its loss and all gradients have the same bits") {
  const std::vector<int32_t> a{3, 14, 15, 92, 65, 35}, b{89, 79, 32, 38, 46}, c{101, 102, 103, 104, 105};
  for (const char* name : {"llama3", "gemma2", "mistral"}) {
    const TinyRun run(name);
    const Checkpoint checkpoint = load_checkpoint(run.folder).value();
    const ModelConfig config = read_model_config(checkpoint.config).value();
    GraphOptions o;
    o.tokens = 16;
    o.full = true;
    const auto graphs = build_model_graphs(checkpoint, config, o);
    INFO((graphs.ok() ? std::string() : graphs.status().message()));
    REQUIRE(graphs.ok());
    auto backend = cpu(1);
    const auto evaluator = Evaluator::create(graphs->step, *backend);
    REQUIRE(evaluator.ok());
    std::vector<std::vector<Tensor>> runs;
    for (const auto& other : {b, c}) {
      for (const bool in_front : {false, true}) {
        // `a` is learned, the other sample lies beside it, the rest is padding.
        std::vector<int32_t> tokens, positions, segments, targets;
        int32_t segment = 0;
        const auto lay = [&](const std::vector<int32_t>& ids, bool learned, size_t count) {
          for (size_t k = 0; k < count; ++k) {
            tokens.push_back(k < ids.size() ? ids[k] : 0);
            positions.push_back(static_cast<int32_t>(k));
            segments.push_back(segment);
            targets.push_back(learned && k + 1 < ids.size() ? ids[k + 1] : -1);
          }
          ++segment;
        };
        if (in_front) lay(other, false, other.size());
        lay(a, true, a.size());
        if (!in_front) lay(other, false, other.size());
        lay({}, false, 16 - tokens.size());
        std::vector<Tensor> states;
        for (size_t k = 0; k < graphs->parameters.size(); ++k)
          states.push_back(initial_value(graphs->parameters[k], k, checkpoint, 0).value());
        for (const Parameter& p : graphs->parameters)
          states.push_back(Tensor::zeros(p.shape, Format::f32()).value());
        EvalOptions e;
        e.backend = backend.get();
        e.states = states;
        auto loss = (*evaluator)
                        ->run({Datum(i32(tokens)), Datum(i32(positions)), Datum(i32(segments)),
                               Datum(i32(targets)), Datum(f32({}, {0.2f}))},
                              e);
        REQUIRE(loss.ok());
        std::vector<Tensor> out(states.begin() + static_cast<ptrdiff_t>(graphs->parameters.size()),
                                states.end());
        out.push_back((*loss)[0].tensor);
        runs.push_back(std::move(out));
      }
    }
    // Where it lies changes the order of sums over rows, but not who is in them.
    for (size_t k = 0; k < runs[0].size(); ++k) {
      CHECK(same_bits(runs[0][k], runs[2][k]));
      CHECK(same_bits(runs[1][k], runs[3][k]));
    }
    CHECK(std::abs(runs[0].back().values<float>()[0] - runs[1].back().values<float>()[0]) < 1e-5);
  }
  // Alone against packed with others: a step's loss is the mean over all tokens.
  TinyRun both("llama3", {a, b}), only_a("llama3", {a}), only_b("llama3", {b});
  for (TinyRun* r : {&both, &only_a, &only_b}) r->options.graph.full = true;
  const double la = step(*only_a.trainer()).loss, lb = step(*only_b.trainer()).loss,
               l = step(*both.trainer()).loss;
  CHECK(std::abs(l - (5 * la + 4 * lb) / 9) < 1e-6 * l);
}

TEST_CASE("accumulated micro-batches are one batch") {
  std::vector<std::vector<int32_t>> samples;
  for (int k = 0; k < 4; ++k) samples.push_back({k, 5 + k, 9 * k + 1, 7, 100 + k, 20 * k, 3, 1});
  TinyRun one("llama2", samples), four("llama2", samples);
  one.options.graph.tokens = 32;
  four.options.graph.tokens = 8;
  four.options.samples.length = 8;
  four.options.accumulate = 4;
  for (TinyRun* r : {&one, &four}) r->options.graph.full = true, r->options.rate = 1e-3;
  auto a = one.trainer(), b = four.trainer();
  for (int k = 0; k < 3; ++k) {
    const StepReport ra = step(*a), rb = step(*b);
    CHECK(std::abs(ra.loss - rb.loss) < 2e-5 * ra.loss);
    CHECK(std::abs(ra.norm - rb.norm) < 2e-4 * ra.norm);
    CHECK(ra.learned == rb.learned);
  }
}

TEST_CASE("parameters updated as their gradients come have the bits of those updated behind all of them") {
  // Tied and apart, whole and adapters, with weights read again behind their gradients (recomputation).
  const std::vector<std::pair<const char*, bool>> models{{"llama3", true}, {"qwen3", true}, {"qwen2", false}};
  for (const auto& [name, full] : models) {
    for (const bool adam : {true, false}) {
      std::vector<std::unique_ptr<Trainer>> both;
      TinyRun run(name);
      run.options.graph.full = full;
      run.options.optimizer.decay = 0.1;
      run.options.optimizer.kind = adam ? Optimizer::kAdamW : Optimizer::kSgd;
      if (adam) run.options.graph.precision.level = passes::Amp::kO2;
      else run.options.graph.recompute = Recompute::kLayers;
      for (const double clip : {0.0, 1e30}) {
        run.options.clip = clip;
        both.push_back(run.trainer());
      }
      INFO(name << (adam ? " adamw" : " sgd"));
      CHECK(both[0]->memory().gradients == 0);
      if (full) CHECK(both[0]->memory().to_get() < both[1]->memory().to_get());
      for (int k = 0; k < 4; ++k) {
        const StepReport at_once = step(*both[0]), behind = step(*both[1]);
        CHECK(at_once.loss == behind.loss);
        CHECK(std::abs(at_once.norm / behind.norm - 1) < 1e-12);
      }
      for (size_t k = 0; k < both[0]->parameters().size(); ++k)
        CHECK(same_bits(both[0]->value(k), both[1]->value(k)));
    }
  }
}

TEST_CASE("a run that goes on is the run that never stopped, to the bit") {
  for (const bool full : {true, false}) {
    TinyRun run("qwen2");
    run.options.graph.full = full;
    run.options.graph.tokens = 32;
    run.options.rate = 1e-3;
    run.options.schedule = {Decay::kCosine, 2, 9, 0.1};
    const std::string path = run.folder + "/run.safetensors";
    auto whole = run.trainer(), first = run.trainer();
    std::vector<StepReport> want;
    for (int k = 0; k < 9; ++k) want.push_back(step(*whole));
    for (int k = 0; k < 4; ++k) step(*first);
    REQUIRE(first->save(path, {{"note", "x"}}).ok());
    first.reset();
    auto second = run.trainer();
    const auto extra = second->restore(path);
    REQUIRE(extra.ok());
    CHECK(extra->at("note") == "x");
    for (size_t k = 4; k < 9; ++k) {
      const StepReport r = step(*second);
      CHECK(r.step == want[k].step);
      CHECK(r.loss == want[k].loss);
      CHECK(r.norm == want[k].norm);
      CHECK(r.rate == want[k].rate);
    }
    for (size_t k = 0; k < whole->parameters().size(); ++k)
      CHECK(same_bits(whole->value(k), second->value(k)));
    // Another run is refused, by what differs.
    TinyRun other = run;
    other.options.rate = 2e-3;
    const Status s = other.trainer()->restore(path).status();
    CHECK(s.message().find("was made with another 'rate': 1E-3, now 2E-3") != std::string::npos);
    std::ofstream(run.data, std::ios::app) << "{\"text\":\"1 2 3\"}\n";
    CHECK(run.trainer()->restore(path).status().message().find("another 'data'") != std::string::npos);
    // Cut anywhere it is no checkpoint.
    std::error_code ec;
    fs::resize_file(path, fs::file_size(path) - 100, ec);
    CHECK_FALSE(other.trainer()->restore(path).ok());
  }
}

TEST_CASE("finetune: stopped and called again it writes what one call writes; the best weights are kept") {
  TinyRun run("llama3");
  run.options.graph.tokens = 32;
  run.options.rate = 5e-2;  // so that it overshoots
  run.options.held_out = {run.data};
  run.options.schedule.steps = 8;
  FinetuneOptions o;
  o.trainer = run.options;
  o.eval_every = 2;
  o.checkpoint_every = 3;
  o.out = fresh(run.folder + "/whole");
  o.log = run.folder + "/whole.jsonl";
  o.plot = run.folder + "/whole.svg";
  const auto whole = finetune(o, {}, {});
  INFO((whole.ok() ? std::string() : whole.status().message()));
  REQUIRE(whole.ok());
  CHECK_FALSE(fs::exists(o.out + ".training"));
  CHECK(fs::file_size(o.plot) > 1000);
  CHECK(finetune(o, {}, {}).status().code() == StatusCode::kAlreadyExists);
  FinetuneOptions parts = o;
  parts.out = fresh(run.folder + "/parts");
  parts.log = run.folder + "/parts.jsonl";
  int64_t asked = 0;
  FinetuneEvents stops;
  stops.stop = [&] { return ++asked % 4 == 0; };
  int calls = 0;
  auto last = finetune(parts, stops, {});
  while (!last.ok() && ++calls < 9) {
    CHECK(last.status().code() == StatusCode::kCancelled);
    last = finetune(parts, stops, {});
  }
  REQUIRE(last.ok());
  CHECK(calls >= 2);
  CHECK(last->held_out == whole->held_out);
  CHECK(last->best_step == whole->best_step);
  const auto bytes = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  CHECK(bytes(o.out + "/adapter_model.safetensors") == bytes(parts.out + "/adapter_model.safetensors"));
  CHECK(bytes(o.log) == bytes(parts.log));
  // A folder that cannot be written, before anything is done.
  parts.out = "/proc/nothing/x";
  CHECK_FALSE(finetune(parts, {}, {}).ok());
}

TEST_CASE("an adapter serves as it was trained, and one that learned nothing changes no bit") {
  for (const char* name : {"llama3", "qwen3", "gemma2", "mistral"}) {
    TinyRun run(name);
    run.options.held_out = {run.data};
    run.options.rate = 1e-2;
    auto t = run.trainer();
    const std::string before = fresh(run.folder + "/before"), after = fresh(run.folder + "/after");
    REQUIRE(t->write_result(before).ok());
    const double plain = served_loss(run, run.folder, "");
    CHECK(served_loss(run, run.folder, before) == plain);
    CHECK(std::abs(t->evaluate().value().loss - plain) < 2e-5 * plain);
    for (int k = 0; k < 20; ++k) step(*t);
    const double trained = t->evaluate().value().loss;
    CHECK(trained < 0.9 * plain);
    REQUIRE(t->write_result(after).ok());
    INFO(name);
    CHECK(std::abs(served_loss(run, run.folder, after) - trained) < 1e-4 * plain);
    // Merged into the weights it is the same model, but for the order of sums.
    const std::string merged = fresh(run.folder + "/merged");
    const auto checkpoint = load_checkpoint(run.folder);
    REQUIRE(write_merged(merged, *checkpoint, after).ok());
    CHECK(std::abs(served_loss(run, merged, "") - trained) < 1e-4 * plain);
  }
}

TEST_CASE("a whole model is written as it was read, and serves as it was trained") {
  for (const TinyDtype dtype : {TinyDtype::f32, TinyDtype::bf16}) {
    for (const char* name : {"llama-linear", "qwen2", "gemma3"}) {  // tied, biased, scaled
      TinyRun run(name, {}, dtype);
      run.options.graph.full = true;
      run.options.held_out = {run.data};
      run.options.rate = 1e-3;
      auto t = run.trainer();
      for (int k = 0; k < 10; ++k) step(*t);
      const std::string out = fresh(run.folder + "/out");
      REQUIRE(t->write_result(out).ok());
      const double trained = t->evaluate().value().loss;
      INFO(name);
      // Rounded to 8 bits of mantissa: what changes in the loss is of that order.
      CHECK(std::abs(served_loss(run, out, "") - trained) <
            (dtype == TinyDtype::f32 ? 1e-4 : 0.02) * trained);
      const auto read = load_checkpoint(run.folder), written = load_checkpoint(out);
      REQUIRE(written.ok());
      CHECK(read->tensors.size() == written->tensors.size());
      for (const auto& [key, tensor] : read->tensors)
        CHECK(written->tensors.at(key).format() == tensor.format());
      CHECK(read->config == written->config);
    }
  }
}

TEST_CASE("adapters over bases of 16, 8 and 4 bits learn, and serve as they were trained") {
  for (const auto& [weights, dtype] : std::vector<std::pair<const char*, TinyDtype>>{
           {"auto", TinyDtype::bf16}, {"int8", TinyDtype::f32}, {"int4", TinyDtype::bf16}}) {
    TinyRun run("llama3", {}, dtype);
    run.options.weights = weights;
    run.options.held_out = {run.data};
    run.options.rate = 1e-2;
    auto t = run.trainer();
    const double plain = t->evaluate().value().loss;
    INFO(weights);
    CHECK(std::abs(served_loss(run, run.folder, "") - plain) < 1e-3 * plain);
    double loss = 1;
    for (int k = 0; k < 60; ++k) loss = step(*t).loss;
    CHECK(loss < 0.5 * plain);
    const std::string out = fresh(run.folder + "/out");
    REQUIRE(t->write_result(out).ok());
    // Slots of adapters beside such bases are bf16: 8 bits of mantissa on what the adapter adds.
    CHECK(std::abs(served_loss(run, run.folder, out) - t->evaluate().value().loss) < 0.02 * plain);
  }
  TinyRun whole("llama3");
  whole.options.weights = "int8";
  whole.options.graph.full = true;
  const auto refused = Trainer::create(whole.options, {});
  CHECK(refused.status().message().find("use --lora") != std::string::npos);
}

TEST_CASE("experts of 16, 8 and 4 bits are read as they serve, and adapters learn over them") {
  for (const auto& [weights, dtype] : std::vector<std::pair<const char*, TinyDtype>>{
           {"auto", TinyDtype::bf16}, {"int8", TinyDtype::f32}, {"int4", TinyDtype::f32}}) {
    TinyRun run("mixtral", {}, dtype);
    run.options.graph.lora.targets = {"q_proj", "v_proj"};
    run.options.weights = weights;
    run.options.held_out = {run.data};
    run.options.rate = 1e-2;
    auto t = run.trainer();
    const double plain = t->evaluate().value().loss;
    INFO(weights);
    CHECK(std::abs(served_loss(run, run.folder, "") - plain) < 1e-3 * plain);
    double loss = plain;
    for (int k = 0; k < 30; ++k) loss = step(*t).loss;
    CHECK(loss < 0.9 * plain);
  }
}

TEST_CASE("what cannot be trained, or is not there, is refused by name") {
  const auto says = [](TinyRun& run, const std::string& text) {
    const auto t = Trainer::create(run.options, {});
    REQUIRE_FALSE(t.ok());
    INFO(t.status().message());
    CHECK(t.status().message().find(text) != std::string::npos);
  };
  TinyRun run("llama3");
  run.options.graph.lora.targets = {"qkv_proj"};
  says(run,
       "no layer of the model is called 'qkv_proj'; there are down_proj, gate_proj, k_proj, o_proj, q_proj, "
       "up_proj, v_proj, all");
  run.options.graph.full = true;
  run.options.graph.freeze = {"nothing.*"};
  says(run, "--freeze nothing.* matches no parameter");
  run.options.graph.freeze = {"*"};
  says(run, "leaves no parameter");
  run.options.graph.freeze = {};
  run.options.optimizer.rates = {{"nothing", 2.0}};
  says(run, "--rate-of nothing=2 matches no parameter");
  run.options.optimizer.rates = {};
  run.options.samples.length = 1000;
  says(run, "above the model's context of 256");
  run.options.samples.length = 32;
  run.options.graph.tokens = 4;
  says(run, "--tokens 4 is less than the longest sample's");
  run.options.graph.tokens = 32;
  run.options.data = {run.folder + "/nothing.txt"};
  says(run, "is no file");
  TinyRun mixture("mixtral");
  mixture.configure({{"output_router_logits", true}, {"router_aux_loss_coef", "much"}});
  says(mixture, "'output_router_logits' is true, so 'router_aux_loss_coef' must be a number");
  TinyRun sigmoid("glm4-moe");
  sigmoid.configure({{"output_router_logits", true}, {"router_aux_loss_coef", 0.1}});
  says(sigmoid, "the load-balancing loss is defined for routers of softmax");
}

TEST_CASE("a loss that is no number stops the run and names step, samples and op") {
  TinyRun run("llama3");
  run.options.graph.full = true;
  auto t = run.trainer();
  step(*t);
  for (size_t k = 0; k < t->parameters().size(); ++k) {
    if (t->parameters()[k].name == "model.layers.1.mlp.up_proj.weight")
      const_cast<float*>(t->value(k).values<float>().data())[7] = NAN;
  }
  const Status s = t->step().status();
  CHECK(s.code() == StatusCode::kFailedPrecondition);
  INFO(s.message());
  CHECK(s.message().find("step 2: ") == 0);
  CHECK(s.message().find("rows_linear of 'model.layers.1.mlp.up_proj.weight'") != std::string::npos);
  CHECK(s.message().find("data.jsonl ") != std::string::npos);
}

TEST_CASE("what a step changed that did not come to its end is not written; a checkpoint brings it back") {
  TinyRun run("llama3");
  run.options.graph.full = true, run.options.clip = 0;
  auto t = run.trainer();
  step(*t);
  const std::string path = run.folder + "/run.safetensors";
  REQUIRE(t->save(path, {}).ok());
  for (size_t k = 0; k < t->parameters().size(); ++k)
    if (t->parameters()[k].name == "model.layers.1.mlp.up_proj.weight")
      const_cast<float*>(t->value(k).values<float>().data())[7] = NAN;
  const Status s = t->step().status();
  INFO(s.message());
  CHECK(s.message().find("rows_linear of 'model.layers.1.mlp.up_proj.weight'") != std::string::npos);
  CHECK(t->save(path, {}).message().find("step 2 did not come to its end") == 0);
  REQUIRE(t->restore(path).ok());
  step(*t);
}
