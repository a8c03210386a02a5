// TextStream over a scripted engine and a real tokenizer file: text equals decode(), stop strings across
// token borders.
#include "engine/runtime/text_stream.h"

#include <thread>

#include "engine/text/tokenizer.h"
#include "tests/support/catch.h"

using namespace oar;
using namespace std::chrono_literals;

namespace {

// A llama2.c vocabulary: <unk>, BOS, EOS, 256 byte tokens (ids 3 ..), then these pieces.
const std::vector<std::string> kPieces = {" ",    "h",  "e",    "l",  "o",  "he",   "ll",  "hello",
                                          " wor", "ld", "STOP", "ST", "OP", "\xC3", "\xA9"};

TokenizerPtr tokenizer() {
  std::string file;
  const auto put = [&](const void* p, size_t n) { file.append(static_cast<const char*>(p), n); };
  const uint32_t longest = 8;
  put(&longest, 4);
  const auto add = [&](const std::string& text) {
    const float score = 0.f;
    const uint32_t size = static_cast<uint32_t>(text.size());
    put(&score, 4);
    put(&size, 4);
    file += text;
  };
  add("<unk>");
  add("\n<s>\n");
  add("\n</s>\n");
  for (int b = 0; b < 256; ++b) {
    const char* hex = "0123456789ABCDEF";
    add(std::string("<0x") + hex[b / 16] + hex[b % 16] + ">");
  }
  for (const std::string& p : kPieces)
    if (p != "\xC3" && p != "\xA9") add(p);
  auto made = tokenizer_from_llama2c(file, static_cast<int32_t>(3 + 256 + kPieces.size() - 2));
  REQUIRE_OK(made);
  return std::move(made).value();
}

int32_t piece(const std::string& text) {
  if (text.size() == 1 && static_cast<unsigned char>(text[0]) >= 0x80)
    return 3 + static_cast<unsigned char>(text[0]);
  for (size_t i = 0; i < kPieces.size(); ++i)
    if (kPieces[i] == text) return static_cast<int32_t>(259 + i);
  FAIL("no piece " << text);
  return -1;
}

// Records what the stream asks for; the test plays the engine's part.
class ScriptedEngine : public Engine {
 public:
  Result<uint64_t> submit(Request request) override {
    sink = request.sink;
    return uint64_t{42};
  }
  void cancel(uint64_t id) override { cancelled = id; }
  void finish_choice(uint64_t id, int32_t index, FinishReason reason) override {
    CHECK(id == 42);
    CHECK(reason == FinishReason::kStop);
    finished.push_back(index);
  }
  Status check_room() const override { return ok_status(); }
  void suspend(uint64_t id) override {
    CHECK(id == 42);
    CHECK_FALSE(std::exchange(suspended, true));
    ++suspensions;
  }
  void resume(uint64_t id) override {
    CHECK(id == 42);
    CHECK(std::exchange(suspended, false));
  }
  EngineStats stats() const override { return {}; }
  const RequestLimits& request_limits() const override { return limits; }
  EngineHealth health() const override { return EngineHealth::kReady; }
  void on_step(std::function<void(const StepInfo&)>) override {}
  bool drain(std::chrono::milliseconds) override { return true; }

  void token(int32_t index, int32_t id, FinishReason finish = FinishReason::kNone) {
    TokenEvent e;
    e.request = 42;
    e.index = index;
    e.has_token = true;
    e.token = id;
    e.logprob = -1.5f;
    e.finish = finish;
    e.stats.completion_tokens = 99;
    sink->on_event(std::move(e));
  }
  void end(int32_t index, FinishReason finish) {
    TokenEvent e;
    e.index = index;
    e.finish = finish;
    e.stop_token = finish == FinishReason::kStop ? 2 : -1;
    e.logprob = -2.5f;
    e.stats.completion_tokens = 99;
    if (finish == FinishReason::kError) e.status = unavailable("gone");
    sink->on_event(std::move(e));
  }

  std::shared_ptr<TokenSink> sink;
  std::vector<int32_t> finished;
  bool suspended = false;
  int suspensions = 0;
  uint64_t cancelled = 0;
  RequestLimits limits;
};

struct Play {
  ScriptedEngine engine;
  std::shared_ptr<TextStream> stream;
  int notified = 0;
  explicit Play(std::vector<std::string> stop = {}, int32_t n = 1, bool include = false,
                size_t max_unread = 0) {
    TextStreamOptions options;
    options.max_unread = max_unread;
    options.stop = std::move(stop);
    options.include_stop_in_output = include;
    stream = TextStream::create(tokenizer(), options, n, [this] { ++notified; });
    Request r;
    r.prompt = {1, piece("hello")};
    r.n = n;
    REQUIRE_OK(stream->start(engine, std::move(r)));
  }
  // All text of a choice so far, and its last event.
  std::string text;
  TextEvent last;
  size_t tokens = 0;
  void read(int32_t index = 0) {
    while (auto e = stream->next(0ms)) {
      if (e->index != index) continue;
      text += e->text;
      tokens += e->tokens.size();
      last = std::move(*e);
    }
  }
};

}  // namespace

