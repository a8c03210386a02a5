// Every field a caller can get wrong is refused by name.
#include "engine/runtime/core/request.h"

#include <functional>
#include <limits>

#include "tests/runtime/collect_sink.h"
#include "tests/support/catch.h"

using namespace oar;

TEST_CASE("validate_request names the field", "[request]") {
  RequestLimits limits;
  limits.vocab_size = 100;
  limits.max_context = 50;
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto param = [&](const std::function<void(Request&)>& change) -> std::string {
    Request r;
    r.prompt = {1, 2, 3};
    r.sink = std::make_shared<oar_test::CollectSink>();
    change(r);
    const Status s = validate_request(r, limits);
    if (s.ok()) return "ok";
    CHECK(s.code() == StatusCode::kInvalidArgument);
    CHECK(s.message().find(s.param()) == 0);
    return s.param();
  };
  CHECK(param([](Request&) {}) == "ok");
  CHECK(param([](Request& r) { r.sink = nullptr; }) == "sink");
  CHECK(param([](Request& r) { r.prompt.clear(); }) == "prompt");
  CHECK(param([](Request& r) { r.prompt[1] = 100; }) == "prompt");
  CHECK(param([](Request& r) { r.prompt[2] = -1; }) == "prompt");
  CHECK(param([](Request& r) { r.prompt.resize(49); }) == "ok");
  CHECK(param([](Request& r) { r.prompt.resize(50); }) == "prompt");
  CHECK(param([](Request& r) { r.prompt.resize(50), r.stop.max_tokens = 0; }) == "ok");
  CHECK(param([](Request& r) { r.prompt.resize(51), r.stop.max_tokens = 0; }) == "prompt");
  CHECK(param([](Request& r) { r.stop.max_tokens = -1; }) == "max_tokens");
  CHECK(param([](Request& r) { r.stop.max_tokens = std::numeric_limits<int64_t>::max(); }) == "ok");
  CHECK(param([](Request& r) { r.stop.min_tokens = 17; }) == "min_tokens");
  CHECK(param([](Request& r) { r.stop.min_tokens = -1; }) == "min_tokens");
  CHECK(param([](Request& r) { r.n = 0; }) == "n");
  CHECK(param([](Request& r) { r.n = std::numeric_limits<int32_t>::max(); }) == "n");
  CHECK(param([](Request& r) { r.stop.stop_token_ids = {100}; }) == "stop_token_ids");
  CHECK(param([](Request& r) { r.stop.stop_token_ids.resize(65); }) == "stop_token_ids");
  for (float bad : {nan, inf, -inf, -0.1f})
    CHECK(param([&](Request& r) { r.sampling.temperature = bad; }) == "temperature");
  for (float bad : {nan, inf, 0.f, -1.f, 1.01f})
    CHECK(param([&](Request& r) { r.sampling.top_p = bad; }) == "top_p");
  for (float bad : {nan, inf, -0.01f, 1.01f})
    CHECK(param([&](Request& r) { r.sampling.min_p = bad; }) == "min_p");
  for (float bad : {nan, inf, 0.f, -1.f})
    CHECK(param([&](Request& r) { r.sampling.repetition_penalty = bad; }) == "repetition_penalty");
  for (float bad : {nan, inf, -2.1f, 2.1f}) {
    CHECK(param([&](Request& r) { r.sampling.presence_penalty = bad; }) == "presence_penalty");
    CHECK(param([&](Request& r) { r.sampling.frequency_penalty = bad; }) == "frequency_penalty");
  }
  for (double bad : {double{nan}, double{inf}, 0.0, -1.0, 0.001, 1001.0})
    CHECK(param([&](Request& r) { r.weight = bad; }) == "weight");
  for (int32_t bad : {-1001, 1001, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()})
    CHECK(param([&](Request& r) { r.priority = bad; }) == "priority");
  CHECK(param([](Request& r) { r.sampling.top_k = -1; }) == "top_k");
  CHECK(param([](Request& r) { r.sampling.logprobs = 21; }) == "logprobs");
  CHECK(param([](Request& r) { r.sampling.logprobs = -2; }) == "logprobs");
  CHECK(param([](Request& r) { r.sampling.prompt_logprobs = 1'000'000; }) == "prompt_logprobs");
  CHECK(param([](Request& r) { r.sampling.logit_bias = {{100, 1.f}}; }) == "logit_bias");
  CHECK(param([&](Request& r) { r.sampling.logit_bias = {{1, nan}}; }) == "logit_bias");
  CHECK(param([](Request& r) { r.sampling.logit_bias.resize(1025); }) == "logit_bias");
}

TEST_CASE("finish reasons have names", "[request]") {
  CHECK(std::string(finish_reason_name(FinishReason::kStop)) == "stop");
  CHECK(std::string(finish_reason_name(FinishReason::kLength)) == "length");
  CHECK(std::string(finish_reason_name(FinishReason::kDeadline)) == "deadline");
}
