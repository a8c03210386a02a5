#include "server/api/file_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/format.h"
#include "server/api/frontend.h"
#include "server/api/tensor_wire.h"

namespace oar::api {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxName = 1024;
constexpr int64_t kLeastSeconds = 3600, kMostSeconds = 30 * 86400;  // OpenAI's

Status cannot_write(const std::string& path) {
  return unavailable(cat("files: ", path, " cannot be written: ", std::strerror(errno)));
}

json::object on_disk(const StoredFile& f) {
  json::object out = f.json();
  out["owner"] = f.owner;
  out["created_us"] = f.created_us;
  return out;
}

Result<StoredFile> from_disk(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  text << in.rdbuf();
  OAR_ASSIGN(const json::value v, parse_json(text.str(), path.filename().string()));
  const auto wrong = [&](const char* field) {
    return data_loss(cat(path.filename().string(), ": ", field, " is missing or no such value"));
  };
  const json::object* o = v.if_object();
  if (o == nullptr) return wrong("object");
  StoredFile f;
  for (const auto& [name, to] :
       {std::pair{"id", &f.id}, {"owner", &f.owner}, {"filename", &f.name}, {"purpose", &f.purpose}}) {
    const json::value* text = o->if_contains(name);
    if (text == nullptr || !text->is_string()) return wrong(name);
    *to = text->get_string();
  }
  const json::value* bytes = o->if_contains("bytes");
  const json::value* created = o->if_contains("created_us");
  if (bytes == nullptr || !bytes->is_int64() || bytes->get_int64() < 0) return wrong("bytes");
  if (created == nullptr || !created->is_int64()) return wrong("created_us");
  f.bytes = static_cast<uint64_t>(bytes->get_int64());
  f.created_us = created->get_int64();
  if (const json::value* e = o->if_contains("expires_at"); e != nullptr && e->is_int64())
    f.expires = e->get_int64();
  if (!is_stored_id(f.id) || path.stem() != f.id) return wrong("id");
  return f;
}

// Writes `text` to a new file at `path`, and to the disk.
Status write_new(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return cannot_write(path);
  Status out;
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      out = cannot_write(path);
      break;
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  if (out.ok() && ::fsync(fd) != 0) out = cannot_write(path);
  ::close(fd);
  if (!out.ok()) ::unlink(path.c_str());
  return out;
}

Status move_to(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return cannot_write(to);
  const int folder = ::open(fs::path(to).parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);  // the name; without it a crash may bring the old one back, which is whole too
    ::close(folder);
  }
  return ok_status();
}

}  // namespace

int64_t now_us() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(since).count();
}

bool is_stored_id(std::string_view id) {
  return !id.empty() && id.size() <= 64 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  });
}

Status write_whole(const std::string& path, std::string_view text) {
  const std::string fresh = path + ".new";
  OAR_RETURN_IF_ERROR(write_new(fresh, text));
  return move_to(fresh, path);
}

json::object StoredFile::json() const {
  return {{"id", id},
          {"object", "file"},
          {"bytes", bytes},
          {"created_at", created_us / 1'000'000},
          {"expires_at", expires ? json::value(*expires) : json::value()},
          {"filename", name},
          {"purpose", purpose},
          {"status", "processed"}};
}

Result<UploadRequest> parse_upload(const RequestBody& fields) {
  UploadRequest out;
  Fields f(fields);
  f.require("file", "send the file as a part of that name, with a file name");
  f.string("file", out.name, kMaxName);
  f.require("purpose", "it is batch");
  f.string("purpose", out.purpose, 64);
  std::string anchor;
  f.string("expires_after[anchor]", anchor, 64);
  f.integer("expires_after[seconds]", out.keep_seconds, kLeastSeconds, kMostSeconds);
  if (f.ok() && !out.purpose.empty() && out.purpose != "batch")
    f.fail("purpose", cat("purpose: files for '", out.purpose.substr(0, 64),
                          "' are not read by anything here; use batch"));
  if (f.ok() && !anchor.empty() && anchor != "created_at")
    f.fail("expires_after[anchor]", "expires_after[anchor] must be created_at");
  if (f.ok() && anchor.empty() != !out.keep_seconds)
    f.fail("expires_after[anchor]", "expires_after needs both anchor (created_at) and seconds");
  f.refuse_rest();
  if (!f.ok()) return f.status();
  return out;
}

Result<std::unique_ptr<FileStore>> FileStore::open(const std::string& folder, uint64_t max_bytes,
                                                   Logger log) {
  std::unique_ptr<FileStore> out(new FileStore);
  out->folder_ = folder;
  out->max_bytes_ = max_bytes;
  out->log_ = std::move(log);
  std::error_code ec;
  fs::create_directories(fs::path(folder) / "files", ec);
  if (ec) return unavailable(cat("files: the folder ", folder, " cannot be made: ", ec.message()));
  const std::string lock = (fs::path(folder) / "lock").string();
  out->lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (out->lock_ < 0) return cannot_write(lock);
  if (::flock(out->lock_, LOCK_EX | LOCK_NB) != 0)
    return Status(StatusCode::kFailedPrecondition,
                  cat("files: another server has the folder ", folder, "; give this one its own"), "files");
  OAR_RETURN_IF_ERROR(out->scan());
  return out;
}

FileStore::~FileStore() {
  if (lock_ >= 0) ::close(lock_);
}

