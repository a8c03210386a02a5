// Requests over gRPC: ModelInfer and ModelStreamInfer of the Open Inference Protocol and its extension by
// Triton. gRPC is behind grpc_exchange.cc; a build without it has grpc_exchange_absent.cc.
#pragma once

#include <memory>

#include "clients/loadtest/exchange.h"

namespace oar::loadtest {

// What the calls of one run share: connections and the tensors, made once. Any thread.
class GrpcTarget : public std::enable_shared_from_this<GrpcTarget> {
 public:
  virtual ~GrpcTarget() = default;
  // One call for one plan; the prompt of text endpoints in `prompt`. `done` as in HttpExchange.
  virtual std::shared_ptr<Exchange> make(WorkerContext& worker, Record record, const Plan& plan,
                                         const std::string& prompt, Exchange::Done done) = 0;

  // UNIMPLEMENTED without gRPC; otherwise what the workload's tensors say.
  static Result<std::shared_ptr<GrpcTarget>> create(const RunSpec& spec, const Workload& workload);
};

}  // namespace oar::loadtest
