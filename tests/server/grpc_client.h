// gRPC clients of the tests: typed stubs and a raw one that sends any bytes as a message.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

#include "inference/grpc_service.grpc.pb.h"
#include "oar/v1/oar.grpc.pb.h"

namespace oar_test {

std::shared_ptr<grpc::Channel> channel_to(int port);
// Sends `message` to a unary method and returns the answer's bytes; also fits a stream that answers once.
std::pair<grpc::Status, std::string> raw_call(int port, const std::string& method, const std::string& message,
                                              const std::string& authorization = {});

// A request for the fake model with text_input as contents.
inference::ModelInferRequest text_request(const std::string& text,
                                          const std::string& sampling_parameters = {});
inference::ModelInferRequest::InferInputTensor* add_input(inference::ModelInferRequest& request,
                                                          const std::string& name,
                                                          const std::string& datatype,
                                                          std::vector<int64_t> shape = {1});
// The one BYTES element of text_output.
std::string text_of(const inference::ModelInferResponse& response);
std::string raw_bytes(const std::string& text);

}  // namespace oar_test
