#include "engine/runtime/cache_folder.h"

#include <filesystem>

#include "engine/base/format.h"
#include "engine/loader/file_writer.h"

namespace oar {

namespace fs = std::filesystem;

Status make_room(const std::string& folder, uint64_t bytes, uint64_t limit) {
  std::error_code ec;
  fs::create_directories(folder, ec);
  if (ec) return unavailable(cat("cannot create ", folder, ": ", ec.message()));
  remove_orphans(folder);
  if (bytes > limit) {
    return resource_exhausted(cat("it has ", format_bytes(bytes), " and the cache may have ",
                                  format_bytes(limit), "; allow it more (cache_bytes, --cache-size)"));
  }
  // Few entries, each of a model: the oldest is looked for anew each time.
  while (true) {
    uint64_t total = bytes;
    std::string oldest;
    fs::file_time_type oldest_used{};
    for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
      std::error_code gone;  // another process was faster
      if (it->path().extension() != ".safetensors") continue;
      const fs::file_time_type used = it->last_write_time(gone);
      const uint64_t size = it->file_size(gone);
      if (gone) continue;
      total += size;
      if (oldest.empty() || used < oldest_used) oldest = it->path().string(), oldest_used = used;
    }
    if (total <= limit || oldest.empty()) break;
    fs::remove(oldest, ec);
    if (ec) break;
  }
  return ok_status();
}

void mark_used(const std::string& entry) {
  std::error_code ec;  // of a folder that may only be read
  fs::last_write_time(entry, fs::file_time_type::clock::now(), ec);
}

}  // namespace oar
