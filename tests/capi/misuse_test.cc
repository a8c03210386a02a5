// Everything wrong that a caller can do: a code and a message, never a crash or a hang.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/capi/fixture.h"
#include "tests/support/catch.h"

namespace {
// The child that exits with everything open has threads that still run: nothing can be said about its leaks.
[[maybe_unused]] bool exits_with_threads = false;
}  // namespace

#if defined(__SANITIZE_ADDRESS__)
// Visible, or the sanitizer's runtime does not find it.
extern "C" [[gnu::visibility("default")]] int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() { return exits_with_threads ? 1 : 0; }
#endif

namespace {
using namespace oar_test;

bool complains() { return oar_last_error()[0] != '\0'; }

#if defined(__SANITIZE_ADDRESS__)
// The sanitizer's allocator, unlike glibc's, is not locked around fork() before version 17 of its runtime: a
// thread that allocates at that moment leaves the child a lock that nobody opens. So wait until all other
// threads sleep, seen twice with no switch of context between.
void wait_until_others_sleep() {
  const auto look = [](bool& asleep) {
    asleep = true;
    long switches = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      if (task.path().filename() == std::to_string(gettid())) continue;
      std::ifstream status(task.path() / "status");
      for (std::string line; std::getline(status, line);) {
        if (line.starts_with("State:")) asleep &= line.starts_with("State:\tS");
        if (const size_t at = line.find("ctxt_switches:"); at != std::string::npos)
          switches += std::stol(line.substr(at + 14));
      }
    }
    return switches;
  };
  for (int i = 0; i < 3000; ++i) {
    bool asleep = false, still = false;
    const long before = look(asleep);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    if (look(still) == before && asleep && still) return;
  }
  FAIL("a thread of the library never rests");
}
#else
void wait_until_others_sleep() {}
#endif

// Tokens of a generation that is under way while its process forks. Under the sanitizer threads must rest
// first, and nobody reads what they make: so few, or a slow machine takes a minute to fill the buffer.
#if defined(__SANITIZE_ADDRESS__)
constexpr int64_t kUnderWay = 16;
#else
constexpr int64_t kUnderWay = 1'000'000;
#endif

