// Training of tiny models end to end: it learns, it repeats itself, it goes on where it stopped, and what it
// writes serves as it was trained.
#include "train/trainer.h"

#include <cmath>
#include <future>
#include <set>

#include "engine/base/format.h"
#include "engine/loader/safetensors.h"
#include "engine/runtime/core/sampler.h"
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

// Mean loss of the engine that serves, over the samples of a trainer's data.
double served_loss(const Trainer& t, const std::string& model, const std::string& adapter) {
  LanguageModelOptions o;
  o.threads = 1;
  o.max_context = 64;
  o.weights = t.options().weights;
  if (!adapter.empty()) o.loras = {{"it", adapter}};
  auto loaded = LanguageModel::load(model, o);
  INFO((loaded.ok() ? std::string() : loaded.status().message()));
  REQUIRE(loaded.ok());
  std::string text;
  for (const FileSamples& f : t.data())
    for (const train::Sample& s : f.samples)
      text += (text.empty() ? "" : "<|endoftext|>") + text_of(s.tokens);
  PerplexityOptions p;
  p.context = 64;
  if (!adapter.empty()) p.adapter = (*loaded)->adapters()->lease("it").value();
  const auto r = evaluate_perplexity((*loaded)->engine(), *(*loaded)->tokenizer(), text, p);
  REQUIRE(r.ok());
  return r->nll / static_cast<double>(r->tokens);
}

// What an engine with the adapter "it" tells of each id of a prompt, and of so many others in its place.
std::vector<std::vector<TokenLogprob>> prompt_log_probabilities(LanguageModel& model,
                                                                const std::vector<int32_t>& ids,
                                                                int32_t others) {
  struct Sink final : TokenSink {
    std::vector<std::vector<TokenLogprob>> told;
    std::promise<Status> ended;
    void on_event(TokenEvent&& e) noexcept override {
      if (!e.prompt_logprobs.empty()) told = std::move(e.prompt_logprobs);
      if (e.finish != FinishReason::kNone) ended.set_value(e.status);
    }
  };
  const auto sink = std::make_shared<Sink>();
  Request r;
  r.prompt = ids;
  r.sampling.temperature = 0;
  r.sampling.prompt_logprobs = others;
  r.stop.max_tokens = 0;
  r.adapter = model.adapters()->lease("it").value();
  r.sink = sink;
  REQUIRE_OK(model.engine().submit(std::move(r)));
  REQUIRE_OK(sink->ended.get_future().get());
  return sink->told;
}

// The run's model as FP8 checkpoints come: matrices of layers in e4m3, with a scale a row.
void store_as_fp8(const TinyRun& run) {
  Checkpoint c = load_checkpoint(run.folder).value();
  constexpr float kLargest = 448;
  TensorMap scales;
  for (auto& [name, w] : c.tensors) {
    if (!name.ends_with("_proj.weight")) continue;
    const int64_t N = w.shape()[0], K = w.shape()[1];
    const Format e4m3 = Format::of(DType::kE4M3);
    const Tensor plain = to_f32(w).value();
    Tensor codes = Tensor::allocate({N, K}, e4m3).value();
    std::vector<float> by_row, row(static_cast<size_t>(K));
    for (int64_t n = 0; n < N; ++n) {
      const float* const from = plain.values<float>().data() + n * K;
      float most = 0;
      for (int64_t k = 0; k < K; ++k) most = std::max(most, std::abs(from[k]));
      by_row.push_back(most / kLargest);
      for (int64_t k = 0; k < K; ++k) row[static_cast<size_t>(k)] = from[k] / by_row.back();
      e4m3.encode_row(row.data(), K, static_cast<std::byte*>(codes.mutable_data()) + n * K);
    }
    scales[name + "_scale"] = f32({N, 1}, by_row);
    w = codes;
  }
  c.tensors.merge(scales);
  c.config["quantization_config"] = json::object{{"quant_method", "fp8"}};
  const std::string stored = fresh(run.folder + "/stored");
  REQUIRE(write_model(stored, c, {}, {}).ok());
  for (const auto& file : fs::directory_iterator(stored))
    fs::copy(file.path(), fs::path(run.folder) / file.path().filename(),
             fs::copy_options::overwrite_existing);
}

}  // namespace

