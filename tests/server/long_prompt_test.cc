// Long prompts while they are tokenized: a caller that leaves and a deadline end that, and the engine never
// hears of them.
#include <atomic>
#include <future>

#include "server/api/text_tools.h"
#include "server/api/worker_pool.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {
using namespace oar_test;
using oar::Clock;
using oar::api::GenerationRequest;
using oar::api::PromptBounds;

constexpr int64_t kRoom = int64_t{1} << 24;  // tokens: the context is not what ends it

FakeEngineOptions roomy() {
  FakeEngineOptions o;
  o.max_context = kRoom;
  return o;
}

// Of 200 KB, which is three slices, behind a short one.
GenerationRequest long_request() {
  GenerationRequest r;
  r.prompts = {std::string("short"), std::string(200'000, 'a')};
  r.add_special_tokens = false;
  return r;
}

// A caller that has left, or is about to.
struct Caller {
  std::shared_ptr<std::atomic<bool>> gone = std::make_shared<std::atomic<bool>>(false);
  PromptBounds bounds() const { return {kRoom, {}, gone}; }
};

TEST_CASE("long prompts: a caller who has left, or no time, ends their tokenization") {
  FakeEngine engine(roomy());
  const oar::ModelHandle model = fake_model(engine);
  const GenerationRequest request = long_request();
  Caller caller;
  const auto whole = prompt_tokens(model, request, {}, caller.bounds());
  REQUIRE_OK(whole);
  CHECK(whole->at(1).size() == 200'000);

  *caller.gone = true;
  const oar::Status left = prompt_tokens(model, request, {}, caller.bounds()).status();
  CHECK(left.code() == oar::StatusCode::kCancelled);
  CHECK(left.message().find("left") != std::string::npos);

  PromptBounds late{kRoom, Clock::now() - std::chrono::seconds(1), nullptr};
  const oar::Status passed = prompt_tokens(model, request, {}, late).status();
  CHECK(passed.code() == oar::StatusCode::kDeadlineExceeded);
  CHECK(passed.message().find("while the prompt was tokenized") != std::string::npos);
  late.deadline = Clock::now() + std::chrono::hours(1);
  CHECK(prompt_tokens(model, request, {}, late).ok());

  // A conversation is no different.
  GenerationRequest chat;
  chat.conversation.emplace();
  chat.conversation->messages.push_back({"user", std::string(200'000, 'a')});
  CHECK(prompt_tokens(model, chat, {}, caller.bounds()).status().code() == oar::StatusCode::kCancelled);
  *caller.gone = false;
  CHECK(prompt_tokens(model, chat, {}, caller.bounds()).ok());
}

TEST_CASE("long prompts: a caller who leaves in the middle is noticed between two slices") {
  FakeEngine engine(roomy());
  const oar::ModelHandle model = fake_model(engine);
  Caller caller;
  oar::api::WorkerPool pool(1);
  std::promise<void> queued;
  std::promise<oar::Status> ended;
  // The only worker tokenizes; it gives way to what was queued behind it at the end of the first slice.
  pool.post([&, ready = queued.get_future().share()] {
    ready.wait();
    ended.set_value(prompt_tokens(model, long_request(), {}, caller.bounds()).status());
  });
  pool.post([&] { *caller.gone = true; });
  queued.set_value();
  CHECK(ended.get_future().get().code() == oar::StatusCode::kCancelled);
  pool.stop();
}

TEST_CASE("long prompts: one without time is answered, and the engine has not heard of it") {
  TestServer t(roomy());
  const std::string body =
      R"({"max_tokens":1,"timeout":0.001,"prompt":")" + std::string(8'000'000, 'a') + "\"}";
  const HttpReply late = http(t.http(), "POST", "/v1/completions", body);
  CHECK(late.status == 408);
  CHECK(late.body.find("while the prompt was tokenized") != std::string::npos);
  CHECK(t.engine.submitted() == 0);
  CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","max_tokens":1})").status == 200);
}

}  // namespace
