// Tensors of a message that lie in shared memory: put into the message before anything else looks at it, and
// outputs taken out of the response at the end. So the rules of tensors stand once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "inference/grpc_service.pb.h"
#include "server/api/shared_memory.h"

namespace oar::grpc_api {

class SharedTensors {
 public:
  // Inputs become raw_input_contents, and the parameters that named their places are gone, as are those of
  // outputs. Null when the message names no region. INVALID_ARGUMENT for an input with contents as well.
  static Result<std::shared_ptr<const SharedTensors>> take(inference::ModelInferRequest& request,
                                                           const api::MemoryAccess& memory);
  // Whether the message names a region.
  static bool in(const inference::ModelInferRequest& request);

  // Writes what was asked for into the client's memory; the response names the places instead.
  Status place(inference::ModelInferResponse& response) const;

 private:
  api::MemoryAccess memory_;
  std::vector<std::pair<std::string, api::RegionSpan>> outputs_;
};

}  // namespace oar::grpc_api