TEST_CASE("tokens become text; a split character waits for its last byte", "[text_stream]") {
  Play p;
  CHECK_FALSE(p.stream->next(0ms));
  p.engine.token(0, piece(" wor"));
  p.engine.token(0, piece("ld"));
  CHECK(p.notified == 1);  // the queue was not empty the second time
  p.read();
  CHECK(p.text == " world");
  CHECK(p.tokens == 2);
  CHECK(p.last.tokens[0].logprob == -1.5f);
  p.engine.token(0, piece("\xC3"));
  p.read();
  CHECK(p.text == " world");
  CHECK(p.tokens == 3);
  p.engine.token(0, piece("\xA9"));
  p.read();
  CHECK(p.text == " world\xC3\xA9");
  p.engine.token(0, piece("\xC3"), FinishReason::kLength);
  p.read();
  CHECK(p.text == " world\xC3\xA9\xEF\xBF\xBD");
  CHECK(p.last.finish == FinishReason::kLength);
  CHECK(p.last.stats.completion_tokens == 99);
  CHECK(p.stream->done());
  CHECK_FALSE(p.stream->next(1ms));
}

TEST_CASE("a stop string across tokens ends the choice, and nothing behind it shows", "[text_stream]") {
  for (bool include : {false, true}) {
    Play p({"STOP"}, 1, include);
    p.engine.token(0, piece("hello"));
    p.engine.token(0, piece("ST"));
    p.read();
    CHECK(p.text == "hello");
    p.engine.token(0, piece("OP"));
    p.engine.token(0, piece("ld"));  // already under way
    p.read();
    CHECK(p.engine.finished == std::vector<int32_t>{0});
    CHECK_FALSE(p.stream->done());  // the engine has not confirmed yet
    p.engine.end(0, FinishReason::kStop);
    p.read();
    CHECK(p.text == (include ? "helloSTOP" : "hello"));
    CHECK(p.last.finish == FinishReason::kStop);
    CHECK(p.last.stop_match == "STOP");
    CHECK(p.last.stop_token == -1);
    CHECK_FALSE(p.last.drawn_stop);
    CHECK(p.last.stats.completion_tokens == 3);
    CHECK(p.stream->done());
  }
}

TEST_CASE("what looked like a stop string appears when it is none", "[text_stream]") {
  Play p({"STOP"});
  p.engine.token(0, piece("ST"));
  p.engine.token(0, piece("hello"));
  p.engine.token(0, piece("ST"));
  p.engine.end(0, FinishReason::kStop);
  p.read();
  CHECK(p.text == "SThelloST");
  CHECK(p.last.finish == FinishReason::kStop);
  CHECK(p.last.stop_match.empty());
  CHECK(p.last.stop_token == 2);
  REQUIRE(p.last.drawn_stop);
  CHECK(p.last.drawn_stop->id == 2);
  CHECK(p.last.drawn_stop->logprob == -2.5f);
  CHECK(p.engine.finished.empty());
}

TEST_CASE("a stop string in the last token wins over the length", "[text_stream]") {
  Play p({"ld"});
  p.engine.token(0, piece(" wor"));
  p.engine.token(0, piece("ld"), FinishReason::kLength);
  p.read();
  CHECK(p.text == " wor");
  CHECK(p.last.finish == FinishReason::kStop);
  CHECK(p.last.stop_match == "ld");
  CHECK(p.engine.finished.empty());  // it has ended by itself
}

TEST_CASE("choices are decoded apart, and errors arrive", "[text_stream]") {
  Play p({}, 2);
  p.engine.token(0, piece("\xC3"));
  p.engine.token(1, piece("hello"));
  p.engine.token(0, piece("\xA9"));
  p.engine.end(1, FinishReason::kError);
  p.engine.end(0, FinishReason::kCancelled);
  std::string text[2];
  FinishReason finish[2] = {};
  while (auto e = p.stream->next(0ms)) {
    text[e->index] += e->text;
    if (e->finish != FinishReason::kNone) finish[e->index] = e->finish;
    if (e->finish == FinishReason::kError) CHECK(e->status.code() == StatusCode::kUnavailable);
  }
  CHECK(text[0] == "\xC3\xA9");
  CHECK(text[1] == "hello");
  CHECK(finish[0] == FinishReason::kCancelled);
  CHECK(finish[1] == FinishReason::kError);
  CHECK(p.stream->done());
  p.stream->cancel();
  CHECK(p.engine.cancelled == 42);
}

TEST_CASE("a reader waits for the engine thread", "[text_stream]") {
  Play p;
  std::thread engine([&] {
    std::this_thread::sleep_for(20ms);
    p.engine.token(0, piece("hello"));
    std::this_thread::sleep_for(20ms);
    p.engine.end(0, FinishReason::kStop);
  });
  auto e = p.stream->next(5s);
  REQUIRE(e);
  CHECK(e->text == "hello");
  e = p.stream->next(5s);
  REQUIRE(e);
  CHECK(e->finish == FinishReason::kStop);
  engine.join();
}

TEST_CASE("a reader that is behind suspends its request until half of what waits is read", "[text_stream]") {
  Play p({}, 1, false, 8);
  for (int i = 0; i < 8; ++i) p.engine.token(0, piece("hello"));
  CHECK_FALSE(p.engine.suspended);
  p.engine.token(0, piece("hello"));
  CHECK(p.engine.suspended);
  p.engine.token(0, piece("hello"));  // was in flight
  for (int left = 10; left > 5; --left) {
    CHECK(p.engine.suspended);
    REQUIRE(p.stream->next(0ms));
  }
  CHECK(p.engine.suspended);
  REQUIRE(p.stream->next(0ms));
  CHECK_FALSE(p.engine.suspended);
  for (int i = 0; i < 20; ++i) {  // a reader that keeps up is left alone
    p.engine.token(0, piece("hello"));
    REQUIRE(p.stream->next(0ms));
  }
  CHECK(p.engine.suspensions == 1);
}
