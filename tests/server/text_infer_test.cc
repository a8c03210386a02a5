// Infer of language models over REST: the answers of generate as a tensor, in JSON and in binary, and what is
// refused by name.
#include "engine/base/format.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::cat;
using oar::json::value;

const std::string kInfer = "/v2/models/fake/infer";

std::string tensor(const char* name, const char* type, const std::string& data) {
  return cat(R"({"name":")", name, R"(","datatype":")", type, R"(","shape":[1],"data":[)", data, "]}");
}
std::string body(const std::string& inputs, const std::string& more = "") {
  return cat(R"({"id":"7","inputs":[)", inputs, "]", more, "}");
}

TEST_CASE("infer of a language model over REST: text in, text out") {
  FakeEngineOptions engine;
  engine.reply = "Hello";
  TestServer t(engine);
  const auto post = [&](const std::string& text, const Headers& headers = {}) {
    return http(t.http(), "POST", kInfer, text, headers);
  };
  const std::string prompt = tensor("text_input", "BYTES", R"("q ")");
  const HttpReply r =
      post(body(prompt + "," + tensor("sampling_parameters", "BYTES", R"("{\"max_tokens\":\"4\"}")")));
  INFO(r.body);
  REQUIRE(r.status == 200);
  const value v = parse(r.body);
  CHECK(v.at("model_name") == "fake");
  CHECK(v.at("model_version") == "1");
  CHECK(v.at("id") == "7");
  CHECK(v.at("outputs") ==
        parse(R"([{"name":"text_output","datatype":"BYTES","shape":[1],"data":["q Hell"]}])"));
  CHECK(t.engine.last_request().stop.max_tokens == 4);

  // Parameters beside the tensors, and the input left out of the output.
  const HttpReply alone = post(body(prompt + "," + tensor("exclude_input_in_output", "BOOL", "true"),
                                    R"(,"parameters":{"max_tokens":3,"temperature":0.5})"));
  CHECK(parse(alone.body).at("outputs").at(0).at("data").at(0) == "Hel");
  CHECK(t.engine.last_request().sampling.temperature == 0.5f);

  // Binary both ways: four bytes of length before each text.
  const std::string raw = std::string("\2\0\0\0q ", 6);
  const std::string head =
      R"({"inputs":[{"name":"text_input","datatype":"BYTES","shape":[1],"parameters":{"binary_data_size":6}}],)"
      R"("outputs":[{"name":"text_output","parameters":{"binary_data":true}}],"parameters":{"max_tokens":1}})";
  const HttpReply binary = post(head + raw, {{"Inference-Header-Content-Length", cat(head.size())}});
  REQUIRE(binary.status == 200);
  CHECK(binary.body.ends_with(std::string("\3\0\0\0q H", 7)));
}

TEST_CASE("infer of a language model over REST: refusals name what is wrong") {
  TestServer t;
  const std::string prompt = tensor("text_input", "BYTES", R"("q")");
  const std::pair<std::string, const char*> kCases[] = {
      {body(""), "text_input"},
      {body(tensor("text_input", "INT32", "1")), "text_input"},
      {body(tensor("prompt", "BYTES", R"("q")")), "prompt"},
      {body(prompt + "," + prompt), "twice"},
      {body(prompt + "," + tensor("stream", "BOOL", "true")), "stream"},
      {body(prompt, R"(,"parameters":{"temprature":1})"), "did you mean temperature"},
      {body(prompt, R"(,"parameters":{"max_tokens":-1})"), "max_tokens"},
      {body(prompt, R"(,"outputs":[{"name":"text"}])"), "text"},
      {body(prompt + "," + tensor("sampling_parameters", "BYTES", R"("[1]")")), "sampling_parameters"},
  };
  for (const auto& [text, named] : kCases) {
    INFO(text);
    const HttpReply r = http(t.http(), "POST", kInfer, text);
    CHECK(r.status == 400);
    CHECK(std::string(parse(r.body).at("error").as_string()).find(named) != std::string::npos);
  }
  const HttpReply classes =
      http(t.http(), "POST", kInfer,
           body(prompt, R"(,"outputs":[{"name":"text_output","parameters":{"classification":2}}])"));
  CHECK(classes.status == 400);
  CHECK(classes.body.find("classification") != std::string::npos);
  CHECK(t.engine.submitted() == 0);
}

}  // namespace
