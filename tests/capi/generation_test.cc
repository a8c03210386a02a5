// Generations through the C interface: callback and poll, cancel and close, in every order.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <regex>
#include <thread>

#include "tests/capi/fixture.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {
using namespace oar_test;

Answer poll_text(const char* prompt, const oar_sampling& sampling) {
  oar_generation g = 0;
  REQUIRE(oar_generate_text(demo_model(), prompt, &sampling, nullptr, nullptr, &g) == OAR_OK);
  Answer a = drain(g);
  REQUIRE(oar_generation_close(g) == OAR_OK);
  return a;
}

TEST_CASE("poll and callback give the same answer") {
  const oar_sampling s = greedy(24);
  const Answer polled = poll_text("To be", s);
  CHECK(polled.finishes == 1);
  CHECK(polled.finish == OAR_FINISH_LENGTH);
  CHECK(polled.tokens.size() == 24);
  CHECK(polled.completion_tokens == 24);
  CHECK(polled.prompt_tokens > 0);
  CHECK(!polled.text.empty());

  Answer called;
  oar_generation g = 0;
  REQUIRE(oar_generate_text(demo_model(), "To be", &s, collect, &called, &g) == OAR_OK);
  REQUIRE(oar_generation_wait(g, 60'000) == OAR_OK);
  CHECK(called.text == polled.text);
  CHECK(called.tokens == polled.tokens);
  CHECK(called.finishes == 1);
  const oar_event* event = nullptr;
  CHECK(oar_generation_next(g, 0, &event) == OAR_FAILED_PRECONDITION);
  CHECK(oar_generation_close(g) == OAR_OK);

  size_t count = 0;
  std::vector<int32_t> ids(64);
  REQUIRE(oar_tokenize(demo_model(), "To be", SIZE_MAX, 1, ids.data(), ids.size(), &count) == OAR_OK);
  REQUIRE(oar_generate_tokens(demo_model(), ids.data(), count, &s, nullptr, nullptr, &g) == OAR_OK);
  CHECK(drain(g).tokens == polled.tokens);
  CHECK(oar_generation_close(g) == OAR_OK);
}

TEST_CASE("sampling options reach the engine") {
  oar_sampling s = greedy(32);
  s.temperature = 1;
  s.has_seed = 1;
  s.seed = 7;
  const Answer first = poll_text("The king", s);
  CHECK(poll_text("The king", s).tokens == first.tokens);
  s.seed = 8;
  CHECK(poll_text("The king", s).tokens != first.tokens);

  s = greedy(16);
  const Answer plain = poll_text("The king", s);
  const int32_t banned = plain.tokens.front();
  const float bias = -100;
  s.bias_tokens = &banned;
  s.bias_values = &bias;
  s.bias_count = 1;
  CHECK(poll_text("The king", s).tokens.front() != banned);

  s = greedy(16);
  s.stop_tokens = &plain.tokens[3];
  s.stop_token_count = 1;
  const Answer stopped = poll_text("The king", s);
  CHECK(stopped.finish == OAR_FINISH_STOP);
  CHECK(stopped.tokens.size() <= 3);

  s = greedy(16);
  const std::string word = plain.text.substr(plain.text.size() / 2, 3);
  const char* stop = word.c_str();
  s.stop = &stop;
  s.stop_count = 1;
  const Answer cut = poll_text("The king", s);
  CHECK(cut.finish == OAR_FINISH_STOP);
  CHECK(cut.text == plain.text.substr(0, plain.text.find(word)));

  s = greedy(4);
  s.n = 3;
  s.logprobs = 1;
  oar_generation g = 0;
  REQUIRE(oar_generate_text(demo_model(), "The king", &s, nullptr, nullptr, &g) == OAR_OK);
  const oar_event* event = nullptr;
  int finishes = 0;
  while (oar_generation_next(g, 60'000, &event) == OAR_OK && event != nullptr) {
    CHECK(event->index >= 0);
    CHECK(event->index < 3);
    if (event->token_count > 0) {
      REQUIRE(event->logprobs != nullptr);
      CHECK(event->logprobs[0] <= 0);
    }
    finishes += event->finish != OAR_FINISH_NONE;
  }
  CHECK(finishes == 3);
  CHECK(oar_generation_close(g) == OAR_OK);
}

TEST_CASE("constraints: what ends by itself is whole, whatever min_tokens and ignore_eos say") {
  struct {
    oar_constraint kind;
    const char* text;
    std::regex whole;
  } const kCases[] = {
      {OAR_CONSTRAINT_JSON_SCHEMA,
       R"({"type":"object","properties":{"name":{"type":"string","maxLength":6},"age":{"type":"integer","minimum":1,"maximum":120},
          "tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3}},"required":["name","age","tags"],"additionalProperties":false})",
       std::regex(
           R"re(\{\s*"name":\s*"([^"\\]|\\.[0-9a-fA-F]{0,4})*",\s*"age":\s*([1-9][0-9]?|1[01][0-9]|120),\s*"tags":\s*\[\s*("[ab]"(,\s*"[ab]"){0,2}\s*)?\]\s*\})re")},
      {OAR_CONSTRAINT_REGEX, "[A-Z][a-z]{2,8}: (yes|no)", std::regex("[A-Z][a-z]{2,8}: (yes|no)")},
      {OAR_CONSTRAINT_CHOICE, R"(["to be", "not to be"])", std::regex("(not )?to be")},
      {OAR_CONSTRAINT_GRAMMAR, "root ::= \"<\" [a-z]{1,5} \">\"", std::regex("<[a-z]{1,5}>")},
      {OAR_CONSTRAINT_STRUCTURAL_TAG, R"({"format":{"type":"regex","pattern":"so[a-c]{3}"}})",
       std::regex("so[a-c]{3}")},
  };
  for (const auto& c : kCases) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      oar_sampling s = greedy(400);
      s.temperature = seed == 0 ? 0.f : 1.2f;
      s.has_seed = 1;
      s.seed = seed;
      s.min_tokens = 300;
      s.ignore_eos = 1;
      s.constraint_kind = c.kind;
      s.constraint = c.text;
      const Answer a = poll_text("To be", s);
      INFO(a.text);
      CHECK(a.finish == OAR_FINISH_STOP);
      CHECK(std::regex_match(a.text, c.whole));
    }
  }
  // Any object may go on for ever: what is cut begins one.
  oar_sampling s = greedy(40);
  s.constraint_kind = OAR_CONSTRAINT_JSON_OBJECT;
  CHECK(std::regex_search(poll_text("To be", s).text, std::regex(R"re(^\{\s*("|\}))re")));
  s = greedy(8);
  oar_generation g = 0;
  s.constraint_kind = OAR_CONSTRAINT_STRUCTURAL_TAG;
  s.constraint = R"({"format":{"type":"no"}})";
  CHECK(oar_generate_text(demo_model(), "To be", &s, nullptr, nullptr, &g) == OAR_INVALID_ARGUMENT);
  s.constraint = nullptr;
  s.constraint_kind = OAR_CONSTRAINT_JSON_SCHEMA;
  CHECK(oar_generate_text(demo_model(), "To be", &s, nullptr, nullptr, &g) ==
        OAR_INVALID_ARGUMENT);  // no text
  s.constraint = R"({"uniqueItems": true})";
  CHECK(oar_generate_text(demo_model(), "To be", &s, nullptr, nullptr, &g) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()).find("$.uniqueItems is not supported") != std::string::npos);
  s.constraint_kind = 99;
  CHECK(oar_generate_text(demo_model(), "To be", &s, nullptr, nullptr, &g) == OAR_INVALID_ARGUMENT);
}

TEST_CASE("cancel, from outside and from the callback") {
  const oar_sampling s = greedy(1'000'000);
  oar_generation g = 0;
  REQUIRE(oar_generate_text(demo_model(), "My lord", &s, nullptr, nullptr, &g) == OAR_OK);
  REQUIRE(oar_generation_cancel(g) == OAR_OK);
  const Answer a = drain(g);
  CHECK(a.finish == OAR_FINISH_CANCELLED);
  CHECK(oar_generation_cancel(g) == OAR_OK);  // it has ended: no error
  CHECK(oar_generation_close(g) == OAR_OK);

  Answer called;
  const auto stop_at_third = [](const oar_event* event, void* user) {
    collect(event, user);
    return static_cast<Answer*>(user)->events == 3 ? 1 : 0;
  };
  REQUIRE(oar_generate_text(demo_model(), "My lord", &s, stop_at_third, &called, &g) == OAR_OK);
  REQUIRE(oar_generation_wait(g, 60'000) == OAR_OK);
  CHECK(called.finish == OAR_FINISH_CANCELLED);
  CHECK(called.finishes == 1);
  CHECK(oar_generation_close(g) == OAR_OK);
}

TEST_CASE("a deadline ends a generation") {
  oar_sampling s = greedy(1'000'000);
  s.timeout_ms = 1;
  oar_generation g = 0;
  REQUIRE(oar_generate_text(demo_model(), "My lord", &s, nullptr, nullptr, &g) == OAR_OK);
  const Answer a = drain(g);
  CHECK((a.finish == OAR_FINISH_DEADLINE || a.finish == OAR_FINISH_LENGTH));
  CHECK(oar_generation_close(g) == OAR_OK);
}

TEST_CASE("no callback after close") {
  struct State {
    std::atomic<bool> closed{false}, late{false};
    std::atomic<int> calls{0};
  } state;
  const oar_sampling s = greedy(1'000'000);
  const auto callback = [](const oar_event*, void* user) {
    auto* st = static_cast<State*>(user);
    ++st->calls;
    if (st->closed) st->late = true;
    return 0;
  };
  for (int i = 0; i < 20; ++i) {
    state.closed = false;
    state.calls = 0;
    oar_generation g = 0;
    REQUIRE(oar_generate_text(demo_model(), "My lord", &s, callback, &state, &g) == OAR_OK);
    while (i % 2 == 0 && state.calls < 2) std::this_thread::yield();
    REQUIRE(oar_generation_close(g) == OAR_OK);
    state.closed = true;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(!state.late);
}

TEST_CASE("a callback may close its own generation and may not wait, load or close a model") {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    oar_generation generation = 0;
    oar_status close = OAR_UNKNOWN, wait = OAR_UNKNOWN, unload = OAR_UNKNOWN, shutdown = OAR_UNKNOWN;
    int calls = 0;
  } state;
  const oar_sampling s = greedy(1'000'000);
  const auto callback = [](const oar_event*, void* user) {
    auto* st = static_cast<State*>(user);
    std::unique_lock lock(st->mutex);
    st->changed.wait(lock, [&] { return st->generation != 0; });
    ++st->calls;
    st->wait = oar_generation_wait(st->generation, -1);
    st->unload = oar_model_close(demo_model());
    st->shutdown = oar_shutdown();
    st->close = oar_generation_close(st->generation);
    st->changed.notify_all();
    return 0;
  };
  oar_generation g = 0;
  REQUIRE(oar_generate_text(demo_model(), "My lord", &s, callback, &state, &g) == OAR_OK);
  std::unique_lock lock(state.mutex);
  state.generation = g;
  state.changed.notify_all();
  REQUIRE(state.changed.wait_for(lock, std::chrono::seconds(60), [&] { return state.close != OAR_UNKNOWN; }));
  CHECK(state.close == OAR_OK);
  CHECK(state.wait == OAR_FAILED_PRECONDITION);
  CHECK(state.unload == OAR_FAILED_PRECONDITION);
  CHECK(state.shutdown == OAR_FAILED_PRECONDITION);
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(state.calls == 1);
}

TEST_CASE("closing a model ends its generations, whose events remain") {
  const oar_model_options o = small_options();
  oar_model model = 0;
  REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &model) == OAR_OK);
  const oar_sampling s = greedy(1'000'000);
  oar_generation polled = 0, called = 0, waited = 0;
  Answer answer;
  REQUIRE(oar_generate_text(model, "My lord", &s, nullptr, nullptr, &polled) == OAR_OK);
  REQUIRE(oar_generate_text(model, "The king", &s, nullptr, nullptr, &waited) == OAR_OK);
  REQUIRE(oar_generate_text(model, "To be", &s, collect, &answer, &called) == OAR_OK);
  Answer elsewhere;
  std::thread reader([&] { elsewhere = drain(waited); });
  REQUIRE(oar_model_close(model) == OAR_OK);
  reader.join();
  CHECK(elsewhere.finishes == 1);
  CHECK(answer.finishes == 1);
  CHECK(oar_generation_wait(called, 0) == OAR_OK);
  const Answer rest = drain(polled);
  CHECK(rest.finishes == 1);
  CHECK(oar_generation_cancel(polled) == OAR_OK);
  for (const oar_generation g : {polled, called, waited}) CHECK(oar_generation_close(g) == OAR_OK);
  oar_generation g = 0;
  CHECK(oar_generate_text(model, "To be", &s, nullptr, nullptr, &g) == OAR_INVALID_ARGUMENT);
  CHECK(g == 0);
}

TEST_CASE("drain refuses new work") {
  const oar_model_options o = small_options();
  oar_model model = 0;
  REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &model) == OAR_OK);
  const oar_sampling s = greedy(4);
  oar_generation g = 0;
  REQUIRE(oar_generate_text(model, "My lord", &s, nullptr, nullptr, &g) == OAR_OK);
  CHECK(oar_model_drain(model, 60'000) == OAR_OK);
  CHECK(drain(g).finish == OAR_FINISH_LENGTH);
  oar_generation other = 0;
  CHECK(oar_generate_text(model, "My lord", &s, nullptr, nullptr, &other) == OAR_UNAVAILABLE);
  CHECK(oar_generation_close(g) == OAR_OK);
  CHECK(oar_model_close(model) == OAR_OK);
}

TEST_CASE("many threads, many generations, statistics") {
  const oar_sampling s = greedy(8);
  const Answer expected = poll_text("Good morrow", s);
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 5; ++i) {
        oar_generation g = 0;
        Answer a;
        if (t % 2 == 0) {
          if (oar_generate_text(demo_model(), "Good morrow", &s, collect, &a, &g) == OAR_OK)
            oar_generation_wait(g, 60'000);
        } else if (oar_generate_text(demo_model(), "Good morrow", &s, nullptr, nullptr, &g) == OAR_OK) {
          a = drain(g);
        }
        oar_generation_close(g);
        right += a.text == expected.text;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  CHECK(right == 20);
  oar_model_stats stats;
  REQUIRE(oar_model_get_stats(demo_model(), &stats, sizeof stats) == OAR_OK);
  CHECK(stats.ready == 1);
  CHECK(stats.running == 0);
  CHECK(stats.generation_tokens > 100);
}

TEST_CASE("quantized weights are kept where the caller says, within what the caller allows, or nowhere") {
  namespace fs = std::filesystem;
  const std::string folder = temp_dir() + "/cache";
  const auto kept = [&] {
    std::error_code ec;
    const fs::directory_iterator files(folder + "/weights", ec);
    return ec ? 0 : std::distance(begin(files), end(files));
  };
  std::string text;
  const auto load = [&](uint64_t bytes, int32_t none) {
    oar_model_options o = small_options();
    o.weights = "q8_0", o.cache_dir = folder.c_str(), o.cache_bytes = bytes, o.no_cache = none;
    oar_model m = 0;
    REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &m) == OAR_OK);
    const oar_sampling s = greedy(8);
    oar_generation g = 0;
    REQUIRE(oar_generate_text(m, "Good morrow", &s, nullptr, nullptr, &g) == OAR_OK);
    const Answer a = drain(g);
    CHECK(a.text == (text.empty() ? text = a.text : text));
    oar_generation_close(g);
    REQUIRE(oar_model_close(m) == OAR_OK);
  };
  load(0, 1);
  CHECK(kept() == 0);
  load(1000, 0);
  CHECK(kept() == 0);
  load(0, 0);
  CHECK(kept() == 1);
  load(0, 0);  // mapped
  CHECK(kept() == 1);
}

}  // namespace