Status FileStore::scan() {
  std::error_code ec;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(fs::path(folder_) / "files", ec))
    paths.push_back(entry.path());
  if (ec) return unavailable(cat("files: ", folder_, " cannot be read: ", ec.message()));
  for (const fs::path& path : paths) {
    if (path.extension() == ".new") {  // of a crash; its name was never given out
      fs::remove(path, ec);
      continue;
    }
    if (path.extension() != ".json") continue;
    Result<StoredFile> file = from_disk(path);
    if (file.ok()) {
      const auto size = fs::file_size(path_of(file->id), ec);
      // The description is written first.
      if (ec || size != file->bytes)
        file = data_loss(cat(path.filename().string(), ": its bytes are not there"));
    }
    if (!file.ok()) {
      log_(LogLevel::kWarning, cat("files: left out: ", file.status().message()));
      continue;
    }
    used_ += file->bytes;
    const std::string id = file->id;
    files_.emplace(id, Entry{std::move(*file), {}});
  }
  return ok_status();
}

std::string FileStore::path_of(const std::string& id) const {
  return (fs::path(folder_) / "files" / id).string();
}

void FileStore::remove(Entries::iterator at) {
  const std::string path = path_of(at->first);
  ::unlink(path.c_str());
  ::unlink((path + ".json").c_str());
  used_ -= std::min(used_, at->second.file.bytes);
  files_.erase(at);
}

void FileStore::drop_expired() {
  const int64_t at = now_us() / 1'000'000;
  for (auto it = files_.begin(); it != files_.end();) {
    const auto next = std::next(it);
    if (it->second.file.expires && *it->second.file.expires <= at && it->second.held.expired()) remove(it);
    it = next;
  }
}

Result<FileStore::Entries::iterator> FileStore::locate(const std::string& owner, const std::string& id) {
  drop_expired();
  const auto it = files_.find(id);
  if (it == files_.end() || it->second.file.owner != owner)
    return Status(StatusCode::kNotFound, cat("there is no file ", in_quotes(id), ", or no longer"),
                  "file_id");
  return it;
}

Status FileStore::take(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes > max_bytes_ - std::min(max_bytes_, used_)) drop_expired();
  if (bytes > max_bytes_ - std::min(max_bytes_, used_))
    return resource_exhausted(cat("files: ", used_, " of ", max_bytes_, " bytes are taken, and ", bytes,
                                  " more are asked for; delete files"));
  used_ += bytes;
  return ok_status();
}

void FileStore::count(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  used_ += bytes;
}

void FileStore::give_back(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  used_ -= std::min(used_, bytes);
}

Status FileStore::adopt(StoredFile file, const std::string& path) {
  const std::string to = path_of(file.id);
  OAR_RETURN_IF_ERROR(write_whole(to + ".json", json::serialize(on_disk(file))));
  if (Status s = move_to(path, to); !s.ok()) {
    ::unlink((to + ".json").c_str());
    return s;
  }
  const std::lock_guard lock(mutex_);
  const std::string id = file.id;
  files_.insert_or_assign(id, Entry{std::move(file), {}});
  return ok_status();
}

Result<StoredFile> FileStore::put(const std::string& owner, const UploadRequest& upload,
                                  std::string_view content) {
  {
    const std::lock_guard lock(mutex_);
    drop_expired();
    if (files_.size() >= kMaxFiles)
      return resource_exhausted(
          cat("files: there are ", files_.size(), ", the most that are kept; delete some"));
  }
  OAR_RETURN_IF_ERROR(take(content.size()));
  StoredFile file;
  file.id = make_id("file-");
  file.owner = owner;
  file.name = upload.name;
  file.purpose = upload.purpose;
  file.bytes = content.size();
  file.created_us = now_us();
  if (upload.keep_seconds) file.expires = file.created_us / 1'000'000 + *upload.keep_seconds;
  const std::string fresh = path_of(file.id) + ".new";
  Status s = write_new(fresh, content);
  if (s.ok()) s = adopt(file, fresh);
  if (!s.ok()) {
    ::unlink(fresh.c_str());
    give_back(content.size());
    return s;
  }
  return file;
}

Result<StoredFile> FileStore::find(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  OAR_ASSIGN(const auto it, locate(owner, id));
  return it->second.file;
}

std::shared_ptr<const StoredFile> FileStore::hold(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = locate(owner, id);
  if (!it.ok()) return nullptr;
  Entry& entry = (*it)->second;
  auto held = entry.held.lock();
  if (held == nullptr) entry.held = held = std::make_shared<const StoredFile>(entry.file);
  return held;
}

std::vector<StoredFile> FileStore::list(const std::string& owner) {
  const std::lock_guard lock(mutex_);
  drop_expired();
  std::vector<StoredFile> out;
  for (const auto& [id, entry] : files_)
    if (entry.file.owner == owner) out.push_back(entry.file);
  std::stable_sort(out.begin(), out.end(),
                   [](const StoredFile& a, const StoredFile& b) { return a.created_us < b.created_us; });
  return out;
}

Status FileStore::erase(const std::string& owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  OAR_ASSIGN(const auto it, locate(owner, id));
  if (!it->second.held.expired())
    return Status(StatusCode::kFailedPrecondition,
                  cat("the file ", in_quotes(id), " is read by a batch; cancel that first"), "file_id");
  remove(it);
  return ok_status();
}

uint64_t FileStore::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

}  // namespace oar::api
