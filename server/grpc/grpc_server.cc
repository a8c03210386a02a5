// Building and stopping the gRPC server, and the watchdog that keeps health statuses current and finds
// stalled streams.
#include "server/grpc/grpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include <condition_variable>
#include <thread>

#include "engine/base/format.h"
#include "server/grpc/call_guard.h"
#include "server/grpc/encoding_service.h"
#include "server/grpc/generation_service.h"
#include "server/grpc/inference_service.h"
#include "server/grpc/tls_credentials.h"

namespace oar::grpc_api {
namespace {

constexpr const char* kServices[] = {"inference.GRPCInferenceService", "oar.v1.Generation",
                                     "oar.v1.Encoding"};
constexpr std::chrono::milliseconds kWatchInterval{100};

class GrpcServerImpl final : public GrpcServer {
 public:
  explicit GrpcServerImpl(Services services)
      : services_(std::move(services)),
        inference_(services_, registry_),
        generation_(services_, registry_),
        encoding_(services_) {}
  ~GrpcServerImpl() override { stop(std::chrono::milliseconds(0)); }

  Status listen(const std::string& address);
  int port() const override { return port_; }
  void update_health() override;
  bool stop(std::chrono::milliseconds timeout) override;

 private:
  void watch();

  const Services services_;
  StreamRegistry registry_;
  InferenceService inference_;
  GenerationService generation_;
  EncodingService encoding_;
  std::shared_ptr<grpc::ServerCredentials> credentials_;  // outlives the server
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
  std::thread watchdog_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  int last_serving_ = -1;  // what the health service was last told; guarded by mutex_
};

Status GrpcServerImpl::listen(const std::string& address) {
  static std::once_flag plugins;  // process-wide switches of the libraries
  std::call_once(plugins, [] {
#if GOOGLE_PROTOBUF_VERSION < 4022000
    // A client's ill-formed message is its own affair, not a line on our stderr. Newer versions log through
    // absl.
    google::protobuf::SetLogHandler(nullptr);
#endif
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  const GrpcLimits& limits = services_.limits;
  const auto interval = static_cast<int>(limits.keepalive_interval.count());
  grpc::ResourceQuota quota("oar");
  quota.Resize(limits.memory_quota_bytes);
  credentials_ = make_credentials(services_.tls);
  grpc::ServerBuilder builder;
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(limits.max_message_bytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_concurrent_streams);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, limits.max_metadata_bytes);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, interval);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 2);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port in use is an error, not a share
  builder.AddListeningPort(address, credentials_, &port_);
  builder.experimental().SetInterceptorCreators(call_guards(services_));
  builder.RegisterService(&inference_);
  builder.RegisterService(&generation_);
  builder.RegisterService(&encoding_);
  server_ = builder.BuildAndStart();
  if (!server_ || port_ == 0) {
    return unavailable(cat("cannot listen on ", address, " for gRPC; choose another port"));
  }
  update_health();
  watchdog_ = std::thread([this] { watch(); });
  return ok_status();
}

void GrpcServerImpl::update_health() {
  const bool serving = services_.frontend->ready();
  std::lock_guard lock(mutex_);
  if (stopping_ || last_serving_ == static_cast<int>(serving)) return;
  last_serving_ = serving;
  auto* health = server_->GetHealthCheckService();
  if (!health) return;
  health->SetServingStatus("", serving);
  for (const char* name : kServices) health->SetServingStatus(name, serving);
}

void GrpcServerImpl::watch() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kWatchInterval, [this] { return stopping_; })) {
    lock.unlock();
    update_health();
    registry_.check_all(Clock::now());
    lock.lock();
  }
}

bool GrpcServerImpl::stop(std::chrono::milliseconds timeout) {
  if (!server_) return true;
  update_health();
  const auto deadline = std::chrono::system_clock::now() + timeout;
  const bool idle = registry_.empty();
  server_->Shutdown(
      deadline);  // returns at once when all calls are done, at the deadline when it had to cancel some
  const bool clean = idle || std::chrono::system_clock::now() < deadline;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  server_->Wait();
  server_.reset();
  return clean;
}

}  // namespace

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(const std::string& address, Services services) {
  auto server = std::make_unique<GrpcServerImpl>(std::move(services));
  OAR_RETURN_IF_ERROR(server->listen(address));
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace oar::grpc_api
