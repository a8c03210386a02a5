#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/emulation/emulation.h"
#include "kernels/cuda/emulation/libraries.h"
#include "kernels/cuda/emulation/runtime.h"

namespace oar::cuda {

struct NcclComm {
  std::string id;
  int ranks, rank;
};

namespace emulation {
namespace {

enum : NcclResult { kSuccess = 0, kUnhandledCudaError = 1, kInvalidArgument = 4, kInvalidUsage = 5 };

// One call of a rank, within a group.
struct Call {
  NcclComm* comm;
  const float* from;
  float* to;
  size_t count;
  bool gather;
  Stream stream;
};
struct Joining {
  NcclComm** out;
  std::unique_ptr<NcclComm> comm;
};
int g_depth = 0;  // of groups
std::vector<Call> g_calls;
std::vector<Joining> g_joining;
std::map<std::string, int> g_sizes;  // ranks of each communicator whose ranks have joined

const char* error_string(NcclResult result) {
  switch (result) {
    case kSuccess: return "no error";
    case kUnhandledCudaError: return "unhandled cuda error";
    case kInvalidArgument: return "invalid argument";
    default: return "invalid usage";
  }
}

NcclResult get_unique_id(NcclId* id) {
  static uint64_t last = 0;
  *id = {};
  ++last;
  std::memcpy(id->bytes, &last, sizeof last);
  return kSuccess;
}

NcclResult comm_init_rank(NcclComm** comm, int ranks, NcclId id, int rank) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return kInvalidArgument;
  if (refused_in_capture()) return kUnhandledCudaError;  // it allocates
  if (ranks > 1 && g_depth == 0) return kInvalidUsage;   // it would wait for ever
  const std::string name(id.bytes, sizeof id.bytes);
  if (g_sizes.contains(name)) return kInvalidUsage;  // an id is for one communicator
  auto made = std::make_unique<NcclComm>(NcclComm{name, ranks, rank});
  if (g_depth > 0) {
    g_joining.push_back({comm, std::move(made)});
    return kSuccess;
  }
  g_sizes[name] = 1;
  *comm = made.release();
  return kSuccess;
}

NcclResult comm_destroy(NcclComm* comm) {
  if (refused_in_capture()) return kUnhandledCudaError;  // it waits for the device
  delete comm;
  return kSuccess;
}

// All ranks of each communicator, once each.
NcclResult finish_joining() {
  std::map<std::string, std::vector<bool>> there;
  for (const Joining& j : g_joining) {
    std::vector<bool>& ranks = there[j.comm->id];
    if (ranks.empty()) ranks.resize(static_cast<size_t>(j.comm->ranks));
    if (ranks.size() != static_cast<size_t>(j.comm->ranks) || ranks[static_cast<size_t>(j.comm->rank)])
      return kInvalidUsage;
    ranks[static_cast<size_t>(j.comm->rank)] = true;
  }
  for (const auto& [id, ranks] : there) {
    for (const bool joined : ranks)
      if (!joined) return kInvalidUsage;
    g_sizes[id] = static_cast<int>(ranks.size());
  }
  for (Joining& j : g_joining) *j.out = j.comm.release();
  return kSuccess;
}

std::vector<Touched> memory_of(const Call& c) {
  const auto results = c.count * static_cast<size_t>(c.gather ? c.comm->ranks : 1);
  return {{c.from, c.count * sizeof(float)}, {c.to, results * sizeof(float)}};
}

NcclResult perform(std::vector<Call> calls) {  // by rank, of one communicator
  const size_t count = calls[0].count, ranks = calls.size();
  const Stream stream = calls[0].stream;
  std::vector<Touched> memory;
  for (const Call& c : calls) {
    for (const Touched& t : memory_of(c)) memory.push_back(t);
  }
  const int error = launch_over(stream, std::move(memory), [calls = std::move(calls), count, ranks] {
    std::vector<float> all(ranks * count), sums(count);
    for (size_t r = 0; r < ranks; ++r) std::memcpy(&all[r * count], calls[r].from, count * sizeof(float));
    for (size_t i = 0; i < ranks * count; ++i) sums[i % count] += all[i];
    for (const Call& c : calls) {
      const std::vector<float>& result = c.gather ? all : sums;
      std::memcpy(c.to, result.data(), result.size() * sizeof(float));
    }
  });
  return error == 0 ? kSuccess : kInvalidUsage;
}

// The first calls of all ranks of a communicator belong together, then the second.
NcclResult finish_calls() {
  while (!g_calls.empty()) {
    const std::string id = g_calls.front().comm->id;
    std::vector<Call> together(static_cast<size_t>(g_sizes[id]));
    std::vector<Call> rest;
    for (const Call& c : g_calls) {
      const auto rank = static_cast<size_t>(c.comm->rank);
      if (c.comm->id == id && together[rank].comm == nullptr) together[rank] = c;
      else rest.push_back(c);
    }
    for (const Call& c : together) {
      if (c.comm == nullptr || c.count != together[0].count || c.gather != together[0].gather)
        return kInvalidUsage;
    }
    if (const NcclResult result = perform(std::move(together)); result != kSuccess) return result;
    g_calls = std::move(rest);
  }
  return kSuccess;
}

NcclResult group_start() {
  ++g_depth;
  return kSuccess;
}
NcclResult group_end() {
  if (g_depth == 0) return kInvalidUsage;
  if (--g_depth > 0) return kSuccess;
  NcclResult result = finish_joining();
  if (result == kSuccess) result = finish_calls();
  g_joining.clear();
  g_calls.clear();
  return result;
}

NcclResult call(const Call& c) {
  const auto holds = [](const Touched& t) {
    return reinterpret_cast<uintptr_t>(t.at) % alignof(float) == 0 && device_holds(t.at, t.bytes);
  };
  if (c.comm == nullptr || c.count == 0) return kInvalidArgument;
  const std::vector<Touched> memory = memory_of(c);
  if (!std::all_of(memory.begin(), memory.end(), holds)) return kInvalidArgument;
  if (c.comm->ranks > 1 && g_depth == 0) return kInvalidUsage;  // it would wait for ever
  group_start();
  g_calls.push_back(c);
  return group_end();
}

NcclResult all_reduce(const void* from, void* to, size_t count, int type, int operation, NcclComm* comm,
                      Stream stream) {
  if (type != kNcclFloat32 || operation != kNcclSum) return kInvalidArgument;
  return call({comm, static_cast<const float*>(from), static_cast<float*>(to), count, false, stream});
}
NcclResult all_gather(const void* from, void* to, size_t count, int type, NcclComm* comm, Stream stream) {
  if (type != kNcclFloat32) return kInvalidArgument;
  return call({comm, static_cast<const float*>(from), static_cast<float*>(to), count, true, stream});
}

}  // namespace

const NcclApi& fake_nccl() {
  static const NcclApi api = {error_string, get_unique_id, comm_init_rank, comm_destroy,
                              all_reduce,   all_gather,    group_start,    group_end};
  return api;
}

}  // namespace emulation
}  // namespace oar::cuda
