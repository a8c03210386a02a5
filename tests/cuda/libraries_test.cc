// NVIDIA's libraries behind our interfaces: products by the strict fake of cuBLASLt against loops, what it
// refuses, and the real library's descriptors where it is installed.
#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cmath>
#include <functional>
#include <memory>

#include "kernels/cuda/emulation/libraries.h"
#include "tests/cuda/device_memory.h"
#include "tests/kernels/matmul_problem.h"

using namespace oar::cuda;
using namespace oar_test;

namespace {

constexpr uint64_t kWorkspace = 1 << 20;

std::unique_ptr<CublasLt> fake() {
  std::string why;
  auto lt = CublasLt::make(emulation::fake_cublas_lt(), &why);
  INFO(why);
  REQUIRE(lt != nullptr);
  return lt;
}

// Numbers as the type keeps them, and what they are then.
template <class T>
std::vector<T> rounded(const std::vector<float>& v) {
  std::vector<T> r;
  for (float x : v) r.push_back(static_cast<T>(x));
  return r;
}
template <class T>
double number(T x) {
  return static_cast<double>(static_cast<float>(x));
}

template <class In, class Out>
void check_product(LtProduct p, int64_t planned_rows, int64_t rows, bool residual) {
  const bool integers = std::is_same_v<In, int8_t>, scaled = p.scale != LtScale::kNone;
  const auto values = [&](int64_t n, uint32_t seed) {
    return random_values(static_cast<size_t>(n), integers ? Values::kIntegers : Values::kNormal, seed);
  };
  const std::vector<In> x = rounded<In>(values(rows * p.ldx, 1)), w = rounded<In>(values(p.n * p.K, 2));
  const std::vector<float> bias = values(p.n, 3);
  const std::vector<Out> before = rounded<Out>(values(rows * p.ldo, 4));
  const int64_t depth = (p.K + 127) / 128;
  // Where the factor of an element lies.
  const auto x_at = [&](int64_t t, int64_t k) {
    return lt_scales_depth(p.scale) ? k / 128 * rows + t : p.scale == LtScale::kRow ? t : 0;
  };
  const auto w_at = [&](int64_t j, int64_t k) {
    return p.scale == LtScale::kGroup   ? k / 128 * p.n + j
           : p.scale == LtScale::kBlock ? j / 128 * lt_block_row(p.K) + k / 128
           : p.scale == LtScale::kRow   ? j
                                        : 0;
  };
  const std::vector<float> xs = values(x_at(rows - 1, p.K - 1) + 1, 5),
                           ws = values(w_at(p.n - 1, p.K - 1) + 1, 6);
  if (p.scale == LtScale::kBlock) REQUIRE(lt_block_row(p.K) == (depth + 3) / 4 * 4);
  DeviceCopy<In> dx(x), dw(w);
  DeviceCopy<Out> out(before);
  DeviceArray db(bias), dxs(xs), dws(ws);
  DeviceCopy<char> workspace{std::vector<char>(kWorkspace)};

  const auto lt = fake();
  LtPlan plan;
  const LibraryStatus prepared = lt->prepare(p, planned_rows, kWorkspace, &plan);
  INFO(prepared.what);
  REQUIRE(prepared.ok());
  LtOperands o;
  o.out = out.data(), o.x = dx.data(), o.w = dw.data();
  o.residual = residual ? out.data() : nullptr;
  if (p.bias) o.bias = db.data();
  if (scaled) o.x_scale = dxs.data(), o.w_scale = dws.data();
  o.workspace = workspace.data(), o.rows = rows;
  const LibraryStatus ran = lt->run(plan, o, nullptr);
  INFO(ran.what);
  REQUIRE(ran.ok());
  const std::vector<Out> got = out.host();
  for (int64_t t = 0; t < rows; ++t) {
    for (int64_t j = 0; j < p.ldo; ++j) {
      const auto at = static_cast<size_t>(t * p.ldo + j);
      if (j >= p.n) {  // between rows
        CHECK(got[at] == before[at]);
        continue;
      }
      double sum = 0;
      for (int64_t k = 0; k < p.K; ++k) {
        double product =
            number(x[static_cast<size_t>(t * p.ldx + k)]) * number(w[static_cast<size_t>(j * p.K + k)]);
        if (scaled) {
          product *= static_cast<double>(xs[static_cast<size_t>(x_at(t, k))]) *
                     static_cast<double>(ws[static_cast<size_t>(w_at(j, k))]);
        }
        sum += product;
      }
      if (p.bias) sum += static_cast<double>(bias[static_cast<size_t>(j)]);
      if (residual) sum += number(before[at]);
      CHECK(number(got[at]) == Approx(sum).epsilon(1e-6).margin(1e-6));
    }
  }
}

// A product that is right but for what `spoil` does to it, and which call then refuses.
struct Spoiled {
  LtProduct p = {LtTypes::kBf16, LtScale::kNone, true, 24, 16, 16, 24};
  LtOperands o;
  uint64_t workspace = kWorkspace;
};
template <class Spoil>
std::string refused(const Spoil& spoil) {
  constexpr int64_t kRows = 3;
  DeviceCopy<__nv_bfloat16> x(std::vector<__nv_bfloat16>(16 * kRows)), w(std::vector<__nv_bfloat16>(24 * 16));
  DeviceArray out(std::vector<float>(24 * kRows)), bias(std::vector<float>(24));
  DeviceCopy<char> workspace(std::vector<char>(2048));
  Spoiled s;
  s.o.out = out.data(), s.o.x = x.data(), s.o.w = w.data(), s.o.bias = bias.data();
  s.o.workspace = workspace.data(), s.o.rows = kRows;
  spoil(s);
  const auto lt = fake();
  LtPlan plan;
  if (const LibraryStatus failed = lt->prepare(s.p, kRows, s.workspace, &plan); !failed.ok())
    return failed.what;
  return lt->run(plan, s.o, nullptr).what;
}

}  // namespace

