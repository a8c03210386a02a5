// The emulated device finds what kernels may not do, and computes what the PTX manual says.
#include <cuda_runtime_api.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "quant/dtype.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/emulated.h"
#include "tests/cuda/faulty_kernels.h"

namespace emulation = oar::cuda::emulation;
using namespace oar_test;

namespace {

constexpr int kThreads = 64;
constexpr size_t kSharedBytes = 1024;

// What the emulator says of a run, or "NaN" for an output that is none; empty: all is well.
std::string run(FaultyKernel kernel, bool fault) {
  DeviceValues<float> in(kThreads), out(kThreads);
  for (size_t i = 0; i < kThreads; ++i) in[i] = static_cast<float>(i);
  emulation::run_grid(1, kThreads, kSharedBytes, [&] { kernel(out.data(), in.data(), fault); });
  if (std::string error = emulation::take_error(); !error.empty()) return error;
  for (size_t i = 0; i < kThreads; ++i) {
    if (std::isnan(out[i])) return "NaN";
  }
  return {};
}

}  // namespace

TEST_CASE("emulated device: what a kernel may not do is found, whatever the order of threads") {
  const struct {
    const char* name;
    FaultyKernel kernel;
    const char* says;
    bool late_only = false;  // copies that happen at once hide it
  } cases[] = {
      {"a read before the barrier", reads_before_the_barrier, "race in shared memory"},
      {"a write while others read", writes_a_buffer_others_still_read, "race in shared memory"},
      {"results read before the barrier", reads_results_before_the_barrier, "race in global memory"},
      {"results written while others read", writes_results_others_still_read, "race in global memory"},
      {"a result written twice", writes_a_result_twice, "race in global memory: written"},
      {"a barrier for some", barrier_for_some, "not reached by threads that have ended"},
      {"barriers at two places", barriers_at_two_places, "reached at different places"},
      {"a shuffle in half a warp", shuffle_in_half_a_warp, "lane"},
      {"a shuffle from outside", shuffle_from_outside_the_mask, "outside of its mask"},
      {"a read beyond", reads_beyond, "read outside of an allocation"},
      {"a read far beyond", reads_far_beyond, "read outside of all allocations"},
      {"a write beyond", writes_beyond, "write outside of an allocation"},
      {"shared memory beyond", shared_beyond, "beyond the shared memory"},
      {"a misaligned access", misaligned, "misaligned"},
      {"copies without wait", copies_without_wait, "not waited for"},
      {"a wait for too few", waits_for_too_few, "NaN", true},
      {"shared memory that nobody wrote", reads_unwritten_shared, "NaN"},
  };
  for (const auto& c : cases) {
    in_every_order([&] {
      INFO(c.name);
      CHECK(run(c.kernel, false) == "");
      const std::string found = run(c.kernel, true);
      INFO("found: " << found);
      if (!c.late_only || emulation::options().late_copies) CHECK(found.find(c.says) != std::string::npos);
    });
  }
}

TEST_CASE("emulated device: what was released is found, however many allocations came since") {
  DeviceValues<float> in(kThreads), out(kThreads);
  const auto sees = [&](const void* p) {
    emulation::run_grid(1, kThreads, kSharedBytes,
                        [&] { reads_beyond(out.data(), static_cast<const float*>(p), false); });
    return emulation::take_error();
  };
  void* const gone = emulation::device_allocate(kThreads * sizeof(float));
  CHECK(sees(gone) == "");
  REQUIRE(emulation::device_release(gone));
  CHECK(sees(gone).find("read outside of all allocations") == 0);
  // More than the host has mappings for, and than addresses last: what is held stays as it is.
  for (int i = 0; i < 70000; ++i) {
    void* const p = emulation::device_allocate(8);
    REQUIRE(p != nullptr);
    REQUIRE(p != in.data());
    REQUIRE(emulation::device_release(p));
  }
  CHECK(sees(in.data()) == "");
}

