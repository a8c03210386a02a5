// Of a build without gRPC (OAR_SERVER=OFF).
#include "clients/loadtest/grpc_exchange.h"

namespace oar::loadtest {

Result<std::shared_ptr<GrpcTarget>> GrpcTarget::create(const RunSpec&, const Workload&) {
  return unimplemented("endpoint: gRPC is left out of this build; configure with -DOAR_SERVER=ON");
}

}  // namespace oar::loadtest