TEST_CASE("cuda libraries: products by cuBLASLt's fake equal loops, whatever the rows") {
  for (const int64_t rows : {1, 5, 32}) {
    for (const bool residual : {false, true}) {
      INFO("rows " << rows << " residual " << residual);
      check_product<float, float>({LtTypes::kF32, LtScale::kNone, true, 12, 20, 24, 16}, 8, rows, residual);
      check_product<__nv_bfloat16, float>({LtTypes::kBf16, LtScale::kNone, true, 20, 24, 24, 20}, 8, rows,
                                          residual);
      check_product<__nv_bfloat16, float>({LtTypes::kBf16, LtScale::kNone, false, 20, 24, 32, 24}, 8, rows,
                                          residual);
      check_product<int8_t, int32_t>({LtTypes::kI8, LtScale::kNone, false, 32, 48, 64, 32}, 8, rows,
                                     residual);
      check_product<__nv_fp8_e4m3, float>({LtTypes::kE4m3, LtScale::kTensor, false, 16, 32, 32, 16}, 8, rows,
                                          residual);
      check_product<__nv_fp8_e4m3, float>({LtTypes::kE4m3, LtScale::kRow, true, 16, 32, 48, 20}, 8, rows,
                                          residual);
    }
  }
}

TEST_CASE("cuda libraries: products by cuBLASLt's fake with scales of 128 k and of 128 x 128") {
  for (const LtScale scale : {LtScale::kGroup, LtScale::kBlock}) {
    for (const int64_t rows : {4, 12}) {
      for (const bool residual : {false, true}) {
        INFO("scale " << static_cast<int>(scale) << " rows " << rows << " residual " << residual);
        check_product<__nv_fp8_e4m3, float>({LtTypes::kE4m3, scale, residual, 16, 640, 656, 20}, 8, rows,
                                            residual);
        check_product<__nv_fp8_e4m3, float>({LtTypes::kE4m3, scale, false, 144, 144, 144, 144}, 8, rows,
                                            residual);
      }
    }
  }
}

