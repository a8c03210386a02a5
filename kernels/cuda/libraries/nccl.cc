#include "kernels/cuda/libraries/nccl.h"

namespace oar::cuda {
namespace {

LibraryStatus status(const NcclApi& api, NcclResult code, const char* call) {
  if (code == 0) return {};
  return {code, std::string("nccl") + call + ": " + api.GetErrorString(code)};
}

}  // namespace

bool load_nccl(NcclApi* api, std::string* why) {
  void* library = open_library({"libnccl.so.2"}, why);
  if (library == nullptr) return false;
#define OAR_FIND(name) find_function(library, "nccl" #name, &api->name, why)
  return OAR_FIND(GetErrorString) && OAR_FIND(GetUniqueId) && OAR_FIND(CommInitRank) &&
         OAR_FIND(CommDestroy) && OAR_FIND(AllReduce) && OAR_FIND(AllGather) && OAR_FIND(GroupStart) &&
         OAR_FIND(GroupEnd);
#undef OAR_FIND
}

LibraryStatus nccl_group_start(const NcclApi& api) { return status(api, api.GroupStart(), "GroupStart"); }
LibraryStatus nccl_group_end(const NcclApi& api) { return status(api, api.GroupEnd(), "GroupEnd"); }

LibraryStatus NcclRank::unique_id(const NcclApi& api, NcclId* id) {
  return status(api, api.GetUniqueId(id), "GetUniqueId");
}

LibraryStatus NcclRank::join(const NcclApi& api, int ranks, const NcclId& id, int rank,
                             std::unique_ptr<NcclRank>* out) {
  std::unique_ptr<NcclRank> made(new NcclRank(api));
  // Within a group the library writes the handle when the group ends: it lies in the rank from the start.
  LibraryStatus joined = status(api, api.CommInitRank(&made->comm_, ranks, id, rank), "CommInitRank");
  if (joined.ok()) *out = std::move(made);
  return joined;
}

NcclRank::~NcclRank() {
  if (comm_ != nullptr) api_.CommDestroy(comm_);
}

LibraryStatus NcclRank::all_reduce(float* data, int64_t n, Stream stream) {
  return status(api_,
                api_.AllReduce(data, data, static_cast<size_t>(n), kNcclFloat32, kNcclSum, comm_, stream),
                "AllReduce");
}

LibraryStatus NcclRank::all_gather(const float* mine, float* all, int64_t n, Stream stream) {
  return status(api_, api_.AllGather(mine, all, static_cast<size_t>(n), kNcclFloat32, comm_, stream),
                "AllGather");
}

}  // namespace oar::cuda
