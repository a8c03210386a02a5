// What is promised of every model type, not of kernels: greedy texts of 64 tokens are those of transformers
// (tests/golden/greedy.json), a constraint holds and takes the best token that it allows, an adapter computes
// what merged weights compute, and any one pass can be left out.
#include <algorithm>
#include <map>
#include <set>

#include "engine/base/constraint.h"
#include "engine/base/json.h"
#include "tests/models/served_fixture.h"
#include "tests/models/tiny_adapter.h"
#include "tests/support/sample.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_weights.h"

namespace {
using namespace oar_test;
namespace json = oar::json;

oar::LanguageModelOptions type_options() {
  oar::LanguageModelOptions o;
  o.threads = 1;
  o.kv = "f32";
  o.max_batch_tokens = o.max_sequences = 96;  // rows of logits too
  o.page_tokens = 16;
  return o;
}

// Of what is held to the golden's numbers.
oar::LanguageModelOptions exact_options(const TinyGolden& golden) {
  oar::LanguageModelOptions o = type_options();
  o.reference = golden.has_codes();
  return o;
}

int32_t best_of(const std::vector<float>& logits, auto allowed) {
  int32_t best = -1;
  for (size_t t = 0; t < logits.size(); ++t)
    if (allowed(static_cast<int32_t>(t)) && (best < 0 || logits[t] > logits[static_cast<size_t>(best)]))
      best = static_cast<int32_t>(t);
  return best;
}

// The prompt in one step, then token by token; `allowed` of a token and its place in the text.
std::vector<int32_t> greedy_text(RunnerFixture& model, const std::vector<int32_t>& prompt, size_t count,
                                 auto allowed) {
  const auto blocks = model.blocks(prompt.size() + count, 8);
  std::vector<int32_t> text, chunk = prompt;
  int32_t at = 0;
  while (text.size() < count) {
    const auto logits = model.run({{chunk, at, blocks, false}});
    at += static_cast<int32_t>(chunk.size());
    text.push_back(best_of(logits, [&](int32_t t) { return allowed(t, text.size()); }));
    chunk = {text.back()};
  }
  return text;
}

// Token n of a text is n mod 3, divided by 3.
class Thirds : public oar::Constraint {
 public:
  static bool allows(int32_t token, size_t place) { return token % 3 == static_cast<int32_t>(place % 3); }
  std::unique_ptr<oar::ConstraintCursor> start() const override { return std::make_unique<Cursor>(); }

 private:
  class Cursor : public oar::ConstraintCursor {
   public:
    bool advance(int32_t token) override { return allows(token, place_) && ++place_ > 0; }
    void rollback(int64_t count) override { place_ -= static_cast<size_t>(count); }
    void mask(std::span<uint32_t> bits) override {
      std::ranges::fill(bits, 0);
      for (size_t t = 0; t < 32 * bits.size(); ++t)
        if (allows(static_cast<int32_t>(t), place_)) bits[t / 32] |= uint32_t{1} << t % 32;
    }
    int32_t only() override { return -1; }
    bool may_end() const override { return true; }
    bool must_end() const override { return false; }
    std::unique_ptr<oar::ConstraintCursor> fork() const override { return std::make_unique<Cursor>(*this); }

   private:
    size_t place_ = 0;
  };
};

}  // namespace

TEST_CASE("every type: greedy texts are those of transformers", "[types]") {
  const json::object texts = json::parse(read_file(source_path("tests/golden/greedy.json"))).as_object();
  Sample sample(7);
  for (const std::string& name : all_golden_names()) {
    INFO(name);
    REQUIRE(texts.contains(name));
    if (!sample.take()) continue;
    const json::object& g = texts.at(name).as_object();
    // Logits are held to a ten thousandth of the largest: what leads by less decides nothing here.
    CHECK(g.at("lead").to_number<double>() > 1e-3);
    if (g.contains("router_lead")) CHECK(g.at("router_lead").to_number<double>() > 1e-4);
    const TinyGolden golden = load_tiny_golden(name);
    RunnerFixture model(write_tiny_model(golden, TinyDtype::f32), exact_options(golden));
    const auto prompt = json::value_to<std::vector<int32_t>>(g.at("prompt")),
               want = json::value_to<std::vector<int32_t>>(g.at("text"));
    CHECK(want.size() >= (name == "gpt2" ? 58 : 64));
    CHECK(greedy_text(model, prompt, want.size(), [](int32_t, size_t) { return true; }) == want);
  }
}

