// The protocol's descriptions of a model: metadata, configuration, statistics. Private to the gRPC room.
#pragma once

#include "inference/grpc_service.pb.h"
#include "server/api/served_models.h"

namespace oar::grpc_api {

void describe(const api::ModelMetadata& model, inference::ModelMetadataResponse& out);
void configure(const api::TensorModelConfig& config, inference::ModelConfig& out);
void add_statistics(const api::ModelStatistics& statistics, inference::ModelStatistics& out);

}  // namespace oar::grpc_api
