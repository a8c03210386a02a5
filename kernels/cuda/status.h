// What every CUDA kernel and wrapper answers with. A plain struct, so that code which only calls them needs
// no CUDA header.
#pragma once

namespace oar::cuda {

// The driver's handle (cudaStream_t); null is the default stream.
using Stream = void*;

struct CudaStatus {
  int code = 0;  // a cudaError_t; 0 is success
  bool ok() const { return code == 0; }
  // The runtime's own words for it, static storage.
  const char* message() const;
};

}  // namespace oar::cuda
