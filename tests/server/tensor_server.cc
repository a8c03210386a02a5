#include "tests/server/tensor_server.h"

#include <stdexcept>

namespace oar_test {

TensorServer::TensorServer(oar::ServerOptions options, std::vector<oar::ModelHandle> language)
    : folder(write_repository()) {
  oar::RepositoryOptions r;
  r.predictor.threads = 1;
  auto opened = oar::open_repository(folder, "", r);
  if (!opened.ok()) throw std::runtime_error(opened.status().message());
  catalog = std::move(*opened);
  for (oar::ModelHandle& m : language) {
    const oar::Status s = catalog->add({std::make_shared<oar::ModelHandle>(std::move(m)), nullptr});
    if (!s.ok()) throw std::runtime_error(s.message());
  }
  options.http_address = "127.0.0.1:0";
  options.grpc_address = "127.0.0.1:0";
  auto started = oar::Server::start(std::move(options), catalog);
  if (!started.ok()) throw std::runtime_error(started.status().message());
  server = std::move(*started);
}

}  // namespace oar_test
