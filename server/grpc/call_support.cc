#include "server/grpc/call_support.h"

#include <google/protobuf/unknown_field_set.h>

#include "engine/base/format.h"
#include "server/api/auth.h"
#include "server/api/trace_parent.h"
#include "server/api/version.h"

namespace oar::grpc_api {

grpc::Status to_grpc(const Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(status.code()), status.message()};
}

Status ill_formed_message(std::string_view method) {
  return invalid_argument(cat("the request is no valid protobuf message of ", method,
                              "; make it with the server's own .proto files (proto/)"));
}

namespace {

// Null: nobody.
std::shared_ptr<api::Tenant> who_asks(api::ApiKeys& keys, const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find("authorization");
  if (found == metadata.end()) return nullptr;
  return keys.find_bearer(std::string_view(found->second.data(), found->second.size()));
}

Status check_key(api::ApiKeys* keys, const char* kind, const grpc::ServerContextBase& context) {
  if (keys == nullptr || who_asks(*keys, context) != nullptr) return ok_status();
  return {StatusCode::kUnauthenticated,
          cat("the ", kind, " key is missing or wrong; send metadata authorization: Bearer <key>")};
}

}  // namespace

Status authorize(const Services& services, const grpc::ServerContextBase& context) {
  return check_key(services.keys.get(), "API", context);
}

Status authorize_control(const Services& services, const grpc::CallbackServerContext& context) {
  OAR_RETURN_IF_ERROR(services.control.keys ? check_key(services.control.keys.get(), "admin", context)
                                            : authorize(services, context));
  return services.control.enabled ? ok_status() : api::model_control_off();
}

Status refuse_unknown_fields(const google::protobuf::Message& message) {
  using google::protobuf::FieldDescriptor;
  const auto* reflection = message.GetReflection();
  if (const auto& unknown = reflection->GetUnknownFields(message); unknown.field_count() > 0) {
    return invalid_argument(cat(message.GetTypeName(), " has no field ", unknown.field(0).number(),
                                " here; the client's .proto is newer than this server (", api::kVersion,
                                "), leave the field out"));
  }
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const FieldDescriptor* f : fields) {
    if (f->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || f->is_map()) continue;
    const int count = f->is_repeated() ? reflection->FieldSize(message, f) : 1;
    for (int i = 0; i < count; ++i) {
      OAR_RETURN_IF_ERROR(refuse_unknown_fields(f->is_repeated()
                                                    ? reflection->GetRepeatedMessage(message, f, i)
                                                    : reflection->GetMessage(message, f)));
    }
  }
  return ok_status();
}

std::string address_of(std::string_view peer) {
  const size_t port = peer.rfind(':'), scheme = peer.find(':');
  if (port == std::string_view::npos || port == scheme) return std::string(peer);  // "unix:"
  std::string_view address = peer.substr(scheme + 1, port - scheme - 1);
  for (const std::string_view open : {"%5B", "["})
    if (address.starts_with(open)) address.remove_prefix(open.size());
  for (const std::string_view close : {"%5D", "]"})
    if (address.ends_with(close)) address.remove_suffix(close.size());
  return std::string(address);
}

api::RequestContext context_of(const Services& services, const grpc::CallbackServerContext& context) {
  api::RequestContext out;
  if (services.keys) out.tenant = who_asks(*services.keys, context);
  out.peer = address_of(context.peer());
  const auto trace = context.client_metadata().find("traceparent");
  if (trace != context.client_metadata().end()) {
    const std::string_view text(trace->second.data(), trace->second.size());
    if (api::parse_traceparent(text)) out.trace = text;
  }
  const auto deadline = context.deadline();
  if (deadline != std::chrono::system_clock::time_point::max()) {
    const auto left = deadline - std::chrono::system_clock::now();
    out.deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(left);
  }
  return out;
}

api::MemoryAccess access_of(const Services& services, const api::RequestContext& context) {
  return {services.memory, context.tenant ? context.tenant->name() : std::string()};
}

void CallTimer::done(grpc::StatusCode code) const {
  const std::chrono::duration<double> took = Clock::now() - start_;
  metrics_->on_grpc_request(method_, code, took.count());
}

}  // namespace oar::grpc_api
