// Ensembles as a server has them: over REST and gRPC, with statistics, while their steps come and go.
#include <cstring>

#include "engine/base/format.h"
#include "tests/server/ensemble_texts.h"
#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/tensor_server.h"
#include "tests/server/test_server.h"
#include "tests/support/catch.h"

namespace {

using namespace oar_test;  // NOLINT
using oar::open_repository;
using oar::RepositoryOptions;
using oar::Server;
using oar::ServerOptions;
namespace api = oar::api;

// A server over the usual repository and ensembles of it.
struct EnsembleServer {
  explicit EnsembleServer(const std::vector<std::pair<std::string, std::string>>& ensembles,
                          ServerOptions options = {}) {
    folder = write_repository();
    for (const auto& [name, config] : ensembles) write_below(folder, name + "/config.pbtxt", config);
    RepositoryOptions r;
    r.predictor.threads = 1;
    auto opened = open_repository(folder, "", r);
    REQUIRE_OK(opened);
    catalog = std::move(*opened);
    options.http_address = options.grpc_address = "127.0.0.1:0";
    options.model_control = true;
    auto started = Server::start(std::move(options), catalog);
    REQUIRE_OK(started);
    server = std::move(*started);
  }
  HttpReply post(const std::string& path, const std::string& body, const Headers& headers = {}) const {
    return http(server->http_port(), "POST", path, body, headers);
  }
  HttpReply get(const std::string& path) const { return http(server->http_port(), "GET", path); }
  std::string reason(const std::string& name) const {
    for (const auto& m : catalog->index())
      if (m.name == name) return m.reason;
    return "not listed";
  }
  std::string folder;
  std::shared_ptr<api::ModelCatalog> catalog;
  std::unique_ptr<Server> server;
};

std::unique_ptr<inference::GRPCInferenceService::Stub> stub_of(const EnsembleServer& t) {
  return inference::GRPCInferenceService::NewStub(channel_to(t.server->grpc_port()));
}

const char* kRow = R"({"inputs":[{"name":"raw","datatype":"FP32","shape":[1,3],"data":[1,2,4]}]})";

std::string answer_of(const HttpReply& r) {
  INFO(r.body);
  REQUIRE(r.status == 200);
  std::string out;
  const auto parsed = parse(r.body);
  for (const auto& o : parsed.at("outputs").as_array()) {
    out += cat(std::string(o.at("name").as_string()), serialize(o.at("shape")));
    for (const auto& v : o.at("data").as_array()) out += cat(" ", v.to_number<double>());
    out += ";";
  }
  return out;
}

TEST_CASE("Ensemble: steps in any order in the config, over REST, binary and gRPC") {
  EnsembleServer t({{"chain", chain()}});
  CHECK(answer_of(t.post("/v2/models/chain/infer", kRow)) == "out[1,3] 3 6 12;other[1,3] 1 2 4;");
  // One of the outputs; what the others cost is not asked for.
  CHECK(answer_of(t.post("/v2/models/chain/infer",
                         R"({"inputs":[{"name":"raw","datatype":"FP32","shape":[2,3],"data":[1,2,4,0,0,1]}],)"
                         R"("outputs":[{"name":"other"}]})")) == "other[2,3] 1 2 4 0 0 1;");
  const std::vector<float> row = {1, 2, 4};
  const std::string raw(reinterpret_cast<const char*>(row.data()), 12);
  const HttpReply binary = t.post("/v2/models/chain/infer", raw, {{"Inference-Header-Content-Length", "0"}});
  REQUIRE(binary.status == 200);
  const std::string tail = binary.body.substr(binary.body.size() - 24);
  CHECK(std::memcmp(tail.data() + 12, raw.data(), 12) == 0);

  const auto stub = stub_of(t);
  inference::ModelInferRequest ask;
  ask.set_model_name("chain");
  auto* in = ask.add_inputs();
  in->set_name("raw");
  in->set_datatype("FP32");
  in->add_shape(1);
  in->add_shape(3);
  for (const float v : row) in->mutable_contents()->add_fp32_contents(v);
  inference::ModelInferResponse reply;
  grpc::ClientContext context;
  const grpc::Status s = stub->ModelInfer(&context, ask, &reply);
  INFO(s.error_message());
  REQUIRE(s.ok());
  REQUIRE(reply.outputs_size() == 2);
  CHECK(reply.outputs(0).name() == "out");
  float first[3];
  std::memcpy(first, reply.raw_output_contents(0).data(), 12);
  CHECK(first[2] == 12);

  // What it is.
  const auto config = parse(t.get("/v2/models/chain/config").body);
  CHECK(config.at("platform") == "ensemble");
  CHECK(config.at("max_batch_size").to_number<int>() == 4);
  const auto& steps = config.at("ensemble_scheduling").at("step").as_array();
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].at("input_map").at("x") == "raw");
  inference::ModelConfigRequest what;
  what.set_name("chain");
  inference::ModelConfigResponse is;
  grpc::ClientContext again;
  REQUIRE(stub->ModelConfig(&again, what, &is).ok());
  REQUIRE(is.config().ensemble_scheduling().step_size() == 3);
  CHECK(is.config().ensemble_scheduling().step(2).input_map().at("x") == "scaled");
  const auto metadata = parse(t.get("/v2/models/chain").body);
  CHECK(serialize(metadata.at("inputs").at(0).at("shape")) == "[-1,3]");
}

