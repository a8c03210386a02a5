// The protocol's descriptions of a model: metadata, configuration, statistics. Private to the gRPC room.
#pragma once

#include "inference/grpc_service.pb.h"
#include "server/api/model_handle.h"
#include "server/api/tensor_model.h"
#include "server/metrics/metrics.h"

namespace oar::grpc_api {

void describe(const ModelHandle& model, inference::ModelMetadataResponse& out);
void describe(const api::TensorModel& model, const std::vector<std::string>& versions,
              inference::ModelMetadataResponse& out);
void configure(const ModelHandle& model, inference::ModelConfig& out);
void configure(const api::TensorModel& model, inference::ModelConfig& out);
void add_statistics(const ModelHandle& model, const RequestTotals& totals, inference::ModelStatistics& out);
void add_statistics(const api::TensorModel& model, inference::ModelStatistics& out);

}  // namespace oar::grpc_api