// Runs `body` in a child; its return value is the child's exit code.
int in_child(const std::function<int()>& body) {
  wait_until_others_sleep();
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  if (waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

TEST_CASE("null everywhere") {
  const oar_model m = demo_model();
  const oar_sampling s = greedy(1);
  oar_model model = 0;
  oar_generation g = 0;
  size_t n = 0;
  int32_t id = 0;
  const auto refused = [](oar_status status) { return status == OAR_INVALID_ARGUMENT && complains(); };
  CHECK(refused(oar_model_options_init(nullptr, sizeof(oar_model_options))));
  CHECK(refused(oar_sampling_init(nullptr, sizeof(oar_sampling))));
  CHECK(refused(oar_model_load(nullptr, nullptr, &model)));
  CHECK(refused(oar_model_load("demo", nullptr, nullptr)));
  CHECK(refused(oar_model_get_info(m, nullptr, sizeof(oar_model_info))));
  CHECK(refused(oar_model_get_stats(m, nullptr, sizeof(oar_model_stats))));
  CHECK(refused(oar_model_describe(m, nullptr, 0, nullptr)));
  CHECK(refused(oar_model_describe(m, nullptr, 10, &n)));
  CHECK(refused(oar_tokenize(m, nullptr, 0, 0, nullptr, 0, &n)));
  CHECK(refused(oar_tokenize(m, "a", 1, 0, nullptr, 0, nullptr)));
  CHECK(refused(oar_tokenize(m, "a", 1, 0, nullptr, 4, &n)));
  CHECK(refused(oar_detokenize(m, nullptr, 3, 0, nullptr, 0, &n)));
  CHECK(refused(oar_detokenize(m, &id, 1, 0, nullptr, 0, nullptr)));
  CHECK(refused(oar_chat_prompt(m, nullptr, nullptr, nullptr, 0, &n)));
  CHECK(refused(oar_generate_text(m, nullptr, &s, nullptr, nullptr, &g)));
  CHECK(refused(oar_generate_text(m, "a", &s, nullptr, nullptr, nullptr)));
  CHECK(refused(oar_generate_tokens(m, nullptr, 1, &s, nullptr, nullptr, &g)));
  CHECK(refused(oar_generate_chat(m, nullptr, &s, nullptr, nullptr, &g)));
  CHECK(refused(oar_generation_next(g, 0, nullptr)));
  CHECK(std::string(oar_last_error_param()) == "event");
  CHECK(oar_detokenize(m, nullptr, 0, 0, nullptr, 0, &n) == OAR_OK);
  CHECK(!complains());
}

TEST_CASE("handles that are none") {
  const oar_sampling s = greedy(1);
  oar_generation ended = 0;
  REQUIRE(oar_generate_text(demo_model(), "a", &s, nullptr, nullptr, &ended) == OAR_OK);
  REQUIRE(oar_generation_close(ended) == OAR_OK);
  for (const uint64_t h : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, demo_model() + 1,
                           demo_model() ^ (uint64_t{1} << 40), ended, uint64_t{1} << 56}) {
    INFO(h);
    oar_model_stats stats;
    oar_generation g = 0;
    size_t n = 0;
    const oar_event* event = nullptr;
    CHECK(oar_model_close(h) == OAR_INVALID_ARGUMENT);
    CHECK(complains());
    CHECK(oar_model_drain(h, 0) == OAR_INVALID_ARGUMENT);
    CHECK(oar_model_get_stats(h, &stats, sizeof stats) == OAR_INVALID_ARGUMENT);
    CHECK(oar_tokenize(h, "a", 1, 0, nullptr, 0, &n) == OAR_INVALID_ARGUMENT);
    CHECK(oar_generate_text(h, "a", &s, nullptr, nullptr, &g) == OAR_INVALID_ARGUMENT);
    CHECK(oar_generation_next(h, -1, &event) == OAR_INVALID_ARGUMENT);
    CHECK(oar_generation_wait(h, -1) == OAR_INVALID_ARGUMENT);
    CHECK(oar_generation_cancel(h) == OAR_INVALID_ARGUMENT);
    CHECK(oar_generation_close(h) == OAR_INVALID_ARGUMENT);
  }
  CHECK(oar_generation_close(demo_model()) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()).find("handle of a model") != std::string::npos);
}

