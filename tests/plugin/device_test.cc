// Memory, copies, streams and events of a device, through the Backend and through the bare table.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/base/device_usage.h"
#include "tests/plugin/tested_device.h"

using namespace oar;
using namespace oar_test;

namespace {

std::vector<uint8_t> pattern(size_t n, uint32_t seed) {
  std::vector<uint8_t> out(n);
  for (size_t k = 0; k < n; ++k) out[k] = static_cast<uint8_t>(seed * 31 + k * 7 + (k >> 8));
  return out;
}

void* at(const Buffer& b, size_t offset) { return static_cast<std::byte*>(b.mutable_data()) + offset; }

}  // namespace

TEST_CASE("plugin: copies of any size and place, with and without the optional functions", "[any]") {
  for (const char* config : configs({"", "plain=1"})) {
    INFO("config '" << config << "'");
    const int64_t alive = tested_counter(loopback::kAllocations);
    const int64_t open = tested_counter(loopback::kOpenDevices);
    {
      const auto b = tested_backend(config);
      CHECK(b->memory() == MemoryKind::kDevice);
      auto memory = b->allocate(1 << 20);
      REQUIRE_OK(memory);
      CHECK(memory->kind() == MemoryKind::kDevice);
      CHECK(reinterpret_cast<uintptr_t>(memory->data()) % 256 == 0);
      for (size_t n : {size_t{1}, size_t{3}, size_t{64}, size_t{4097}, size_t{300000}, size_t{1 << 20}}) {
        const size_t shift = n < (1 << 20) ? 5 : 0;
        const auto sent = pattern(n, 1);
        auto changed = sent;
        REQUIRE_OK(b->upload(at(*memory, shift), changed.data(), n));
        std::fill(changed.begin(), changed.end(), 0);  // allowed as soon as upload() has returned
        std::vector<uint8_t> got(n);
        REQUIRE_OK(b->download(got.data(), at(*memory, shift), n));
        REQUIRE_OK(b->synchronize());
        CHECK(got == sent);
        if (n > (1 << 19)) continue;
        REQUIRE_OK(b->copy(at(*memory, (1 << 19) + 1), at(*memory, shift), n - 1));
        std::fill(got.begin(), got.end(), 0);
        REQUIRE_OK(b->download(got.data(), at(*memory, (1 << 19) + 1), n - 1));
        REQUIRE_OK(b->synchronize());
        CHECK(std::equal(got.begin(), got.end() - 1, sent.begin()));
      }
      REQUIRE_OK(b->upload(nullptr, nullptr, 0));
      CHECK(b->allocate(0)->size() == 0);
      // A buffer may outlive its backend.
    }
    CHECK(tested_counter(loopback::kAllocations) == alive);
    CHECK(tested_counter(loopback::kOpenDevices) == open);
    CHECK(tested_counter(loopback::kHostAllocations) == 0);
  }
}

TEST_CASE("plugin: staging memory is not written before its copies are over", "[any]") {
  const auto b = tested_backend();
  const int64_t events = tested_counter(loopback::kEvents);
  constexpr size_t kPiece = 100000, kPieces = 40;  // some sixteen halves
  auto memory = b->allocate(kPiece * kPieces);
  REQUIRE_OK(memory);
  for (size_t k = 0; k < kPieces; ++k) {
    const auto sent = pattern(kPiece, static_cast<uint32_t>(k));
    REQUIRE_OK(b->upload(at(*memory, k * kPiece), sent.data(), kPiece));
  }
  std::vector<uint8_t> got(kPiece * kPieces);
  REQUIRE_OK(b->download(got.data(), memory->data(), got.size()));
  REQUIRE_OK(b->synchronize());
  for (size_t k = 0; k < kPieces; ++k) {
    const auto sent = pattern(kPiece, static_cast<uint32_t>(k));
    REQUIRE(std::memcmp(got.data() + k * kPiece, sent.data(), kPiece) == 0);
  }
  if (on_loopback()) CHECK(loopback_counter(loopback::kEvents) > events);
}

TEST_CASE("plugin: memory ends with a message, and the device goes on", "[any]") {
  if (!on_loopback()) {  // whose budget is not the test's
    const auto b = tested_backend();
    const auto none = b->allocate(uint64_t{1} << 60);
    REQUIRE_FALSE(none.ok());
    CHECK(none.status().code() == StatusCode::kResourceExhausted);
    CHECK(b->allocate(600000).ok());
    return;
  }
  for (const char* config : {"memory=1000000", "memory=1000000,plain=1"}) {
    const auto b = loopback_backend(config);
    auto first = b->allocate(600000);
    REQUIRE_OK(first);
    const auto second = b->allocate(600000);
    REQUIRE_FALSE(second.ok());
    CHECK(second.status().code() == StatusCode::kResourceExhausted);
    const auto available = b->available_memory();
    REQUIRE_OK(available);
    REQUIRE(available->has_value());
    CHECK(**available == (std::string(config).find("plain") == std::string::npos ? 400000u : 1000000u));
    *first = Buffer();
    CHECK(b->allocate(600000).ok());
  }
}