TEST_CASE("cuda libraries: what cuBLASLt has no scales for is refused") {
  constexpr int64_t kOutputs = 144, kK = 256;
  const auto said = [&](LtScale scale, int64_t rows, size_t x_scales, size_t w_scales,
                        const std::function<void(CublasLtApi&)>& change = nullptr) {
    DeviceCopy<uint8_t> x(std::vector<uint8_t>(static_cast<size_t>(rows * kK))),
        w(std::vector<uint8_t>(static_cast<size_t>(kOutputs * kK)));
    DeviceArray out(std::vector<float>(static_cast<size_t>(rows * kOutputs)));
    DeviceArray xs{std::vector<float>(x_scales)}, ws{std::vector<float>(w_scales)};
    DeviceCopy<char> workspace{std::vector<char>(kWorkspace)};
    CublasLtApi api = emulation::fake_cublas_lt();
    if (change) change(api);
    std::string why;
    const auto lt = CublasLt::make(api, &why);
    LtPlan plan;
    const LtProduct p = {LtTypes::kE4m3, scale, false, kOutputs, kK, kK, kOutputs};
    if (const LibraryStatus failed = lt->prepare(p, 8, kWorkspace, &plan); !failed.ok()) return failed.what;
    LtOperands o;
    o.out = out.data(), o.x = x.data(), o.w = w.data(), o.x_scale = xs.data(), o.w_scale = ws.data();
    o.workspace = workspace.data(), o.rows = rows;
    return lt->run(plan, o, nullptr).what;
  };
  const std::string invalid = "cublasLtMatmul: CUBLAS_STATUS_INVALID_VALUE";
  CHECK(said(LtScale::kGroup, 8, 2 * 8, 2 * kOutputs) == "");
  CHECK(said(LtScale::kGroup, 8, 2 * 8 - 1, 2 * kOutputs) == invalid);
  CHECK(said(LtScale::kGroup, 8, 2 * 8, 2 * kOutputs - 1) == invalid);
  CHECK(said(LtScale::kBlock, 8, 2 * 8, 4 + 2) == "");
  CHECK(said(LtScale::kBlock, 8, 2 * 8, 4 + 1) == invalid);
  CHECK(said(LtScale::kGroup, 6, 2 * 6, 2 * kOutputs) ==
        "no product by cuBLASLt: rows that are no multiple of 4, of scales of 128");
  // Blocks of both operands, and modes that differ otherwise, the library does not have.
  const auto mode = [](cublasLtMatmulMatrixScale_t instead) {
    static cublasLtMatmulMatrixScale_t its;
    its = instead;
    return [](CublasLtApi& api) {
      api.MatmulDescSetAttribute = [](cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t a, const void* v,
                                      size_t n) {
        return emulation::fake_cublas_lt().MatmulDescSetAttribute(
            d, a, a == CUBLASLT_MATMUL_DESC_B_SCALE_MODE ? &its : v, n);
      };
    };
  };
  const std::string none = "cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED";
  CHECK(said(LtScale::kBlock, 8, 16, 6, mode(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F)) == none);
  CHECK(said(LtScale::kBlock, 8, 16, 6, mode(CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F)) == none);
  CHECK(said(LtScale::kRow, 8, 16, kOutputs, mode(CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F)) == none);
}

