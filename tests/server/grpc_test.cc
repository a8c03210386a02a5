// The gRPC services: what they answer, and how they refuse.
#include <functional>
#include <thread>

#include "engine/base/format.h"
#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using std::chrono::milliseconds;
using InferStub = inference::GRPCInferenceService::Stub;
using oar::v1::GenerateChunk;
using oar::v1::GenerateRequest;

constexpr const char* kReply = "Hello, w\xC3\xB6rld! \xF0\x9F\x98\x80";

std::unique_ptr<InferStub> infer_stub(int port) { return std::make_unique<InferStub>(channel_to(port)); }
std::unique_ptr<oar::v1::Generation::Stub> oar_stub(int port) {
  return std::make_unique<oar::v1::Generation::Stub>(channel_to(port));
}

grpc::Status infer(InferStub& stub, const inference::ModelInferRequest& request,
                   inference::ModelInferResponse& response) {
  grpc::ClientContext context;
  return stub.ModelInfer(&context, request, &response);
}

std::pair<grpc::Status, std::vector<GenerateChunk>> generate(oar::v1::Generation::Stub& stub,
                                                             const GenerateRequest& r) {
  grpc::ClientContext context;
  auto reader = stub.Generate(&context, r);
  std::vector<GenerateChunk> chunks;
  for (GenerateChunk chunk; reader->Read(&chunk);) chunks.push_back(chunk);
  return {reader->Finish(), chunks};
}

TEST_CASE("Open Inference: server and model facts") {
  TestServer t;
  const auto stub = infer_stub(t.grpc());
  {
    grpc::ClientContext c;
    inference::ServerLiveResponse r;
    REQUIRE(stub->ServerLive(&c, {}, &r).ok());
    CHECK(r.live());
  }
  {
    grpc::ClientContext c;
    inference::ServerReadyResponse r;
    REQUIRE(stub->ServerReady(&c, {}, &r).ok());
    CHECK(r.ready());
  }
  {
    grpc::ClientContext c;
    inference::ServerMetadataResponse r;
    REQUIRE(stub->ServerMetadata(&c, {}, &r).ok());
    CHECK(r.name() == "oar");
    CHECK_FALSE(r.version().empty());
  }
  {
    grpc::ClientContext c;
    inference::ModelReadyRequest q;
    inference::ModelReadyResponse r;
    q.set_name("fake");
    q.set_version("1");
    REQUIRE(stub->ModelReady(&c, q, &r).ok());
    CHECK(r.ready());
  }
  {
    grpc::ClientContext c;
    inference::ModelReadyRequest q;
    inference::ModelReadyResponse r;
    q.set_name("other");
    const grpc::Status s = stub->ModelReady(&c, q, &r);
    CHECK(s.error_code() == grpc::StatusCode::NOT_FOUND);
    CHECK(s.error_message().find("fake") != std::string::npos);
  }
  {
    grpc::ClientContext c;
    inference::ModelMetadataRequest q;
    inference::ModelMetadataResponse r;
    q.set_name("fake");
    REQUIRE(stub->ModelMetadata(&c, q, &r).ok());
    CHECK(r.inputs(0).name() == "text_input");
    CHECK(r.inputs(0).datatype() == "BYTES");
    CHECK(r.outputs(0).name() == "text_output");
    q.set_version("2");
    grpc::ClientContext c2;
    CHECK(stub->ModelMetadata(&c2, q, &r).error_code() == grpc::StatusCode::NOT_FOUND);
  }
  {
    grpc::ClientContext c;
    inference::ModelConfigRequest q;
    inference::ModelConfigResponse r;
    q.set_name("fake");
    REQUIRE(stub->ModelConfig(&c, q, &r).ok());
    CHECK(r.config().model_transaction_policy().decoupled());
    CHECK(r.config().input(1).optional());
  }
  {
    grpc::ClientContext c;
    inference::RepositoryIndexResponse r;
    REQUIRE(stub->RepositoryIndex(&c, {}, &r).ok());
    REQUIRE(r.models_size() == 1);
    CHECK(r.models(0).state() == "READY");
  }
}

