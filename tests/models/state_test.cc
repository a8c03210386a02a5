// Models with recurrent state (tests/golden/models/lfm2-long: 150 tokens, over pages of 16 and of 64) against
// transformers' logits, and what the state may not change: how a prompt is cut, rows that are rolled back,
// preemption, choices that share a prompt, prefix hits.
#include <cmath>

#include "tests/models/served_fixture.h"
#include "tests/support/tiny_weights.h"

using namespace oar;
using namespace oar_test;

namespace {

LanguageModelOptions options_of(int32_t page, const char* kv = "auto") {
  LanguageModelOptions o;
  o.threads = 2;
  o.max_batch_tokens = o.max_sequences = 160;  // rows of logits too
  o.page_tokens = page;
  o.kv = kv;
  return o;
}

std::string long_model(TinyDtype dtype = TinyDtype::f32) {
  // Once: engines read the mapped file while others are made.
  static const std::string f32 = write_tiny_model(load_tiny_golden("lfm2-long"), TinyDtype::f32),
                           bf16 = write_tiny_model(load_tiny_golden("lfm2-long"), TinyDtype::bf16);
  return dtype == TinyDtype::f32 ? f32 : bf16;
}

// Logits of all rows where a sequence comes in pieces that end at `ends`.
std::vector<float> in_pieces(RunnerFixture& model, const std::vector<int32_t>& tokens,
                             const std::vector<size_t>& ends, int32_t block) {
  std::vector<float> out;
  const auto blocks = model.blocks(tokens.size(), block);
  size_t at = 0;
  for (const size_t end : ends) {
    const auto part = model.run({{std::vector<int32_t>(tokens.begin() + static_cast<ptrdiff_t>(at),
                                                       tokens.begin() + static_cast<ptrdiff_t>(end)),
                                  static_cast<int32_t>(at), blocks, true}});
    out.insert(out.end(), part.begin(), part.end());
    at = end;
  }
  return out;
}

}  // namespace

TEST_CASE("recurrent state: logits over several pages equal transformers'") {
  const TinyGolden golden = load_tiny_golden("lfm2-long");
  for (const int32_t page : {16, 64}) {
    for (const bool reference : {false, true}) {
      LanguageModelOptions o = options_of(page);
      o.reference = reference;
      RunnerFixture model(long_model(), o);
      CHECK(relative_error(model.run_prompt(golden.tokens), golden.logits_f32) < 1e-4);
    }
  }
}

TEST_CASE("recurrent state: what a step reads of it is counted") {
  // mamba2: 4 layers of 8 heads of 16 values by 16 numbers, f32; and rows of a convolution over 4.
  const auto checkpoint = load_checkpoint(write_tiny_model(load_tiny_golden("mamba2"), TinyDtype::f32));
  REQUIRE_OK(checkpoint);
  const auto config = read_model_config(checkpoint->config);
  REQUIRE_OK(config);
  const auto graph = build_serving_graph(*checkpoint, *config, options_of(16));
  REQUIRE_OK(graph);
  const uint64_t matrices = 4 * 8 * 16 * 16 * sizeof(float);
  CHECK(kv_bytes_per_token(graph->layout, 16) == 0);
  CHECK(state_bytes_per_step(graph->layout) > matrices);
  // Rows of an open page: half of 16, of what convolution and scan read: less than twice 2 KiB each a layer.
  CHECK(state_bytes_per_step(graph->layout) < 4 * matrices);
  const auto plain = load_checkpoint(write_tiny_model(load_tiny_golden("llama2"), TinyDtype::f32));
  REQUIRE_OK(plain);
  const auto none = build_serving_graph(*plain, *read_model_config(plain->config), options_of(16));
  REQUIRE_OK(none);
  CHECK(state_bytes_per_step(none->layout) == 0);
}

TEST_CASE("recurrent state: however a prompt is cut about the borders, and token by token, to the bit") {
  const TinyGolden golden = load_tiny_golden("lfm2-long");
  for (const int32_t page : {16, 64}) {
    for (const char* kv : {"auto", "int8"}) {
      RunnerFixture model(long_model(), options_of(page, kv));
      const std::vector<float> whole = model.run_prompt(golden.tokens);
      std::vector<size_t> single;
      for (size_t k = 1; k <= golden.tokens.size(); ++k) single.push_back(k);
      INFO(page << " " << kv);
      CHECK((in_pieces(model, golden.tokens, single, 20) == whole));
      for (size_t border = static_cast<size_t>(page); border < 150; border += static_cast<size_t>(page))
        for (const size_t cut : {border - 1, border, border + 1})
          CHECK((in_pieces(model, golden.tokens, {cut, 150}, 20) == whole));
    }
  }
}

