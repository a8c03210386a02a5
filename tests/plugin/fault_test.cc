// A device that fails: the error is told once and stays, nothing more is asked of the device, requests in
// flight end with it and the engine says kFailed, at which a server drains and exits with an error
// (clients/cli/serve_loop.cc). What was allocated is given back all the same.
#include "engine/runtime/language_model.h"
#include "engine/runtime/text_stream.h"
#include "tests/graph/graph_fixture.h"
#include "tests/plugin/loopback_device.h"
#include "tests/support/test_data.h"

namespace {
using namespace oar;
using namespace oar_test;

LanguageModelOptions demo_options() {
  LanguageModelOptions o;
  o.device = "loopback";
  o.threads = 2;
  o.max_sequences = 4;
  o.max_batch_tokens = 64;
  o.memory_bytes = uint64_t{256} << 20;
  return o;
}

EngineHealth settled(Engine& engine) {
  for (int k = 0; k < 6000 && engine.health() == EngineHealth::kStarting; ++k)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return engine.health();
}

// The error of a request that cannot end well.
Status fate_of_request(LanguageModel& model) {
  Request request;
  request.prompt = model.tokenizer()->encode("Once upon a time").value();
  request.sampling.temperature = 0;
  request.stop.max_tokens = 32;
  request.stop.ignore_eos = true;
  auto stream = TextStream::create(model.tokenizer(), {}, 1);
  OAR_RETURN_IF_ERROR(stream->start(model.engine(), std::move(request)));
  Status last;
  while (!stream->done()) {
    auto event = stream->next(std::chrono::seconds(120));
    if (!event) return internal_error("nothing happens");
    if (event->finish != FinishReason::kNone) last = event->status;
  }
  return last;
}

}  // namespace

TEST_CASE("plugin: a device error stays, and nothing more is asked of the device") {
  for (const char* config : {"fail_launch=2", "fail_later=2", "fail_later=2,plain=1"}) {
    INFO(config);
    const int64_t alive = loopback_counter(loopback::kAllocations);
    {
      GraphFixture f;
      f.output(f.b.op("exp", {f.b.op("neg", {f.input("x", {5})})}));
      const auto backend = loopback_backend(config);
      const auto plan_program = Program::create(f.graph, *backend);
      REQUIRE_OK(plan_program);
      const auto plan = Run::create(*plan_program);
      REQUIRE_OK(plan);
      const auto x = to_tensor(f.inputs.at("x"));
      const std::vector<const void*> bytes{x->data()};
      const std::vector<int64_t> symbols{f.rows};
      Status status = (*plan)->run(symbols, bytes);
      std::vector<float> out(static_cast<size_t>((*plan)->output(0).numel()));
      if (status.ok()) status = (*plan)->read_output(0, out);
      REQUIRE_FALSE(status.ok());
      CHECK(status.code() == StatusCode::kUnavailable);
      CHECK(status.message().find("device loopback:0") == 0);
      CHECK(status.message().find("device error") != std::string::npos);
      const int64_t launches = loopback_counter(loopback::kLaunches);
      CHECK((*plan)->run(symbols, bytes).message() == status.message());
      CHECK(backend->synchronize().message() == status.message());
      CHECK(backend->allocate(64).status().message() == status.message());
      CHECK(loopback_counter(loopback::kLaunches) == launches);
    }
    CHECK(loopback_counter(loopback::kAllocations) == alive);
  }
}

TEST_CASE("plugin: a host pointer given as device memory is a device error, not a crash") {
  const auto b = loopback_backend();
  std::vector<float> host(16);
  std::vector<float> other(16);
  Status status = b->copy(other.data(), host.data(), 64);
  if (status.ok()) status = b->synchronize();
  REQUIRE_FALSE(status.ok());
  CHECK(status.message().find("outside of device memory") != std::string::npos);
}

TEST_CASE("plugin: an engine whose device fails ends its requests and is failed for good") {
  // Launches of one step: to fail in the third step, after the warm-up.
  int64_t per_step = 0;
  {
    const int64_t before = loopback_counter(loopback::kLaunches);
    auto model = LanguageModel::load(source_path("configs/demo"), demo_options());
    REQUIRE_OK(model);
    REQUIRE(settled((*model)->engine()) == EngineHealth::kReady);
    per_step = loopback_counter(loopback::kLaunches) - before;
    CHECK(fate_of_request(**model).ok());
  }
  REQUIRE(per_step > 10);
  for (const char* how : {"fail_launch", "fail_later"}) {
    INFO(how);
    const int64_t alive = loopback_counter(loopback::kAllocations);
    {
      LoopbackConfig config(std::string(how) + "=" + std::to_string(2 * per_step + per_step / 2));
      auto model = LanguageModel::load(source_path("configs/demo"), demo_options());
      REQUIRE_OK(model);
      REQUIRE(settled((*model)->engine()) == EngineHealth::kReady);
      const Status fate = fate_of_request(**model);
      REQUIRE_FALSE(fate.ok());
      INFO(fate.message());
      CHECK(fate.message().find("was asked for") != std::string::npos);
      CHECK((*model)->engine().health() == EngineHealth::kFailed);
      const Status refused = fate_of_request(**model);
      CHECK(refused.code() == StatusCode::kUnavailable);
      CHECK(refused.message().find("the engine has failed") != std::string::npos);
    }
    CHECK(loopback_counter(loopback::kAllocations) == alive);
  }
}

TEST_CASE("plugin: a device that fails at the first token never gets ready") {
  LoopbackConfig config("fail_launch=3");
  auto model = LanguageModel::load(source_path("configs/demo"), demo_options());
  REQUIRE_OK(model);
  CHECK(settled((*model)->engine()) == EngineHealth::kFailed);
}
