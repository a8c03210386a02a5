// The files of /v1/files, in a folder of the server: DIR/files/ID holds the bytes, and ID.json what they are.
// A file is there whole or not at all, also after a crash. Bounded: bytes and number of files. Names that
// clients give are kept, and never become paths. One server has the folder at a time.
//
// A file belongs to the key it came with (its name); another's is NOT_FOUND, like one that never was. Any
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"
#include "engine/base/log.h"
#include "engine/base/status.h"
#include "server/api/fields.h"

namespace oar::api {

struct StoredFile {
  std::string id, owner, name, purpose;
  uint64_t bytes = 0;
  int64_t created_us = 0;          // since the epoch
  std::optional<int64_t> expires;  // seconds since the epoch; from then on it is gone
  json::object json() const;       // OpenAI's object
};

// What an upload says beside its bytes: `fields` are the parts of its form.
struct UploadRequest {
  std::string name, purpose;
  std::optional<int64_t> keep_seconds;
};
Result<UploadRequest> parse_upload(const RequestBody& fields);

class FileStore {
 public:
  static constexpr uint64_t kDefaultBytes = uint64_t{4} << 30;
  static constexpr size_t kMaxFiles = 10'000;

  // Makes the folder where it is missing, and finds what an earlier server left there. UNAVAILABLE when it
  // cannot be written, FAILED_PRECONDITION when another server has it.
  static Result<std::unique_ptr<FileStore>> open(const std::string& folder, uint64_t max_bytes, Logger log);
  ~FileStore();

  Result<StoredFile> put(const std::string& owner, const UploadRequest& upload, std::string_view content);
  Result<StoredFile> find(const std::string& owner, const std::string& id);
  std::vector<StoredFile> list(const std::string& owner);  // oldest first
  // FAILED_PRECONDITION while somebody holds it.
  Status erase(const std::string& owner, const std::string& id);
  std::string path_of(const std::string& id) const;
  // Null when it is not there. It stays as long as the handle: it neither expires nor is deleted.
  std::shared_ptr<const StoredFile> hold(const std::string& owner, const std::string& id);

  // For files that are written here first, at folder()/...: room is taken as they grow, and then they become
  // files of the store by a rename. RESOURCE_EXHAUSTED when there is no more.
  const std::string& folder() const { return folder_; }
  Status take(uint64_t bytes);
  void count(uint64_t bytes);  // takes what lies there already, room or not
  void give_back(uint64_t bytes);
  Status adopt(StoredFile file, const std::string& path);

  uint64_t used() const;

 private:
  FileStore() = default;
  struct Entry {
    StoredFile file;
    std::weak_ptr<const StoredFile> held;
  };
  using Entries = std::map<std::string, Entry, std::less<>>;
  Status scan();
  void drop_expired();                                                                // with the lock
  void remove(Entries::iterator at);                                                  // with the lock
  Result<Entries::iterator> locate(const std::string& owner, const std::string& id);  // with the lock

  std::string folder_;
  uint64_t max_bytes_ = 0;
  Logger log_;
  int lock_ = -1;  // a descriptor
  mutable std::mutex mutex_;
  Entries files_;      // guarded by mutex_, as is the next
  uint64_t used_ = 0;  // of files, and taken
};

int64_t now_us();  // since the epoch
// An id as make_id() makes them, which may be part of a path.
bool is_stored_id(std::string_view id);
// Replaces the file at `path`, whole or not at all.
Status write_whole(const std::string& path, std::string_view text);

}  // namespace oar::api
