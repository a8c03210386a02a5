// Of a build without the server.
#include "clients/cli/batch_server.h"

namespace oar::cli {

Result<std::unique_ptr<BatchServer>> start_batch_server(const ModelOptions&, std::function<bool()>) {
  return unimplemented(
      "batch: this build has no server to put the model behind; leave MODEL out and give --server URL");
}

}  // namespace oar::cli
