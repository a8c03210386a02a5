// Bounds on what a gRPC client may cost.
#pragma once

#include <chrono>
#include <cstddef>

namespace oar {

struct GrpcLimits {
  int max_message_bytes = 16 << 20;
  int max_metadata_bytes = 16 << 10;
  int max_concurrent_streams = 4096;      // per connection
  size_t memory_quota_bytes = 512 << 20;  // gRPC's own buffers, all connections
  size_t stream_buffer_bytes = 64 << 10;  // unsent bytes of a stream; a client further behind is waited for
  size_t write_budget_bytes = 1 << 20;    // and where nothing can wait, as with tensors, it is cancelled
  std::chrono::milliseconds write_timeout{30'000};  // one message not taken for so long: cancelled
  std::chrono::milliseconds keepalive_interval{
      60'000};                         // a silent peer is pinged, and dropped without an answer
  int max_requests_per_stream = 1024;  // in flight on one ModelStreamInfer; then reading pauses
};

}  // namespace oar