TEST_CASE("REST and gRPC say the same of a language model") {
  TestServer t;
  const auto stub = infer_stub(t.grpc());
  CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"a","n":3})").status == 200);
  const auto get = [&](const std::string& path) {
    const HttpReply r = http(t.http(), "GET", "/v2/models/" + path);
    INFO(path << " " << r.body);
    REQUIRE(r.status == 200);
    return parse(r.body);
  };
  const auto text = [](const oar::json::value& v) { return std::string(v.as_string()); };
  {
    grpc::ClientContext c;
    inference::ModelMetadataRequest q;
    inference::ModelMetadataResponse r;
    q.set_name("fake");
    REQUIRE(stub->ModelMetadata(&c, q, &r).ok());
    const auto rest = get("fake");
    CHECK(text(rest.at("platform")) == r.platform());
    CHECK(text(rest.at("versions").at(0)) == r.versions(0));
    REQUIRE(static_cast<int>(rest.at("inputs").as_array().size()) == r.inputs_size());
    for (int i = 0; i < r.inputs_size(); ++i) {
      const auto& input = rest.at("inputs").as_array()[static_cast<size_t>(i)];
      CHECK(text(input.at("name")) == r.inputs(i).name());
      CHECK(text(input.at("datatype")) == r.inputs(i).datatype());
    }
    CHECK(text(rest.at("properties").at("max_context")) == r.properties().at("max_context"));
  }
  {
    grpc::ClientContext c;
    inference::ModelConfigRequest q;
    inference::ModelConfigResponse r;
    q.set_name("fake");
    REQUIRE(stub->ModelConfig(&c, q, &r).ok());
    for (const char* path : {"fake/config", "fake/versions/1/config"}) {
      const auto rest = get(path);
      CHECK(rest.at("model_transaction_policy").at("decoupled") == true);
      CHECK(rest.at("input").at(1).at("optional") == r.config().input(1).optional());
      CHECK(text(rest.at("input").at(0).at("data_type")) == "TYPE_STRING");
      CHECK(r.config().input(0).data_type() == inference::TYPE_STRING);
      CHECK(text(rest.at("backend")) == r.config().backend());
    }
  }
  {
    grpc::ClientContext c;
    inference::ModelStatisticsResponse r;
    REQUIRE(stub->ModelStatistics(&c, {}, &r).ok());
    REQUIRE(r.model_stats_size() == 1);
    CHECK(r.model_stats(0).inference_count() == 1);  // a request, whatever its choices
    for (const char* path : {"fake/stats", "fake/versions/1/stats", "stats"}) {
      const auto rest = get(path).at("model_stats").at(0);
      CHECK(text(rest.at("name")) == "fake");
      CHECK(rest.at("inference_count") == 1);
      CHECK(rest.at("inference_stats").at("success").at("ns").to_number<uint64_t>() ==
            r.model_stats(0).inference_stats().success().ns());
    }
  }
  for (const char* path : {"fake/versions/2", "fake/versions/2/config", "fake/versions/2/stats",
                           "fake/versions/2/ready", "other", "other/config", "other/stats"}) {
    INFO(path);
    const HttpReply r = http(t.http(), "GET", std::string("/v2/models/") + path);
    CHECK(r.status == 404);
    CHECK(parse(r.body).at("error").is_string());
  }
  CHECK(http(t.http(), "POST", "/v2/models/fake/versions/2/generate", R"({"text_input":"x"})").status == 404);
  CHECK(http(t.http(), "GET", "/v2/models/fake/versions/1/ready").status == 200);
}

TEST_CASE("ModelInfer: text in, text out") {
  TestServer t;
  const auto stub = infer_stub(t.grpc());
  inference::ModelInferResponse response;
  const std::string parameters =
      R"({"max_tokens":"5","temperature":"0.0","stop":"12"})";  // numbers as strings
  REQUIRE(infer(*stub, text_request("hi", parameters), response).ok());
  CHECK(response.id() == "id-1");
  CHECK(response.model_name() == "fake");
  CHECK(text_of(response) == "hiHello");  // the input is repeated unless excluded
  CHECK(t.engine.last_request().sampling.temperature == 0);
  CHECK(t.engine.last_request().stop.max_tokens == 5);

  inference::ModelInferRequest raw;  // the same as raw bytes, with request parameters
  raw.set_model_name("fake");
  add_input(raw, "text_input", "BYTES");
  add_input(raw, "exclude_input_in_output", "BOOL", {1, 1});
  raw.add_raw_input_contents(raw_bytes("hi"));
  raw.add_raw_input_contents(std::string(1, '\1'));
  (*raw.mutable_parameters())["max_tokens"].set_int64_param(8);
  (*raw.mutable_parameters())["temperature"].set_double_param(0.5);
  (*raw.mutable_parameters())["priority"].set_uint64_param(0);
  raw.add_outputs()->set_name("text_output");
  response.Clear();
  REQUIRE(infer(*stub, raw, response).ok());
  CHECK(text_of(response) == "Hello, w");
  CHECK(t.engine.last_request().sampling.temperature == 0.5f);

  grpc::ClientContext c;
  inference::ModelStatisticsResponse statistics;
  REQUIRE(stub->ModelStatistics(&c, {}, &statistics).ok());
  CHECK(statistics.model_stats(0).inference_count() == 2);
  CHECK(statistics.model_stats(0).inference_stats().success().count() == 2);
  CHECK(statistics.model_stats(0).inference_stats().success().ns() > 0);
}

