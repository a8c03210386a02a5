// API keys: one comparison for both transports.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/log.h"
#include "engine/base/status.h"
#include "server/api/tenant.h"

namespace oar::api {

// Whether `given` equals `secret` (not empty). Takes time by the length of `given`, not by where the two
// differ.
bool equal_constant_time(std::string_view given, std::string_view secret);
// Whether `authorization` is "Bearer <secret>", the scheme in any case.
bool bearer_matches(std::string_view authorization, std::string_view secret);

// The keys a server accepts: one from the command line, more from a file with one per line. Blank lines and
// lines that begin with # are skipped. Behind a key may stand who it is of and what it may take (tenant.h):
//
//   s3cret-1
//   s3cret-2  name=search requests-per-minute=600 tokens-per-minute=1e6 concurrency=8 weight=2
//
// Keys of one name share its limits; a key without a name is called "key N", by its line. So keys change
// without a restart: add the new one, move the clients, take the old one out. The file is looked at when a
// request comes and a second has passed, or at once after reload(). A file that has been emptied revokes all
// of its keys; a key is asked for as before. A file that cannot be read, or holds something that is no key,
// leaves the keys as they were and is logged. What tenants have used so far survives. Any thread.
class ApiKeys {
 public:
  // Null when both are empty: nothing is asked for. NOT_FOUND or INVALID_ARGUMENT for the file; messages call
  // it by `option`. Where nobody counts what is taken, `limited` is false, and limits are refused.
  static Result<std::shared_ptr<ApiKeys>> load(const std::string& key, const std::string& file,
                                               Logger log = {}, std::string option = "api-key-file",
                                               bool limited = true);

  // Whose key it is; null: nobody's.
  std::shared_ptr<Tenant> find(std::string_view key);
  std::shared_ptr<Tenant> find_bearer(std::string_view authorization);
  // Who has a key of that name now; null: nobody.
  std::shared_ptr<Tenant> named(std::string_view name);
  bool accepts(std::string_view key) { return find(key) != nullptr; }
  bool accepts_bearer(std::string_view authorization) { return find_bearer(authorization) != nullptr; }
  // The next request looks at the file.
  void reload();

 private:
  struct Key {
    std::string secret;
    std::string name;
    TenantLimits limits;
    std::shared_ptr<Tenant> tenant;
  };
  using Keys = std::shared_ptr<const std::vector<Key>>;
  ApiKeys() = default;
  template <class Match>
  std::shared_ptr<Tenant> find_by(Match match);
  Keys current();
  Result<std::vector<Key>> read_file() const;
  Result<Key> parse_line(std::string_view line, size_t number) const;
  Keys settle(std::vector<Key> keys);

  std::string own_, file_, option_;
  bool limited_ = true;
  Logger log_;
  std::mutex mutex_;
  Keys keys_;                                                            // guarded by mutex_, as is all below
  std::map<std::string, std::shared_ptr<Tenant>, std::less<>> tenants_;  // by name
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
