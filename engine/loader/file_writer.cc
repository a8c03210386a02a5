#include "engine/loader/file_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "engine/base/format.h"

namespace oar {

Status io_error(const std::string& what, const std::string& path, int error) {
  const bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
  return {full ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
          cat(what, " ", path, ": ", std::strerror(error),
              full ? "; free space there or choose another folder" : "")};
}

int write_at(int fd, const void* data, uint64_t size, uint64_t offset) {
  const char* p = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = pwrite(fd, p, size, static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    p += n, offset += static_cast<uint64_t>(n), size -= static_cast<uint64_t>(n);
  }
  return 0;
}

Status write_file(const std::string& path, std::span<const std::string_view> pieces,
                  const std::string& named) {
  const int fd = open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) return io_error("cannot create", named, errno);
  int error = 0;
  uint64_t at = 0;
  for (const std::string_view piece : pieces) {
    if (error == 0) error = write_at(fd, piece.data(), piece.size(), at);
    at += piece.size();
  }
  if (error == 0 && fsync(fd) != 0) error = errno;
  if (close(fd) != 0 && error == 0) error = errno;
  return error == 0 ? ok_status() : io_error("cannot write", named, error);
}

namespace {
constexpr char kTemporary[] = ".tmp-";
}

Status replace_file(const std::string& path, const std::function<Status(const std::string&)>& write) {
  static std::atomic<int> serial{0};  // threads of one process may write the same file
  const std::string temporary = cat(path, kTemporary, static_cast<int64_t>(getpid()), "-", serial++);
  // The lock goes with the process, however it ends, and tells remove_orphans() which files nobody writes.
  const int fd = open(temporary.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (fd < 0) return io_error("cannot create", temporary, errno);
  flock(fd, LOCK_EX);  // without locks on this file system nothing is swept there either
  Status status = write(temporary);
  if (status.ok() && rename(temporary.c_str(), path.c_str()) != 0)
    status = io_error("cannot write", path, errno);
  if (!status.ok()) unlink(temporary.c_str());
  close(fd);
  OAR_RETURN_IF_ERROR(status);
  return sync_folder(std::filesystem::path(path).parent_path().string());
}

void remove_orphans(const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string path = it->path().string();
    if (path.find(kTemporary, folder.size()) == std::string::npos) continue;
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) continue;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
    close(fd);
  }
}

Status write_file_atomically(const std::string& path, std::span<const std::string_view> pieces) {
  return replace_file(path,
                      [&](const std::string& temporary) { return write_file(temporary, pieces, path); });
}

Status write_file_atomically(const std::string& path, std::string_view contents) {
  return write_file_atomically(path, std::span(&contents, 1));
}

Status sync_folder(const std::string& folder) {
  const int fd = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error("cannot open", folder, errno);
  const int error = fsync(fd) == 0 ? 0 : errno;
  close(fd);
  return error == 0 || error == EINVAL ? ok_status() : io_error("cannot sync", folder, error);
}

Status write_folder(const std::string& folder, std::string_view option,
                    const std::function<Status(const std::string& partial)>& write) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const auto no_folder = [&](const std::string& path) {
    return unavailable(cat("cannot write ", path, ": ", ec.message(), "; choose another ", option));
  };
  const std::string partial = folder + ".partial";
  if (fs::exists(folder, ec) && !fs::is_empty(folder, ec))
    return Status(StatusCode::kAlreadyExists,
                  cat(folder, " is there already; choose another ", option, " or remove it"));
  fs::remove_all(partial, ec);
  if (!fs::create_directories(partial, ec)) return no_folder(partial);
  if (Status s = write(partial); !s.ok()) {
    fs::remove_all(partial, ec);
    return s;
  }
  OAR_RETURN_IF_ERROR(sync_folder(partial));
  fs::remove(folder, ec);
  fs::rename(partial, folder, ec);
  if (ec) return no_folder(folder);
  return sync_folder(fs::path(folder).parent_path().string());
}

}  // namespace oar