TEST_CASE("ModelInfer refuses what the protocol forbids, naming the input") {
  TestServer t;
  const auto stub = infer_stub(t.grpc());
  const auto no = [&](const inference::ModelInferRequest& request, const std::string& mention,
                      grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT) {
    inference::ModelInferResponse response;
    const grpc::Status s = infer(*stub, request, response);
    INFO(s.error_message());
    CHECK(s.error_code() == code);
    CHECK(s.error_message().find(mention) != std::string::npos);
  };
  inference::ModelInferRequest r;
  no(r, "model_name");
  r.set_model_name("other");
  no(r, "other", grpc::StatusCode::NOT_FOUND);
  r.set_model_name("fake");
  no(r, "text_input is missing");

  r = text_request("a");
  r.add_raw_input_contents(raw_bytes("a"));
  no(r, "one of the two");  // raw and contents mixed
  r.mutable_inputs(0)->clear_contents();
  r.add_raw_input_contents("x");
  no(r, "2 entries for 1 inputs");

  const auto raw = [](const std::string& bytes, std::vector<int64_t> shape,
                      const std::string& type = "BYTES") {
    inference::ModelInferRequest q;
    q.set_model_name("fake");
    add_input(q, "text_input", type, std::move(shape));
    q.add_raw_input_contents(bytes);
    return q;
  };
  no(raw("abc", {1}), "4-byte length");
  no(raw(std::string("\x05\0\0\0a", 5), {1}), "says 5 bytes");
  no(raw(std::string("\xff\xff\xff\xff", 4), {1}), "4294967295");
  no(raw(raw_bytes("a") + "rest", {1}), "left over");
  no(raw(raw_bytes("a"), {2}), "4-byte length");
  no(raw(raw_bytes("a"), {-1}), "negative dimension -1");
  no(raw(raw_bytes("a"), {INT64_MAX, INT64_MAX}), "maximum size");
  no(raw(raw_bytes("a"), {1, 1, 1, 1, 1, 1, 1, 1, 1}), "9 dimensions");
  no(raw(raw_bytes("a") + raw_bytes("b"), {2}), "shape [1]");
  no(raw("", {0}), "shape [1]");
  no(raw(std::string(3, 'x'), {1}, "FP32"), "needs 4");
  no(raw(std::string(2, 'x'), {1}, "FP16"), "must have datatype BYTES");
  no(raw("x", {1}, "STRING"), "unknown datatype");

  r = text_request("a");
  r.mutable_inputs(0)->set_datatype("INT32");
  no(r, "another datatype");
  r = text_request("a");
  r.mutable_inputs(0)->mutable_contents()->add_fp32_contents(1);
  no(r, "another datatype");
  r = text_request("a");
  r.mutable_inputs(0)->mutable_contents()->add_bytes_contents("b");
  no(r, "2 elements");
  r = text_request("a");
  add_input(r, "half", "FP16")->mutable_contents();
  no(r, "raw_input_contents only");
  r = text_request("a");
  add_input(r, "text_input", "BYTES")->mutable_contents()->add_bytes_contents("b");
  no(r, "given twice");
  r = text_request("a");
  add_input(r, "image", "BYTES")->mutable_contents()->add_bytes_contents("b");
  no(r, "\"image\" is unknown");
  r = text_request("a");
  for (int i = 0; i < 100'000; ++i)
    add_input(r, "i" + std::to_string(i), "BOOL")->mutable_contents()->add_bool_contents(true);
  no(r, "100001 tensors");
  r = text_request("a");
  r.add_outputs()->set_name("logits");
  no(r, "\"logits\" is unknown");
  r = text_request("a");
  r.add_outputs()->set_name("text_output");
  r.add_outputs()->set_name("text_output");
  no(r, "twice");
  r = text_request("a");
  add_input(r, "stream", "BOOL")->mutable_contents()->add_bool_contents(true);
  no(r, "ModelStreamInfer");
  no(text_request("a", "{"), "sampling_parameters");
  no(text_request("a", "[]"), "JSON object");
  no(text_request("a", R"({"temperature":"NaN"})"), "temperature");
  no(text_request("a", R"({"temperature":-1})"), "temperature");
  no(text_request("a", R"({"n":2})"), "n must be 1");
  no(text_request(""), "no tokens");
  no(text_request(std::string(600, 'a')), "512", grpc::StatusCode::OUT_OF_RANGE);
  r = text_request("a");
  (*r.mutable_parameters())["max_tokens"].set_string_param("many");
  no(r, "max_tokens");
  (*r.mutable_parameters())["max_tokens"].set_uint64_param(UINT64_MAX);
  no(r, "18446744073709551615");
  (*r.mutable_parameters())["temperature"].set_double_param(std::numeric_limits<double>::quiet_NaN());
  no(r, "temperature");
  CHECK(t.engine.submitted() == 0);
}

TEST_CASE("garbage and oversized messages") {
  oar::ServerOptions o;
  o.grpc_limits.max_message_bytes = 100'000;
  TestServer t({}, o);
  const std::string method = "/inference.GRPCInferenceService/ModelInfer";
  std::string noise;
  const auto says_so = [](const grpc::Status& s) {
    CHECK(s.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(s.error_message().find("no valid protobuf message") != std::string::npos);
  };
  for (const char* name :
       {"/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/ServerLive",
        "/inference.GRPCInferenceService/ModelStreamInfer", "/oar.v1.Generation/Generate",
        "/oar.v1.Generation/Tokenize", "/oar.v1.Encoding/Rerank"}) {
    INFO(name);
    says_so(raw_call(t.grpc(), name, "\xff\xff\xff\xff").first);
  }
  uint32_t x = 1;
  for (int i = 0; i < 200; ++i) {
    noise.clear();
    for (int k = 0; k < i; ++k) noise += static_cast<char>((x = x * 1664525 + 1013904223) >> 24);
    CHECK_FALSE(raw_call(t.grpc(), method, noise).first.ok());
  }
  // Deeply nested and endless lengths.
  CHECK_FALSE(raw_call(t.grpc(), method, std::string("\x2a\xff\xff\xff\xff\x0f", 6)).first.ok());
  CHECK(raw_call(t.grpc(), method, std::string(200'000, '\n')).first.error_code() ==
        grpc::StatusCode::RESOURCE_EXHAUSTED);
  CHECK(raw_call(t.grpc(), "/inference.GRPCInferenceService/Nothing", "").first.error_code() ==
        grpc::StatusCode::UNIMPLEMENTED);
  CHECK(raw_call(t.grpc(), "/oar.v1.Generation/Tokenize", noise).first.error_code() != grpc::StatusCode::OK);
  // Unknown fields are no error: field 99 with a string behind a good request.
  const auto good =
      text_request("hi", R"({"max_tokens":2})").SerializeAsString() + std::string("\x9a\x06\x02zz", 5);
  CHECK(raw_call(t.grpc(), method, good).first.ok());
}

TEST_CASE("ModelStreamInfer: decoupled responses") {
  TestServer t;
  const auto stub = infer_stub(t.grpc());
  grpc::ClientContext context;
  auto stream = stub->ModelStreamInfer(&context);
  auto request = text_request("hi", R"({"max_tokens":50})");
  add_input(request, "stream", "BOOL")->mutable_contents()->add_bool_contents(true);
  (*request.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
  REQUIRE(stream->Write(request));
  std::string text;
  int finals = 0;
  for (inference::ModelStreamInferResponse r; finals == 0 && stream->Read(&r);) {
    CHECK(r.error_message().empty());
    CHECK(r.infer_response().id() == "id-1");
    if (r.infer_response().outputs_size() > 0) text += text_of(r.infer_response());
    if (r.infer_response().parameters().at("triton_final_response").bool_param()) ++finals;
  }
  CHECK(text == kReply);

  // On the same stream: not streaming, an error, and two at once.
  auto whole = text_request("x", R"({"max_tokens":3})");
  whole.set_id("whole");
  REQUIRE(stream->Write(whole));
  inference::ModelStreamInferResponse r;
  REQUIRE(stream->Read(&r));
  CHECK(r.infer_response().id() == "whole");
  CHECK(text_of(r.infer_response()) == "xHel");
  auto bad = text_request("x", R"({"temperature":-1})");
  bad.set_id("bad");
  REQUIRE(stream->Write(bad));
  REQUIRE(stream->Read(&r));
  CHECK(r.error_message().find("temperature") != std::string::npos);
  CHECK(r.infer_response().id() == "bad");
  for (const char* id : {"a", "b"}) {
    whole.set_id(id);
    REQUIRE(stream->Write(whole));
  }
  REQUIRE(stream->WritesDone());
  std::set<std::string> ids;
  while (stream->Read(&r)) ids.insert(r.infer_response().id());
  CHECK(ids == std::set<std::string>{"a", "b"});
  CHECK(stream->Finish().ok());
}

TEST_CASE("cancelled, late and unread calls free their sequences; a neighbour goes on") {
  FakeEngineOptions slow;
  slow.step = milliseconds(2);
  oar::ServerOptions o;
  o.grpc_limits.write_timeout = milliseconds(300);
  TestServer t(slow, o);
  const auto finished = [&](oar::FinishReason r) {
    return t.engine.stats().finished[static_cast<size_t>(r)];
  };
  RawClient neighbour(t.http());
  neighbour.send(make_request("POST", "/v1/completions",
                              R"({"prompt":"n","stream":true,"ignore_eos":true,"max_tokens":300})"));
  REQUIRE(neighbour.read_until("data: "));

  const auto stub = oar_stub(t.grpc());
  GenerateRequest endless;
  endless.set_prompt("a");
  endless.mutable_stopping()->set_ignore_eos(true);
  {
    grpc::ClientContext c;
    auto reader = stub->Generate(&c, endless);
    GenerateChunk chunk;
    REQUIRE(reader->Read(&chunk));
    c.TryCancel();
    while (reader->Read(&chunk)) continue;
    CHECK(reader->Finish().error_code() == grpc::StatusCode::CANCELLED);
  }
  for (int i = 0; i < 2000 && finished(oar::FinishReason::kCancelled) < 1; ++i)
    std::this_thread::sleep_for(milliseconds(1));
  CHECK(finished(oar::FinishReason::kCancelled) == 1);
  {
    grpc::ClientContext c;
    c.set_deadline(std::chrono::system_clock::now() + milliseconds(60));
    auto reader = stub->Generate(&c, endless);
    for (GenerateChunk chunk; reader->Read(&chunk);) continue;
    CHECK(reader->Finish().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  {
    grpc::ClientContext c;  // a unary call
    c.set_deadline(std::chrono::system_clock::now() + milliseconds(60));
    inference::ModelInferResponse response;
    CHECK(infer_stub(t.grpc())
              ->ModelInfer(&c, text_request("a", R"({"ignore_eos":true,"max_tokens":400})"), &response)
              .error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  {
    grpc::ClientContext c;  // passed before it began
    c.set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(1));
    auto reader = stub->Generate(&c, endless);
    for (GenerateChunk chunk; reader->Read(&chunk);) continue;
    CHECK(reader->Finish().error_code() == grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  for (int i = 0; i < 2000 && t.engine.stats().running > 1; ++i) std::this_thread::sleep_for(milliseconds(1));
  CHECK(t.engine.stats().running <= 1);
  const HttpReply answer = neighbour.read_reply();
  CHECK(answer.body.find("[DONE]") != std::string::npos);
  CHECK(t.engine.wait_idle());
  CHECK(t.engine.stats().blocks_used == 0);
}

TEST_CASE("a gRPC client that never reads is cancelled") {
  FakeEngineOptions fast;
  fast.step = std::chrono::microseconds(50);
  fast.max_context = 1 << 20;
  oar::ServerOptions o;
  o.grpc_limits.write_timeout = milliseconds(200);
  TestServer t(fast, o);
  const auto stub = oar_stub(t.grpc());
  GenerateRequest endless;
  endless.set_prompt("a");
  endless.set_n(16);
  endless.mutable_stopping()->set_ignore_eos(true);
  grpc::ClientContext c;
  auto reader = stub->Generate(&c, endless);  // flow control holds what is not read
  for (int i = 0; i < 20'000 && t.engine.stats().finished[3] == 0; ++i)
    std::this_thread::sleep_for(milliseconds(1));
  CHECK(t.engine.wait_idle());
  CHECK(t.engine.stats().finished[static_cast<size_t>(oar::FinishReason::kCancelled)] == 16);
  for (GenerateChunk chunk; reader->Read(&chunk);) continue;
  CHECK_FALSE(reader->Finish().ok());
}

TEST_CASE("gRPC readers that are behind leave their slots, and read the same text later") {
  constexpr int kSlots = 2, kTokens = 3000;
  FakeEngineOptions fast;
  fast.step = std::chrono::microseconds(50);
  fast.max_context = 1 << 20;
  fast.max_running = kSlots;
  oar::ServerOptions o;
  o.grpc_limits.stream_buffer_bytes = 16 << 10;
  TestServer t(fast, o);
  GenerateRequest request;
  request.set_prompt("a");
  request.set_n(4);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_stopping()->set_max_tokens(kTokens);
  struct Call {
    decltype(oar_stub(0)) stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<GenerateChunk>> reader;
  };
  Call calls[kSlots];
  for (Call& call : calls) {
    call.stub = oar_stub(t.grpc());
    call.reader = call.stub->Generate(&call.context, request);
  }
  bool all_suspended = false;
  for (int i = 0; i < 20'000 && !all_suspended; ++i) {
    all_suspended = t.engine.stats().suspended == kSlots;
    std::this_thread::sleep_for(milliseconds(1));
  }
  REQUIRE(all_suspended);
  CHECK(http(t.http(), "POST", "/v1/completions", R"({"prompt":"n"})").status == 200);
  // The transport may have taken a little more and resumed a reader. None can have finished.
  uint64_t finished = 0;
  for (const oar::EngineStats stats = t.engine.stats(); const uint64_t n : stats.finished) finished += n;
  CHECK(finished == 1);
  std::string want;
  while (want.size() < kTokens) want += fast.reply;
  want.resize(want.find_last_of(' ', kTokens));  // the last character may be cut
  for (Call& call : calls) {
    std::map<int, std::string> texts;
    for (GenerateChunk chunk; call.reader->Read(&chunk);) texts[chunk.index()] += chunk.text();
    CHECK(call.reader->Finish().ok());
    CHECK(texts.size() == 4);
    for (const auto& [index, text] : texts) {
      CHECK(text.size() > kTokens - 8);
      CHECK(text.substr(0, want.size()) == want);
    }
  }
  CHECK(t.engine.wait_idle());
}

TEST_CASE("oar.v1 Generate: prompts, choices, log-probabilities, stops") {
  TestServer t;
  const auto stub = oar_stub(t.grpc());
  GenerateRequest r;
  r.mutable_conversation()->add_messages()->set_role("user");
  r.mutable_conversation()->mutable_messages(0)->set_content("hi");
  r.set_n(2);
  r.set_request_id("mine");
  r.mutable_sampling()->set_logprobs(2);
  r.mutable_sampling()->set_seed(UINT64_MAX);
  r.mutable_stopping()->add_stop("rld");
  const auto [status, chunks] = generate(*stub, r);
  REQUIRE(status.ok());
  std::map<int, std::string> text;
  std::map<int, int> finals;
  for (const GenerateChunk& c : chunks) {
    CHECK(c.request_id() == "mine");
    CHECK(finals[c.index()] == 0);
    text[c.index()] += c.text();
    for (const auto& token : c.tokens()) CHECK(token.top_size() == 2);
    if (c.finish_reason() == oar::v1::FINISH_REASON_UNSPECIFIED) continue;
    ++finals[c.index()];
    CHECK(c.finish_reason() == oar::v1::FINISH_REASON_STOP);
    CHECK(c.stop_match() == "rld");
    CHECK(c.usage().prompt_tokens() == 5);
  }
  for (int index : {0, 1}) {
    CHECK(text[index] == "Hello, w\xC3\xB6");
    CHECK(finals[index] == 1);
  }
  CHECK(t.engine.last_request().sampling.seed == UINT64_MAX);
  CHECK(t.engine.wait_idle());

  GenerateRequest tokens;
  tokens.mutable_tokens()->add_ids('x');
  tokens.mutable_stopping()->set_max_tokens(4);
  const auto [token_status, token_chunks] = generate(*stub, tokens);
  REQUIRE(token_status.ok());
  CHECK(token_chunks.back().finish_reason() == oar::v1::FINISH_REASON_LENGTH);
  CHECK(token_chunks.back().usage().completion_tokens() == 4);

  const auto no = [&](const GenerateRequest& bad, const std::string& mention,
                      grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT) {
    const auto [s, none] = generate(*stub, bad);
    INFO(s.error_message());
    CHECK(s.error_code() == code);
    CHECK(s.error_message().find(mention) != std::string::npos);
    CHECK(none.empty());
  };
  GenerateRequest bad;
  no(bad, "prompt, tokens or conversation");
  bad.set_prompt("x");
  bad.set_model("other");
  no(bad, "other", grpc::StatusCode::NOT_FOUND);
  bad.set_model("");
  bad.mutable_sampling()->set_temperature(std::numeric_limits<float>::quiet_NaN());
  no(bad, "temperature");
  bad.mutable_sampling()->set_temperature(std::numeric_limits<float>::infinity());
  no(bad, "temperature");
  bad.clear_sampling();
  bad.set_n(1 << 30);
  no(bad, "1073741824");
  bad.set_n(0);
  bad.mutable_stopping()->set_max_tokens(0);
  no(bad, "max_tokens");
  bad.clear_stopping();
  bad.mutable_tokens()->add_ids(260);
  no(bad, "260");
  bad.mutable_conversation()->add_messages()->set_content("x");
  no(bad, "role");
}

TEST_CASE("oar.v1 Constraint: every kind reaches the engine compiled, and faults are told by its name") {
  FakeEngineOptions o;
  o.reply = "no such text";
  TestServer t(o);
  const auto stub = oar_stub(t.grpc());
  using oar::v1::Constraint;
  struct Kind {
    const char* field;
    std::function<void(Constraint&)> set;
    const char *text, *bad;  // bad: in place of what set() writes
    std::function<void(Constraint&, const char*)> spoil;
  };
  const Kind kinds[] = {
      {"regex", [](Constraint& c) { c.set_regex("a[b]c"); }, "abc", "(",
       [](Constraint& c, const char* bad) { c.set_regex(bad); }},
      {"json_schema", [](Constraint& c) { c.set_json_schema(R"({"const":"hi"})"); }, "\"hi\"",
       R"({"not":{}})", [](Constraint& c, const char* bad) { c.set_json_schema(bad); }},
      {"choice", [](Constraint& c) { c.mutable_choice()->add_texts("yes"); }, "yes", "",
       [](Constraint& c, const char*) { c.mutable_choice()->clear_texts(); }},
      {"grammar", [](Constraint& c) { c.set_grammar("root ::= \"<\" \"x\" \">\""); }, "<x>", "root ::= y",
       [](Constraint& c, const char* bad) { c.set_grammar(bad); }},
      {"structural_tag",
       [](Constraint& c) { c.set_structural_tag(R"({"format":{"type":"const_string","value":"tag"}})"); },
       "tag", R"({"format":{"type":"no"}})",
       [](Constraint& c, const char* bad) { c.set_structural_tag(bad); }},
  };
  for (const Kind& k : kinds) {
    INFO(k.field);
    GenerateRequest r;
    r.set_prompt("x");
    k.set(*r.mutable_constraint());
    const auto [status, chunks] = generate(*stub, r);
    INFO(status.error_message());
    REQUIRE(status.ok());
    std::string text;
    for (const GenerateChunk& c : chunks) text += c.text();
    CHECK(text == k.text);  // whatever the model would say
    CHECK(chunks.back().finish_reason() == oar::v1::FINISH_REASON_STOP);
    CHECK(t.engine.last_request().constraint_field == oar::cat("constraint.", k.field));
    k.spoil(*r.mutable_constraint(), k.bad);
    const auto [refused, none] = generate(*stub, r);
    CHECK(refused.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(refused.error_message().find(oar::cat("constraint.", k.field)) != std::string::npos);
    CHECK(none.empty());
  }
  GenerateRequest r;
  r.set_prompt("x");
  r.mutable_constraint()->set_json_object(true);
  r.mutable_stopping()->set_max_tokens(1);
  const auto [status, chunks] = generate(*stub, r);
  REQUIRE(status.ok());
  CHECK(chunks.front().text() == "{");
  r.mutable_constraint()->set_json_object(false);  // asks for nothing
  REQUIRE(generate(*stub, r).first.ok());
  CHECK(t.engine.last_request().constraint == nullptr);
}

TEST_CASE("oar.v1 refuses values by the rules of JSON, and names fields as its own messages do") {
  TestServer t;
  const auto stub = oar_stub(t.grpc());
  const auto refusal = [&](auto fill) {
    GenerateRequest r;
    r.set_prompt("x");
    fill(r);
    const auto [s, none] = generate(*stub, r);
    CHECK(s.error_code() == grpc::StatusCode::INVALID_ARGUMENT);
    CHECK(none.empty());
    return s.error_message();
  };
  const auto json_refusal = [&](const std::string& fields) {
    const HttpReply r = http(t.http(), "POST", "/v1/completions", R"({"prompt":"x",)" + fields + "}");
    CHECK(r.status == 400);
    return std::string(parse(r.body).at("error").at("message").as_string());
  };
  CHECK(refusal([](auto& r) { r.mutable_sampling()->set_temperature(101); }) ==
        "sampling." + json_refusal(R"("temperature":101)"));
  CHECK(refusal([](auto& r) { r.mutable_sampling()->set_top_p(0); }) ==
        "sampling." + json_refusal(R"("top_p":0)"));
  CHECK(refusal([](auto& r) { r.mutable_sampling()->set_top_k(-2); }) ==
        "sampling." + json_refusal(R"("top_k":-2)"));
  CHECK(refusal([](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[7] = 101; }) ==
        "sampling." + json_refusal(R"("logit_bias":{"7":101})"));
  CHECK(refusal([](auto& r) {
          (*r.mutable_sampling()->mutable_logit_bias())[260] = 1;
        }).starts_with("sampling.logit_bias names token id 260; "));
  CHECK(refusal([](auto& r) { r.mutable_sampling()->set_logprobs(21); }) ==
        "sampling.logprobs must be an integer in [0, 20], got 21");
  CHECK(
      refusal([](auto& r) { r.mutable_sampling()->set_logprobs(-1); }).starts_with("sampling.logprobs must"));
  CHECK(refusal([](auto& r) { r.mutable_stopping()->add_stop_token_ids(260); }) ==
        "stopping." + json_refusal(R"("stop_token_ids":[260])"));
  CHECK(refusal([](auto& r) { r.mutable_stopping()->add_stop(""); }) ==
        "stopping.stop[0] is empty; leave it out");
  CHECK(refusal([](auto& r) { r.mutable_stopping()->add_stop(std::string(1025, 'x')); }) ==
        "stopping." + json_refusal(R"("stop":[")" + std::string(1025, 'x') + R"("])"));
  CHECK(refusal([](auto& r) {
          r.mutable_stopping()->set_min_tokens(5);
          r.mutable_stopping()->set_max_tokens(4);
        }) == "stopping.min_tokens is 5 but stopping.max_tokens only 4");
  CHECK(refusal([](auto& r) { r.set_n(-1); }) == json_refusal(R"("n":-1)"));
  CHECK(refusal([](auto& r) { r.set_cache_salt(std::string(257, 'x')); }) ==
        json_refusal(R"("cache_salt":")" + std::string(257, 'x') + "\""));
  CHECK(refusal([](auto& r) {
          r.mutable_tokens()->add_ids(-1);
        }).starts_with("tokens.ids[0] is out of vocabulary: it must be a token id in [0, 260), got -1"));
  CHECK(refusal([](auto& r) { r.mutable_tokens(); }).starts_with("tokens.ids has no tokens"));
  CHECK(refusal([](auto& r) { r.mutable_conversation(); }).starts_with("conversation.messages is empty"));
  CHECK(t.engine.submitted() == 0);
}

TEST_CASE("oar.v1 Tokenize, Detokenize, ListModels") {
  TestServer t;
  const auto stub = oar_stub(t.grpc());
  {
    grpc::ClientContext c;
    oar::v1::TokenizeRequest q;
    oar::v1::TokenizeResponse r;
    q.set_prompt("ab<s>");
    REQUIRE(stub->Tokenize(&c, q, &r).ok());
    CHECK(std::vector<int32_t>(r.ids().begin(), r.ids().end()) == std::vector<int32_t>{'a', 'b', 256});
    CHECK(r.max_context() == 512);
    auto* message = q.mutable_conversation()->add_messages();
    message->set_role("user");
    message->set_content("</s>");
    grpc::ClientContext c2;
    REQUIRE(stub->Tokenize(&c2, q, &r).ok());
    CHECK(std::vector<int32_t>(r.ids().begin(), r.ids().end()) ==
          std::vector<int32_t>{256, 258, '<', '/', 's', '>', 259});
  }
  {
    grpc::ClientContext c;
    oar::v1::DetokenizeRequest q;
    oar::v1::DetokenizeResponse r;
    for (const int id : {256, int{'o'}, int{'k'}}) q.add_ids(id);
    q.set_skip_special_tokens(true);
    REQUIRE(stub->Detokenize(&c, q, &r).ok());
    CHECK(r.text() == "ok");
    q.add_ids(-1);
    grpc::ClientContext c2;
    CHECK(stub->Detokenize(&c2, q, &r).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  {
    grpc::ClientContext c;
    oar::v1::ListModelsResponse r;
    REQUIRE(stub->ListModels(&c, {}, &r).ok());
    CHECK(r.models(0).name() == "fake");
    CHECK(r.models(0).ready());
  }
}

TEST_CASE("health follows the engine, reflection lists the services, keys are asked for") {
  oar::ServerOptions o;
  o.api_key = "secret";
  TestServer t({}, o);
  const std::string check = "/grpc.health.v1.Health/Check";
  const std::string serving("\x08\x01", 2), not_serving("\x08\x02", 2);
  CHECK(raw_call(t.grpc(), check, "").second == serving);
  CHECK(raw_call(t.grpc(), check, "\n\x11oar.v1.Generation").second == serving);
  CHECK(raw_call(t.grpc(), check, "\n\x04none").first.error_code() == grpc::StatusCode::NOT_FOUND);
  t.engine.set_health(oar::EngineHealth::kFailed);
  std::string health;
  for (int i = 0; i < 200 && health != not_serving; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
    health = raw_call(t.grpc(), check, "").second;
  }
  CHECK(health == not_serving);
  t.engine.set_health(oar::EngineHealth::kReady);

  const std::string reflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  const std::string list_services("\x3a\0", 2);
  for (const char* wrong : {"", "Bearer secreT"}) {
    const auto [refused, nothing] = raw_call(t.grpc(), reflection, list_services, wrong);
    CHECK(refused.error_code() == grpc::StatusCode::UNAUTHENTICATED);
    CHECK(refused.error_message().find("API key") != std::string::npos);
    CHECK(nothing.find("Generation") == std::string::npos);
  }
  const auto [reflected, list] = raw_call(t.grpc(), reflection, list_services, "Bearer secret");
  REQUIRE(reflected.ok());
  CHECK(list.find("inference.GRPCInferenceService") != std::string::npos);
  CHECK(list.find("oar.v1.Generation") != std::string::npos);

  const auto stub = infer_stub(t.grpc());
  inference::ModelInferResponse response;
  const auto request = text_request("a", R"({"max_tokens":2})");
  CHECK(infer(*stub, request, response).error_code() == grpc::StatusCode::UNAUTHENTICATED);
  for (const auto& [header, code] : std::vector<std::pair<std::string, grpc::StatusCode>>{
           {"Bearer secret", grpc::StatusCode::OK},
           {"Bearer secreT", grpc::StatusCode::UNAUTHENTICATED},
           {"Bearer ", grpc::StatusCode::UNAUTHENTICATED},
           {"secret", grpc::StatusCode::UNAUTHENTICATED}}) {
    grpc::ClientContext c;
    c.AddMetadata("authorization", header);
    CHECK(stub->ModelInfer(&c, request, &response).error_code() == code);
  }
  const auto generation = oar_stub(t.grpc());
  GenerateRequest r;
  r.set_prompt("a");
  CHECK(generate(*generation, r).first.error_code() == grpc::StatusCode::UNAUTHENTICATED);
  grpc::ClientContext stream_context;
  auto stream = stub->ModelStreamInfer(&stream_context);
  CHECK(stream->Finish().error_code() == grpc::StatusCode::UNAUTHENTICATED);
}

}  // namespace
