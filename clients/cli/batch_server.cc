#include "clients/cli/batch_server.h"

#include <algorithm>
#include <thread>

#include "engine/base/format.h"
#include "server/api/frontend.h"
#include "server/server.h"

namespace oar::cli {
namespace {

class Own final : public BatchServer {
 public:
  Own(std::unique_ptr<Server> server, std::string key, size_t most)
      : server_(std::move(server)), key_(std::move(key)), most_(most) {}
  ~Own() override { server_->drain_and_stop(std::chrono::seconds(1)); }
  std::string url() const override { return cat("http://127.0.0.1:", server_->http_port()); }
  std::string api_key() const override { return key_; }
  int most_requests() const override { return static_cast<int>(std::min<size_t>(most_, 1024)); }

 private:
  std::unique_ptr<Server> server_;
  std::string key_;
  size_t most_;
};

}  // namespace

Result<std::unique_ptr<BatchServer>> start_batch_server(const ModelOptions& options,
                                                        std::function<bool()> stop) {
  OAR_ASSIGN(std::shared_ptr<LanguageModel> model, open_model(options, LogLevel::kWarning, stop));
  const auto catalog = std::make_shared<api::ModelCatalog>();
  OAR_RETURN_IF_ERROR(catalog->add({std::make_shared<ModelHandle>(make_handle(model)), nullptr}));
  ServerOptions o;
  o.http_address = "127.0.0.1:0";
  o.grpc_address.clear();
  o.api_key = api::make_id("batch-");
  OAR_ASSIGN(std::unique_ptr<Server> server, Server::start(o, catalog));
  Engine& engine = model->engine();
  while (engine.health() == EngineHealth::kStarting && !stop())
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  if (stop()) return Status(StatusCode::kCancelled, "interrupted");
  if (engine.health() != EngineHealth::kReady) return unavailable("the engine has failed; see the log above");
  return std::unique_ptr<BatchServer>(std::make_unique<Own>(std::move(server), std::move(o.api_key),
                                                            std::max<size_t>(1, options.engine.max_waiting)));
}

}  // namespace oar::cli
