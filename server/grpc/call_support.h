// What every gRPC call of ours shares: status conversion, authentication, deadlines, metrics, and the
// registry through which stalled streams are found.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>

#include <mutex>
#include <optional>
#include <set>
#include <string_view>

#include "server/grpc/grpc_server.h"

namespace oar::grpc_api {

grpc::Status to_grpc(const Status& status);
// UNAUTHENTICATED unless the metadata carries the API key (authorization: Bearer <key>), or none is set.
Status authorize(const Services& services, const grpc::ServerContextBase& context);
// For loading and unloading models: by the admin key where there are any, and PERMISSION_DENIED where it is
// off.
Status authorize_control(const Services& services, const grpc::CallbackServerContext& context);
// INVALID_ARGUMENT: bytes that are no message of the method.
Status ill_formed_message(std::string_view method);
// INVALID_ARGUMENT when the message, or one in it, carries a field that this server's .proto does not have: a
// newer client asks for what would be passed over.
Status refuse_unknown_fields(const google::protobuf::Message& message);
// The call's deadline on the engine's clock, and whose key it came with.
// The address in gRPC's name of a peer, "ipv4:127.0.0.1:4711" or "ipv6:%5B::1%5D:4711", as HTTP writes it.
std::string address_of(std::string_view peer);
api::RequestContext context_of(const Services& services, const grpc::CallbackServerContext& context);

// Whose shared memory a call of theirs may use.
api::MemoryAccess access_of(const Services& services, const api::RequestContext& context);

// Reports one call's duration and code to the metrics.
class CallTimer {
 public:
  CallTimer(const Services& services, const char* method)
      : metrics_(services.metrics), method_(method), start_(Clock::now()) {}
  void done(grpc::StatusCode code) const;

 private:
  Metrics* metrics_;
  const char* method_;
  Clock::time_point start_;
};

// Something with an outstanding write whose age is looked at now and then.
class WatchedStream {
 public:
  virtual ~WatchedStream() = default;
  virtual void check(Clock::time_point now) = 0;
};

class StreamRegistry {
 public:
  void add(WatchedStream* s) {
    std::lock_guard lock(mutex_);
    streams_.insert(s);
  }
  void remove(WatchedStream* s) {
    std::lock_guard lock(mutex_);
    streams_.erase(s);
  }
  bool empty() const {
    std::lock_guard lock(mutex_);
    return streams_.empty();
  }
  // Holds the lock, so that no stream goes away meanwhile; check() must not add or remove.
  void check_all(Clock::time_point now) {
    std::lock_guard lock(mutex_);
    for (WatchedStream* s : streams_) s->check(now);
  }

 private:
  mutable std::mutex mutex_;
  std::set<WatchedStream*> streams_;
};

// A call answered on the spot.
template <class F>
grpc::ServerUnaryReactor* answer_now(const Services& services, grpc::CallbackServerContext* context,
                                     const char* method, bool open, F&& fill) {
  const CallTimer timer(services, method);
  Status s = open ? ok_status() : authorize(services, *context);
  if (s.ok()) s = fill();
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const grpc::Status status = to_grpc(s);
  timer.done(status.error_code());
  reactor->Finish(status);
  return reactor;
}

// Model control, which may take seconds: `work` runs on a loader's thread and may use the request.
template <class F>
grpc::ServerUnaryReactor* control_models(const Services& services, grpc::CallbackServerContext* context,
                                         const char* method, F work) {
  if (const Status s = authorize_control(services, *context); !s.ok())
    return answer_now(services, context, method, true, [&] { return s; });
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  services.loaders->post([reactor, timer = CallTimer(services, method), work = std::move(work)] {
    const grpc::Status status = to_grpc(work());
    timer.done(status.error_code());
    reactor->Finish(status);
  });
  return reactor;
}

}  // namespace oar::grpc_api