TEST_CASE("cuda libraries: a captured product runs when it is replayed, unless its memory was released") {
  const LtProduct p = {LtTypes::kF32, LtScale::kNone, false, 4, 4, 4, 4};
  DeviceArray x({1, 2, 3, 4}), out({0, 0, 0, 0});
  auto w = std::make_unique<DeviceArray>(std::vector<float>{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1});
  DeviceCopy<char> workspace{std::vector<char>(kWorkspace)};
  const auto lt = fake();
  LtPlan plan;
  REQUIRE(lt->prepare(p, 1, kWorkspace, &plan).ok());
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  LtOperands o;
  o.out = out.data(), o.x = x.data(), o.w = w->data(), o.workspace = workspace.data(), o.rows = 1;
  REQUIRE(lt->run(plan, o, stream).ok());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphInstantiate(&replay, graph, 0) == cudaSuccess);
  CHECK(out.host() == std::vector<float>{0, 0, 0, 0});
  REQUIRE(cudaGraphLaunch(replay, stream) == cudaSuccess);
  CHECK(out.host() == std::vector<float>{1, 2, 3, 4});
  w.reset();
  CHECK(cudaGraphLaunch(replay, stream) == cudaErrorInvalidValue);
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_CASE("cuda libraries: no handle, communicator or plan is made while a stream is captured") {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  NcclId id;
  REQUIRE(NcclRank::unique_id(emulation::fake_nccl(), &id).ok());
  std::string why;
  std::unique_ptr<NcclRank> rank;
  const struct {
    std::function<std::string()> make;
    const char* says;
  } refused[] = {
      {[&] { return CublasLt::make(emulation::fake_cublas_lt(), &why) != nullptr ? "" : why; },
       "cublasLtCreate: CUBLAS_STATUS_ALLOC_FAILED"},
      {[&] { return Cudnn::make(emulation::fake_cudnn(), &why) != nullptr ? "" : why; },
       "cudnnCreate: CUDNN_STATUS_EXECUTION_FAILED"},
      {[&] { return NcclRank::join(emulation::fake_nccl(), 1, id, 0, &rank).what; },
       "ncclCommInitRank: unhandled cuda error"},
  };
  for (const auto& r : refused) {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(r.make() == r.says);
    cudaGraph_t graph = nullptr;
    CHECK(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
    CHECK(r.make() == "");
  }
  cudaStreamDestroy(stream);
}

TEST_CASE("cuda libraries: what cuBLASLt only documents is refused") {
  CHECK(refused([](Spoiled&) {}) == "");
  const auto bytes = [](const void* p, int n) { return static_cast<const char*>(p) + n; };
  const std::string invalid = "cublasLtMatmul: CUBLAS_STATUS_INVALID_VALUE";
  CHECK(refused([&](Spoiled& s) { s.o.x = bytes(s.o.x, 2); }) == invalid);   // alignment
  CHECK(refused([&](Spoiled& s) { s.o.w = bytes(s.o.w, 16); }) == invalid);  // ends behind its allocation
  CHECK(refused([&](Spoiled& s) { s.o.out = static_cast<float*>(s.o.out) + 4; }) == invalid);
  CHECK(refused([&](Spoiled& s) { s.o.bias += 4; }) == invalid);
  CHECK(refused([](Spoiled& s) { s.o.bias = nullptr; }) != "");
  CHECK(refused([](Spoiled& s) { s.o.workspace = nullptr; }) == invalid);
  CHECK(refused([&](Spoiled& s) { s.o.workspace = static_cast<char*>(s.o.workspace) + 16; }) == invalid);
  CHECK(refused([](Spoiled& s) { s.workspace = 512; }) ==
        "cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED");
  // And what is refused before the library is asked.
  const auto said = [](const char* what) { return std::string("no product by cuBLASLt: ") + what; };
  CHECK(refused([](Spoiled& s) { s.p.K = 12; }) == said("rows that are no multiple of 16 bytes"));
  CHECK(refused([](Spoiled& s) { s.p.ldo = 20; }) == said("sizes that are no product"));
  CHECK(refused([](Spoiled& s) { s.p.types = LtTypes::kE4m3; }) ==
        said("outputs that are no multiple of 16, of 8-bit operands"));
  CHECK(refused([](Spoiled& s) { s.p.scale = LtScale::kRow; }) ==
        said("scales, which e4m3 alone has and needs"));
  CHECK(refused([](Spoiled& s) { s.p.types = LtTypes::kI8, s.p.n = 16; }) == said("a bias of integers"));
}

TEST_CASE("cuda libraries: a library that is missing, or lacks a function, is said by name") {
  std::string why;
  CHECK(open_library({"liboar_there_is_none.so", "liboar_nor_this.so"}, &why) == nullptr);
  CHECK_THAT(why, Contains("liboar_nor_this.so"));
  void* c = open_library({"libc.so.6"}, &why);
  REQUIRE(c != nullptr);
  int (*function)(int) = nullptr;
  CHECK(find_function(c, "abs", &function, &why));
  CHECK_FALSE(find_function(c, "oar_no_such_function", &function, &why));
  CHECK(why == "the library lacks oar_no_such_function");
}

TEST_CASE(
    "cuda libraries: the real cuBLASLt, where it is installed, has every function, and no handle without a "
    "device") {
  CublasLtApi api;
  std::string why;
  if (!load_cublas_lt(&api, &why)) OAR_SKIP("no cuBLASLt: " + why);
  const auto lt = CublasLt::make(api, &why);
  if (lt == nullptr) CHECK_THAT(why, Contains("cublasLtCreate: CUBLAS_STATUS_"));
}

TEST_CASE("cuda libraries: sums and gathers over ranks, and what NCCL's fake refuses") {
  const NcclApi& api = emulation::fake_nccl();
  constexpr int kRanks = 3;
  NcclId id;
  REQUIRE(NcclRank::unique_id(api, &id).ok());
  std::unique_ptr<NcclRank> ranks[kRanks];
  // By itself the first would wait for the others.
  CHECK(NcclRank::join(api, kRanks, id, 0, &ranks[0]).what == "ncclCommInitRank: invalid usage");
  CHECK(NcclRank::join(api, kRanks, id, 3, &ranks[0]).what == "ncclCommInitRank: invalid argument");
  const auto join = [&](const NcclId& its, int n, std::unique_ptr<NcclRank>* to) {
    REQUIRE(nccl_group_start(api).ok());
    for (int r = 0; r < n; ++r) REQUIRE(NcclRank::join(api, kRanks, its, r, &to[r]).ok());
    return nccl_group_end(api).what;
  };
  std::unique_ptr<NcclRank> incomplete[kRanks];
  CHECK(join(id, 2, incomplete) == "ncclGroupEnd: invalid usage");
  REQUIRE(join(id, kRanks, ranks) == "");
  CHECK(NcclRank::join(api, 1, id, 0, &incomplete[0]).what == "ncclCommInitRank: invalid usage");

  DeviceArray a({1, 2}), b({10, 20}), c({100, 200}), all(std::vector<float>(3 * 2 * kRanks));
  DeviceArray* data[kRanks] = {&a, &b, &c};
  REQUIRE(nccl_group_start(api).ok());
  for (int r = 0; r < kRanks; ++r) {
    REQUIRE(ranks[r]->all_gather(data[r]->data(), all.data() + r * 6, 2, nullptr).ok());
    REQUIRE(ranks[r]->all_reduce(data[r]->data(), 2, nullptr).ok());
  }
  REQUIRE(nccl_group_end(api).ok());
  for (DeviceArray* d : data) CHECK(d->host() == std::vector<float>{111, 222});
  const std::vector<float> gathered = all.host();
  for (size_t i = 0; i < gathered.size(); ++i)
    CHECK(gathered[i] == std::vector<float>{1, 2, 10, 20, 100, 200}[i % 6]);

  CHECK(ranks[0]->all_reduce(a.data(), 2, nullptr).what == "ncclAllReduce: invalid usage");
  REQUIRE(nccl_group_start(api).ok());
  CHECK(ranks[0]->all_reduce(a.data(), 3, nullptr).what == "ncclAllReduce: invalid argument");  // too long
  REQUIRE(ranks[0]->all_reduce(a.data(), 2, nullptr).ok());
  REQUIRE(ranks[1]->all_reduce(b.data(), 1, nullptr).ok());
  REQUIRE(ranks[2]->all_reduce(c.data(), 2, nullptr).ok());
  CHECK(nccl_group_end(api).what == "ncclGroupEnd: invalid usage");
  CHECK(a.host() == std::vector<float>{111, 222});
}

TEST_CASE("cuda libraries: what NVML says of a device, and what it does not") {
  std::string why;
  CHECK(Nvml::make(emulation::fake_nvml({.driver = false}), &why) == nullptr);
  CHECK(why == "nvmlInit: driver not loaded");
  const auto read = [&](const emulation::FakeNvml& says, const char* bus = emulation::kFakePciBus) {
    const auto nvml = Nvml::make(emulation::fake_nvml(says), &why);
    REQUIRE(nvml != nullptr);
    return nvml->read(bus);
  };
  const emulation::FakeNvml all = {.percent = 42,
                                   .milliwatts = 123456,
                                   .milliwatts_limit = 700000,
                                   .millijoules = (1ll << 40) + 500,
                                   .megahertz = 1980,
                                   .megahertz_of_memory = 2619,
                                   .celsius = 61};
  const NvmlReading r = read(all);
  CHECK(r.utilization == 0.42);
  CHECK(r.power_watts == 123.456);
  CHECK(r.power_limit_watts == 700);
  CHECK(r.energy_joules == static_cast<double>((1ll << 40) + 500) / 1000);
  CHECK(r.clock_hertz == 1.98e9);
  CHECK(r.memory_clock_hertz == 2.619e9);
  CHECK(r.temperature_celsius == 61);
  const NvmlReading little = read({.celsius = 30});
  CHECK(little.temperature_celsius == 30);
  for (const double x : {little.utilization, little.power_watts, little.power_limit_watts,
                         little.energy_joules, little.clock_hertz, little.memory_clock_hertz})
    CHECK(std::isnan(x));
  CHECK(read(all, emulation::kSecondFakePciBus).power_watts == 124.456);
  CHECK(std::isnan(read(all, "00000000:1f:00.0").power_watts));  // there is none
  // Its calls are refused before the initialization.
  NvmlDevice* device = nullptr;
  CHECK(emulation::fake_nvml(all).DeviceGetHandleByPciBusId_v2(emulation::kFakePciBus, &device) != 0);
}

TEST_CASE("cuda libraries: the real NVML, where it is installed, has every function") {
  NvmlApi api;
  std::string why;
  if (!load_nvml(&api, &why)) OAR_SKIP("no NVML: " + why);
  if (Nvml::make(api, &why) == nullptr) CHECK_THAT(why, Contains("nvmlInit: "));
}

TEST_CASE("cuda libraries: the real NCCL, where it is installed, has every function and makes an id") {
  NcclApi api;
  std::string why;
  if (!load_nccl(&api, &why)) OAR_SKIP("no NCCL: " + why);
  NcclId id;
  const LibraryStatus made = NcclRank::unique_id(api, &id);
  if (!made.ok()) CHECK_THAT(made.what, Contains("ncclGetUniqueId: "));  // no network interface here
}