TEST_CASE("emulated device: what blocks of a launch may not do to each other, in every order") {
  constexpr int kBlocks = 4;
  const struct {
    BlockFault fault;
    const char *sums, *overwrites;  // what is said of either kernel; empty: nothing
  } cases[] = {
      {BlockFault::kNone, "", ""},
      {BlockFault::kNoFenceBefore, "race in global memory: read", "race in global memory: written"},
      {BlockFault::kNoFenceBehind, "race in global memory: read", "race in global memory: written"},
      {BlockFault::kNoBarrier, "race in global memory: read", "race in global memory: written"},
      {BlockFault::kOrder, "race in global memory", ""},
      {BlockFault::kOverwrites, "race in global memory: written", ""},
  };
  for (const auto& c : cases) {
    in_every_order([&] {
      DeviceValues<float> in(kThreads), parts(kBlocks * kThreads), out(kThreads);
      DeviceValues<uint32_t> counter(1);
      for (size_t i = 0; i < kThreads; ++i) in[i] = static_cast<float>(i);
      counter[0] = 0;
      INFO("fault " << static_cast<int>(c.fault));
      const auto said = [&](const char* want, const auto& kernel) {
        emulation::run_grid(kBlocks, kThreads, kSharedBytes, kernel);
        const std::string found = emulation::take_error();
        INFO("found: " << found);
        if (want[0] == '\0') CHECK(found == "");
        else CHECK(found.find(want) != std::string::npos);
      };
      // Nobody sees that block 3 takes itself for the last where it is.
      if (c.fault == BlockFault::kOrder && emulation::options().order != emulation::Order::kDescending)
        return;
      said(c.sums,
           [&] { sums_by_the_last_block(out.data(), parts.data(), in.data(), counter.data(), c.fault); });
      CHECK(counter[0] == 0);
      if (c.fault == BlockFault::kNone) {
        for (size_t i = 0; i < kThreads; ++i) CHECK(out[i] == 4 * static_cast<float>(i) + 6);
      }
      if (c.fault == BlockFault::kOrder || c.fault == BlockFault::kOverwrites) return;
      said(c.overwrites,
           [&] { overwrites_by_the_last_block(parts.data(), in.data(), counter.data(), c.fault); });
    });
  }
}

TEST_CASE("emulated device: blocks that wait for others of their launch, in every order") {
  const struct {
    ChainFault fault;
    const char* says;
    bool descending_only = false;  // else those before have run by chance
  } cases[] = {
      {ChainFault::kNone, ""},
      {ChainFault::kNoTickets, "may not have begun", true},
      {ChainFault::kNoWait, "race in global memory"},
      {ChainFault::kWaitsForFewer, "race in global memory"},
      {ChainFault::kNoFence, "race in global memory"},
      {ChainFault::kCountsBefore, "counts to something else"},
  };
  for (const auto& c : cases) {
    in_every_order([&] {
      if (c.descending_only && emulation::options().order != emulation::Order::kDescending) return;
      DeviceValues<float> in(kThreads), parts(2 * kThreads), out(4 * kThreads);
      DeviceValues<uint32_t> counters(5);
      for (size_t i = 0; i < kThreads; ++i) in[i] = static_cast<float>(i);
      for (size_t i = 0; i < counters.size(); ++i) counters[i] = 0;
      emulation::run_grid(6, kThreads, kSharedBytes, [&] {
        sums_behind_each_other(out.data(), parts.data(), in.data(), counters.data(), c.fault);
      });
      const std::string found = emulation::take_error();
      INFO("fault " << static_cast<int>(c.fault) << " found: " << found);
      if (c.says[0] != '\0') {
        CHECK(found.find(c.says) != std::string::npos);
        return;
      }
      CHECK(found == "");
      for (size_t i = 0; i < kThreads; ++i) CHECK(out[3 * kThreads + i] == 5 * static_cast<float>(i) + 2);
      for (size_t i = 0; i < counters.size(); ++i) CHECK(counters[i] == 0);
    });
  }
}

TEST_CASE("emulated device: a launch that begins early waits for those before, in every thread") {
  for (const auto& [fault, says] : {std::pair{EarlyFault::kNone, ""},
                                    {EarlyFault::kReadsBefore, "before the launches before are waited for"},
                                    {EarlyFault::kSomeNeverWait, "has not waited for the launches before"}}) {
    DeviceValues<float> in(kThreads), out(kThreads);
    for (const bool early : {true, false}) {
      emulation::run_grid(
          1, kThreads, kSharedBytes, [&] { copies_early(out.data(), in.data(), fault); }, early);
      const std::string found = emulation::take_error();
      INFO("fault " << static_cast<int>(fault) << " found: " << found);
      CHECK(found.find(early ? says : "") != std::string::npos);
      if (!early) CHECK(found == "");
    }
  }
}

