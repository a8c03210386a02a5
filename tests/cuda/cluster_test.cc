// Clusters of blocks on the emulated device: memory of each other, boxes for several, and that misuse is
// found.
#include "kernels/cuda/tensor_map.h"
#include "tests/cuda/cluster_kernels.h"
#include "tests/cuda/emulated.h"

namespace emulation = oar::cuda::emulation;
using namespace oar_test;
using oar::cuda::TensorMap;

namespace {

constexpr unsigned kClusterGrid = 2 * kClusterBlocks;
constexpr size_t kClusterSharedBytes = 8 << 10;

// What the emulator says of a run of each kernel, or that the result is wrong; empty: all is well.
std::string runs_exchanges(ClusterFault fault) {
  constexpr size_t n = kClusterGrid * kClusterThreads;
  DeviceValues<uint32_t> in(n), out(n);
  for (size_t i = 0; i < n; ++i) in[i] = static_cast<uint32_t>(7 * i);
  emulation::run_grid(
      kClusterGrid, kClusterThreads, kClusterSharedBytes, [&] { exchanges(out.data(), in.data(), fault); },
      false, kClusterBlocks);
  if (std::string error = emulation::take_error(); !error.empty()) return error;
  for (size_t i = 0; i < n; ++i) {
    const size_t block = i / kClusterThreads, other = (block ^ 1) * kClusterThreads + i % kClusterThreads;
    if (out[i] != 7 * other + 1) return "wrong";
  }
  return "";
}

std::string runs_boxes(ClusterFault fault) {
  constexpr int kBoxes = 6, kWords = 64;
  DeviceValues<uint32_t> in(kBoxes * kWords), out(kClusterGrid * kWords);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint32_t>(i * i + 3);
  TensorMap map{};
  REQUIRE(oar::cuda::make_tensor_map(map, {.base = in.data(),
                                           .element_bytes = 1,
                                           .size = {16, 16 * kBoxes, 1},
                                           .stride = {16, 0},
                                           .box = {16, 16, 1}})
              .ok());
  const uint64_t before = emulation::counters().box_bytes;
  emulation::run_grid(
      kClusterGrid, kClusterThreads, kClusterSharedBytes,
      [&] { sums_shared_boxes(out.data(), map, kBoxes, fault); }, false, kClusterBlocks);
  if (std::string error = emulation::take_error(); !error.empty()) return error;
  // Once for both blocks of a cluster.
  if (emulation::counters().box_bytes - before != kClusterGrid / kClusterBlocks * in.size() * 4)
    return "read twice";
  for (size_t block = 0; block < kClusterGrid; ++block) {
    for (size_t t = 0; t < kWords; ++t) {
      auto sum = static_cast<uint32_t>(block);
      for (size_t i = 0; i < kBoxes; ++i) sum += in[i * kWords + t];
      if (out[block * kWords + t] != sum) return "wrong";
    }
  }
  return "";
}

}  // namespace

TEST_CASE("emulated device: blocks of a cluster see each other's shared memory, and misuse is found") {
  const struct {
    ClusterFault fault;
    const char* says;
  } cases[] = {
      {ClusterFault::kNone, ""},
      {ClusterFault::kNoSyncBefore, "race in shared memory"},
      {ClusterFault::kBlockSyncBefore, "race in shared memory"},
      {ClusterFault::kNoSyncBehind, "block"},  // it ends, or has ended
  };
  for (const auto& c : cases) {
    in_every_order([&] {
      const std::string said = runs_exchanges(c.fault);
      INFO("fault " << static_cast<int>(c.fault) << ": " << said);
      CHECK((said == "") == (c.fault == ClusterFault::kNone));
      CHECK(said.find(c.says) != std::string::npos);
    });
  }
}

TEST_CASE("emulated device: a box for all blocks of a cluster, and misuse is found") {
  const struct {
    ClusterFault fault;
    const char* says;
  } cases[] = {
      {ClusterFault::kNone, ""},
      {ClusterFault::kNoFenceOfInit, "without a fence_mbarrier_init"},
      {ClusterFault::kNoProxyFence, "no fence_proxy_async"},
      {ClusterFault::kNoSyncBehindInit, "mbarrier"},
      {ClusterFault::kForOneBlock, "a phase of an mbarrier never ends"},
      {ClusterFault::kNoArrivalThere, "a phase of an mbarrier never ends"},
      {ClusterFault::kNoWaitForEmpty, ""},  // a race, or arrivals of the phase behind
      {ClusterFault::kWaitsWithinBlock, "mbarrier_wait_cluster"},
      {ClusterFault::kNoSyncBehind, "block"},  // it ends, or has ended
  };
  for (const auto& c : cases) {
    in_every_order([&] {
      const std::string said = runs_boxes(c.fault);
      INFO("fault " << static_cast<int>(c.fault) << ": " << said);
      CHECK((said == "") == (c.fault == ClusterFault::kNone));
      CHECK(said.find(c.says) != std::string::npos);
    });
  }
}

TEST_CASE("emulated device: clusters that do not divide the grid, or are too large, are refused") {
  const auto nothing = [] {};
  for (const auto& [grid, threads, cluster] :
       {std::tuple{3u, 32u, 2u}, {2u, 48u, 2u}, {9u, 32u, 9u}, {8u, 1024u, 8u}, {2u, 32u, 0u}}) {
    emulation::run_grid(grid, threads, 0, nothing, false, cluster);
    CHECK(emulation::take_error().find("invalid launch: clusters of") == 0);
  }
  emulation::run_grid(8, 32, 0, nothing, false, 8);
  CHECK(emulation::take_error() == "");
}
