// The server that `oar batch` starts for a model of its own: on the loopback, on a free port, behind a key
// that only this process knows. So a batch takes the same way as any other request.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "clients/cli/model_options.h"

namespace oar::cli {

class BatchServer {
 public:
  virtual ~BatchServer() = default;  // drains
  virtual std::string url() const = 0;
  virtual std::string api_key() const = 0;
  virtual int most_requests() const = 0;  // that it takes at once without refusing
};

// Loads the model and waits until it is ready. UNIMPLEMENTED in a build without the server.
Result<std::unique_ptr<BatchServer>> start_batch_server(const ModelOptions& model,
                                                        std::function<bool()> stop);

}  // namespace oar::cli
