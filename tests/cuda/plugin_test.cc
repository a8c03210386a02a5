// liboar_cuda.so, or liboar_cuda_emulated.so, through the public table: the handshake anywhere, everything
// else where there is a device.
#include <algorithm>
#include <cmath>
#include <thread>

#include "engine/base/device_usage.h"
#include "engine/base/format.h"
#include "engine/tensor/plugin_table.h"
#include "kernels/lora.h"
#include "kernels/moe.h"
#include "kernels/recurrent.h"
#include "kernels/state_scan.h"
#include "tests/cuda/device_memory.h"
#include "tests/graph/graph_fixture.h"

using namespace oar;
using namespace oar_test;

namespace {

std::unique_ptr<Backend> host() {
  return make_cpu_backend(std::make_shared<ThreadPool>(ThreadPoolOptions{.threads = 2}), Isa::kReference);
}

}  // namespace

TEST_CASE("cuda: the plug-in passes the handshake, and without a device says so") {
  REQUIRE_OK(load_plugin(kCudaPlugin, {}));
  if (no_device().empty()) return;
  const auto backend = make_plugin_backend(kCudaPlugin, host(), {});
  REQUIRE_FALSE(backend.ok());
  CHECK(backend.status().message() == cat("plug-in ", kCudaPlugin, " finds no device on this machine"));
}

TEST_CASE("cuda: memory and copies through the plug-in", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  auto b = make_plugin_backend(kCudaPlugin, host(), {});
  REQUIRE_OK(b);
  for (size_t n : {size_t{1}, size_t{1000}, size_t{1} << 20}) {
    std::vector<float> sent(n), got(n);
    for (size_t k = 0; k < n; ++k) sent[k] = static_cast<float>(k % 1001) - 500;
    auto memory = (*b)->allocate(2 * n * sizeof(float));
    REQUIRE_OK(memory);
    auto* from = static_cast<float*>(memory->mutable_data());
    REQUIRE_OK((*b)->upload(from, sent.data(), n * sizeof(float)));
    REQUIRE_OK((*b)->copy(from + n, from, n * sizeof(float)));
    REQUIRE_OK((*b)->download(got.data(), from + n, n * sizeof(float)));
    REQUIRE_OK((*b)->synchronize());
    CHECK(got == sent);
  }
  const auto refused = (*b)->allocate(uint64_t{1} << 45);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().code() == StatusCode::kResourceExhausted);
  CHECK((*b)->allocate(64).ok());
}

TEST_CASE("cuda: what the device says of itself while it is open", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const auto usage = [] {
    const auto all = device_usages();
    REQUIRE(all.size() == 1);
    return all[0];
  };
  const size_t before = device_usages().size();
  {
    auto b = make_plugin_backend(kCudaPlugin, host(), {});
    REQUIRE_OK(b);
    const DeviceUsage idle = usage();
    CHECK(idle.device == (*b)->name());
    REQUIRE(idle.uuid.size() == 40);
    for (size_t i = 0; i < 36; ++i)
      CHECK((idle.uuid[4 + i] == '-') == (i == 8 || i == 13 || i == 18 || i == 23));
    constexpr uint64_t kBytes = 64 << 20;
    const auto memory = (*b)->allocate(kBytes);
    REQUIRE_OK(memory);
    const DeviceUsage busy = usage();
    CHECK(busy.memory_used_bytes - idle.memory_used_bytes >= static_cast<double>(kBytes));
    CHECK(busy.memory_used_bytes <= busy.memory_total_bytes);
    CHECK((std::isnan(busy.power_watts) || busy.power_watts >= 0));
    CHECK((std::isnan(busy.energy_joules) || busy.energy_joules >= idle.energy_joules));
  }
  CHECK(device_usages().size() == before);
}

TEST_CASE("cuda: a second device has its own memory, stream and figures", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  const std::string name = cat(kCudaPlugin, ":1");
  if (is_emulated()) {
    const auto none = make_plugin_backend(name, host(), {});
    REQUIRE_FALSE(none.ok());
    CHECK(none.status().message() ==
          cat("plug-in ", kCudaPlugin, " has 1 device, numbered from 0; there is no 1"));
  }
  const EmulatedWith two("devices=2");
  auto second = make_plugin_backend(name, host(), {});
  if (!second.ok() && !is_emulated()) OAR_SKIP("there is one device");
  REQUIRE_OK(second);
  auto first = make_plugin_backend(kCudaPlugin, host(), {});  // now the thread's current device
  REQUIRE_OK(first);
  CHECK(std::string((*second)->name()).starts_with(name));
  const auto usage = [](const Backend& b) {
    const auto all = device_usages();
    const auto its =
        std::find_if(all.begin(), all.end(), [&](const DeviceUsage& u) { return u.device == b.name(); });
    REQUIRE(its != all.end());
    return *its;
  };
  const DeviceUsage idle = usage(**first), idle_too = usage(**second);
  CHECK(idle.uuid != idle_too.uuid);
  if (is_emulated()) CHECK(idle_too.power_watts == idle.power_watts + 1);
  constexpr uint64_t kBytes = 64 << 20;
  const auto memory = (*second)->allocate(kBytes);
  REQUIRE_OK(memory);
  CHECK(usage(**second).memory_used_bytes - idle_too.memory_used_bytes >= static_cast<double>(kBytes));
  if (is_emulated()) CHECK(usage(**first).memory_used_bytes == idle.memory_used_bytes);
  // By a thread that has not chosen a device yet.
  std::vector<float> sent(100, 3.f), got(100);
  Status status;
  std::thread([&] {
    const uint64_t bytes = sent.size() * sizeof(float);
    status = (*second)->upload(const_cast<void*>(memory->data()), sent.data(), bytes);
    if (status.ok()) status = (*second)->download(got.data(), memory->data(), bytes);
    if (status.ok()) status = (*second)->synchronize();
  }).join();
  CHECK(status.message() == "");
  CHECK(got == sent);
  // Launches and captures of both in turn: a stream of the other device is refused.
  GraphFixture f;
  f.output(f.b.op("rms_norm", {f.input("x", {96}), f.constant("w", {96})}, {{"epsilon", 1e-6}}));
  for (int turn = 0; turn < 2; ++turn) {
    for (Backend* b : {first->get(), second->get()})
      CHECK(distance(f.planned_on(*b, {}, 4), f.reference()) < 100.0 / (1 << 24));
  }
}

