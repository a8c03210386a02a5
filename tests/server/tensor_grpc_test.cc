// Ordinary models over gRPC: every datatype raw and typed, versions, batching, the repository, and refusals
// that name the tensor, what was given and what is expected.
#include <atomic>
#include <cstring>
#include <fstream>
#include <thread>

#include "engine/base/format.h"
#include "tests/server/grpc_client.h"
#include "tests/server/tensor_server.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;   // NOLINT
using namespace inference;  // NOLINT
using oar::cat;
using Stub = GRPCInferenceService::Stub;

std::unique_ptr<Stub> stub_to(const TensorServer& t) { return std::make_unique<Stub>(channel_to(t.grpc())); }

grpc::Status infer(Stub& stub, const ModelInferRequest& request, ModelInferResponse& response) {
  grpc::ClientContext context;
  return stub.ModelInfer(&context, request, &response);
}
std::string refusal(Stub& stub, const ModelInferRequest& request,
                    grpc::StatusCode code = grpc::StatusCode::INVALID_ARGUMENT) {
  ModelInferResponse response;
  const grpc::Status s = infer(stub, request, response);
  CHECK(s.error_code() == code);
  return s.error_message();
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
std::vector<T> values_of(const std::string& raw) {
  std::vector<T> out(raw.size() / sizeof(T));
  std::memcpy(out.data(), raw.data(), out.size() * sizeof(T));
  return out;
}

ModelInferRequest floats(const std::string& model, const std::string& input, std::vector<int64_t> shape,
                         const std::vector<float>& values) {
  ModelInferRequest r;
  r.set_model_name(model);
  add_input(r, input, "FP32", std::move(shape));
  r.add_raw_input_contents(bytes_of(values));
  return r;
}

TEST_CASE("Tensors over gRPC: raw contents of every datatype come back as they were") {
  TensorServer t;
  const auto stub = stub_to(t);
  for (const auto& [type, onnx] : wire_types()) {
    INFO(type);
    ModelInferRequest r;
    r.set_model_name("same_" + type);
    r.set_id("42");
    add_input(r, "x", type, {2, 3});
    std::string raw;
    const std::map<std::string, int> sizes = {
        {"BOOL", 1},   {"UINT8", 1}, {"INT8", 1}, {"UINT16", 2}, {"INT16", 2}, {"FP16", 2}, {"BF16", 2},
        {"UINT32", 4}, {"INT32", 4}, {"FP32", 4}, {"UINT64", 8}, {"INT64", 8}, {"FP64", 8}};
    if (type == "BYTES") {
      for (const char* s : {"", "a", "b\xff", "longer than a small string can be", "5", "6"})
        raw += raw_bytes(s);
    } else {
      for (int i = 0; i < 6 * sizes.at(type); ++i)
        raw += static_cast<char>(type == "BOOL" ? i % 2 : i * 7 + 1);
    }
    r.add_raw_input_contents(raw);
    ModelInferResponse response;
    const grpc::Status s = infer(*stub, r, response);
    REQUIRE(s.error_message().empty());
    REQUIRE(response.outputs_size() == 1);
    CHECK(response.id() == "42");
    CHECK(response.model_version() == "1");
    CHECK(response.outputs(0).name() == "y");
    CHECK(response.outputs(0).datatype() == type);
    CHECK(response.outputs(0).shape(0) == 2);
    CHECK(response.outputs(0).shape(1) == 3);
    CHECK(response.raw_output_contents(0) == raw);
  }
}

TEST_CASE("Tensors over gRPC: typed contents") {
  TensorServer t;
  const auto stub = stub_to(t);
  const auto ask = [&](const std::string& type, auto fill) {
    ModelInferRequest r;
    r.set_model_name("same_" + type);
    fill(*add_input(r, "x", type, {1, 3})->mutable_contents());
    ModelInferResponse response;
    const grpc::Status s = infer(*stub, r, response);
    INFO(type << " " << s.error_message());
    REQUIRE(s.ok());
    return response.raw_output_contents(0);
  };
  const auto ints = [](InferTensorContents& c) {
    for (const int v : {-128, 0, 127}) c.add_int_contents(v);
  };
  const auto uints = [](InferTensorContents& c) {
    for (const unsigned v : {0u, 1u, 255u}) c.add_uint_contents(v);
  };
  CHECK(values_of<int8_t>(ask("INT8", ints)) == std::vector<int8_t>{-128, 0, 127});
  CHECK(values_of<int16_t>(ask("INT16", ints)) == std::vector<int16_t>{-128, 0, 127});
  CHECK(values_of<int32_t>(ask("INT32", ints)) == std::vector<int32_t>{-128, 0, 127});
  CHECK(values_of<uint8_t>(ask("UINT8", uints)) == std::vector<uint8_t>{0, 1, 255});
  CHECK(values_of<uint16_t>(ask("UINT16", uints)) == std::vector<uint16_t>{0, 1, 255});
  CHECK(values_of<uint32_t>(ask("UINT32", uints)) == std::vector<uint32_t>{0, 1, 255});
  CHECK(values_of<int64_t>(ask("INT64", [](auto& c) {
          for (const int64_t v : {INT64_MIN, int64_t{0}, INT64_MAX}) c.add_int64_contents(v);
        })) == std::vector<int64_t>{INT64_MIN, 0, INT64_MAX});
  CHECK(values_of<uint64_t>(ask("UINT64", [](auto& c) {
          for (const uint64_t v : {uint64_t{0}, uint64_t{1}, UINT64_MAX}) c.add_uint64_contents(v);
        })) == std::vector<uint64_t>{0, 1, UINT64_MAX});
  CHECK(values_of<float>(ask("FP32", [](auto& c) {
          for (const float v : {0.5f, -1e30f, 3.f}) c.add_fp32_contents(v);
        })) == std::vector<float>{0.5f, -1e30f, 3.f});
  CHECK(values_of<double>(ask("FP64", [](auto& c) {
          for (const double v : {0.1, -1e300, 3.}) c.add_fp64_contents(v);
        })) == std::vector<double>{0.1, -1e300, 3.});
  CHECK(ask("BOOL", [](auto& c) {
          for (const bool v : {true, false, true}) c.add_bool_contents(v);
        }) == std::string("\1\0\1", 3));
  CHECK(ask("BYTES", [](auto& c) {
          for (const char* v : {"x", "", "\xfe"}) c.add_bytes_contents(v);
        }) == raw_bytes("x") + raw_bytes("") + raw_bytes("\xfe"));
  // A value beyond the datatype is refused, not wrapped.
  ModelInferRequest r;
  r.set_model_name("same_INT8");
  for (const int v : {0, 128, 0}) add_input(r, "x", "INT8", {1, 3})->mutable_contents()->add_int_contents(v);
  r.mutable_inputs()->DeleteSubrange(1, 2);
  r.mutable_inputs(0)->mutable_contents()->add_int_contents(128);
  r.mutable_inputs(0)->mutable_contents()->add_int_contents(1);
  CHECK_THAT(refusal(*stub, r), Contains("element 1") && Contains("128"));
}

TEST_CASE("Tensors over gRPC: versions, metadata, configuration") {
  TensorServer t;
  const auto stub = stub_to(t);
  for (const auto& [version, factor] : std::map<std::string, float>{{"", 3}, {"1", 1}, {"3", 3}}) {
    ModelInferRequest r = floats("scale", "x", {2, 3}, {1, 2, 3, 4, 5, 6});
    r.set_model_version(version);
    ModelInferResponse response;
    REQUIRE(infer(*stub, r, response).ok());
    CHECK(values_of<float>(response.raw_output_contents(0))[4] == 5 * factor);
    CHECK(response.model_version() == (version == "1" ? "1" : "3"));
  }
  ModelInferRequest r = floats("scale", "x", {1, 3}, {1, 2, 3});
  r.set_model_version("2");
  CHECK_THAT(refusal(*stub, r, grpc::StatusCode::NOT_FOUND), Contains("there is: 1, 3"));

  grpc::ClientContext c1, c2, c3;
  ModelMetadataRequest ask;
  ask.set_name("scale");
  ModelMetadataResponse metadata;
  REQUIRE(stub->ModelMetadata(&c1, ask, &metadata).ok());
  CHECK(metadata.versions_size() == 2);
  CHECK(metadata.inputs(0).datatype() == "FP32");
  CHECK(metadata.inputs(0).shape(0) == -1);
  CHECK(metadata.inputs(0).shape(1) == 3);
  ModelConfigRequest ask_config;
  ask_config.set_name("scale");
  ModelConfigResponse config;
  REQUIRE(stub->ModelConfig(&c2, ask_config, &config).ok());
  CHECK(config.config().max_batch_size() == 8);
  CHECK(config.config().input(0).dims_size() == 1);
  CHECK(config.config().dynamic_batching().preferred_batch_size(1) == 8);
  CHECK(config.config().instance_group(0).count() == 2);
  ask_config.set_name("fixed");
  REQUIRE(stub->ModelConfig(&c3, ask_config, &config).ok());
  CHECK(config.config().max_batch_size() == 0);
  CHECK(config.config().input(0).dims_size() == 2);
}

TEST_CASE("Tensors over gRPC: wanted outputs, in the order asked for") {
  TensorServer t;
  const auto stub = stub_to(t);
  ModelInferRequest r = floats("two", "b", {1, 2}, {1, 2});  // inputs in another order than the model's
  add_input(r, "a", "FP32", {1, 2});
  r.add_raw_input_contents(bytes_of<float>({10, 20}));
  ModelInferResponse response;
  REQUIRE(infer(*stub, r, response).ok());
  REQUIRE(response.outputs_size() == 2);
  CHECK(values_of<float>(response.raw_output_contents(0)) == std::vector<float>{11, 22});
  r.add_outputs()->set_name("twice");
  r.add_outputs()->set_name("sum");
  response.Clear();
  REQUIRE(infer(*stub, r, response).ok());
  CHECK(response.outputs(0).name() == "twice");
  CHECK(values_of<float>(response.raw_output_contents(0)) == std::vector<float>{20, 40});
  r.mutable_outputs(1)->set_name("twice");
  CHECK_THAT(refusal(*stub, r), Contains("already exists in request; ask for it once"));
  r.mutable_outputs(1)->set_name("none");
  CHECK_THAT(refusal(*stub, r), Contains("no output \"none\"") && Contains("\"sum\", \"twice\""));
}

TEST_CASE("Tensors over gRPC: the largest values of an output, as texts") {
  TensorServer t;
  const auto stub = stub_to(t);
  ModelInferRequest r = floats("scale", "x", {2, 3}, {1, 5, 3, 7, 7, 2});
  r.set_model_version("1");
  auto* output = r.add_outputs();
  output->set_name("y");
  (*output->mutable_parameters())["classification"].set_int64_param(1);
  ModelInferResponse response;
  REQUIRE(infer(*stub, r, response).ok());
  CHECK(response.outputs(0).datatype() == "BYTES");
  REQUIRE(response.outputs(0).shape_size() == 2);
  CHECK(response.outputs(0).shape(1) == 1);
  CHECK(response.raw_output_contents(0) == raw_bytes("5.000000:1") + raw_bytes("7.000000:0"));
}

TEST_CASE("Tensors over gRPC: what is refused, and how") {
  TensorServer t;
  const auto stub = stub_to(t);
  const auto good = floats("scale", "x", {1, 3}, {1, 2, 3});
  auto r = good;
  r.mutable_inputs(0)->set_datatype("INT32");
  CHECK_THAT(refusal(*stub, r), Contains("input \"x\" is INT32 [1, 3]") && Contains("expects FP32 [-1, 3]"));
  CHECK_THAT(refusal(*stub, floats("scale", "x", {1, 4}, {1, 2, 3, 4})),
             Contains("FP32 [1, 4]") && Contains("FP32 [-1, 3]"));
  CHECK_THAT(refusal(*stub, floats("scale", "x", {3}, {1, 2, 3})), Contains("FP32 [3]"));
  CHECK_THAT(refusal(*stub, floats("scale", "x", {9, 3}, std::vector<float>(27))),
             Contains("a batch has 1 to 8 rows"));
  CHECK_THAT(refusal(*stub, floats("scale", "x", {0, 3}, {})), Contains("1 to 8 rows"));
  CHECK_THAT(refusal(*stub, floats("scale", "x", {1, 3}, {1, 2})), Contains("8 raw bytes") && Contains("12"));
  CHECK_THAT(refusal(*stub, floats("scale", "z", {1, 3}, {1, 2, 3})),
             Contains("no input \"z\"") && Contains("\"x\""));
  CHECK_THAT(refusal(*stub, floats("scale", "x", {-1, 3}, {1, 2, 3})), Contains("negative dimension"));
  CHECK_THAT(refusal(*stub, floats("scale", "x", {int64_t{1} << 62, 3}, {1})), Contains("element count"));
  CHECK_THAT(refusal(*stub, floats("scale", "x", std::vector<int64_t>(9, 1), {1})), Contains("dimensions"));
  CHECK_THAT(refusal(*stub, floats("nowhere", "x", {1, 3}, {1, 2, 3}), grpc::StatusCode::NOT_FOUND),
             Contains("nowhere"));
  CHECK_THAT(refusal(*stub, floats("broken", "x", {1, 3}, {1, 2, 3}), grpc::StatusCode::UNAVAILABLE),
             Contains("not loaded"));
  auto two = floats("two", "a", {1, 2}, {1, 2});
  CHECK_THAT(refusal(*stub, two), Contains("input \"b\" is missing") && Contains("FP32 [-1, 2]"));
  add_input(two, "b", "FP32", {2, 2});
  two.add_raw_input_contents(bytes_of<float>({1, 2, 3, 4}));
  CHECK_THAT(refusal(*stub, two), Contains("batch of 2 differs from the 1"));
  two.mutable_inputs(1)->set_name("a");
  CHECK_THAT(refusal(*stub, two), Contains("given twice"));
  r = good;
  r.mutable_inputs(0)->mutable_contents()->add_fp32_contents(1);
  CHECK_THAT(refusal(*stub, r), Contains("contents beside raw_input_contents"));
  r = good;
  r.add_raw_input_contents("more");
  CHECK_THAT(refusal(*stub, r), Contains("2 entries for 1 inputs"));
  r = good;
  (*r.add_outputs()->mutable_parameters())["classification"].set_int64_param(-2);
  CHECK_THAT(refusal(*stub, r), Contains("classification"));
  r = good;
  (*r.mutable_parameters())["timeout"].set_string_param("soon");
  CHECK_THAT(refusal(*stub, r), Contains("timeout"));
  ModelInferRequest bytes;
  bytes.set_model_name("same_BYTES");
  add_input(bytes, "x", "BYTES", {1, 3});
  bytes.add_raw_input_contents(raw_bytes("a") + raw_bytes("b") + std::string("\xff\xff\xff\x7f", 4) + "c");
  CHECK_THAT(refusal(*stub, bytes), Contains("element 2"));
  // An index the model itself refuses.
  ModelInferRequest index;
  index.set_model_name("table");
  add_input(index, "i", "INT64", {1})->mutable_contents()->add_int64_contents(7);
  CHECK_FALSE(refusal(*stub, index).empty());
  for (const std::string& garbage :
       {std::string("\xff\xff\xff\xff"), std::string(1000, '\x0a'), std::string("\x12")}) {
    CHECK_FALSE(raw_call(t.grpc(), "/inference.GRPCInferenceService/ModelInfer", garbage).first.ok());
  }
  ModelInferResponse response;
  CHECK(infer(*stub, good, response).ok());
}

TEST_CASE("Tensors over gRPC: bad requests leave their neighbours alone") {
  TensorServer t;
  std::atomic<int> wrong{0}, refused{0};
  std::vector<std::thread> clients;
  for (int n = 0; n < 6; ++n) {
    clients.emplace_back([&, n] {
      const auto stub = stub_to(t);
      for (int i = 0; i < 40; ++i) {
        const int64_t row = (n + i) % 4;
        ModelInferRequest r;
        r.set_model_name("table");
        auto* contents = add_input(r, "i", "INT64", {1})->mutable_contents();
        contents->add_int64_contents(n == 0 ? 99 : row);
        ModelInferResponse response;
        const grpc::Status s = infer(*stub, r, response);
        if (n == 0) {
          refused += s.ok() ? 0 : 1;
        } else if (!s.ok() ||
                   values_of<float>(response.raw_output_contents(0))[0] != static_cast<float>(10 * row)) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& c : clients) c.join();
  CHECK(wrong == 0);
  CHECK(refused == 40);
  grpc::ClientContext context;
  ModelStatisticsRequest ask;
  ask.set_name("table");
  ModelStatisticsResponse stats;
  REQUIRE(stub_to(t)->ModelStatistics(&context, ask, &stats).ok());
  REQUIRE(stats.model_stats_size() == 1);
  const ModelStatistics& s = stats.model_stats(0);
  CHECK(s.inference_count() == 200);
  CHECK(s.inference_stats().success().count() == 200);
  CHECK(s.inference_stats().fail().count() == 40);
  CHECK(s.inference_stats().compute_infer().ns() > 0);
  CHECK(s.inference_stats().success().ns() >= s.inference_stats().compute_infer().ns());
  uint64_t runs = 0;
  for (const auto& b : s.batch_stats()) runs += b.compute_infer().count();
  CHECK(runs == s.execution_count());
}

TEST_CASE("Tensors over gRPC: a stream of requests") {
  TensorServer t;
  const auto stub = stub_to(t);
  grpc::ClientContext context;
  auto stream = stub->ModelStreamInfer(&context);
  for (int i = 0; i < 20; ++i) {
    ModelInferRequest r = floats("scale", "x", {1, 3}, {static_cast<float>(i), 0, 0});
    r.set_id(cat(i));
    if (i == 7) r.mutable_inputs(0)->set_datatype("FP64");
    REQUIRE(stream->Write(r));
  }
  stream->WritesDone();
  std::map<std::string, float> got;
  int errors = 0;
  for (ModelStreamInferResponse response; stream->Read(&response);) {
    if (!response.error_message().empty()) {
      ++errors;
      CHECK(response.infer_response().id() == "7");
      continue;
    }
    got[response.infer_response().id()] =
        values_of<float>(response.infer_response().raw_output_contents(0))[0];
  }
  CHECK(stream->Finish().ok());
  CHECK(errors == 1);
  REQUIRE(got.size() == 19);
  for (const auto& [id, value] : got) CHECK(value == 3 * std::stof(id));
}

TEST_CASE("Tensors over gRPC: clients that leave") {
  TensorServer t;
  const auto stub = stub_to(t);
  for (int i = 0; i < 30; ++i) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::microseconds(50 * i));
    ModelInferResponse response;
    stub->ModelInfer(&context, floats("scale", "x", {8, 3}, std::vector<float>(24, 1)), &response);
    grpc::ClientContext cancelled;
    auto stream = stub->ModelStreamInfer(&cancelled);
    stream->Write(floats("scale", "x", {8, 3}, std::vector<float>(24, 1)));
    cancelled.TryCancel();
    stream->Finish();
  }
  ModelInferResponse response;
  CHECK(infer(*stub, floats("scale", "x", {1, 3}, {1, 2, 3}), response).ok());
}

TEST_CASE("Tensors over gRPC: models are not loaded and unloaded by everybody") {
  const auto unload = [](const TensorServer& t, const char* key) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", oar::cat("Bearer ", key));
    RepositoryModelUnloadRequest ask;
    ask.set_model_name("scale");
    RepositoryModelUnloadResponse answer;
    return stub_to(t)->RepositoryModelUnload(&context, ask, &answer);
  };
  {
    TensorServer t;
    const grpc::Status s = unload(t, "any");
    CHECK(s.error_code() == grpc::StatusCode::PERMISSION_DENIED);
    CHECK_THAT(s.error_message(), Contains("--model-control explicit"));
  }
  oar::ServerOptions o;
  o.api_key = "user";
  o.model_control = true;
  const std::string path = temp_dir() + "/grpc-admin-keys";
  std::ofstream(path) << "admin\n";
  o.admin_key_file = path;
  TensorServer t(o);
  CHECK(unload(t, "user").error_code() == grpc::StatusCode::UNAUTHENTICATED);
  CHECK(unload(t, "admin").ok());
}

TEST_CASE("Tensors over gRPC: the repository while it serves") {
  oar::ServerOptions options;
  options.model_control = true;
  TensorServer t(options);
  const auto stub = stub_to(t);
  const auto ready = [&](const std::string& name) {
    grpc::ClientContext context;
    ModelReadyRequest ask;
    ask.set_name(name);
    ModelReadyResponse answer;
    return stub->ModelReady(&context, ask, &answer).ok() && answer.ready();
  };
  const auto load = [&](const std::string& name, const std::string& config = {}) {
    grpc::ClientContext context;
    RepositoryModelLoadRequest ask;
    ask.set_model_name(name);
    if (!config.empty()) (*ask.mutable_parameters())["config"].set_string_param(config);
    RepositoryModelLoadResponse answer;
    return stub->RepositoryModelLoad(&context, ask, &answer);
  };
  const auto unload = [&](const std::string& name) {
    grpc::ClientContext context;
    RepositoryModelUnloadRequest ask;
    ask.set_model_name(name);
    RepositoryModelUnloadResponse answer;
    return stub->RepositoryModelUnload(&context, ask, &answer);
  };
  CHECK(ready("scale"));
  CHECK_FALSE(ready("broken"));
  {
    grpc::ClientContext context;
    RepositoryIndexResponse index;
    REQUIRE(stub->RepositoryIndex(&context, {}, &index).ok());
    int scales = 0;
    for (const auto& m : index.models()) {
      scales += m.name() == "scale" && m.state() == "READY";
      if (m.name() == "broken") {
        CHECK(m.state() == "UNAVAILABLE");
        CHECK_FALSE(m.reason().empty());
      }
    }
    CHECK(scales == 2);
  }
  REQUIRE(unload("scale").ok());
  CHECK_FALSE(ready("scale"));
  CHECK_THAT(refusal(*stub, floats("scale", "x", {1, 3}, {1, 2, 3}), grpc::StatusCode::UNAVAILABLE),
             Contains("unloaded"));
  REQUIRE(load("scale", R"({"maxBatchSize": 2, "versionPolicy": {"specific": {"versions": [1]}}})").ok());
  CHECK_THAT(refusal(*stub, floats("scale", "x", {3, 3}, std::vector<float>(9))), Contains("1 to 2 rows"));
  CHECK(load("scale", "{").error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  CHECK(ready("scale"));  // what was loaded goes on
  CHECK(load("../scale").error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(load("nowhere").error_code() == grpc::StatusCode::NOT_FOUND);
  CHECK(unload("nowhere").error_code() == grpc::StatusCode::NOT_FOUND);
  {  // No field is passed over.
    RepositoryModelUnloadRequest ask;
    ask.set_model_name("scale");
    RepositoryModelUnloadResponse answer;
    (*ask.mutable_parameters())["unload_dependents"].set_bool_param(true);
    (*ask.mutable_parameters())["force"].set_bool_param(true);
    grpc::ClientContext parameter, repository;
    grpc::Status refused = stub->RepositoryModelUnload(&parameter, ask, &answer);
    CHECK(refused.error_code() == grpc::StatusCode::UNIMPLEMENTED);
    CHECK_THAT(refused.error_message(), Contains("force"));
    ask.clear_parameters();
    ask.set_repository_name("other");
    refused = stub->RepositoryModelUnload(&repository, ask, &answer);
    CHECK_THAT(refused.error_message(), Contains("repository_name"));
    CHECK(ready("scale"));
    RepositoryIndexRequest index;
    index.set_repository_name("other");
    RepositoryIndexResponse listed;
    grpc::ClientContext other;
    CHECK_THAT(stub->RepositoryIndex(&other, index, &listed).error_message(), Contains("repository_name"));
  }
  // Loading and unloading under load: every request is answered or told that the model is not there.
  std::atomic<bool> stop{false};
  std::atomic<int> strange{0}, fine{0};
  std::vector<std::thread> clients;
  for (int n = 0; n < 3; ++n) {
    clients.emplace_back([&] {
      const auto mine = stub_to(t);
      while (!stop) {
        ModelInferResponse response;
        const grpc::Status s = infer(*mine, floats("scale", "x", {1, 3}, {1, 2, 3}), response);
        if (s.ok()) ++fine;
        else if (s.error_code() != grpc::StatusCode::UNAVAILABLE) ++strange;
      }
    });
  }
  for (int i = 0; i < 10; ++i) {
    CHECK(load("scale").ok());
    CHECK(unload("scale").ok());
  }
  CHECK(load("scale").ok());
  while (fine == 0) std::this_thread::yield();
  stop = true;
  for (std::thread& c : clients) c.join();
  CHECK(strange == 0);
}

TEST_CASE("Tensors over gRPC: beside a language model") {
  FakeEngine engine;
  TensorServer t({}, {fake_model(engine)});
  const auto stub = stub_to(t);
  ModelInferResponse response;
  CHECK(infer(*stub, floats("two", "a", {1, 2}, {1, 2}), response).error_code() ==
        grpc::StatusCode::INVALID_ARGUMENT);
  ModelInferRequest text = text_request("Hi");
  REQUIRE(infer(*stub, text, response).ok());
  CHECK_FALSE(text_of(response).empty());
  const oar::Status clash =
      t.catalog->add({std::make_shared<oar::ModelHandle>(fake_model(engine, "two")), nullptr});
  CHECK_THAT(clash.message(), Contains("two models are called two"));
}

}  // namespace
