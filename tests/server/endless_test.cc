// An ordinary model whose loop never ends: a client that leaves, and a deadline, reach its run.
#include <filesystem>
#include <thread>

#include "tests/import/onnx_writer.h"
#include "tests/server/grpc_client.h"
#include "tests/server/raw_client.h"
#include "tests/server/tensor_server.h"
#include "tests/support/catch.h"
#include "tests/support/test_data.h"

namespace {

using namespace oar_test;  // NOLINT
using std::chrono::milliseconds;

struct EndlessServer {
  EndlessServer() {
    const std::string folder = temp_dir() + "/endless_repository";
    const Proto body =
        graph_proto({node_proto("Identity", {"c"}, {"go"}), node_proto("Add", {"s", "s"}, {"t"})}, {},
                    {value_proto("i", {}, 7), value_proto("c", {}, 9), value_proto("s", {1})},
                    {value_proto("go", {}, 9), value_proto("t", {1})});
    write_below(
        folder, "endless/1/model.onnx",
        model_bytes(graph_proto({node_proto("Loop", {"", "", "x"}, {"y"}, {graph_attr("body", body)})}, {},
                                {value_proto("x", {1})}, {value_proto("y", {1})})));
    oar::RepositoryOptions r;
    r.predictor.threads = 1;
    auto opened = oar::open_repository(folder, "", r);
    REQUIRE_OK(opened);
    catalog = std::move(*opened);
    oar::ServerOptions o;
    o.http_address = o.grpc_address = "127.0.0.1:0";
    auto started = oar::Server::start(o, catalog);
    REQUIRE_OK(started);
    server = std::move(*started);
  }
  oar::InferStats stats() const { return catalog->find("endless", "")->tensor->runner->stats(); }
  // Requests being run, once it is that.
  bool reaches(size_t running) const {
    for (int i = 0; i < 6000 && stats().running != running; ++i)
      std::this_thread::sleep_for(milliseconds(10));
    return stats().running == running;
  }

  std::shared_ptr<oar::api::ModelCatalog> catalog;
  std::unique_ptr<oar::Server> server;
};

inference::ModelInferRequest endless_request() {
  inference::ModelInferRequest r;
  r.set_model_name("endless");
  add_input(r, "x", "FP32", {1})->mutable_contents()->add_fp32_contents(1);
  return r;
}

TEST_CASE("an endless loop ends with its client, or at its deadline") {
  EndlessServer t;
  const std::string body = R"({"inputs":[{"name":"x","datatype":"FP32","shape":[1],"data":[1]}]})";
  {
    RawClient c(t.server->http_port());
    REQUIRE(c.send(make_request("POST", "/v2/models/endless/infer", body)));
    REQUIRE(t.reaches(1));
  }  // the client is gone
  CHECK(t.reaches(0));
  CHECK(t.stats().cancelled == 1);
  const HttpReply late =
      http(t.server->http_port(), "POST", "/v2/models/endless/infer", body, {{"X-Request-Timeout", "0.05"}});
  CHECK(late.status == 408);

  const auto stub =
      std::make_unique<inference::GRPCInferenceService::Stub>(channel_to(t.server->grpc_port()));
  inference::ModelInferResponse response;
  {
    grpc::ClientContext context;
    std::thread leaves([&] {
      t.reaches(1);
      context.TryCancel();
    });
    CHECK(stub->ModelInfer(&context, endless_request(), &response).error_code() ==
          grpc::StatusCode::CANCELLED);
    leaves.join();
  }
  CHECK(t.reaches(0));
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + milliseconds(100));
    CHECK(stub->ModelInfer(&context, endless_request(), &response).error_code() ==
          grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  CHECK(t.reaches(0));
  {
    grpc::ClientContext context;
    auto stream = stub->ModelStreamInfer(&context);
    REQUIRE(stream->Write(endless_request()));
    REQUIRE(t.reaches(1));
    context.TryCancel();
    CHECK(stream->Finish().error_code() == grpc::StatusCode::CANCELLED);
  }
  CHECK(t.reaches(0));
  // The end of the server does not wait for a loop either.
  RawClient last(t.server->http_port());
  REQUIRE(last.send(make_request("POST", "/v2/models/endless/infer", body)));
  REQUIRE(t.reaches(1));
  CHECK_FALSE(t.server->drain_and_stop(milliseconds(50)));
}

}  // namespace
