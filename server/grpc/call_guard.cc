#include "server/grpc/call_guard.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

namespace oar::grpc_api {
namespace {

using Hook = grpc::experimental::InterceptionHookPoints;
using Batch = grpc::experimental::InterceptorBatchMethods;

bool is_reflection(std::string_view method) { return method.starts_with("/grpc.reflection."); }

// gRPC itself answers UNIMPLEMENTED and says nothing.
class RefusesIllFormed final : public grpc::experimental::Interceptor {
 public:
  explicit RefusesIllFormed(std::string method) : method_(std::move(method)) {}
  void Intercept(Batch* batch) override {
    if (batch->QueryInterceptionHookPoint(Hook::POST_RECV_MESSAGE))
      ill_formed_ = batch->GetRecvMessage() == nullptr;
    if (ill_formed_ && batch->QueryInterceptionHookPoint(Hook::PRE_SEND_STATUS))
      batch->ModifySendStatus(to_grpc(ill_formed_message(method_)));
    batch->Proceed();
  }

 private:
  const std::string method_;
  bool ill_formed_ = false;
};

// A refused call gets this in place of each answer, and the same as its status.
class RefusesReflection final : public grpc::experimental::Interceptor {
 public:
  explicit RefusesReflection(const Status& refusal) : status_(to_grpc(refusal)) {}
  void Intercept(Batch* batch) override {
    if (batch->QueryInterceptionHookPoint(Hook::PRE_SEND_MESSAGE)) {
      const grpc::Slice slice(answer());
      *batch->GetSerializedSendMessage() = grpc::ByteBuffer(&slice, 1);
    }
    if (batch->QueryInterceptionHookPoint(Hook::PRE_SEND_STATUS)) batch->ModifySendStatus(status_);
    batch->Proceed();
  }

 private:
  // ServerReflectionResponse{error_response (7): ErrorResponse{error_code (1), error_message (2)}}.
  std::string answer() const {
    const std::string error = std::string("\x08", 1) + static_cast<char>(status_.error_code()) + '\x12' +
                              static_cast<char>(status_.error_message().size()) + status_.error_message();
    OAR_CHECK(error.size() < 128, "lengths are one byte here");
    return '\x3a' + std::string(1, static_cast<char>(error.size())) + error;
  }
  const grpc::Status status_;
};

class Guards final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Guards(const Services& services) : services_(services) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    if (is_reflection(info->method())) {
      const Status s = authorize(services_, *info->server_context());
      return s.ok() ? nullptr : new RefusesReflection(s);
    }
    // On a stream of requests a message that is missing is its end; those look at each themselves.
    return info->type() == grpc::experimental::ServerRpcInfo::Type::BIDI_STREAMING
               ? nullptr
               : new RefusesIllFormed(info->method());
  }

 private:
  const Services& services_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> call_guards(
    const Services& services) {
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> out;
  out.push_back(std::make_unique<Guards>(services));
  return out;
}

}  // namespace oar::grpc_api
