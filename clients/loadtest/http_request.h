// One HTTP request, waited for: what the tools around a run need (health, model names, metrics, batches). Not
// for measuring.
#pragma once

#include <string>
#include <vector>

#include "clients/loadtest/run.h"

namespace oar::loadtest {

struct HttpReply {
  unsigned status = 0;
  std::string body;
};

// `path` is behind the server's base. UNAVAILABLE when there is no connection or no complete answer within
// `timeout` seconds, DATA_LOSS when the answer is no HTTP or larger than `most` bytes. Any status code is an
// answer. Any thread.
Result<HttpReply> http_request(const Server& server, const std::string& method, const std::string& path,
                               const std::vector<std::string>& headers, const std::string& body,
                               double timeout, size_t most = size_t{16} << 20);

}  // namespace oar::loadtest