TEST_CASE("double close from many threads: one succeeds") {
  const oar_sampling s = greedy(64);
  for (int round = 0; round < 10; ++round) {
    oar_generation g = 0;
    REQUIRE(oar_generate_text(demo_model(), "a", &s, nullptr, nullptr, &g) == OAR_OK);
    std::atomic<int> closed{0}, strange{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        const oar_event* event = nullptr;
        if (t % 2 == 0) oar_generation_next(g, 5, &event);
        const oar_status status = oar_generation_close(g);
        closed += status == OAR_OK;
        strange += status != OAR_OK && status != OAR_INVALID_ARGUMENT;
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(closed == 1);
    CHECK(strange == 0);
  }
}

TEST_CASE("structures of other versions and of nobody") {
  oar_generation g = 0;
  oar_sampling s = greedy(1);
  s.struct_size = 0;
  CHECK(oar_generate_text(demo_model(), "a", &s, nullptr, nullptr, &g) == OAR_INVALID_ARGUMENT);
  CHECK(std::string(oar_last_error()).find("oar_sampling_init") != std::string::npos);
  s.struct_size = 0xcdcdcdcd;
  CHECK(oar_generate_text(demo_model(), "a", &s, nullptr, nullptr, &g) == OAR_INVALID_ARGUMENT);
  // An older header: the fields it does not have keep their defaults.
  s = greedy(2);
  s.struct_size = offsetof(oar_sampling, n);
  s.n = 99999;
  REQUIRE(oar_generate_text(demo_model(), "a", &s, nullptr, nullptr, &g) == OAR_OK);
  CHECK(drain(g).finishes == 1);
  CHECK(oar_generation_close(g) == OAR_OK);
  // A newer one: fine as long as it asks for nothing new.
  struct {
    oar_sampling s;
    uint64_t added;
  } newer = {greedy(2), 0};
  newer.s.struct_size = sizeof newer;
  REQUIRE(oar_generate_text(demo_model(), "a", &newer.s, nullptr, nullptr, &g) == OAR_OK);
  CHECK(oar_generation_close(g) == OAR_OK);
  newer.added = 1;
  CHECK(oar_generate_text(demo_model(), "a", &newer.s, nullptr, nullptr, &g) == OAR_UNIMPLEMENTED);
  oar_model_info info;
  std::memset(&info, 0xee, sizeof info);
  REQUIRE(oar_model_get_info(demo_model(), &info, 8) == OAR_OK);
  CHECK(info.parameters == 0xeeeeeeeeeeeeeeee);
  CHECK(oar_model_get_info(demo_model(), &info, 0) == OAR_INVALID_ARGUMENT);
  CHECK(oar_model_get_info(demo_model(), &info, SIZE_MAX) == OAR_INVALID_ARGUMENT);
}

TEST_CASE("values out of range are refused by name") {
  struct Case {
    const char* field;
    std::function<void(oar_sampling&)> spoil;
  };
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const int32_t bad_id = 1 << 30;
  const char* empty = "";
  const char* null_string = nullptr;
  const std::string long_text(5000, 'x');
  const char* too_long = long_text.c_str();
  const Case cases[] = {
      {"temperature", [&](oar_sampling& s) { s.temperature = nan; }},
      {"temperature", [&](oar_sampling& s) { s.temperature = inf; }},
      {"top_p", [&](oar_sampling& s) { s.top_p = 2; }},
      {"top_p", [&](oar_sampling& s) { s.top_p = 0; }},
      {"min_p", [&](oar_sampling& s) { s.min_p = nan; }},
      {"repetition_penalty", [&](oar_sampling& s) { s.repetition_penalty = 0; }},
      {"presence_penalty", [&](oar_sampling& s) { s.presence_penalty = -3; }},
      {"frequency_penalty", [&](oar_sampling& s) { s.frequency_penalty = nan; }},
      {"min_tokens", [&](oar_sampling& s) { s.min_tokens = -1; }},
      {"min_tokens", [&](oar_sampling& s) { s.min_tokens = 100; }},
      {"n", [&](oar_sampling& s) { s.n = 0; }},
      {"n", [&](oar_sampling& s) { s.n = INT32_MAX; }},
      {"stop", [&](oar_sampling& s) { s.stop_count = 1; }},
      {"stop", [&](oar_sampling& s) { s.stop = &empty, s.stop_count = 1; }},
      {"stop", [&](oar_sampling& s) { s.stop = &null_string, s.stop_count = 1; }},
      {"stop", [&](oar_sampling& s) { s.stop = &too_long, s.stop_count = 1; }},
      {"stop", [&](oar_sampling& s) { s.stop = &too_long, s.stop_count = SIZE_MAX; }},
      {"stop_tokens", [&](oar_sampling& s) { s.stop_token_count = 1; }},
      {"stop_tokens", [&](oar_sampling& s) { s.stop_tokens = &bad_id, s.stop_token_count = SIZE_MAX; }},
      {"stop_token_ids", [&](oar_sampling& s) { s.stop_tokens = &bad_id, s.stop_token_count = 1; }},
      {"bias_tokens", [&](oar_sampling& s) { s.bias_count = 1; }},
      {"bias_values", [&](oar_sampling& s) { s.bias_tokens = &bad_id, s.bias_count = 1; }},
      {"logit_bias",
       [&](oar_sampling& s) { s.bias_tokens = &bad_id, s.bias_values = &inf, s.bias_count = 1; }},
  };
  for (const Case& c : cases) {
    INFO(c.field);
    oar_sampling s = greedy(1);
    c.spoil(s);
    oar_generation g = 1;
    CHECK(oar_generate_text(demo_model(), "a", &s, nullptr, nullptr, &g) == OAR_INVALID_ARGUMENT);
    CHECK(g == 0);
    CHECK(std::string(oar_last_error()).find(c.field) != std::string::npos);
  }
  oar_generation g = 0;
  const oar_sampling s = greedy(1);
  CHECK(oar_generate_tokens(demo_model(), &bad_id, 1, &s, nullptr, nullptr, &g) == OAR_INVALID_ARGUMENT);
  CHECK(oar_generate_tokens(demo_model(), &bad_id, SIZE_MAX, &s, nullptr, nullptr, &g) ==
        OAR_INVALID_ARGUMENT);
  CHECK(oar_generate_tokens(demo_model(), &bad_id, 0, &s, nullptr, nullptr, &g) == OAR_INVALID_ARGUMENT);
  CHECK(oar_model_drain(demo_model(), -1) == OAR_INVALID_ARGUMENT);
  oar_model_options o = small_options();
  oar_model m = 0;
  o.threads = -1;
  CHECK(oar_model_load("demo", &o, &m) == OAR_INVALID_ARGUMENT);
  o = small_options();
  o.max_sequences = INT64_MIN;
  CHECK(oar_model_load("demo", &o, &m) == OAR_INVALID_ARGUMENT);
  o = small_options();
  o.memory_bytes = 1;
  CHECK(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &m) == OAR_RESOURCE_EXHAUSTED);
}