TEST_CASE("Ensemble: its own statistics and those of its steps") {
  EnsembleServer t({{"chain", chain()}});
  for (int k = 0; k < 3; ++k) REQUIRE(t.post("/v2/models/chain/infer", kRow).status == 200);
  const auto stats = [&](const std::string& path) { return parse(t.get(path).body).at("model_stats").at(0); };
  const auto own = stats("/v2/models/chain/stats");
  CHECK(own.at("inference_count").to_number<int>() == 3);
  CHECK(own.at("inference_stats").at("success").at("count").to_number<int>() == 3);
  CHECK(own.at("inference_stats").at("compute_infer").at("ns").to_number<int64_t>() > 0);
  CHECK(stats("/v2/models/same_FP32/stats").at("inference_count").to_number<int>() == 3);
  CHECK(stats("/v2/models/scale/versions/1/stats").at("inference_count").to_number<int>() == 3);
  CHECK_THAT(t.get("/metrics").body,
             Contains("nv_inference_request_success{model=\"chain\",version=\"1\"} 3"));
}

TEST_CASE("Ensemble: an error of a step names it") {
  const std::string look =
      cat("max_batch_size: 8\n", tensor("input", "index", "INT64", ""), tensor("output", "row", "FP32", "2"),
          "ensemble_scheduling {\n", step("table", {{"i", "index"}}, {{"y", "row"}}), "}\n");
  EnsembleServer t({{"look", look}});
  const auto ask = [&](const char* index) {
    return t.post(
        "/v2/models/look/infer",
        cat(R"({"inputs":[{"name":"index","datatype":"INT64","shape":[1],"data":[)", index, "]}]}"));
  };
  CHECK(answer_of(ask("2")) == "row[1,2] 20 21;");
  const HttpReply r = ask("9");
  CHECK(r.status == 400);
  CHECK_THAT(r.body, Contains("step \\\"table\\\" of the ensemble \\\"look\\\""));
  // The ensemble's own limits come first.
  CHECK_THAT(t.post("/v2/models/look/infer",
                    R"({"inputs":[{"name":"i","datatype":"INT64","shape":[1],"data":[1]}]})")
                 .body,
             Contains("has no input \\\"i\\\""));
}

TEST_CASE("Ensemble: a step that is unloaded is named by the answer, and may come again") {
  EnsembleServer t({{"chain", chain()},
                    {"outer", cat("max_batch_size: 2\n", tensor("input", "a", "FP32", "3"),
                                  tensor("output", "b", "FP32", "3"), "ensemble_scheduling {\n",
                                  step("chain", {{"raw", "a"}}, {{"out", "b"}}), "}\n")}});
  CHECK(answer_of(t.post("/v2/models/outer/infer",
                         R"({"inputs":[{"name":"a","datatype":"FP32","shape":[1,3],"data":[1,2,4]}]})")) ==
        "b[1,3] 3 6 12;");
  CHECK(t.get("/v2/models/outer/ready").status == 200);
  REQUIRE(t.post("/v2/repository/models/same_FP32/unload", "").status == 200);
  const HttpReply r = t.post("/v2/models/chain/infer", kRow);
  CHECK(r.status == 503);
  CHECK_THAT(r.body, Contains("the step \\\"same_FP32\\\" of the ensemble \\\"chain\\\" is not there"));
  CHECK(t.get("/v2/models/chain/ready").status != 200);
  CHECK(t.get("/v2/models/outer/ready").status != 200);
  CHECK_THAT(t.reason("outer"), Contains("same_FP32"));
  const auto stub = stub_of(t);
  inference::ModelReadyRequest ask;
  ask.set_name("chain");
  inference::ModelReadyResponse is;
  grpc::ClientContext context;
  REQUIRE(stub->ModelReady(&context, ask, &is).ok());
  CHECK_FALSE(is.ready());
  // Loading the ensemble brings its steps.
  REQUIRE(t.post("/v2/repository/models/outer/load", "").status == 200);
  CHECK(t.get("/v2/models/chain/ready").status == 200);
  CHECK(t.post("/v2/models/chain/infer", kRow).status == 200);
  // And its end takes along what nobody else needs.
  REQUIRE(
      t.post("/v2/repository/models/outer/unload", R"({"parameters":{"unload_dependents":true}})").status ==
      200);
  CHECK_FALSE(t.catalog->find("chain", "").ok());
  CHECK_FALSE(t.catalog->find("scale", "").ok());
  CHECK(t.catalog->find("two", "").ok());
  REQUIRE(t.post("/v2/repository/models/chain/load", "").status == 200);
  REQUIRE(t.post("/v2/repository/models/outer/load", "").status == 200);
  REQUIRE(
      t.post("/v2/repository/models/outer/unload", R"({"parameters":{"unload_dependents":true}})").status ==
      200);
  CHECK_FALSE(t.catalog->find("chain", "").ok());
}

}  // namespace