TEST_CASE("emulated device: launches beyond the limits are refused") {
  const auto nothing = [] {};
  for (const auto& [grid, block, shared] : std::vector<std::tuple<dim3, dim3, size_t>>{
           {1, 1025, 0}, {1, 0, 0}, {0, 1, 0}, {1, 1, 228 << 10}, {dim3(1, 65536), 1, 0}}) {
    emulation::run_grid(grid, block, shared, nothing);
    CHECK(emulation::take_error().find("invalid launch") != std::string::npos);
  }
  emulation::run_grid(dim3(2, 3, 4), dim3(4, 4, 2), 227 << 10, nothing);
  CHECK(emulation::take_error() == "");
}

TEST_CASE("emulated device: sectors and bank conflicts of a warp's requests") {
  DeviceValues<float> in(32 * 32), out(32);
  emulation::options().registers = 32;  // they are counted beside an L2
  for (const auto& [stride, sectors] : {std::pair{1, 4u}, {2, 8u}, {8, 32u}, {32, 32u}}) {
    emulation::counters() = {};
    emulation::run_grid(1, 32, 0, [&, stride = stride] { strided(out.data(), in.data(), stride); });
    INFO("stride " << stride);
    CHECK(emulation::counters().load_requests == 1);
    CHECK(emulation::counters().load_sectors == sectors);
    CHECK(emulation::counters().load_bytes == 128);
    CHECK(emulation::counters().store_sectors == 4);
  }
  for (const auto& [stride, wavefronts] : {std::pair{1, 1u}, {2, 2u}, {32, 32u}, {33, 1u}}) {
    emulation::counters() = {};
    emulation::run_grid(1, 32, 32 * 33 * 4, [&, stride = stride] { banks(out.data(), in.data(), stride); });
    INFO("stride " << stride);
    CHECK(emulation::counters().shared_wavefronts == wavefronts);
    CHECK(emulation::counters().shared_ideal == 1);
  }
  emulation::options() = {};
  CHECK(emulation::take_error() == "");
}

// Small integers: every product and sum is exact in every type, so any order of additions gives the same.
TEST_CASE("emulated device: matrix products with the manual's fragments") {
  in_every_order([] {
    const auto value = [](size_t i, size_t seed) {
      return static_cast<int>((i * 7 + i / 5 + seed) % 13) - 6;
    };
    {
      DeviceValues<uint16_t> a(16 * 16), columns(8 * 16), rows(16 * 8);
      DeviceValues<float> c(16 * 8), d(16 * 8);
      const auto bf16_of = [](int v) {
        const float f = static_cast<float>(v);
        uint32_t bits;
        std::memcpy(&bits, &f, sizeof bits);
        return static_cast<uint16_t>(bits >> 16);
      };
      for (size_t i = 0; i < a.size(); ++i) a[i] = bf16_of(value(i, 1));
      for (size_t k = 0; k < 16; ++k) {
        for (size_t n = 0; n < 8; ++n) columns[n * 16 + k] = rows[k * 8 + n] = bf16_of(value(k * 8 + n, 3));
      }
      emulation::run_grid(1, 32, kSharedBytes, [&] { multiply_bf16(c.data(), a.data(), columns.data()); });
      emulation::run_grid(1, 32, kSharedBytes,
                          [&] { multiply_bf16_transposed(d.data(), a.data(), rows.data()); });
      REQUIRE(emulation::take_error() == "");
      for (size_t m = 0; m < 16; ++m) {
        for (size_t n = 0; n < 8; ++n) {
          int want = 0;
          for (size_t k = 0; k < 16; ++k) want += value(m * 16 + k, 1) * value(k * 8 + n, 3);
          CHECK(c[m * 8 + n] == static_cast<float>(want));
          CHECK(d[m * 8 + n] == static_cast<float>(want));
        }
      }
    }
    DeviceValues<int8_t> a(16 * 32), b(8 * 32);
    DeviceValues<uint8_t> a8(16 * 32), b8(8 * 32);
    DeviceValues<int32_t> c(16 * 8);
    DeviceValues<float> c8(16 * 8);
    const auto e4m3_of = [](int v) { return oar::to_e4m3(static_cast<float>(v)).bits; };
    for (size_t i = 0; i < a.size(); ++i) a8[i] = e4m3_of(a[i] = static_cast<int8_t>(value(i, 5)));
    for (size_t i = 0; i < b.size(); ++i) b8[i] = e4m3_of(b[i] = static_cast<int8_t>(value(i, 9)));
    emulation::run_grid(1, 32, 0, [&] { multiply_s8(c.data(), a.data(), b.data()); });
    emulation::run_grid(1, 32, 0, [&] { multiply_e4m3(c8.data(), a8.data(), b8.data()); });
    REQUIRE(emulation::take_error() == "");
    for (size_t m = 0; m < 16; ++m) {
      for (size_t n = 0; n < 8; ++n) {
        int want = 0;
        for (size_t k = 0; k < 32; ++k) want += a[m * 32 + k] * b[n * 32 + k];
        CHECK(c[m * 8 + n] == want);
        CHECK(c8[m * 8 + n] == static_cast<float>(want));
      }
    }
  });
}

