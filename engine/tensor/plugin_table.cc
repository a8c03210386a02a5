#include "engine/tensor/plugin_table.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <list>
#include <mutex>
#include <vector>

#include "engine/base/format.h"

namespace oar {
namespace {

// Who hears plug-ins now, the latest last. A plug-in lives as long as the process, who listens need not.
struct Listeners {
  std::mutex mutex;
  std::list<Logger> logs;
  static Listeners& instance() {
    static auto* listeners = new Listeners;
    return *listeners;
  }
};

void plugin_log(int level, const char* text) {
  static constexpr LogLevel kLevels[] = {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning,
                                         LogLevel::kError};
  Listeners& all = Listeners::instance();
  const std::lock_guard lock(all.mutex);
  if (!all.logs.empty()) all.logs.back()(kLevels[std::clamp(level, 0, 3)], text != nullptr ? text : "");
}

const oar_plugin_host kHost = {sizeof(oar_plugin_host), OAR_PLUGIN_MAJOR, OAR_PLUGIN_MINOR, plugin_log};

// Everything up to and with launch(): what every version requires.
constexpr size_t kLeastSize = offsetof(oar_plugin, packed_bytes);

struct Function {
  const char* name;
  bool given;
};

// The first function that is missing.
const char* missing(std::initializer_list<Function> functions) {
  for (const Function& f : functions) {
    if (!f.given) return f.name;
  }
  return nullptr;
}

#define OAR_FUNCTION(name) \
  { #name, t.name != nullptr }

// Half a group is worse than none: what one function makes another must end.
Status check_groups(const oar_plugin& t, const std::string& source) {
  const std::vector<std::vector<Function>> groups = {
      {OAR_FUNCTION(host_allocate), OAR_FUNCTION(host_release)},
      {OAR_FUNCTION(packed_bytes), OAR_FUNCTION(pack_weight)},
      {OAR_FUNCTION(create_stream), OAR_FUNCTION(destroy_stream)},
      {OAR_FUNCTION(create_event), OAR_FUNCTION(destroy_event), OAR_FUNCTION(record_event),
       OAR_FUNCTION(synchronize_event)},
      {OAR_FUNCTION(begin_capture), OAR_FUNCTION(end_capture), OAR_FUNCTION(replay),
       OAR_FUNCTION(destroy_capture)}};
  for (const auto& group : groups) {
    const Function *given = nullptr, *absent = nullptr;
    for (const Function& f : group) (f.given ? given : absent) = &f;
    if (given != nullptr && absent != nullptr) {
      return invalid_argument(
          cat(source, ": the plug-in gives ", given->name, " but not ", absent->name, "; they go together"));
    }
  }
  return ok_status();
}

// The folder of the running program.
std::string program_folder() {
  std::array<char, 4096> path;
  const ssize_t n = readlink("/proc/self/exe", path.data(), path.size());
  if (n <= 0 || static_cast<size_t>(n) >= path.size()) return "";
  const std::string text(path.data(), static_cast<size_t>(n));
  return text.substr(0, text.rfind('/'));
}

void* open_library(const std::string& path) {
  return dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

std::string linker_error() {
  const char* error = dlerror();
  return error != nullptr ? error : "unknown error";
}

}  // namespace

Result<DeviceName> parse_device_name(const std::string& text) {
  DeviceName out{text, 0};
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos) {
    const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
    const auto [last, error] = std::from_chars(begin, end, out.index);
    if (error != std::errc() || last != end || out.index < 0) {
      return invalid_argument(cat("device '", text, "': behind the colon must be the number of a device"),
                              "device");
    }
    out.plugin = text.substr(0, colon);
  }
  if (out.plugin.empty()) return invalid_argument(cat("device '", text, "' names no plug-in"), "device");
  return out;
}

Result<oar_plugin> check_plugin(const oar_plugin* table, const std::string& source) {
  if (table == nullptr) {
    return invalid_argument(cat(source, ": the plug-in refused to load; its log may say why"), "device");
  }
  // Size and version stand at the same place in every version.
  if (table->size < offsetof(oar_plugin, name)) {
    return invalid_argument(
        cat(source, ": the plug-in's table has ", table->size, " bytes, too few for its version"), "device");
  }
  if (table->major != OAR_PLUGIN_MAJOR) {
    return invalid_argument(cat(source, ": the plug-in was built for version ", table->major, ".",
                                table->minor, " of the plug-in interface, this program has ",
                                OAR_PLUGIN_MAJOR, ".", OAR_PLUGIN_MINOR, "; rebuild the plug-in"),
                            "device");
  }
  if (table->size < kLeastSize) {
    return invalid_argument(cat(source, ": the plug-in's table has ", table->size, " bytes; version ",
                                OAR_PLUGIN_MAJOR, " has at least ", kLeastSize),
                            "device");
  }
  oar_plugin t{};
  std::memcpy(&t, table, std::min<size_t>(table->size, sizeof t));
  if (t.name == nullptr || *t.name == '\0') {
    return invalid_argument(cat(source, ": the plug-in has no name"), "device");
  }
  if (const char* name =
          missing({OAR_FUNCTION(device_count), OAR_FUNCTION(device_info), OAR_FUNCTION(open),
                   OAR_FUNCTION(close), OAR_FUNCTION(allocate), OAR_FUNCTION(release),
                   OAR_FUNCTION(copy_to_device), OAR_FUNCTION(copy_to_host), OAR_FUNCTION(copy_on_device),
                   OAR_FUNCTION(synchronize), OAR_FUNCTION(find_kernel), OAR_FUNCTION(launch)})) {
    return invalid_argument(cat(source, ": the plug-in's required function ", name, " is missing"), "device");
  }
  OAR_RETURN_IF_ERROR(check_groups(t, source));
  return t;
}

std::shared_ptr<const void> hear_plugins(const Logger& log) {
  if (!log.callback) return nullptr;
  Listeners& all = Listeners::instance();
  const std::lock_guard lock(all.mutex);
  const auto place = all.logs.insert(all.logs.end(), log);
  return std::shared_ptr<const void>(&*place, [&all, place](const void*) {
    const std::lock_guard removing(all.mutex);
    all.logs.erase(place);
  });
}

Result<oar_plugin> load_plugin(const std::string& name, const Logger& log) {
  const auto hearing = hear_plugins(log);
  void* library = nullptr;
  std::string source = name, errors;
  if (name.find('/') != std::string::npos) {
    library = open_library(name);
    if (library == nullptr) errors = linker_error();
  } else {
    const std::string file = cat("liboar_", name, ".so"), folder = program_folder();
    for (const std::string& path : {cat(folder, "/", file), cat(folder, "/../lib/oar/", file), file}) {
      source = path;
      // A file that is there and cannot be loaded is the answer, not a reason to look on.
      if (path != file && access(path.c_str(), F_OK) != 0) continue;
      library = open_library(path);
      if (library == nullptr) errors = linker_error();
      break;
    }
  }
  if (library == nullptr) {
    return Status(StatusCode::kNotFound,
                  cat("device '", name, "': ", errors,
                      "; it must be `cpu`, the path of a plug-in, or NAME for a "
                      "liboar_NAME.so beside the program"),
                  "device");
  }
  auto* entry = reinterpret_cast<oar_plugin_entry_fn>(dlsym(library, OAR_PLUGIN_ENTRY));
  if (entry == nullptr) {
    return invalid_argument(cat(source, " is not a device plug-in: it does not export ", OAR_PLUGIN_ENTRY),
                            "device");
  }
  return check_plugin(entry(&kHost), source);
}

}  // namespace oar
