// API keys: one comparison for both transports.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/status.h"

namespace oar::api {

// Whether `given` equals `secret` (not empty). Takes time by the length of `given`, not by where the two
// differ.
bool equal_constant_time(std::string_view given, std::string_view secret);
// Whether `authorization` is "Bearer <secret>", the scheme in any case.
bool bearer_matches(std::string_view authorization, std::string_view secret);

// The keys a server accepts: one from the command line, more from a file with one per line. Blank lines and
// lines that begin with # are skipped. So keys change without a restart: add the new one, move the clients,
// take the old one out. The file is looked at when a request comes and a second has passed. A file that has
// been emptied revokes all of its keys; a key is asked for as before. A file that cannot be read, or holds
// something that is no key, leaves the keys as they were and is logged. Any thread.
class ApiKeys {
 public:
  // Null when both are empty: nothing is asked for. NOT_FOUND or INVALID_ARGUMENT for the file; messages call
  // it by `option`.
  static Result<std::shared_ptr<ApiKeys>> load(const std::string& key, const std::string& file,
                                               Logger log = {}, std::string option = "api-key-file");

  bool accepts(std::string_view key);
  bool accepts_bearer(std::string_view authorization);

 private:
  using Keys = std::shared_ptr<const std::vector<std::string>>;
  ApiKeys() = default;
  Keys current();
  Result<Keys> read_file() const;

  std::string own_, file_, option_;
  Logger log_;
  std::mutex mutex_;
  Keys keys_;  // guarded by mutex_, as are the next two
  struct stat seen_ = {};
  std::chrono::steady_clock::time_point looked_;
};

// Whether clients may load and unload models, and with which keys.
struct ModelControl {
  bool enabled = false;
  std::shared_ptr<ApiKeys> keys;  // null: the keys of every other request
};
// The answer where it is off.
Status model_control_off();

}  // namespace oar::api
