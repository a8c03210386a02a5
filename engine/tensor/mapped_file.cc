#include "engine/tensor/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>

#include "engine/base/format.h"
#include "engine/tensor/embedded_files.h"

namespace oar {
namespace {

namespace fs = std::filesystem;

std::span<const EmbeddedFile> g_embedded;  // a property of the program, as its name is

const EmbeddedFile* find_embedded(std::string_view path) {
  for (const EmbeddedFile& f : g_embedded) {
    if (f.path == path) return &f;
  }
  return nullptr;
}

// The name within `folder` of an embedded file that lies in it, else empty.
std::string_view name_in(const EmbeddedFile& f, const std::string& folder) {
  const std::string_view path = f.path;
  const bool inside = path.size() > folder.size() && path.starts_with(folder) && path[folder.size()] == '/';
  return inside ? path.substr(folder.size() + 1) : std::string_view();
}

Status errno_status(const std::string& path, std::string_view action, int error) {
  const std::string message = cat("cannot ", action, " ", path, ": ", std::generic_category().message(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR: return {StatusCode::kNotFound, message};
    case EACCES:
    case EPERM: return {StatusCode::kPermissionDenied, message};
    case ENOMEM:
    case EMFILE:
    case ENFILE: return {StatusCode::kResourceExhausted, message};
    case ENAMETOOLONG:
    case EISDIR:
    case ELOOP: return {StatusCode::kInvalidArgument, message};
    default: return {StatusCode::kUnavailable, message};
  }
}

// Owns a descriptor until release().
struct Descriptor {
  int fd = -1;
  Descriptor() = default;
  Descriptor(Descriptor&& other) noexcept : fd(other.release()) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  int release() { return std::exchange(fd, -1); }
};

struct OpenFile {
  Descriptor descriptor;
  uint64_t size = 0;
};

Result<OpenFile> open_regular(const std::string& path) {
  if (path.find('\0') != std::string::npos) return invalid_argument("a file path contains a NUL byte");
  OpenFile file;
  // O_NONBLOCK: a FIFO given by mistake must be refused below, not waited for.
  do file.descriptor.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  while (file.descriptor.fd < 0 && errno == EINTR);
  if (file.descriptor.fd < 0) return errno_status(path, "open", errno);
  struct stat st;
  if (::fstat(file.descriptor.fd, &st) != 0) return errno_status(path, "stat", errno);
  if (!S_ISREG(st.st_mode)) return invalid_argument(cat(path, " is not a regular file"));
  file.size = static_cast<uint64_t>(st.st_size);
  return file;
}

Status report(const Progress& progress, const std::string& path, uint64_t done, uint64_t total) {
  if (!progress || progress(path, done, total)) return ok_status();
  return {StatusCode::kCancelled, cat("loading ", path, " was cancelled")};
}

Status read_fully(int fd, const std::string& path, void* data, uint64_t size, const Progress& progress) {
  constexpr uint64_t kChunk = uint64_t{64}
                              << 20;  // large enough for full speed, small enough to report often
  uint64_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd, static_cast<std::byte*>(data) + done, std::min(size - done, kChunk),
                              static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status(path, "read", errno);
    if (n == 0) return data_loss(cat(path, " shrank while it was read: got ", done, " of ", size, " bytes"));
    done += static_cast<uint64_t>(n);
    OAR_RETURN_IF_ERROR(report(progress, path, done, size));
  }
  return ok_status();
}

// Where files are mapped, for mapped_file_at(). A signal handler can neither lock nor be handed an object,
// hence a table of the process; a file that finds no room in it works, and merely has no name in a fault's
// message.
struct MappedRange {
  std::atomic<const std::byte*> begin{nullptr};  // null: free
  std::atomic<uint64_t> size{0};
  std::atomic<const char*> path{nullptr};
};
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);
MappedRange g_ranges[1024];
std::mutex g_ranges_mutex;  // of those who change it

void note_mapping(const std::byte* begin, uint64_t size, const char* path) {
  const std::lock_guard lock(g_ranges_mutex);
  for (MappedRange& r : g_ranges) {
    if (r.begin != nullptr) continue;
    r.size = size;
    r.path = path;
    r.begin = begin;
    return;
  }
}

void forget_mapping(const std::byte* begin) {
  const std::lock_guard lock(g_ranges_mutex);
  for (MappedRange& r : g_ranges) {
    if (r.begin == begin) r.begin = nullptr;
  }
}

}  // namespace

void set_embedded_files(std::span<const EmbeddedFile> files) { g_embedded = files; }
std::span<const EmbeddedFile> embedded_files() { return g_embedded; }