TEST_CASE("one batch is learned by heart, of every architecture, with an adapter and whole") {
  oar_test::Sample sample(7);
  for (const std::string& name : all_golden_names()) {
    for (const bool full : {true, false}) {
      if (!sample.take()) continue;
      TinyRun run(name);
      run.options.graph.full = full;
      // Their branches are multiplied by less than 1, and logits by 1/6 to 1/26.
      const bool quiet = name == "granite" || name == "granitemoehybrid" || name == "falcon_h1";
      run.options.rate = (full ? 3e-3 : 2e-2) * (quiet && full ? 3 : 1);
      if (!full || quiet) run.speak_up(4);
      INFO(name << (full ? " full" : " lora"));
      if (full && name == "gpt-oss-mxfp4") {
        // Its experts are codes of four bits, which no step can move; beside adapters they stay.
        const auto refused = Trainer::create(run.options, {});
        REQUIRE_FALSE(refused.ok());
        INFO(refused.status().message());
        CHECK(refused.status().message().find(
                  "all parameters of a quantized model cannot be trained; use --lora") != std::string::npos);
        continue;
      }
      auto t = run.trainer();
      const double first = step(*t).loss;
      CHECK(first > 4);
      double loss = first;
      int64_t steps = 1;
      while (loss >= 0.01 && steps < 400) loss = step(*t).loss, ++steps;
      INFO("after " << steps);
      CHECK(loss < 0.01);
    }
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
  const std::set<std::string> by_adapter{"llama4", "gpt-oss", "minicpm3"};
  for (const std::string name :
       {"llama3", "gemma2", "mistral", "lfm2", "qwen3_5", "mixtral", "llama4", "gpt-oss", "minicpm3"}) {
    INFO(name);
    const TinyRun run(name);
    const Checkpoint checkpoint = load_checkpoint(run.folder).value();
    GraphOptions o;
    o.tokens = 16;
    o.full = !by_adapter.contains(name);
    o.lora.targets = {"all"};
    const auto graphs = build_model_graphs(checkpoint, read_model_config(checkpoint.config).value(), o);
    INFO((graphs.ok() ? std::string() : graphs.status().message()));
    REQUIRE(graphs.ok());
    const std::vector<Tensor> values = first_values(*graphs, checkpoint);
    std::vector<std::vector<Tensor>> runs;
    for (const auto& other : {b, c}) {
      for (const bool in_front : {false, true}) {
        // `a` is learned, the other sample lies beside it, the rest is padding.
        oar_test::SampleRows rows;
        if (in_front) rows.add(other, std::vector<int32_t>(other.size(), -1));
        rows.add(a, next_tokens(a));
        if (!in_front) rows.add(other, std::vector<int32_t>(other.size(), -1));
        rows.pad(16);
        runs.push_back(micro_batch(*graphs, values, rows));
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

TEST_CASE("no number in one sample leaves what a whole step finds for another's tokens as it was") {
  // The embedding's gradient has rows of tokens: each went through all layers there and back.
  const std::vector<int32_t> a{3, 14, 15, 92, 65, 35}, b{89, 79, 32, 38, 46};
  for (const char* name : {"llama3", "olmo2", "mixtral", "qwen3-next"}) {
    INFO(name);
    const TinyRun run(name);
    const Checkpoint checkpoint = load_checkpoint(run.folder).value();
    GraphOptions o;
    o.tokens = 16;
    o.full = true;
    const ModelGraphs graphs =
        build_model_graphs(checkpoint, read_model_config(checkpoint.config).value(), o).value();
    std::vector<Tensor> values = first_values(graphs, checkpoint);
    const auto table = static_cast<size_t>(
        std::find_if(graphs.parameters.begin(), graphs.parameters.end(),
                     [](const Parameter& p) { return p.name == "model.embed_tokens.weight"; }) -
        graphs.parameters.begin());
    REQUIRE(table < values.size());
    for (const bool in_front : {false, true}) {
      oar_test::SampleRows rows;
      if (in_front) rows.add(b, next_tokens(b));
      rows.add(a, next_tokens(a));
      if (!in_front) rows.add(b, next_tokens(b));
      rows.pad(16);
      const Tensor good = micro_batch(graphs, values, rows)[table];
      const Tensor embedding = values[table];
      std::vector<float> spoiled(embedding.values<float>().begin(), embedding.values<float>().end());
      const auto row = static_cast<size_t>(b[1] * embedding.shape()[1]);
      spoiled[row] = NAN;
      values[table] = f32(embedding.shape(), spoiled);
      const std::vector<Tensor> bad = micro_batch(graphs, values, rows);
      values[table] = embedding;
      CHECK(std::isnan(bad.back().values<float>()[0]));
      CHECK(std::isnan(bad[table].values<float>()[row + 1]));
      for (const int32_t id : a) CHECK(same_bits(bad[table].slice(id, id + 1), good.slice(id, id + 1)));
    }
  }
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
  for (const char* name : {"llama3", "qwen3", "gemma2", "mistral", "gpt2"}) {
    TinyRun run(name);
    run.options.held_out = {run.data};
    run.options.rate = 1e-2;
    auto t = run.trainer();
    const std::string before = fresh(run.folder + "/before"), after = fresh(run.folder + "/after");
    REQUIRE(t->write_result(before).ok());
    const double plain = served_loss(*t, run.folder, "");
    CHECK(served_loss(*t, run.folder, before) == plain);
    CHECK(t->evaluate().value().loss == plain);
    for (int k = 0; k < 20; ++k) step(*t);
    const double trained = t->evaluate().value().loss;
    CHECK(trained < 0.9 * plain);
    REQUIRE(t->write_result(after).ok());
    INFO(name);
    CHECK(served_loss(*t, run.folder, after) == trained);
    // Merged into the weights it is the same model, but for the order of sums.
    const std::string merged = fresh(run.folder + "/merged");
    const auto checkpoint = load_checkpoint(run.folder);
    REQUIRE(write_merged(merged, *checkpoint, after).ok());
    CHECK(std::abs(served_loss(*t, merged, "") - trained) < 1e-4 * plain);
  }
}

TEST_CASE("held-out data of an adapter have the logits of what serves it, to the bit") {
  std::vector<std::vector<int32_t>> samples(3);  // one goes on into a second page of the cache
  for (size_t k = 0; k < samples.size(); ++k)
    for (int j = 0; j < (k == 0 ? 90 : 20); ++j)
      samples[k].push_back((37 * static_cast<int>(k) + 11 * j * j + 5) % 251);
  for (const char* name : {"llama3", "gemma2", "mixtral", "gpt-oss", "lfm2", "qwen3_5", "minicpm3"}) {
    for (const auto& [weights, dtype] :
         std::vector<std::pair<const char*, TinyDtype>>{{"auto", TinyDtype::f32},
                                                        {"auto", TinyDtype::bf16},
                                                        {"int8", TinyDtype::bf16},
                                                        {"int4", TinyDtype::bf16}}) {
      TinyRun run(name, samples, dtype);
      run.options.weights = weights;
      run.options.held_out = {run.data};
      run.options.samples.length = 100, run.options.graph.tokens = 130;
      run.options.rate = 1e-2;
      auto t = run.trainer();
      for (int k = 0; k < 3; ++k) step(*t);
      const auto report = t->evaluate();
      INFO(name << " " << weights << (dtype == TinyDtype::f32 ? " f32" : " bf16"));
      REQUIRE_OK(report);
      const std::string out = fresh(run.folder + "/out");
      REQUIRE(t->write_result(out).ok());
      LanguageModelOptions o;  // what `serve` has
      o.threads = 2;
      o.weights = weights;
      o.loras = {{"it", out}};
      o.max_logprobs = static_cast<int32_t>(run.golden.vocab);
      o.memory_bytes = uint64_t{1} << 30;
      const auto served = LanguageModel::load(run.folder, o);
      REQUIRE_OK(served);
      Sampler sampler(run.golden.vocab);
      double all = 0;
      int64_t differ = 0, compared = 0, learned = 0;
      for (const train::Sample& s : t->held_out()[0].samples) {
        const auto told = prompt_log_probabilities(**served, s.tokens, o.max_logprobs);
        REQUIRE(told.size() == s.tokens.size());
        t->served()->reset();
        const auto logits = t->served()->append(s.tokens);
        REQUIRE_OK(logits);
        double loss = 0;
        std::vector<TokenLogprob> want;
        for (size_t k = 1; k < told.size(); ++k) {
          const auto width = static_cast<size_t>(run.golden.vocab);
          REQUIRE(sampler.logprobs(logits->subspan((k - 1) * width, width), s.tokens[k], o.max_logprobs, want)
                      .ok());
          REQUIRE(want.size() == told[k].size());
          for (size_t j = 0; j < want.size(); ++j, ++compared)
            differ += want[j].token != told[k][j].token || want[j].logprob != told[k][j].logprob;
          loss -= static_cast<double>(told[k][0].logprob), ++learned;
        }
        all += loss;
      }
      CHECK(compared > 120 * run.golden.vocab);
      CHECK(differ == 0);
      CHECK(report->loss == all / static_cast<double>(learned));
    }
  }
}

TEST_CASE("an adapter that learned nothing changes no bit, for any architecture, over f32 and over 4 bits") {
  const std::set<std::string> over_int4{"llama3", "qwen2", "gemma2",  "mixtral", "gpt-oss",
                                        "llama4", "lfm2",  "qwen3_5", "minicpm3"};
  oar_test::Sample sample(7);
  for (const std::string& name : tiny_golden_names()) {
    for (const char* weights : {"auto", "int4"}) {
      const bool int4 = std::string_view(weights) == "int4";
      if ((int4 && !over_int4.contains(name)) || !sample.take()) continue;
      INFO(name << " " << weights);
      TinyRun run(name);
      run.options.weights = weights;
      const auto t = Trainer::create(run.options, {});
      INFO((t.ok() ? std::string() : t.status().message()));
      REQUIRE(t.ok());
      const std::string out = fresh(run.folder + "/nothing");
      REQUIRE((*t)->write_result(out).ok());
      CHECK(served_loss(**t, run.folder, out) == served_loss(**t, run.folder, ""));
    }
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
      CHECK(std::abs(served_loss(*t, out, "") - trained) < (dtype == TinyDtype::f32 ? 1e-4 : 0.02) * trained);
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
  for (const auto& [weights, dtype] :
       std::vector<std::pair<std::string, TinyDtype>>{{"auto", TinyDtype::bf16},
                                                      {"int8", TinyDtype::f32},
                                                      {"int4", TinyDtype::bf16},
                                                      {"fp8", TinyDtype::f32},
                                                      {"stored fp8", TinyDtype::bf16}}) {
    TinyRun run("llama3", {}, dtype);
    run.options.weights = weights;
    if (weights == "stored fp8") {
      run.options.weights = "auto";
      store_as_fp8(run);
      const Checkpoint c = load_checkpoint(run.folder).value();
      CHECK(c.tensors.at("model.layers.0.mlp.up_proj.weight").format() == *Format::find("e4m3_channel"));
    }
    run.options.held_out = {run.data};
    run.options.rate = 1e-2;
    auto t = run.trainer();
    const double plain = t->evaluate().value().loss;
    INFO(weights);
    CHECK(served_loss(*t, run.folder, "") == plain);
    double loss = 1;
    for (int k = 0; k < 60; ++k) loss = step(*t).loss;
    CHECK(loss < 0.5 * plain);
    const std::string out = fresh(run.folder + "/out");
    REQUIRE(t->write_result(out).ok());
    CHECK(served_loss(*t, run.folder, out) == t->evaluate().value().loss);
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
    CHECK(served_loss(*t, run.folder, "") == plain);
    double loss = plain;
    for (int k = 0; k < 30; ++k) loss = step(*t).loss;
    CHECK(loss < 0.9 * plain);
  }
}

TEST_CASE("experts in mxfp4 are read as they are stored, and adapters learn over them") {
  TinyRun run("gpt-oss-mxfp4");
  run.options.held_out = {run.data};
  run.options.rate = 1e-2;
  auto t = run.trainer();
  REQUIRE_FALSE(t->options().graph.copies->experts.empty());
  for (const auto& [name, w] : t->options().graph.copies->experts)
    CHECK(w.format() == *Format::find("mxfp4"));
  const double plain = t->evaluate().value().loss;
  CHECK(served_loss(*t, run.folder, "") == plain);
  double loss = plain;
  for (int k = 0; k < 30; ++k) loss = step(*t).loss;
  CHECK(loss < 0.9 * plain);
}

TEST_CASE("experts in stacks and the heads of a latent are trained whole, and written as they were kept") {
  for (const char* name : {"gpt-oss", "llama4", "granitemoehybrid", "gemma4-26b-a4b", "minicpm3",
                           "deepseek-v2", "deepseek-v3", "glm4-moe-lite", "mistral4"}) {
    INFO(name);
    TinyRun run(name);
    run.options.graph.full = true;
    run.options.held_out = {run.data};
    run.options.rate = 1e-2;
    auto t = run.trainer();
    const TensorMap before = load_checkpoint(run.folder).value().tensors;
    // What PyTorch has as a buffer alone stays.
    const auto is_buffer = [](const std::string& n) {
      return n.ends_with(".layer_scalar") || n.ends_with(".e_score_correction_bias");
    };
    for (const auto& [tensor, value] : before) {
      INFO(tensor);
      const auto& all = t->parameters();
      const auto at =
          std::find_if(all.begin(), all.end(), [&](const Parameter& p) { return p.name == tensor; });
      REQUIRE((at != all.end()) == !is_buffer(tensor));
      if (at != all.end()) CHECK(at->shape == value.shape());
    }
    const double plain = t->evaluate().value().loss;
    double loss = plain;
    for (int k = 0; k < 30; ++k) loss = step(*t).loss;
    CHECK(loss < 0.5 * plain);
    const std::string out = fresh(run.folder + "/out");
    REQUIRE(t->write_result(out).ok());
    const TensorMap after = load_checkpoint(out).value().tensors;
    REQUIRE(after.size() == before.size());
    for (const auto& [tensor, value] : before) {
      INFO(tensor);
      REQUIRE(after.contains(tensor));
      CHECK(after.at(tensor).shape() == value.shape());
    }
  }
  TinyRun frozen("gpt-oss");
  frozen.options.graph.full = true;
  frozen.options.graph.freeze = {"*.experts.gate_up_proj"};
  const auto t = frozen.trainer();
  CHECK(t->parameters().size() > 1);
  for (const Parameter& p : t->parameters()) CHECK_FALSE(p.name.ends_with(".gate_up_proj"));
}

TEST_CASE(
    "an adapter has the names of transformers' modules where the base's file has others, and is served") {
  TinyRun run("nemotron_h");
  run.options.held_out = {run.data};
  run.options.graph.lora.targets = {"q_proj", "in_proj"};
  run.options.rate = 1e-2;
  auto t = run.trainer();
  for (int k = 0; k < 3; ++k) step(*t);
  const std::string out = fresh(run.folder + "/out");
  REQUIRE(t->write_result(out).ok());
  const auto file = open_safetensors(out + "/adapter_model.safetensors", {});
  REQUIRE(file.ok());
  for (const auto& [name, tensor] : file->tensors) CHECK(name.starts_with("base_model.model.model.layers."));
  CHECK(served_loss(*t, run.folder, out) == t->evaluate().value().loss);
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
  for (const char* name : {"deepseek-v2", "minicpm3"}) {
    TinyRun latent(name);
    latent.options.graph.lora.targets = {"o_proj", "self_attn.kv_b_proj"};
    says(latent,
         "--lora: 'self_attn.kv_b_proj' can have no adapter: attention over a latent reads parts of it");
  }
  TinyRun codes("gpt-oss-mxfp4");
  codes.options.graph.full = true;
  says(codes, "_blocks' is stored as u8: all parameters of a quantized model cannot be trained; use --lora");
  TinyRun mixture("mixtral");
  mixture.configure({{"output_router_logits", true}, {"router_aux_loss_coef", "much"}});
  says(mixture, "'output_router_logits' is true, so 'router_aux_loss_coef' must be a number");
  TinyRun sigmoid("glm4-moe");
  sigmoid.configure({{"output_router_logits", true}, {"router_aux_loss_coef", 0.1}});
  says(sigmoid, "the load-balancing loss is defined for routers of softmax");
}

TEST_CASE("what a run's reader should know of its model is said once: tied heads, slow scans, doubles") {
  const auto notes_of = [](const TinyRun& run) {
    std::string all;
    for (const std::string& note : run.trainer()->notes()) all += note + "\n";
    return all;
  };
  TinyRun tied("qwen2");
  CHECK(notes_of(tied) == "the head is the embedding table (tied): one table, which stays\n");
  tied.options.graph.full = true;
  CHECK(notes_of(tied) ==
        "the head is the embedding table (tied): one parameter, whose gradient is the sum of both\n");
  CHECK(notes_of(TinyRun("qwen3-next")).find("layers keep a state of ") != std::string::npos);
  const std::string of_mamba = notes_of(TinyRun("mamba2"));
  CHECK(of_mamba.find("token by token in double on one thread: slow\n") != std::string::npos);
  CHECK(of_mamba.find("targets=all leaves out_proj of Mamba-2 layers out: ") != std::string::npos);
  // What a checkpoint keeps otherwise is copied, once for all graphs, and counted.
  TinyRun latent("minicpm3");
  latent.options.held_out = {latent.data};  // three graphs
  const ModelConfig c3 = read_model_config(load_checkpoint(latent.folder).value().config).value();
  const auto heads =
      static_cast<uint64_t>(c3.layers * c3.heads * (c3.latent.nope + c3.latent.value) * c3.latent.rank) *
      sizeof(float);
  const std::string of_latent = notes_of(latent);
  CHECK(of_latent.find(cat("head by head, which are copied in f32: ", format_bytes(heads), "\n")) !=
        std::string::npos);
  CHECK(of_latent.find("targets=all leaves kv_b_proj out: ") != std::string::npos);
  CHECK(latent.trainer()->memory().frozen > heads);
  latent.options.graph.lora.targets = {"o_proj"};
  CHECK(notes_of(latent).find("kv_b_proj out") == std::string::npos);
  TinyRun stacks("gpt-oss");
  const ModelConfig oss = read_model_config(load_checkpoint(stacks.folder).value().config).value();
  const auto experts =
      static_cast<uint64_t>(oss.layers * oss.experts * 3 * oss.width * oss.expert_ffn) * sizeof(float);
  const std::string of_stacks = notes_of(stacks);
  CHECK(of_stacks.find(cat("turned or interleaved, are copied: ", format_bytes(experts), "\n")) !=
        std::string::npos);
  CHECK(stacks.trainer()->memory().frozen > experts);
  // The same numbers in doubles are trained to the same bits.
  TinyRun run("llama3");
  run.options.graph.full = true;
  CHECK(notes_of(run).empty());
  const double loss = step(*run.trainer()).loss;
  Checkpoint c = load_checkpoint(run.folder).value();
  for (auto& [name, t] : c.tensors) {
    Tensor wide = Tensor::allocate(t.shape(), Format::of(DType::kF64)).value();
    wide.format().encode_row(t.values<float>().data(), t.numel(), wide.mutable_data());
    t = wide;
  }
  run.options.model = fresh(run.folder + "/wide");
  REQUIRE(write_model(run.options.model, c, {}, {}).ok());
  CHECK(notes_of(run) == "21 tensors are f64: they are computed with, and learned, in f32\n");
  CHECK(step(*run.trainer()).loss == loss);
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
