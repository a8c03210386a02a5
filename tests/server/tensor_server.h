// A server over a model repository of small ONNX models (tensor_repository.h).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "server/repository/repository.h"
#include "server/server.h"
#include "tests/server/tensor_repository.h"

namespace oar_test {

struct TensorServer {
  explicit TensorServer(oar::ServerOptions options = {}, std::vector<oar::ModelHandle> language = {});
  int http() const { return server->http_port(); }
  int grpc() const { return server->grpc_port(); }

  std::string folder;
  std::shared_ptr<oar::api::ModelCatalog> catalog;
  std::unique_ptr<oar::Server> server;
};

}  // namespace oar_test
