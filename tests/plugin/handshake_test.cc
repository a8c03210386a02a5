// What a plug-in must be before anything of it is called.
#include <cstring>
#include <functional>

#include "tests/plugin/loopback_device.h"
#include "tests/support/test_data.h"

using namespace oar;
using oar_test::LoopbackConfig;

extern "C" oar_plugin oar_plugin_from_c(void);

namespace {

oar_plugin loopback_table() {
  auto table = load_plugin("loopback", {});
  REQUIRE_OK(table);
  return *table;
}

std::string why(const oar_plugin* table) {
  const auto checked = check_plugin(table, "here");
  REQUIRE_FALSE(checked.ok());
  CHECK(checked.status().code() == StatusCode::kInvalidArgument);
  return checked.status().message();
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string program_folder() {
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  const std::string file(path, n > 0 ? static_cast<size_t>(n) : 0);
  return file.substr(0, file.rfind('/'));
}

}  // namespace

TEST_CASE("plugin: device names") {
  CHECK(parse_device_name("cuda")->plugin == "cuda");
  CHECK(parse_device_name("cuda")->index == 0);
  CHECK(parse_device_name("cuda:3")->plugin == "cuda");
  CHECK(parse_device_name("cuda:3")->index == 3);
  CHECK(parse_device_name("./x/liboar_y.so")->plugin == "./x/liboar_y.so");
  for (const char* wrong : {"", ":0", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999"}) {
    INFO(wrong);
    const auto parsed = parse_device_name(wrong);
    REQUIRE_FALSE(parsed.ok());
    CHECK(parsed.status().param() == "device");
  }
}

TEST_CASE("plugin: the handshake refuses what cannot be used, and says why") {
  const oar_plugin good = loopback_table();
  REQUIRE_OK(check_plugin(&good, "here"));
  CHECK(has(why(nullptr), "refused to load"));

  oar_plugin t = good;
  t.major = OAR_PLUGIN_MAJOR + 1, t.minor = 0;
  CHECK(has(why(&t), "built for version 3.0"));
  t = good;
  t.minor = 77;  // what was appended later is no obstacle
  CHECK(check_plugin(&t, "here").ok());
  t = good;
  t.name = nullptr;
  CHECK(has(why(&t), "no name"));
  t.name = "";
  CHECK(has(why(&t), "no name"));
  t = good;
  t.size = 8;
  CHECK(has(why(&t), "8 bytes"));
  t.size = offsetof(oar_plugin, launch);
  CHECK(has(why(&t), "bytes"));
  t = oar_plugin_from_c();
  CHECK(has(why(&t), "required function device_info"));
}

TEST_CASE("plugin: each required function must be there") {
  const oar_plugin good = loopback_table();
  // The functions lie one behind the other; each is a pointer.
  const char* names[] = {"device_count",   "device_info", "open",           "close",
                         "allocate",       "release",     "copy_to_device", "copy_to_host",
                         "copy_on_device", "synchronize", "find_kernel",    "launch"};
  size_t offset = offsetof(oar_plugin, device_count);
  for (const char* name : names) {
    oar_plugin t = good;
    std::memset(reinterpret_cast<char*>(&t) + offset, 0, sizeof(void*));
    CHECK(has(why(&t), std::string("required function ") + name + " is missing"));
    offset += sizeof(void*);
  }
  CHECK(offset == offsetof(oar_plugin, packed_bytes));
}

TEST_CASE("plugin: optional functions go in groups, and may all be absent") {
  const oar_plugin good = loopback_table();
  struct Half {
    const char* absent;
    std::function<void(oar_plugin&)> remove;
  };
  const Half halves[] = {{"host_release", [](oar_plugin& t) { t.host_release = nullptr; }},
                         {"create_stream", [](oar_plugin& t) { t.create_stream = nullptr; }},
                         {"record_event", [](oar_plugin& t) { t.record_event = nullptr; }},
                         {"destroy_capture", [](oar_plugin& t) { t.destroy_capture = nullptr; }}};
  for (const Half& half : halves) {
    oar_plugin t = good;
    half.remove(t);
    CHECK(has(why(&t), std::string("but not ") + half.absent));
  }
  for (auto remove : std::initializer_list<void (*)(oar_plugin&)>{
           [](oar_plugin& t) { t.error_message = nullptr; }, [](oar_plugin& t) { t.memory_stats = nullptr; },
           [](oar_plugin& t) { t.copy_to_device_async = nullptr; },
           [](oar_plugin& t) { t.copy_to_host_async = nullptr; },
           [](oar_plugin& t) { t.kernel_scratch = nullptr; },
           [](oar_plugin& t) { t.device_usage = nullptr; }}) {
    oar_plugin t = good;
    remove(t);
    CHECK(check_plugin(&t, "here").ok());
  }

  // A table of an older header ends earlier: nothing behind its end is looked at.
  oar_plugin t = good;
  t.size = offsetof(oar_plugin, error_message);
  auto old = check_plugin(&t, "here");
  REQUIRE_OK(old);
  CHECK(old->launch == good.launch);
  CHECK(old->error_message == nullptr);
  CHECK(old->destroy_capture == nullptr);
  // A newer one is longer.
  struct {
    oar_plugin table;
    void (*more)();
  } newer = {good, nullptr};
  newer.table.size = sizeof newer;
  CHECK(check_plugin(&newer.table, "here").ok());
}

TEST_CASE("plugin: files that are no plug-ins") {
  const auto missing = load_plugin("no_such_device", {});
  REQUIRE_FALSE(missing.ok());
  CHECK(missing.status().code() == StatusCode::kNotFound);
  CHECK(has(missing.status().message(), "liboar_no_such_device.so"));
  CHECK(has(missing.status().message(), "`cpu`"));

  const auto text = load_plugin(oar_test::source_path("README.md"), {});
  REQUIRE_FALSE(text.ok());
  CHECK(text.status().code() == StatusCode::kNotFound);
  CHECK(has(text.status().message(), "README.md"));

  const auto other = load_plugin(program_folder() + "/liboar_not_a_plugin.so", {});
  REQUIRE_FALSE(other.ok());
  CHECK(has(other.status().message(), "does not export oar_plugin_entry"));

  CHECK(load_plugin(program_folder() + "/liboar_loopback.so", {}).ok());
}

TEST_CASE("plugin: devices that are not there") {
  LoopbackConfig config("devices=0");
  auto none = make_plugin_backend("loopback", oar_test::cpu_backend(), {});
  REQUIRE_FALSE(none.ok());
  CHECK(none.status().code() == StatusCode::kUnavailable);
  CHECK(has(none.status().message(), "finds no device"));
  LoopbackConfig two("devices=2");
  CHECK(make_plugin_backend("loopback:1", oar_test::cpu_backend(), {}).ok());
  auto third = make_plugin_backend("loopback:2", oar_test::cpu_backend(), {});
  REQUIRE_FALSE(third.ok());
  CHECK(has(third.status().message(), "has 2 devices"));
}