TEST_CASE("snapshots of recurrent states are refused by name where a model has none, and out of range") {
  const auto check = [](const char* param, uint64_t bytes, int64_t tokens) {
    oar_model_options o = small_options();
    o.state_snapshots = bytes;
    o.snapshot_tokens = tokens;
    oar_model m = 1;
    INFO(param << " " << bytes << " " << tokens);
    CHECK(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &m) == OAR_INVALID_ARGUMENT);
    CHECK(std::string(oar_last_error_param()) == param);
    CHECK(m == 0);
  };
  check("state_snapshots", 1 << 20, 0);
  check("snapshot_tokens", 0, 64);
  check("snapshot_tokens", 0, 65);
  check("snapshot_tokens", 0, -64);
}

TEST_CASE("forms of attention over a latent are refused by name where there is none, or no such form") {
  for (const char* form : {"expanded", "naive", "", "ABSORBED"}) {
    oar_model_options o = small_options();
    o.mla = form;
    oar_model m = 1;
    INFO(form);
    CHECK(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &m) == OAR_INVALID_ARGUMENT);
    CHECK(std::string(oar_last_error_param()) == "mla");
    CHECK(std::string(oar_last_error()).find(std::string("'") + form + "'") != std::string::npos);
    CHECK(m == 0);
  }
  oar_model_options o = small_options();
  o.mla = "naive";
  o.struct_size = offsetof(oar_model_options, mla);  // a caller whose header is older
  oar_model m = 0;
  REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &m) == OAR_OK);
  CHECK(oar_model_close(m) == OAR_OK);
}

TEST_CASE("models of a process share its threads") {
  const auto threads = [] {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return std::distance(begin(tasks), end(tasks));
  };
  oar_model_options o = small_options();
  o.threads = 0;  // all processors, for each
  oar_model first = 0, second = 0;
  REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &first) == OAR_OK);
  const auto before = threads();
  REQUIRE(oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &second) == OAR_OK);
  CHECK(threads() == before + 1);  // its engine's
  CHECK(oar_model_close(second) == OAR_OK);
  CHECK(oar_model_close(first) == OAR_OK);
}

TEST_CASE("timeouts at their extremes") {
  const oar_sampling s = greedy(1'000'000);
  oar_generation g = 0;
  REQUIRE(oar_generate_text(demo_model(), "a", &s, nullptr, nullptr, &g) == OAR_OK);
  const oar_event* event = nullptr;
  CHECK(oar_generation_next(g, INT64_MAX, &event) == OAR_OK);
  CHECK(event != nullptr);
  CHECK(oar_generation_next(g, INT64_MIN, &event) == OAR_OK);
  CHECK(oar_generation_wait(g, 0) == OAR_FAILED_PRECONDITION);
  CHECK(oar_generation_close(g) == OAR_OK);
}