namespace {

struct CapturedStream {
  explicit CapturedStream(unsigned flags = cudaStreamNonBlocking) {
    REQUIRE(cudaStreamCreateWithFlags(&stream, flags) == cudaSuccess);
  }
  ~CapturedStream() { cudaStreamDestroy(stream); }
  CapturedStream(const CapturedStream&) = delete;
  CapturedStream& operator=(const CapturedStream&) = delete;
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) const {
    REQUIRE(cudaStreamBeginCapture(stream, mode) == cudaSuccess);
  }
  // What the end says; what was captured is thrown away.
  cudaError_t end() const {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream, &graph);
    CHECK((graph == nullptr) == (error != cudaSuccess));
    if (graph != nullptr) cudaGraphDestroy(graph);
    return error;
  }
  cudaStream_t stream = nullptr;
};

cudaError_t by_another(const std::function<cudaError_t()>& call) {
  cudaError_t error = cudaErrorUnknown;
  std::thread([&] { error = call(); }).join();
  return error;
}

cudaError_t allocate_and_release() {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, 256);
  return error == cudaSuccess ? cudaFree(memory) : error;
}

}  // namespace

TEST_CASE("emulated device: of two each has its own memory and streams, and refuses the other's") {
  const auto count = [] {
    int devices = 0;
    REQUIRE(cudaGetDeviceCount(&devices) == cudaSuccess);
    return devices;
  };
  CHECK(count() == 1);
  CHECK(cudaSetDevice(1) == cudaErrorInvalidDevice);
  {
    const EmulatedWith two("devices=2");
    CHECK(count() == 2);
    cudaDeviceProp first, second;
    REQUIRE(cudaGetDeviceProperties(&first, 0) == cudaSuccess);
    REQUIRE(cudaGetDeviceProperties(&second, 1) == cudaSuccess);
    CHECK(first.pciBusID != second.pciBusID);
    CHECK(std::memcmp(first.uuid.bytes, second.uuid.bytes, sizeof first.uuid.bytes) != 0);
    const auto used = [](int device) {
      size_t free_bytes = 0, all = 0;
      REQUIRE(cudaSetDevice(device) == cudaSuccess);
      REQUIRE(cudaMemGetInfo(&free_bytes, &all) == cudaSuccess);
      return all - free_bytes;
    };
    const size_t before[] = {used(0), used(1)};
    void* memory = nullptr;
    REQUIRE(cudaMalloc(&memory, 4096) == cudaSuccess);  // of the second, the thread's
    CHECK(used(1) == before[1] + 4096);
    CHECK(used(0) == before[0]);
    REQUIRE(cudaSetDevice(1) == cudaSuccess);
    {
      const CapturedStream s;
      cudaEvent_t event = nullptr;
      REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
      char host[64] = {};
      const auto copy = [&](cudaStream_t stream) {
        return cudaMemcpyAsync(memory, host, 64, cudaMemcpyHostToDevice, stream);
      };
      CHECK(copy(s.stream) == cudaSuccess);
      CHECK(by_another([&] { return copy(s.stream); }) == cudaErrorInvalidResourceHandle);
      REQUIRE(cudaSetDevice(0) == cudaSuccess);
      CHECK(copy(s.stream) == cudaErrorInvalidResourceHandle);
      CHECK(emulation::launch(
                s.stream, 1, 32, 0, [] {}, false, 1) == cudaErrorInvalidResourceHandle);
      CHECK(cudaEventRecord(event, s.stream) == cudaErrorInvalidResourceHandle);
      CHECK(copy(nullptr) == cudaErrorInvalidValue);
      CHECK(cudaFree(memory) == cudaErrorInvalidValue);
      REQUIRE(cudaSetDevice(1) == cudaSuccess);
      cudaEventDestroy(event);
    }
    CHECK(cudaFree(memory) == cudaSuccess);
    REQUIRE(cudaSetDevice(0) == cudaSuccess);
  }
  CHECK(count() == 1);
}