TEST_CASE("recurrent state: rows that are rolled back over a border leave nothing behind") {
  const TinyGolden golden = load_tiny_golden("lfm2-long");
  RunnerFixture model(long_model(), options_of(16));
  const std::vector<float> whole = model.run_prompt(golden.tokens);
  const auto blocks = model.blocks(150, 20);
  const std::vector<int32_t>& t = golden.tokens;
  model.run({{{t.begin(), t.begin() + 30}, 0, blocks, false}});
  // Drafts that nobody keeps, beyond the border at 32; then the tokens themselves from 31 on.
  model.run({{{t[30], 7, 8, 9, 10, 11}, 30, blocks, false}});
  const auto rest = model.run({{{t.begin() + 31, t.end()}, 31, blocks, true}});
  CHECK(
      (rest == std::vector<float>(whole.begin() + 31 * static_cast<ptrdiff_t>(model.vocab()), whole.end())));
}

TEST_CASE("recurrent state: what one sequence's state holds does not reach the next holder of its blocks") {
  const TinyGolden golden = load_tiny_golden("lfm2-long");
  Checkpoint checkpoint = std::move(load_checkpoint(long_model())).value();
  RunnerFixture model(std::move(checkpoint), options_of(16));
  const std::vector<float> whole = model.run_prompt(golden.tokens);
  // The same blocks after another sequence had them, and in the company of one that is computed beside.
  std::vector<int32_t> other(golden.tokens.rbegin(), golden.tokens.rend());
  model.run({{other, 0, model.blocks(150, 20), false}});
  CHECK((in_pieces(model, golden.tokens, {1, 33, 150}, 20) == whole));
}

TEST_CASE("recurrent state: a convolution that sees beyond a page is refused, and runs over larger pages") {
  TinyGolden golden = load_tiny_golden("lfm2-long");
  golden.name = "lfm2-wide";
  json::object config = json::parse(golden.config).as_object();
  config["conv_L_cache"] = 18;
  golden.config = json::serialize(config);
  for (TinyTensor& t : golden.tensors)
    if (t.name.ends_with("conv.conv.weight")) t.shape.back() = 18;
  const std::string path = write_tiny_model(golden, TinyDtype::f32);
  const auto checkpoint = load_checkpoint(path);
  REQUIRE_OK(checkpoint);
  const Status refused =
      build_serving_graph(*checkpoint, *read_model_config(checkpoint->config), options_of(16)).status();
  CHECK_THAT(std::string(refused.message()),
             Contains("a kernel of 18 rows sees beyond a page of 16 tokens; make pages larger"));
  RunnerFixture model(path, options_of(32));
  const std::vector<float> whole = model.run_prompt(golden.tokens);
  CHECK((in_pieces(model, golden.tokens, {31, 32, 33, 64, 150}, 20) == whole));
}

namespace {

Served serve(int32_t blocks, bool prefix_cache, int64_t batch_tokens) {
  return Served(long_model(TinyDtype::bf16), "auto", blocks, prefix_cache, batch_tokens);
}

void check_same(const Text& a, const Text& b) {
  CHECK(a.tokens == b.tokens);
  CHECK((a.logprobs == b.logprobs));
}

}  // namespace

TEST_CASE("recurrent state: the next turn of a chat goes on from the answer's last border, to the bit") {
  const std::vector<int32_t> prompt = load_tiny_golden("lfm2-long").tokens;
  Served cached = serve(40, true, 48), plain = serve(40, false, 160);
  const std::vector<int32_t> first(prompt.begin(), prompt.begin() + 75);
  const auto sink = cached.submit(first, 40);
  const Text answer = text_of(*sink);
  check_same(answer, text_of(*plain.submit(first, 40)));
  auto next = first;
  next.insert(next.end(), answer.tokens.begin(), answer.tokens.end());
  next.insert(next.end(), prompt.begin() + 75, prompt.begin() + 95);
  const Text again = text_of(*cached.submit(next, 20)), alone = text_of(*plain.submit(next, 20));
  CHECK(again.cached == 112);  // of 115 tokens in front, the last border: 7 pages
  check_same(again, alone);
  CHECK(text_of(*cached.submit(first, 40)).cached == 64);  // the same prompt: its own last border
}

TEST_CASE("recurrent state: choices share a prompt, and preempted ones go on as if nothing had been") {
  const std::vector<int32_t> prompt = load_tiny_golden("lfm2-long").tokens;
  Served roomy = serve(80, true, 160), tight = serve(12, true, 48);
  const std::vector<int32_t> start(prompt.begin(), prompt.begin() + 50);
  const auto wide = roomy.submit(start, 60, 4), narrow = tight.submit(start, 60, 4);
  int64_t preemptions = 0;
  for (size_t k = 0; k < 4; ++k) {
    const Text a = text_of(*wide, k), b = text_of(*narrow, k);
    check_same(a, b);
    preemptions += b.preemptions;
  }
  CHECK(preemptions > 0);
}