TEST_CASE("every type: a constraint holds, and the best token that it allows is taken", "[types]") {
  Sample sample(11);
  for (const std::string& name : all_golden_names()) {
    if (!sample.take()) continue;
    INFO(name);
    const std::string path = write_tiny_model(load_tiny_golden(name), TinyDtype::f32);
    auto options = type_options();
    options.max_context = 64;  // as many positions as gpt2 learned
    RunnerFixture model(path, options);
    const auto prompt = prompt_of(5, 9, model.vocab());
    const auto want = greedy_text(model, prompt, 20, Thirds::allows);
    CHECK(want != greedy_text(model, prompt, 20, [](int32_t, size_t) { return true; }));
    options.max_batch_tokens = 48;
    options.max_sequences = 8;
    Served served(path, options, 24);
    oar::Request r;
    r.prompt = prompt;
    r.stop.max_tokens = 20;
    r.sampling.temperature = 0;
    r.sampling.logprobs = 0;
    r.constraint = std::make_shared<Thirds>();
    const auto sink = std::make_shared<CollectSink>(1);
    r.sink = sink;
    REQUIRE_OK(served.engine->submit(std::move(r)));
    CHECK(text_of(*sink).tokens == want);
  }
}

TEST_CASE("every type: an adapter computes what merged weights compute", "[types]") {
  Sample sample(11);
  for (const std::string& name : all_golden_names()) {
    if (name == "gpt2" || !sample.take()) continue;  // whose matrices are transposed: adapter_test.cc
    INFO(name);
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32), folder = write_adapter_of(golden);
    auto options = exact_options(golden);
    options.max_loras = 1;
    RunnerFixture model(path, options);
    const auto loaded = model.adapters->load("a", folder);
    REQUIRE_OK(loaded);
    const auto got = model.run(
        {{golden.tokens, 0, model.blocks(golden.tokens.size()), true, model.adapters->find("a")->slot}});
    auto checkpoint = oar::load_checkpoint(path);
    REQUIRE_OK(checkpoint);
    RunnerFixture whole(merged(std::move(*checkpoint), folder), exact_options(golden));
    const auto want = whole.run_prompt(golden.tokens);
    CHECK(relative_error(want, golden.logits_f32) > 0.02);  // it does something
    const double error = relative_error(got, want);
    CAPTURE(error);
    CHECK(error < 2e-4);  // two computations that are each held to 1e-4
  }
}

TEST_CASE("every type: passes can be left out one by one, and all of them", "[types]") {
  const auto passes = oar::default_passes();
  Sample sample(11);
  for (const std::string& name : all_golden_names()) {
    const TinyGolden golden = load_tiny_golden(name);
    const std::string path = write_tiny_model(golden, TinyDtype::f32);
    for (size_t turn = 0; turn <= passes.size(); ++turn) {
      auto options = exact_options(golden);
      auto& left = options.disabled_passes;
      const bool all = turn == passes.size();
      for (size_t k = 0; k < passes.size(); ++k)
        if (all || k == turn) left.emplace_back(passes[k].name);
      // Its transposed weights are constants by that one alone.
      if (name == "gpt2") std::erase(left, "fold_constants");
      if (left.empty() || !sample.take()) continue;
      INFO(name << " without " << left.front() << (all ? " and all others" : ""));
      RunnerFixture model(path, options);
      CHECK(relative_error(model.run_prompt(golden.tokens), golden.logits_f32) < 1e-4);
    }
  }
}