TEST_CASE("an exception out of a callback ends the generation") {
  const oar_sampling s = greedy(1'000'000);
  oar_generation g = 0;
  int calls = 0;
  const auto throws = [](const oar_event* event, void* user) -> int {
    ++*static_cast<int*>(user);
    if (event->finish == OAR_FINISH_NONE) throw std::runtime_error("not mine");
    return 0;
  };
  REQUIRE(oar_generate_text(demo_model(), "a", &s, throws, &calls, &g) == OAR_OK);
  REQUIRE(oar_generation_wait(g, 60'000) == OAR_OK);
  CHECK(calls >= 2);
  CHECK(oar_generation_close(g) == OAR_OK);
}

TEST_CASE("the last error belongs to its thread") {
  CHECK(oar_model_close(0) == OAR_INVALID_ARGUMENT);
  const std::string mine = oar_last_error();
  std::thread([] {
    CHECK(!complains());
    CHECK(oar_model_load("/nonexistent", nullptr, nullptr) == OAR_INVALID_ARGUMENT);
  }).join();
  CHECK(oar_last_error() == mine);
}

TEST_CASE("a forked child is told, may load its own, and may exit") {
  const oar_model parent = demo_model();
  const oar_sampling s = greedy(kUnderWay);
  oar_generation running = 0;
  REQUIRE(oar_generate_text(parent, "a", &s, nullptr, nullptr, &running) == OAR_OK);
  CHECK(in_child([&] {
          oar_generation g = 0;
          const oar_event* event = nullptr;
          if (oar_generate_text(parent, "a", &s, nullptr, nullptr, &g) != OAR_FAILED_PRECONDITION) return 1;
          if (strstr(oar_last_error(), "fork") == nullptr) return 2;
          if (oar_generation_next(running, -1, &event) != OAR_FAILED_PRECONDITION) return 3;
          if (oar_model_close(parent) != OAR_FAILED_PRECONDITION) return 4;
          oar_model own = 0;
          const oar_model_options o = small_options();
          if (oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &own) != OAR_OK) return 5;
          const oar_sampling few = greedy(4);
          if (oar_generate_text(own, "a", &few, nullptr, nullptr, &g) != OAR_OK) return 6;
          if (drain(g).tokens.size() != 4) return 7;
          if (oar_model_close(own) != OAR_OK) return 8;
          return oar_shutdown() == OAR_OK ? 0 : 9;
        }) == 0);
  CHECK(oar_generation_close(running) == OAR_OK);
}

TEST_CASE("after shutdown, twice, and with everything left open") {
  CHECK(in_child([] {
          oar_model m = 0;
          const oar_model_options o = small_options();
          if (oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &m) != OAR_OK) return 1;
          const oar_sampling s = greedy(kUnderWay);
          oar_generation polled = 0, called = 0;
          Answer answer;
          if (oar_generate_text(m, "a", &s, nullptr, nullptr, &polled) != OAR_OK) return 2;
          if (oar_generate_text(m, "a", &s, collect, &answer, &called) != OAR_OK) return 3;
          if (oar_shutdown() != OAR_OK || oar_shutdown() != OAR_OK) return 4;
          if (answer.finishes != 1) return 5;
          const oar_event* event = nullptr;
          if (oar_generation_next(polled, -1, &event) != OAR_FAILED_PRECONDITION) return 6;
          if (oar_generation_close(called) != OAR_FAILED_PRECONDITION) return 7;
          if (oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &m) != OAR_FAILED_PRECONDITION) return 8;
          return oar_version()[0] != '\0' ? 0 : 9;
        }) == 0);
  // exit() with a generation running and a callback that takes its time.
  CHECK(in_child([] {
          oar_model m = 0;
          const oar_model_options o = small_options();
          if (oar_model_load(OAR_SOURCE_DIR "/configs/demo", &o, &m) != OAR_OK) return 1;
          const oar_sampling s = greedy(kUnderWay);
          static std::atomic<int> calls{0};
          const auto slow = [](const oar_event*, void*) {
            ++calls;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            return 0;
          };
          oar_generation g = 0;
          if (oar_generate_text(m, "a", &s, slow, nullptr, &g) != OAR_OK) return 2;
          while (calls < 3) std::this_thread::yield();
          exits_with_threads = true;
          std::exit(0);
        }) == 0);
}

}  // namespace