const char* mapped_file_at(const void* address) noexcept {
  const auto at = reinterpret_cast<uintptr_t>(address);
  for (const MappedRange& r : g_ranges) {
    const auto begin = reinterpret_cast<uintptr_t>(r.begin.load());
    if (begin != 0 && at >= begin && at - begin < r.size) return r.path;
  }
  return nullptr;
}

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path,
                                                           const FileOptions& options) {
  auto file = std::shared_ptr<MappedFile>(new MappedFile());
  file->path_ = path;
  if (const EmbeddedFile* embedded = find_embedded(path)) {
    file->size_ = embedded->size;
    if (options.mmap) {
      file->data_ = embedded->data;
      file->mapped_ = true;
      if (options.will_need) ::madvise(const_cast<std::byte*>(file->data_), file->size_, MADV_WILLNEED);
    } else {
      OAR_ASSIGN(file->copy_, Buffer::allocate(embedded->size));
      memcpy(file->copy_.mutable_data(), embedded->data, embedded->size);
      file->data_ = static_cast<const std::byte*>(file->copy_.data());
    }
    OAR_RETURN_IF_ERROR(report(options.progress, path, file->size_, file->size_));
    return std::shared_ptr<const MappedFile>(file);
  }
  OAR_ASSIGN(OpenFile source, open_regular(path));
  file->size_ = source.size;
  if (source.size == 0) return std::shared_ptr<const MappedFile>(file);
  if (source.size > PTRDIFF_MAX) return resource_exhausted(cat(path, " is too large to address"));

  if (!options.mmap) {
    OAR_ASSIGN(file->copy_, Buffer::allocate(source.size));
    OAR_RETURN_IF_ERROR(
        read_fully(source.descriptor.fd, path, file->copy_.mutable_data(), source.size, options.progress));
    file->data_ = static_cast<const std::byte*>(file->copy_.data());
    return std::shared_ptr<const MappedFile>(file);
  }
  // MAP_SHARED: the page cache itself, shared with every other process that serves the same model.
  void* p = ::mmap(nullptr, source.size, PROT_READ, MAP_SHARED, source.descriptor.fd, 0);
  if (p == MAP_FAILED) return errno_status(path, "map", errno);
  file->data_ = static_cast<const std::byte*>(p);
  file->mapped_ = true;
  note_mapping(file->data_, file->size_, file->path_.c_str());
  file->fd_ = source.descriptor.release();
  // Advice only: a kernel or file system without it loses speed, not correctness.
  if (options.will_need) ::madvise(p, source.size, MADV_WILLNEED);
#ifdef MADV_HUGEPAGE
  if (options.huge_pages) ::madvise(p, source.size, MADV_HUGEPAGE);
#endif
  OAR_RETURN_IF_ERROR(report(options.progress, path, source.size, source.size));
  return std::shared_ptr<const MappedFile>(file);
}

MappedFile::~MappedFile() {
  if (fd_ < 0) return;  // a copy, or the program's own pages
  forget_mapping(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
  ::close(fd_);
}

Status MappedFile::still_whole() const {
  if (fd_ < 0) return ok_status();
  struct stat st;
  if (::fstat(fd_, &st) != 0) return errno_status(path_, "stat", errno);
  if (static_cast<uint64_t>(st.st_size) != size_) {
    return data_loss(
        cat(path_, " changed from ", size_, " to ", static_cast<int64_t>(st.st_size),
            " bytes while it was loaded; replace models by renaming a new file over the old one"));
  }
  return ok_status();
}

Buffer file_slice(const std::shared_ptr<const MappedFile>& file, uint64_t offset, uint64_t size) {
  const Buffer whole = file->mapped() ? Buffer::wrap_mapped(file->data(), file->size(), file)
                                      : Buffer::wrap_const(file->data(), file->size(), file);
  return whole.slice(offset, size);
}

Result<std::string> read_small_file(const std::string& path, uint64_t max_size) {
  const auto too_large = [&](uint64_t size) {
    return resource_exhausted(cat(path, " has ", size, " bytes; at most ", max_size, " are accepted"));
  };
  if (const EmbeddedFile* embedded = find_embedded(path)) {
    if (embedded->size > max_size) return too_large(embedded->size);
    return std::string(reinterpret_cast<const char*>(embedded->data), embedded->size);
  }
  OAR_ASSIGN(OpenFile source, open_regular(path));
  if (source.size > max_size) return too_large(source.size);
  std::string text(source.size, '\0');
  OAR_RETURN_IF_ERROR(read_fully(source.descriptor.fd, path, text.data(), text.size(), {}));
  return text;
}

bool is_regular_file(const std::string& path) {
  std::error_code ec;
  return find_embedded(path) != nullptr || fs::is_regular_file(path, ec);
}

bool is_folder(const std::string& path) {
  std::error_code ec;
  return std::any_of(g_embedded.begin(), g_embedded.end(),
                     [&](const EmbeddedFile& f) { return !name_in(f, path).empty(); }) ||
         fs::is_directory(path, ec);
}

std::vector<std::string> files_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const EmbeddedFile& f : g_embedded) {
    if (const std::string_view name = name_in(f, folder); !name.empty()) names.emplace_back(name);
  }
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->is_regular_file(ec)) names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace oar