TEST_CASE("plugin: device memory cannot be read by the host") {
  const auto b = loopback_backend();
  const auto memory = b->allocate(64);
  REQUIRE_OK(memory);
  const auto* p = static_cast<const volatile char*>(memory->data());
  const pid_t child = fork();
  if (child == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, 2);             // a sanitizer's report
    signal(SIGSEGV, SIG_DFL);  // not the test framework's
    (void)*p;
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST_CASE("plugin: what open devices say of themselves, each once") {
  CHECK(device_usages().empty());
  {
    const auto plain = loopback_backend("plain=1");  // has no function for it
    CHECK(device_usages().empty());
  }
  const auto one = loopback_backend("memory=1000000");
  const auto memory = one->allocate(4096);
  REQUIRE_OK(memory);
  auto all = device_usages();
  REQUIRE(all.size() == 1);
  CHECK(all[0].device == one->name());
  CHECK(all[0].uuid.empty());
  CHECK(all[0].memory_total_bytes == 1000000);
  CHECK(all[0].memory_used_bytes == 4096);
  CHECK(std::isnan(all[0].power_watts));
  CHECK(std::isnan(all[0].energy_joules));
  const auto again = loopback_backend("memory=1000000,watts=60");
  all = device_usages();
  REQUIRE(all.size() == 1);
  CHECK(all[0].uuid == "LOOPBACK-0");
  CHECK(all[0].power_watts == 60);
  CHECK(all[0].utilization == 0.5);
  CHECK(all[0].temperature_celsius == 40);
}

TEST_CASE("plugin: streams and events of the bare table", "[any]") {
  const auto named = parse_device_name(tested_device());
  REQUIRE_OK(named);
  const auto table = load_plugin(named->plugin, {});
  REQUIRE_OK(table);
  const oar_plugin& t = *table;
  int32_t devices = 0;
  REQUIRE(t.device_count(&devices) == OAR_PLUGIN_OK);
  REQUIRE(named->index < devices);
  oar_plugin_device* d = nullptr;
  REQUIRE(t.open(named->index, &d) == OAR_PLUGIN_OK);
  oar_plugin_stream *a = nullptr, *b = nullptr;
  REQUIRE(t.create_stream(d, &a) == OAR_PLUGIN_OK);
  REQUIRE(t.create_stream(d, &b) == OAR_PLUGIN_OK);
  oar_plugin_event* event = nullptr;
  REQUIRE(t.create_event(d, &event) == OAR_PLUGIN_OK);
  CHECK(t.synchronize_event(d, event) == OAR_PLUGIN_OK);  // never recorded

  const auto used = [&] {
    oar_plugin_memory memory{};
    memory.size = sizeof memory;
    REQUIRE(t.memory_stats(d, &memory) == OAR_PLUGIN_OK);
    return memory.total_bytes - memory.free_bytes;
  };
  const uint64_t before = used();  // streams may have some
  void *x = nullptr, *y = nullptr;
  constexpr size_t kBytes = 1 << 16;
  REQUIRE(t.allocate(d, kBytes, &x) == OAR_PLUGIN_OK);
  REQUIRE(t.allocate(d, kBytes, &y) == OAR_PLUGIN_OK);
  const auto sent = pattern(kBytes, 9);
  std::vector<uint8_t> got(kBytes);
  // a: x = sent; event; b, after the event: y = x.
  REQUIRE(t.copy_to_device_async(d, a, x, sent.data(), kBytes) == OAR_PLUGIN_OK);
  REQUIRE(t.record_event(d, a, event) == OAR_PLUGIN_OK);
  REQUIRE(t.synchronize_event(d, event) == OAR_PLUGIN_OK);
  REQUIRE(t.copy_on_device(d, b, y, x, kBytes) == OAR_PLUGIN_OK);
  REQUIRE(t.copy_to_host_async(d, b, got.data(), y, kBytes) == OAR_PLUGIN_OK);
  REQUIRE(t.synchronize(d, b) == OAR_PLUGIN_OK);
  CHECK(got == sent);
  // The event moves with its latest record.
  const auto second = pattern(kBytes, 10);
  REQUIRE(t.copy_to_device_async(d, b, y, second.data(), kBytes) == OAR_PLUGIN_OK);
  REQUIRE(t.record_event(d, b, event) == OAR_PLUGIN_OK);
  REQUIRE(t.synchronize_event(d, event) == OAR_PLUGIN_OK);
  REQUIRE(t.copy_to_host(d, a, got.data(), y, kBytes) == OAR_PLUGIN_OK);
  CHECK(got == second);
  // A capture runs when replayed, and each time.
  oar_plugin_capture* capture = nullptr;
  REQUIRE(t.begin_capture(d, a) == OAR_PLUGIN_OK);
  REQUIRE(t.copy_on_device(d, a, y, x, kBytes) == OAR_PLUGIN_OK);
  REQUIRE(t.end_capture(d, a, &capture) == OAR_PLUGIN_OK);
  REQUIRE(t.copy_to_host(d, a, got.data(), y, kBytes) == OAR_PLUGIN_OK);
  CHECK(got == second);
  REQUIRE(t.replay(d, a, capture) == OAR_PLUGIN_OK);
  REQUIRE(t.copy_to_host(d, a, got.data(), y, kBytes) == OAR_PLUGIN_OK);
  CHECK(got == sent);
  t.destroy_capture(d, capture);

  // Another device may give what it has set aside before.
  CHECK((on_loopback() ? used() - before == 2 * kBytes : used() >= before));
  t.release(d, x);
  t.release(d, y);
  t.destroy_event(d, event);
  t.destroy_stream(d, a);
  t.destroy_stream(d, b);
  t.close(d);
}
