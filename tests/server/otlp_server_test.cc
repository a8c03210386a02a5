// Traces in OpenTelemetry's JSON as a server writes them: whose trace its requests belong to.
#include <map>

#include "tests/server/grpc_client.h"
#include "tests/server/otlp_spans.h"
#include "tests/server/raw_client.h"
#include "tests/server/tensor_server.h"
#include "tests/server/test_server.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::api::TraceKind;

oar::ServerOptions tracing(const std::string& path) {
  oar::ServerOptions o;
  o.trace = path;
  o.trace_kind = TraceKind::kOtlp;
  return o;
}

TEST_CASE("OTLP: a language model's request with its parts, in the caller's trace or one of its own") {
  const std::string path = temp_dir() + "/otlp-text.jsonl";
  {
    TestServer t({}, tracing(path));
    const std::string body = R"({"model":"fake","prompt":"hello","max_tokens":4})";
    REQUIRE(http(t.http(), "POST", "/v1/completions", body, {{"traceparent", parent()}}).status == 200);
    REQUIRE(http(t.http(), "POST", "/v1/completions", body, {{"traceparent", "00-bad"}}).status == 200);
    // The caller does not keep this one.
    REQUIRE(http(t.http(), "POST", "/v1/completions", body, {{"traceparent", parent("00")}}).status == 200);
  }
  const auto spans = spans_in(path);
  const Object& first = called(spans, "generate");
  CHECK(text(first.at("traceId")) == kTrace);
  CHECK(text(first.at("parentSpanId")) == kCaller);
  CHECK(first.at("kind") == 2);
  CHECK(attribute(first, "gen_ai.request.model") == "fake");
  CHECK(attribute(first, "gen_ai.usage.output_tokens") != "none");
  CHECK(attribute(first, "gen_ai.response.finish_reasons").find("values") != std::string::npos);
  CHECK_FALSE(first.contains("status"));
  for (const char* name : {"queued", "prefill", "decode"}) {
    const Object& p = called(spans, name);
    CHECK(text(p.at("traceId")) == kTrace);
    CHECK(p.at("parentSpanId") == first.at("spanId"));
    CHECK(text(p.at("startTimeUnixNano")) >= text(first.at("startTimeUnixNano")));
    CHECK(text(p.at("endTimeUnixNano")) <= text(first.at("endTimeUnixNano")));
  }
  const Object& second = called(spans, "generate", 1);
  CHECK(text(second.at("traceId")) != kTrace);
  CHECK_FALSE(second.contains("parentSpanId"));
  size_t requests = 0;
  for (const Object& s : spans) requests += text(s.at("name")) == "generate";
  CHECK(requests == 2);
  // Steps belong to no request's trace.
  const Object& step = called(spans, "step");
  CHECK(text(step.at("traceId")) != kTrace);
  CHECK(attribute(step, "gen_ai.request.model") == "fake");
  CHECK(called(spans, "commit").at("parentSpanId") == step.at("spanId"));
}

TEST_CASE("OTLP: requests of ordinary models over both transports") {
  const std::string path = temp_dir() + "/otlp-tensors.jsonl";
  {
    TensorServer t(tracing(path));
    REQUIRE(http(t.http(), "POST", "/v2/models/scale/infer",
                 R"({"id":"7","inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]})",
                 {{"traceparent", parent()}})
                .status == 200);
    auto stub = inference::GRPCInferenceService::NewStub(channel_to(t.grpc()));
    inference::ModelInferRequest ask;
    ask.set_model_name("table");
    add_input(ask, "i", "INT64", {1})->mutable_contents()->add_int64_contents(99);  // out of its range
    inference::ModelInferResponse reply;
    grpc::ClientContext context;
    context.AddMetadata("traceparent", parent());
    CHECK_FALSE(stub->ModelInfer(&context, ask, &reply).ok());
  }
  const auto spans = spans_in(path);
  const Object &first = called(spans, "infer"), &second = called(spans, "infer", 1);
  CHECK(attribute(first, "gen_ai.request.model") == "scale");
  CHECK(attribute(first, "oar.model.version") == "3");
  CHECK(attribute(first, "oar.request.id") == "7");
  CHECK(text(first.at("parentSpanId")) == kCaller);
  CHECK(called(spans, "run").at("parentSpanId") == first.at("spanId"));
  CHECK(attribute(called(spans, "batch"), "gen_ai.request.model") == "scale");
  CHECK(attribute(called(spans, "batch"), "oar.rows") == "1");
  CHECK(text(second.at("traceId")) == kTrace);
  CHECK(text(second.at("status").at("message")) == "INVALID_ARGUMENT");
}

TEST_CASE("OTLP: the steps of an ensemble are under it") {
  const std::string path = temp_dir() + "/otlp-ensemble.jsonl";
  const std::string folder = write_repository();
  write_below(folder, "both/config.pbtxt",
              "platform: \"ensemble\" max_batch_size: 2\n"
              "input { name: \"a\" data_type: TYPE_FP32 dims: [ 3 ] }\n"
              "output { name: \"b\" data_type: TYPE_FP32 dims: [ 3 ] }\n"
              "ensemble_scheduling { step { model_name: \"scale\" input_map { key: \"x\" value: \"a\" } "
              "output_map { key: \"y\" value: \"b\" } } }\n");
  {
    oar::RepositoryOptions r;
    r.predictor.threads = 1;
    auto opened = oar::open_repository(folder, "", r);
    REQUIRE_OK(opened);
    std::shared_ptr<oar::api::ModelCatalog> catalog = std::move(*opened);
    oar::ServerOptions o = tracing(path);
    o.http_address = o.grpc_address = "127.0.0.1:0";
    auto server = oar::Server::start(o, catalog);
    REQUIRE_OK(server);
    const std::string body = R"({"inputs":[{"name":"a","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]})";
    const int port = (*server)->http_port();
    REQUIRE(http(port, "POST", "/v2/models/both/infer", body, {{"traceparent", parent()}}).status == 200);
    REQUIRE(http(port, "POST", "/v2/models/both/infer", body).status == 200);
  }
  const auto spans = spans_in(path);
  std::map<std::string, const Object*> of_model[2];
  for (const Object& s : spans)
    if (text(s.at("name")) == "infer")
      of_model[text(s.at("traceId")) == kTrace ? 0 : 1][attribute(s, "gen_ai.request.model")] = &s;
  for (auto& one : of_model) {
    REQUIRE(one.size() == 2);
    CHECK(one["scale"]->at("parentSpanId") == one["both"]->at("spanId"));
    CHECK(one["scale"]->at("traceId") == one["both"]->at("traceId"));
  }
  CHECK(text(of_model[0]["both"]->at("parentSpanId")) == kCaller);
  CHECK_FALSE(of_model[1]["both"]->contains("parentSpanId"));
}

}  // namespace
