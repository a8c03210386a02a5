// Sums and gathers over devices by NCCL (libnccl.so.2, 2.18 and newer). Its header is not part of the
// toolkit, so what is used is declared here, as NCCL 2.28 has it: https://docs.nvidia.com/deeplearning/nccl.
// No part of the engine runs over several devices yet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/libraries/library.h"
#include "kernels/cuda/status.h"

namespace oar::cuda {

struct NcclId {
  char bytes[128];
};
using NcclResult = int;  // ncclResult_t; 0: success
struct NcclComm;         // ncclComm
// Of ncclDataType_t and ncclRedOp_t.
inline constexpr int kNcclFloat32 = 7, kNcclBfloat16 = 9, kNcclSum = 0;

// The functions that are used, by the names of the library; `Stream` is a cudaStream_t.
struct NcclApi {
  const char* (*GetErrorString)(NcclResult);
  NcclResult (*GetUniqueId)(NcclId*);
  NcclResult (*CommInitRank)(NcclComm**, int ranks, NcclId, int rank);
  NcclResult (*CommDestroy)(NcclComm*);
  NcclResult (*AllReduce)(const void* from, void* to, size_t count, int type, int operation, NcclComm*,
                          Stream);
  NcclResult (*AllGather)(const void* from, void* to, size_t count, int type, NcclComm*, Stream);
  NcclResult (*GroupStart)();
  NcclResult (*GroupEnd)();
};
// The library's own. False: it is not there, or too old; *why says which.
bool load_nccl(NcclApi* api, std::string* why);

// Where one thread has several ranks, their calls belong between the two, or the first waits for ever.
LibraryStatus nccl_group_start(const NcclApi& api);
LibraryStatus nccl_group_end(const NcclApi& api);

// One rank among several, on the device that is current when it is made. Used by one thread at a time.
class NcclRank {
 public:
  // What all ranks of one communicator are made with; from one of them.
  static LibraryStatus unique_id(const NcclApi& api, NcclId* id);
  // Waits for the other ranks; within a group it is usable once that has ended. 0 <= rank < ranks.
  static LibraryStatus join(const NcclApi& api, int ranks, const NcclId& id, int rank,
                            std::unique_ptr<NcclRank>* out);
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // Puts on the stream: data = its sum over all ranks, n floats, in place. The order of the sum is NCCL's.
  LibraryStatus all_reduce(float* data, int64_t n, Stream stream);
  // all [ranks][n] = `mine` of every rank, by rank.
  LibraryStatus all_gather(const float* mine, float* all, int64_t n, Stream stream);

 private:
  explicit NcclRank(const NcclApi& api) : api_(api) {}
  const NcclApi api_;
  NcclComm* comm_ = nullptr;
};

}  // namespace oar::cuda