TEST_CASE("cuda: a graph on the device, launched and captured, with the processor's help", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  auto b = make_plugin_backend(kCudaPlugin, host(), {});
  REQUIRE_OK(b);
  GraphFixture f;
  const Val norm = f.b.op("rms_norm", {f.input("x", {96}), f.constant("w", {96})}, {{"epsilon", 1e-6}});
  f.output(norm);
  // f32 sums of 96 squares, root, two products: below 100 roundings.
  CHECK(distance(f.planned_on(**b, {}, 4), f.reference()) < 100.0 / (1 << 24));
  GraphFixture mixed;  // silu has no kernel there
  mixed.output(mixed.b.op("silu", {mixed.b.op("rms_norm", {mixed.input("x", {96}), mixed.constant("w", {96})},
                                              {{"epsilon", 1e-6}})}));
  CHECK(distance(mixed.planned_on(**b, {}, 4), mixed.reference()) < 2.0 * 100 / (1 << 24));
}

TEST_CASE("cuda: the plug-in refuses sizes that a kernel does not take, before anything runs", "[cuda]") {
  OAR_SKIP_WITHOUT_DEVICE();
  auto b = make_plugin_backend(kCudaPlugin, host(), {});
  REQUIRE_OK(b);
  const auto refused = [&](KernelFamily family, const char* format, const auto& args) {
    const Kernel* kernel = (*b)->find_kernel({family, *Format::find(format)});
    REQUIRE(kernel != nullptr);
    KernelPlan plan;
    return (*b)->plan(*kernel, &args, &plan);
  };
  // The most that is taken, and one more.
  const auto check = [&](KernelFamily family, const char* format, auto args, auto& size,
                         const std::string& field) {
    REQUIRE_OK(refused(family, format, args(size)));
    ++size;
    const Status status = refused(family, format, args(size));
    CHECK(status.code() == StatusCode::kUnimplemented);
    CHECK(status.param() == "device");
    CHECK(status.message() ==
          cat("device ", (*b)->name(), ": ", family_name(family), ": unsupported: ", field, " is ", size,
              ", above ", size - 1,
              ", the most that the device's kernel takes; run the model without --device"));
  };
  for (const char* format : {"f32", "bf16"}) {
    int64_t rank = 4096;
    check(
        KernelFamily::kLora, format,
        [](int64_t n) {
          LoraArgs a;
          a.T = a.K = a.n = 8;
          a.R = n;
          return a;
        },
        rank, "rank");
  }
  int64_t experts = 4096, groups = 1024, state = 19456;
  int32_t key_dim = 1816;
  const auto route = [](int64_t n, int64_t groups) {
    MoeRouteArgs a;
    a.T = a.top_k = 2;
    a.experts = n;
    a.groups = static_cast<int32_t>(groups);
    return a;
  };
  check(
      KernelFamily::kMoeRoute, "f32", [&](int64_t n) { return route(n, 0); }, experts, "experts");
  check(
      KernelFamily::kMoeRoute, "f32", [&](int64_t n) { return route(4096, n); }, groups, "groups");
  check(
      KernelFamily::kStateScan, "f32",
      [](int32_t n) {
        StateScanArgs a;
        a.T = 2;
        a.shape = {1, 1, n, 16};
        return a;
      },
      key_dim, "key_dim");
  check(
      KernelFamily::kRecurrent, "f32",
      [](int64_t n) {
        RecurrentArgs a;
        a.T = a.B = a.D = 1;
        a.H = n;
        return a;
      },
      state, "H");
  CHECK((*b)->fault().ok());
  // So a model is, when it is loaded.
  for (const int64_t count : {4096, 5000}) {
    GraphFixture f;
    const auto x = f.b.op("moe_route", {f.input("logits", {count}), {}, {}}, {{"top_k", int64_t{2}}});
    f.output(x);
    auto program = Program::create(f.graph, **b, {});
    REQUIRE_OK(program);
    const auto run = Run::create(*program);
    CHECK(run.ok() == (count == 4096));
    if (!run.ok())
      CHECK(run.status().message().find("moe_route: unsupported: experts is 5000") != std::string::npos);
  }
}
