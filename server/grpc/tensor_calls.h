// ModelInfer of ordinary models. Private to the gRPC room.
#pragma once

#include "inference/grpc_service.grpc.pb.h"
#include "server/api/tensor_model.h"
#include "server/grpc/call_support.h"

namespace oar::grpc_api {

// Returns a reactor that owns itself until its call is over.
grpc::ServerUnaryReactor* begin_tensor_infer(const Services& services, grpc::CallbackServerContext* context,
                                             api::TensorModelPtr model,
                                             const inference::ModelInferRequest* request,
                                             inference::ModelInferResponse* response);

// One request of a model, whatever call it came in.
struct TensorRequest {
  InferJob job;                  // without `done`
  std::vector<size_t> outputs;   // wanted, by index
  std::vector<int64_t> classes;  // of each that is named, for classify()
};
// Checks and decodes; tensors view `request`, which `owner` keeps alive (null: the caller does).
Result<TensorRequest> read_tensor_request(const api::TensorModel& model,
                                          const inference::ModelInferRequest& request,
                                          const api::RequestContext& context,
                                          std::shared_ptr<const void> owner);
// Fills in names, version and id, and the outputs, classified where that was asked for, as raw contents.
Status write_tensor_response(const api::TensorModel& model, const std::string& id, std::vector<Datum> results,
                             const std::vector<size_t>& wanted, const std::vector<int64_t>& classes,
                             inference::ModelInferResponse& response);

}  // namespace oar::grpc_api