TEST_CASE("emulated device: what no capture allows is refused, and the capture is void") {
  const CapturedStream s;
  DeviceValues<char> memory(64);
  char host[64] = {};
  void *made = nullptr, *locked = nullptr;
  REQUIRE(cudaMallocHost(&locked, 64) == cudaSuccess);
  const struct {
    const char* name;
    std::function<cudaError_t()> call;
  } refused[] = {
      {"an allocation", [&] { return cudaMalloc(&made, 64); }},
      {"a release", [&] { return cudaFree(memory.data()); }},
      {"page-locked memory", [&] { return cudaMallocHost(&made, 64); }},
      {"its release", [&] { return cudaFreeHost(locked); }},
      {"a copy that waits", [&] { return cudaMemcpy(memory.data(), host, 64, cudaMemcpyHostToDevice); }},
      {"a wait for the stream", [&] { return cudaStreamSynchronize(s.stream); }},
  };
  const auto copy = [&](cudaStream_t stream) {
    return cudaMemcpyAsync(memory.data(), host, 64, cudaMemcpyHostToDevice, stream);
  };
  for (const auto& r : refused) {
    INFO(r.name);
    s.begin();
    CHECK(copy(s.stream) == cudaSuccess);
    CHECK(r.call() == cudaErrorStreamCaptureUnsupported);
    CHECK(copy(s.stream) == cudaErrorStreamCaptureInvalidated);
    CHECK(s.end() == cudaErrorStreamCaptureInvalidated);
  }
  CHECK(cudaFreeHost(locked) == cudaSuccess);
  s.begin();
  CHECK(cudaStreamBeginCapture(s.stream, cudaStreamCaptureModeRelaxed) == cudaErrorIllegalState);
  CHECK(copy(nullptr) == cudaSuccess);  // the stream does not follow the legacy one
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  CHECK(cudaEventRecord(event, s.stream) == cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaErrorCapturedEvent);
  CHECK(s.end() == cudaSuccess);
  CHECK(cudaEventRecord(event, s.stream) == cudaSuccess);
  CHECK(cudaEventSynchronize(event) == cudaSuccess);
  cudaEventDestroy(event);
  CHECK(s.end() == cudaErrorIllegalState);
  CHECK(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed) == cudaErrorStreamCaptureUnsupported);
  const CapturedStream follows(cudaStreamDefault);
  follows.begin();
  CHECK(copy(nullptr) == cudaErrorStreamCaptureImplicit);
  CHECK(follows.end() == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("emulated device: whom a capture binds is what its mode says") {
  const CapturedStream s;
  s.begin(cudaStreamCaptureModeRelaxed);
  CHECK(allocate_and_release() == cudaSuccess);
  CHECK(by_another([&] { return s.end(); }) == cudaSuccess);
  s.begin(cudaStreamCaptureModeThreadLocal);
  CHECK(by_another(allocate_and_release) == cudaSuccess);
  CHECK(s.end() == cudaSuccess);
  s.begin(cudaStreamCaptureModeGlobal);
  CHECK(by_another(allocate_and_release) == cudaErrorStreamCaptureUnsupported);
  CHECK(s.end() == cudaErrorStreamCaptureInvalidated);
  s.begin();
  CHECK(by_another([&] { return s.end(); }) == cudaErrorStreamCaptureWrongThread);
  CHECK(s.end() == cudaErrorStreamCaptureInvalidated);
}

TEST_CASE("emulated device: a replay over memory that was released is refused, and does nothing") {
  const CapturedStream s;
  DeviceValues<float> in(8), out(8);
  void* between = nullptr;
  REQUIRE(cudaMalloc(&between, 8 * sizeof(float)) == cudaSuccess);
  std::fill_n(in.data(), 8, 1.f);
  std::fill_n(out.data(), 8, 0.f);
  s.begin();
  const auto copy = [&](void* to, const void* from) {
    return cudaMemcpyAsync(to, from, 8 * sizeof(float), cudaMemcpyDeviceToDevice, s.stream);
  };
  REQUIRE(copy(between, in.data()) == cudaSuccess);
  REQUIRE(copy(out.data(), between) == cudaSuccess);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  REQUIRE(cudaStreamEndCapture(s.stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess);
  CHECK(cudaGraphLaunch(replay, s.stream) == cudaSuccess);
  CHECK(out[7] == 1.f);
  std::fill_n(in.data(), 8, 2.f);
  CHECK(cudaFree(between) == cudaSuccess);
  CHECK(cudaGraphLaunch(replay, s.stream) == cudaErrorInvalidValue);
  CHECK(out[7] == 1.f);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
}
